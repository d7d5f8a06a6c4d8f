"""Strangers hold neither memory nor connections of a node for long; real sockets, a real node."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import httpx
import pytest

from lithify.pulsar.connection_limits import CONNECT_BYTES_MAX
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.hostile.node import WatchedNode, watched_node
from tests.patience import PROCESS_S_MAX, wait_until
from tests.protocol.raw import RawClient, Type, send_frame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 2**20
CLIENTS = 150
FRAME_BYTES = 5 * MIB
UNFINISHED = struct.pack(">II", FRAME_BYTES, FRAME_BYTES - 4)
REQUEST = b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: node\r\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret of more than thirty-two bytes")
    return path


@contextmanager
def hostile_clients(port: int, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Connections that send some bytes, as many as the node takes, and then nothing."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            each = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=PROCESS_S_MAX)
            )
            found.append(each)
            send_what_is_taken(each, data)
        yield found


def send_what_is_taken(each: socket.socket, data: bytes) -> None:
    each.settimeout(0.01)
    # Either its buffer is full or the node has hung up.
    with suppress(OSError):
        each.sendall(data)
    each.settimeout(PROCESS_S_MAX)


def hung_up(each: socket.socket) -> bool:
    """Wait until the node hangs up."""
    try:
        while each.recv(2**16):
            pass
    except ConnectionError:
        pass
    return True


def idle(node: WatchedNode) -> None:
    """Wait until the node has closed all connections.

    Left are the two ports, and two sockets of each event loop: that of the clients and that of the
    cluster.
    """
    wait_until(lambda: node.sockets <= 6)


def test_large_frames_of_unauthenticated_clients(tmp_path: Path, secret: Path) -> None:
    """Neither one that says nothing, nor one whose token is bad, is taken at its word."""
    connect = wire.BaseCommand(type=Type.CONNECT)
    connect.connect.client_version = "stranger"
    connect.connect.auth_method_name = "token"
    connect.connect.auth_data = b"none"
    begun = encode_command(connect)
    with watched_node(tmp_path / "data", token_secret_file=secret, connect_timeout_ms=2000) as node:
        before = node.memory_bytes
        half = UNFINISHED + bytes(FRAME_BYTES // 2)
        small = struct.pack(">II", CONNECT_BYTES_MAX - 4, 100) + bytes(CONNECT_BYTES_MAX // 2)
        for data in (half, begun + half, small, begun + small):
            with hostile_clients(node.port, CLIENTS, data):
                assert node.memory_bytes - before < 40 * MIB
        for data in (b"", half, small):
            with hostile_clients(node.port, 10, data) as found:
                assert all(map(hung_up, found))
        idle(node)


def test_frames_that_are_never_finished(tmp_path: Path) -> None:
    """Of clients that may send large ones: all together are bounded, each ends after a time."""
    settings = {"receive_bytes_max": 16 * MIB, "frame_timeout_ms": 1500}
    with watched_node(tmp_path / "data", **settings) as node:
        before = node.memory_bytes
        with ExitStack() as stack:
            clients = [stack.enter_context(RawClient(node.port)) for _ in range(40)]
            for client in clients:
                send_what_is_taken(client.socket, UNFINISHED + bytes(4 * MIB))
            assert node.memory_bytes - before < 80 * MIB
            assert all(client.is_closed for client in clients)
        assert "receive_bytes_max" in node.logged()
        assert "frame_timeout_ms" in node.logged()
        with RawClient(node.port) as client:
            client.producer("large")
            client.send(send_frame(0, bytes(4 * MIB)))
            client.expect(Type.SEND_RECEIPT)


def test_a_slow_frame_is_no_unfinished_one(tmp_path: Path) -> None:
    """The time starts again with each frame, and a client that says little is not hung up on."""
    with (
        watched_node(tmp_path / "data", frame_timeout_ms=3000) as node,
        RawClient(node.port) as one,
    ):
        one.producer("slow")
        frame = send_frame(0, b"x" * 100)
        for _ in range(12):
            one.send(frame[:50])
            one.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                one.socket.recv(1)
            one.socket.settimeout(PROCESS_S_MAX)
            one.send(frame[50:])
            one.expect(Type.SEND_RECEIPT)


@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
def test_connections_are_counted(tmp_path: Path, limit: str) -> None:
    with watched_node(tmp_path / "data", **{limit: 20}) as node:
        for port, hello in ((node.port, b""), (node.http_port, b"")):
            with hostile_clients(port, 20, hello), hostile_clients(port, 30, hello) as refused:
                assert all(map(hung_up, refused))
            idle(node)
        assert limit in node.logged()
        assert node.logged().count("connection refused") < 20
        with RawClient(node.port) as client:
            client.ping()
        assert httpx.get(f"http://127.0.0.1:{node.http_port}/admin/v2/brokers/health").is_success


def test_requests_that_are_never_finished(tmp_path: Path) -> None:
    body = b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000\r\n\r\n{"
    settings = {"connect_timeout_ms": 1000, "frame_timeout_ms": 1500}
    with watched_node(tmp_path / "data", **settings) as node:
        before = node.memory_bytes
        with ExitStack() as stack:
            found = []
            for data in (b"", b"G", REQUEST, REQUEST + b"X: " + b"a" * 30_000, body):
                found += stack.enter_context(hostile_clients(node.http_port, CLIENTS, data))
            assert node.memory_bytes - before < 100 * MIB
            assert all(map(hung_up, found))
        idle(node)


def test_headers_that_come_a_byte_at_a_time(tmp_path: Path) -> None:
    """Each byte is no reason to wait for longer."""
    with (
        watched_node(tmp_path / "data", connect_timeout_ms=1000) as node,
        socket.create_connection(("127.0.0.1", node.http_port), timeout=0.1) as each,
    ):
        for _ in range(100):
            try:
                each.sendall(b"G")
                if not each.recv(1):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("the connection was not closed")


def test_headers_without_end(tmp_path: Path) -> None:
    data = REQUEST + b"X: " + b"a" * MIB
    with watched_node(tmp_path / "data") as node, hostile_clients(node.http_port, 1, data) as found:
        assert hung_up(found[0])


def test_invalid_http_leaves_no_traceback(tmp_path: Path) -> None:
    post = b"POST %b HTTP/1.1\r\nHost: node\r\n"
    chunks = post % b"/admin/v2/brokers/health" + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
    cut = post % b"/topics/persistent/public/default/t" + b"Content-Length: 100\r\n\r\n{"
    with watched_node(tmp_path / "data") as node:
        for data in (chunks, cut):
            with hostile_clients(node.http_port, 1, data) as found:
                if data is chunks:
                    assert found[0].recv(12) == b"HTTP/1.1 400"
        with hostile_clients(node.http_port, 1, REQUEST + b"\r\n") as found:
            assert found[0].recv(12) == b"HTTP/1.1 200", "and what came before is dealt with"
        logged = node.logged()
    assert "Traceback" not in logged


def test_hundreds_of_headers_are_not_parsed(tmp_path: Path) -> None:
    many, enough = (REQUEST + b"a:b\r\n" * count + b"\r\n" for count in (6000, 150))
    with watched_node(tmp_path / "data") as node:
        with hostile_clients(node.http_port, 1, many) as found:
            assert hung_up(found[0])
        with hostile_clients(node.http_port, 1, enough) as found:
            assert found[0].recv(12) == b"HTTP/1.1 200"


def test_a_request_without_a_token_is_not_read(tmp_path: Path, secret: Path) -> None:
    """The answer comes before the body, of which the node keeps nothing."""
    head = b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000\r\n\r\n"
    with (
        watched_node(tmp_path / "data", token_secret_file=secret) as node,
        hostile_clients(node.http_port, 1, head + b"{") as found,
    ):
        assert found[0].recv(100).startswith(b"HTTP/1.1 401")
