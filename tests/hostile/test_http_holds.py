"""No HTTP request holds the event loop of a node for more than some milliseconds."""

from __future__ import annotations

import base64
import json
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.hostile.holds import check_hold, hold_of
from tests.hostile.node import WatchedNode, watched_node
from tests.hostile.worst_frames import bad_schemas
from tests.patience import PROCESS_S_MAX, wait_until
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 2**20
CROWD = 9_000
"""Clients of one connection and one topic."""
WORST = {
    "deep": b"[" * 1_000_000,
    "deep and few": b"[" * 4_000,
    "keys": b"{" + b",".join(b'"%x":0' % number for number in range(90_000)) + b"}",
    "keys and few": b"{" + b",".join(b'"%x":0' % number for number in range(4_000)) + b"}",
    "numbers": b"[" + b"0," * 500_000 + b"0]",
    "numbers and few": b"[" + b"0," * 4_000 + b"0]",
    "texts": b"[" + b'"",' * 300_000 + b'""]',
    "lists": b"[" + b"[]," * 300_000 + b"0]",
    "one text": b'"' + b"[{,\\\\" * 200_000 + b'"',
    "large": b'"' + b"a" * (3 * MIB) + b'"',
}
LARGEST = 5 * MIB - 1000
"""Bytes of messages in a request; one message of them is nearly the largest."""
PRODUCE = "/topics/persistent/public/default/orders"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Site:
    """A node with a topic and a blob store, and a client of it."""

    node: WatchedNode
    client: httpx.Client


@contextmanager
def new_site(data: Path) -> Iterator[Site]:
    with (
        watched_node(data) as node,
        httpx.Client(
            base_url=f"http://127.0.0.1:{node.http_port}", timeout=PROCESS_S_MAX
        ) as client,
    ):
        assert client.put("/admin/v2/persistent/public/default/orders").is_success
        shape = {"capacity_bytes": 64 * MIB, "segment_bytes": 16 * MIB}
        assert client.put("/blobs/photos", json=shape).is_success
        yield Site(node, client)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with new_site(tmp_path_factory.mktemp("held") / "data") as site:
        yield site


def is_quick(site: Site, tmp_path: Path, play: Callable[[WatchedNode, httpx.Client], None]) -> None:
    check_hold(
        site, lambda at: hold_of(at.node, lambda: play(at.node, at.client)), new_site, tmp_path
    )


class Filled(dict[str, str]):
    """Something for each part of a path."""

    def __missing__(self, part: str) -> str:
        known = {"tenant": "public", "namespace": "default", "topic": "orders", "store": "photos"}
        return known.get(part, "1")


@pytest.mark.parametrize("name", sorted(WORST))
def test_every_route_that_takes_a_body(site: Site, tmp_path: Path, name: str) -> None:
    def play(node: WatchedNode, client: httpx.Client) -> None:
        paths = client.get("/openapi.json").json()["paths"]
        node.longest_hold()
        asked = 0
        for path, methods in paths.items():
            for method, described in methods.items():
                if "requestBody" not in described:
                    continue
                asked += 1
                place = path.format_map(Filled())
                answer = client.request(method, place, content=WORST[name], headers=JSON)
                assert answer.status_code < 500, (method, place, answer.text)
        assert asked > 30

    is_quick(site, tmp_path, play)


def test_the_largest_text_of_definitions_and_its_snapshot(site: Site, tmp_path: Path) -> None:
    text = "".join(f'[topics."public/default/t{n}"]\npartitions = 4\n' for n in range(4999))

    def play(_: WatchedNode, client: httpx.Client) -> None:
        answer = client.post("/catalog/apply", content=text)
        assert answer.is_success, answer.text
        version = answer.json()["version"]
        assert client.post("/catalog/snapshot", params={"version": version}).is_success

    is_quick(site, tmp_path, play)


def test_the_description_and_the_metrics(site: Site, tmp_path: Path) -> None:
    def play(_: WatchedNode, client: httpx.Client) -> None:
        for path in ("/openapi.json", "/metrics"):
            assert client.get(path).is_success

    is_quick(site, tmp_path, play)


def test_schemas(site: Site, tmp_path: Path) -> None:
    def play(node: WatchedNode, client: httpx.Client) -> None:
        path = "/admin/v2/schemas/public/default/orders"
        node.longest_hold()
        for definition in bad_schemas():
            body = {"type": "AVRO", "schema": definition.decode(), "properties": {}}
            for last in ("schema", "compatibility"):
                client.post(f"{path}/{last}", json=body)

    is_quick(site, tmp_path, play)


@pytest.mark.parametrize("messages", [10_000, 100, 1])
def test_producing(site: Site, tmp_path: Path, messages: int) -> None:
    def play(node: WatchedNode, client: httpx.Client) -> None:
        value = base64.b64encode(bytes(LARGEST // messages)).decode()
        rows = [{"payloadBase64": value, "key": "k", "properties": {"a": "b"}}] * messages
        body = json.dumps({"messages": rows}).encode()
        node.longest_hold()
        answer = client.post(PRODUCE, content=body, headers=JSON)
        assert answer.is_success, answer.text
        assert len(answer.json()["messagePublishResults"]) == messages

    is_quick(site, tmp_path, play)


def test_reading_large_messages(site: Site, tmp_path: Path) -> None:
    """As text and as Base64; the text is not ASCII."""

    def play(node: WatchedNode, client: httpx.Client) -> None:
        path = "/topics/persistent/public/default/large"
        for value in (b"\xff" * LARGEST, "ü".encode() * (LARGEST // 2), b"a" * LARGEST):
            body = {"messages": [{"payloadBase64": base64.b64encode(value).decode()}]}
            assert client.post(path, json=body).is_success
        node.longest_hold()
        lines = client.get(f"{path}/messages").text.splitlines()
        assert [len(json.loads(line).get("value") or "") for line in lines] == [
            0,
            LARGEST // 2,
            LARGEST,
        ]

    is_quick(site, tmp_path, play)


@pytest.mark.parametrize("kind", ["Shared", "Failover", "Key_Shared", "producers"])
def test_thousands_of_clients_of_a_topic(site: Site, tmp_path: Path, kind: str) -> None:
    """They join, their statistics are read, and they leave."""

    def play(node: WatchedNode, client: httpx.Client) -> None:
        path = f"/admin/v2/persistent/public/default/crowded-{kind}"
        topic = f"persistent://public/default/crowded-{kind}"
        assert client.put(path).is_success
        node.longest_hold()
        with RawClient(node.port) as crowd:
            join(crowd, kind, topic)
            found = client.get(f"{path}/stats").json()
            rows = found["publishers"] or found["subscriptions"]["s"]["consumers"]
            assert len(rows) == CROWD
        wait_until(lambda: not _clients(client, path))

    is_quick(site, tmp_path, play)


@pytest.mark.parametrize("kind", ["Shared", "producers", "subscriptions"])
def test_thousands_of_clients_are_disconnected(site: Site, tmp_path: Path, kind: str) -> None:
    """By a seek, and when the topic is unloaded; metrics are read before that."""

    def play(node: WatchedNode, client: httpx.Client) -> None:
        path = f"/admin/v2/persistent/public/default/left-{kind}"
        assert client.put(path).is_success
        node.longest_hold()
        with RawClient(node.port) as crowd:
            join(crowd, kind, f"persistent://public/default/left-{kind}")
            for each in ("/metrics", f"{path}/internalStats"):
                assert client.get(each).is_success
            if kind == "Shared":
                assert client.post(f"{path}/subscription/s/resetcursor/1").is_success
                assert not _clients(client, path)
                join(crowd, kind, f"persistent://public/default/left-{kind}")
            assert client.put(f"{path}/unload").is_success
            assert not _clients(client, path)

    is_quick(site, tmp_path, play)


def join(crowd: RawClient, kind: str, topic: str) -> None:
    """A connection with thousands of clients of a topic."""
    frames = []
    for number in range(CROWD):
        if kind == "producers":
            command = wire.BaseCommand(type=Type.PRODUCER)
            command.producer.topic, command.producer.producer_id = topic, number
            command.producer.request_id = number
        else:
            own = kind == "subscriptions"
            command = wire.BaseCommand(type=Type.SUBSCRIBE)
            command.subscribe.topic, command.subscribe.subscription = topic, "s"
            if own:
                command.subscribe.subscription, command.subscribe.durable = f"s{number}", False
            kinds = wire.CommandSubscribe.SubType
            command.subscribe.subType = kinds.Value("Shared" if own else kind)
            command.subscribe.consumer_id = command.subscribe.request_id = number
        frames.append(encode_command(command))
    sending = threading.Thread(target=crowd.send, args=(b"".join(frames),))
    sending.start()
    wanted = Type.PRODUCER_SUCCESS if kind == "producers" else Type.SUCCESS
    for _ in range(CROWD):
        assert any(each.type == wanted for each in crowd.frames())
    sending.join()


def _clients(client: httpx.Client, path: str) -> int:
    found = client.get(f"{path}/stats").json()
    consumers = [len(each["consumers"]) for each in found["subscriptions"].values()]
    return len(found["publishers"]) + sum(consumers)


def test_producing_what_is_wrong(site: Site, tmp_path: Path) -> None:
    def play(_: WatchedNode, client: httpx.Client) -> None:
        for rows in (b"0," * 9_000, b'{"x":0},' * 9_000, b"[]," * 2_000_000):
            body = b'{"messages":[' + rows + b"0]}"
            assert 400 <= client.post(PRODUCE, content=body, headers=JSON).status_code < 500

    is_quick(site, tmp_path, play)


def test_a_body_in_tiny_chunks(site: Site, tmp_path: Path) -> None:
    def play(node: WatchedNode, _: httpx.Client) -> None:
        head = b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n"
        node.longest_hold()
        with socket.create_connection(("127.0.0.1", node.http_port), timeout=PROCESS_S_MAX) as each:
            each.sendall(head + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n")
            assert each.recv(100).startswith(b"HTTP/1.1 4")

    is_quick(site, tmp_path, play)


def test_many_headers(site: Site, tmp_path: Path) -> None:
    """Hundreds of lines are not parsed: the connection ends. One long line is refused."""

    def play(node: WatchedNode, _: httpx.Client) -> None:
        for header, answer in (
            (b"a:\r\n" * 7_000, b""),
            (b"a: b\r\n c\r\n" * 3_000, b""),
            (b"A" * 30_000 + b": b\r\n", b"HTTP/1.1 4"),
        ):
            with socket.create_connection(
                ("127.0.0.1", node.http_port), timeout=PROCESS_S_MAX
            ) as each:
                each.sendall(b"GET / HTTP/1.1\r\nHost: n\r\n" + header + b"\r\n")
                try:
                    found = each.recv(10)
                except ConnectionResetError:
                    found = b""
                assert found == answer

    is_quick(site, tmp_path, play)
