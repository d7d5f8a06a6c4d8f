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
from tests.hostile.node import WatchedNode, watched_raft_node
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD_MS_MAX = 25.0
"""CPU time: 4 to 8 ms as a rule, up to 15 for a frame of 4,096 requests."""
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


def held(node: WatchedNode, requests: Any) -> None:
    async def story() -> None:
        address = Address("127.0.0.1", node.port)
        async with RaftClient([address], timeout_s=PROCESS_S_MAX) as client:
            await KvClient(client, "default").put(b"k", b"v")
            node.longest_hold()
            await requests(client)

    asyncio.run(story())
    held_ms, what = node.longest_hold()
    print(f"{held_ms:.1f} ms {what}")
    assert held_ms < HOLD_MS_MAX, what
    assert "Traceback" not in node.logged()


@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_request_about_the_group_is_refused_unread(node: WatchedNode, name: str) -> None:
    operation, body = LARGE[name]

    async def requests(client: RaftClient) -> None:
        with pytest.raises(OperationRefused, match="is larger than the limit 65536"):
            await client.ask("default", operation, body)

    held(node, requests)


@pytest.mark.parametrize("what", ["put", "get", "get one", "scan", "members"])
def test_thousands_of_requests_at_once(node: WatchedNode, what: str) -> None:
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

    held(node, requests)
