"""Groups of real nodes sleep when they are idle, and wake when they must."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from lithify.raft.kv.client import KvClient
from lithify.raft.net.client_operations import ClientOperation
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import client_of, running, settings

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.node.node import RaftNode

NAMES = ["n1", "n2", "n3"]


def is_asleep(node: RaftNode, name: str = "orders") -> bool:
    return name in node.groups and not node.groups[name].needs_ticks


def leads(node: RaftNode) -> bool:
    return bool(node.groups["orders"].leading_term)


def test_an_idle_group_sleeps_on_all_nodes_and_wakes_for_clients_and_deaths(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            ends = {name: await stack.enter_async_context(AsyncExitStack()) for name in NAMES}
            one = await ends["n1"].enter_async_context(running(settings(tmp_path, "n1")))
            nodes = {"n1": one}
            for name in NAMES[1:]:
                given = running(settings(tmp_path, name, join=True))
                nodes[name] = await ends[name].enter_async_context(given)
                nodes[name].transport.learn({"n1": str(one.transport.address)})
            await until(lambda: one.transport.connected == ["n2", "n3"])
            async with client_of(*nodes.values()) as client:
                await client.ask_json("orders", ClientOperation.CREATE, members=NAMES)
                orders = KvClient(client, "orders")
                await orders.put(b"a", b"1")
                await until(lambda: all(map(is_asleep, nodes.values())))
                # The first group watches what is outside of Raft.
                assert one.groups["default"].needs_ticks
                assert (await orders.get(b"a")).value == b"1"
                await orders.put(b"b", b"2")
                await until(lambda: all(map(is_asleep, nodes.values())))

                (leader,) = (name for name, node in nodes.items() if leads(node))
                await ends[leader].aclose()
                del nodes[leader]
                await until(lambda: any(map(leads, nodes.values())))
            async with client_of(*nodes.values()) as client:
                assert (await KvClient(client, "orders").get(b"b")).value == b"2"

    asyncio.run(story())
