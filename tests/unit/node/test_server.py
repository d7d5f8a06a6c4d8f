from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lithify.clock import ManualClock
from lithify.errors import InvalidInput, LogClosed
from lithify.fs import LocalFileSystem
from lithify.metastore.machine import MetastoreMachine
from lithify.node.node import Node
from lithify.node.server import CannotListen, authority, maintain_files
from lithify.node.settings import NodeSettings
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.settings import Durability
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lithify.node.server import Addresses, MakeApp


def open_node(path: Path, **settings: Any) -> Node:
    return Node(NodeSettings(str(path / "data"), pulsar_port=0, http_port=0, **settings))


@asynccontextmanager
async def serving(node: Node, make_app: MakeApp | None = None) -> AsyncIterator[Addresses]:
    stop = asyncio.Event()
    ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(node.serve(stop=stop, ready=ready.set_result, make_app=make_app))
    task.add_done_callback(lambda _: ready.done() or ready.cancel())
    try:
        yield await ready
    except asyncio.CancelledError:
        await task  # It says why it never was ready.
        raise
    finally:
        stop.set()
        await asyncio.wait_for(task, PROCESS_S_MAX)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def connect_frame() -> bytes:
    command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = 20
    body: bytes = command.SerializeToString()
    return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


def test_a_client_connects_and_is_hung_up_on_when_the_node_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A connection that has nothing left to send is not waited for.
    monkeypatch.setattr("lithify.node.server.GOODBYE_S", 60.0)

    async def story() -> None:
        with open_node(tmp_path, message_bytes_max=2**20) as node:
            async with serving(node) as addresses:
                assert addresses.pulsar.startswith("pulsar://127.0.0.1:")
                assert addresses.http is None
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port_of(addresses.pulsar)
                )
                writer.write(connect_frame())
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = wire.BaseCommand.FromString((await reader.readexactly(size))[4:])
                assert answer.connected.server_version.startswith("Lithify ")
                assert answer.connected.max_message_size == 2**20
            assert await reader.read() == b""
            await close(writer)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port_of(addresses.pulsar))

    asyncio.run(story())


async def hello(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The smallest application that answers."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})


def test_http_is_answered_in_the_same_loop_by_an_application_that_knows_the_broker(
    tmp_path: Path,
) -> None:
    urls = []

    def make_app(broker: Any, _: Any) -> Any:
        urls.append(broker.service_url)
        return hello

    async def story() -> None:
        with open_node(tmp_path) as node:
            async with serving(node, make_app) as addresses:
                assert urls == [addresses.pulsar]
                assert addresses.http is not None
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(addresses.http))
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert b"hello" in await reader.read()
                await close(writer)

    asyncio.run(story())


@pytest.mark.parametrize("setting", ["pulsar_port", "http_port"])
def test_a_port_that_is_taken_is_named_with_its_setting(tmp_path: Path, setting: str) -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            settings = NodeSettings(
                str(tmp_path / "data"), **{"pulsar_port": 0, "http_port": 0, setting: port}
            )
            with Node(settings) as node, pytest.raises(CannotListen) as caught:
                async with serving(node, lambda *_: hello):
                    raise AssertionError("it is serving")
        text = f"cannot listen at 127.0.0.1:{port} ({setting}): "
        assert str(caught.value) == text + "Address already in use"

    asyncio.run(story())


def test_clients_get_the_advertised_host(tmp_path: Path) -> None:
    async def story() -> None:
        everywhere = {"pulsar_host": "0.0.0.0", "allow_open": True}
        with open_node(tmp_path, advertised_host="node1", **everywhere) as node:
            async with serving(node) as addresses:
                assert addresses.pulsar.startswith("pulsar://node1:")

    asyncio.run(story())


def test_an_ipv6_address_is_in_brackets() -> None:
    assert authority("::1", 6650) == "[::1]:6650"
    assert authority("127.0.0.1", 6650) == "127.0.0.1:6650"


def self_signed(directory: Path) -> tuple[str, str]:
    """The files of a certificate for 127.0.0.1 and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    unlocked = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "node.pem").write_bytes(certificate.public_bytes(encoding))
    (directory / "node.key").write_bytes(key.private_bytes(encoding, *unlocked))
    return str(directory / "node.pem"), str(directory / "node.key")


def test_with_a_certificate_both_ports_speak_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    trusting = ssl.create_default_context(cafile=certificate)

    async def story() -> None:
        node = open_node(tmp_path, tls_certificate_file=certificate, tls_key_file=key)
        with node:
            async with serving(node, lambda *_: hello) as addresses:
                assert addresses.pulsar.startswith("pulsar+ssl://127.0.0.1:")
                assert addresses.http is not None
                assert addresses.http.startswith("https://127.0.0.1:")
                for url, sent, awaited in (
                    (addresses.pulsar, connect_frame(), b"Lithify"),
                    (addresses.http, b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
                ):
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", port_of(url), ssl=trusting
                    )
                    writer.write(sent)
                    assert awaited in await reader.read(100)
                    await close(writer)

    asyncio.run(story())


def interval_node(tmp_path: Path, clock: ManualClock) -> tuple[Node, FaultyFileSystem]:
    fs = FaultyFileSystem(LocalFileSystem(), record=True)
    settings = NodeSettings(str(tmp_path / "data"), durability=Durability.INTERVAL)
    return Node(settings, fs=fs, clock=clock), fs


def synced(fs: FaultyFileSystem) -> list[str]:
    """The topics whose messages were made durable since it was last asked."""
    lines = [line for line in fs.trace if line.startswith("fdatasync") and "/log/" in line]
    fs.trace.clear()
    return [line.split("/log/")[0].rpartition("/")[2] for line in lines]


def test_maintenance_makes_writes_durable_after_the_interval(tmp_path: Path) -> None:
    clock = ManualClock()
    node, fs = interval_node(tmp_path, clock)
    with node:
        topic = node.topics.get("t", create=True)
        topic.append(value=b"soon durable")
        fs.trace.clear()
        maintain_files([topic])
        assert synced(fs) == []
        clock.advance(1)
        maintain_files([topic])
        assert synced(fs) == ["t"]
        clock.advance(1)
        maintain_files([topic])
        assert synced(fs) == [], "nothing new"


def test_a_failing_or_deleted_topic_does_not_block_the_others(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    node, fs = interval_node(tmp_path, clock)
    with node:
        topics = [node.topics.get(name, create=True) for name in ("gone", "sick", "well")]
        for topic in topics:
            topic.append(value=b"x")
        node.topics.delete("gone")
        clock.advance(1)
        fs.trace.clear()
        fs.add(Fault("fdatasync", path="*/sick/*"))
        maintain_files(topics)
        assert synced(fs) == ["sick", "well"]


def test_a_serving_node_maintains_its_topics(tmp_path: Path) -> None:
    fs = FaultyFileSystem(LocalFileSystem(), record=True)
    settings = NodeSettings(
        str(tmp_path / "data"), pulsar_port=0, durability=Durability.INTERVAL, sync_interval_ms=1
    )

    async def story() -> None:
        with Node(settings, fs=fs) as node:
            topic = node.topics.get("t", create=True)
            async with serving(node):
                fs.trace.clear()
                topic.append(value=b"soon durable")
                while not synced(fs):  # The test's own time limit is that of the loop.
                    await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(story(), PROCESS_S_MAX))


def test_the_node_registers_its_addresses_while_it_serves(tmp_path: Path) -> None:
    async def story() -> None:
        with open_node(tmp_path) as node, open_node(tmp_path / "other") as other:
            assert node.cluster.nodes()[node.cluster.name].pulsar == ""
            async with serving(node) as addresses:
                known = node.cluster.nodes()[node.cluster.name]
                assert (known.pulsar, known.cluster) == (addresses.pulsar, "")
                assert addresses.cluster is None
            assert other.cluster.name != node.cluster.name

    asyncio.run(story())


def test_a_raft_directory_of_another_node_stops_the_start(tmp_path: Path) -> None:
    open_node(tmp_path, node="n1").close()
    for _ in range(2):
        # The directory is released each time.
        with pytest.raises(InvalidInput, match="belongs to node n1 of cluster lithify, not to n2"):
            open_node(tmp_path, node="n2")
    open_node(tmp_path, node="n1").close()


def test_a_raft_node_that_fails_stops_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> bytes:
        raise RuntimeError("no such query")

    async def story() -> None:
        with open_node(tmp_path) as node:
            stop = asyncio.Event()
            ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(node.serve(stop=stop, ready=ready.set_result))
            await ready
            with monkeypatch.context() as patched:
                patched.setattr(MetastoreMachine, "query", fails)
                with suppress(Exception):
                    await asyncio.wrap_future(node.cluster.call(node.cluster.metastore.status))
                await asyncio.wait_for(task, PROCESS_S_MAX)

    with pytest.raises(RuntimeError, match="no such query"):
        asyncio.run(story())


def test_a_raft_node_that_fails_while_nothing_serves_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> bytes:
        raise RuntimeError("no such query")

    with open_node(tmp_path) as node:
        with monkeypatch.context() as patched:
            patched.setattr(MetastoreMachine, "query", fails)
            with suppress(Exception):
                node.cluster.call(node.cluster.metastore.status).result(PROCESS_S_MAX)
        node.cluster.close()
        with pytest.raises(LogClosed):
            node.cluster.call(node.cluster.metastore.status)
    assert "the Raft node of the process has failed" in caplog.text
