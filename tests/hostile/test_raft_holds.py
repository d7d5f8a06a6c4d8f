"""No request of a client holds the event loop of a Raft node for long.

Heartbeats go through the same loop: a node that is held for an election timeout loses its leader.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import Address, ClientOperation, OperationRefused
from lithify.raft.net.control_frames import WIRE_VERSION, ClientRequest, ClientResponse, Hello
from lithify.raft.net.wire_format import decode_frame, encode_frame, frame_bytes
from tests.hostile.holds import Hold, check_hold, hold_of
from tests.hostile.node import WatchedNode, watched_raft_node
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.net.nodes import closed, frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MANY = 20_000
MIB = 2**20
NAMES = [f"n{number}" for number in range(MANY)]
LARGE: dict[str, tuple[ClientOperation, bytes]] = {
    "deep": (ClientOperation.COMPACTION, b"[" * MIB),
    "keys": (
        ClientOperation.TRANSFER,
        b"{" + b",".join(b'"%x":0' % n for n in range(10**6)) + b"}",
    ),
    "change": (ClientOperation.CHANGE, json.dumps({"change": "+" + ",+".join(NAMES)}).encode()),
    "book": (ClientOperation.MOVE, json.dumps({"book": dict.fromkeys(NAMES, "a:1")}).encode()),
    "members": (ClientOperation.CREATE, json.dumps({"members": NAMES}).encode()),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with watched_raft_node(tmp_path_factory.mktemp("held") / "n1") as node:
        yield node


def held(node: WatchedNode, tmp_path: Path, requests: Callable[[RaftClient], Any]) -> None:
    async def story(port: int) -> None:
        async with RaftClient([Address("127.0.0.1", port)], timeout_s=PROCESS_S_MAX) as client:
            await requests(client)

    async def begin(port: int) -> None:
        async with RaftClient([Address("127.0.0.1", port)], timeout_s=PROCESS_S_MAX) as client:
            await KvClient(client, "default").put(b"k", b"v")

    def play(at: WatchedNode) -> Hold:
        asyncio.run(begin(at.port))
        return hold_of(at, lambda: asyncio.run(story(at.port)))

    check_hold(node, play, watched_raft_node, tmp_path)


@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_request_about_the_group_is_refused_unread(
    node: WatchedNode, tmp_path: Path, name: str
) -> None:
    operation, body = LARGE[name]

    async def requests(client: RaftClient) -> None:
        with pytest.raises(OperationRefused, match="is larger than the limit 65536"):
            await client.ask("default", operation, body)

    held(node, tmp_path, requests)


@pytest.mark.parametrize("what", ["put", "get", "get one", "scan", "members"])
def test_thousands_of_requests_at_once(node: WatchedNode, tmp_path: Path, what: str) -> None:
    async def requests(client: RaftClient) -> None:
        kv = KvClient(client, "default")
        asked: dict[str, Any] = {
            "put": lambda n: kv.put(b"%d" % n, b"v" * 20),
            "get": lambda n: kv.get(b"%d" % n),
            "get one": lambda _: kv.get(b"k"),
            "scan": lambda _: kv.scan(b"", 1000),
            "members": lambda _: client.ask_json("default", ClientOperation.MEMBERS),
        }
        count = MANY if what.startswith(("put", "get")) else MANY // 200
        await asyncio.gather(*(asked[what](number) for number in range(count)))

    held(node, tmp_path, requests)


FRAME = 2500
"""Requests in a frame."""
FLOODS: dict[str, Callable[[int], tuple[str, ClientRequest]]] = {
    "reads that fail": lambda n: ("default", ClientRequest(n, ClientOperation.READ, b"?")),
    "members": lambda n: ("default", ClientRequest(n, ClientOperation.MEMBERS, b"{}")),
    "overviews": lambda n: ("", ClientRequest(n, ClientOperation.OVERVIEW, b"{}")),
    "no group": lambda n: ("orders", ClientRequest(n, ClientOperation.PROPOSE, b"")),
    "two groups": lambda n: (
        ("default", "orders")[n % 2],
        ClientRequest(n, ClientOperation.PROPOSE, b""),
    ),
}


@pytest.mark.parametrize("name", sorted(FLOODS))
def test_a_client_that_fills_its_frames(node: WatchedNode, tmp_path: Path, name: str) -> None:
    flooding = [
        encode_frame([FLOODS[name](number) for number in range(first, first + FRAME)])
        for first in range(0, 4 * FRAME, FRAME)
    ]

    def play(at: WatchedNode) -> Hold:
        return hold_of(at, lambda: asyncio.run(flood(at.port, flooding)))

    check_hold(node, play, watched_raft_node, tmp_path)


async def flood(port: int, flooding: list[bytearray]) -> None:
    """Send frames in one piece, and return when all of their requests are answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode_frame([("", Hello(WIRE_VERSION, "", "", "", "{}"))]))
    writer.write(b"".join(flooding))
    answers, data = 0, b""
    async with asyncio.timeout(PROCESS_S_MAX):
        while answers < len(flooding) * FRAME:
            more = await reader.read(2**20)
            assert more, "the node has hung up"
            data += more
            while (size := frame_bytes(memoryview(data), 2**26)) and size <= len(data):
                for _, message in decode_frame(memoryview(data)[:size], "", ""):
                    answers += isinstance(message, ClientResponse)
                data = data[size:]
    await closed(writer)


def test_a_frame_of_too_many_requests_ends_the_connection(
    node: WatchedNode, tmp_path: Path
) -> None:
    request = FLOODS["two groups"]

    async def story(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_frame([("", Hello(WIRE_VERSION, "", "", "", "{}"))]))
        writer.write(encode_frame([request(number) for number in range(MANY)]))
        _, has_ended = await frames(reader)
        assert has_ended
        await closed(writer)

    def play(at: WatchedNode) -> Hold:
        hold = hold_of(at, lambda: asyncio.run(story(at.port)))
        assert "more requests than the limit 4096" in at.logged()
        return hold

    check_hold(node, play, watched_raft_node, tmp_path)
