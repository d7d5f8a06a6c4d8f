"""Groups that end, and members that are none any more: their files go, and stay away."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from lithify.raft import membership
from lithify.raft.kv_client import KvClient
from lithify.raft.kv_format import Outcome
from lithify.raft.operations import Operation, Refused
from tests.unit.raft.test_node import client_of, running, settings
from tests.unit.raft.test_watching import until

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.client import RaftClient
    from lithify.raft.node import RaftNode


def directories(tmp_path: Path, node: str) -> list[str]:
    return sorted(each.name.partition("@")[0] for each in (tmp_path / node / "groups").iterdir())


async def three(stack: AsyncExitStack, tmp_path: Path) -> tuple[dict[str, RaftNode], RaftClient]:
    """Nodes that know each other, with a group `orders`, and a client."""
    nodes = {}
    for name in ("n1", "n2", "n3"):
        given = settings(tmp_path, name, join=name != "n1")
        nodes[name] = await stack.enter_async_context(running(given))
        nodes[name].transport.learn({"n1": str(nodes["n1"].transport.address)})
    await until(lambda: nodes["n1"].transport.connected == ["n2", "n3"])
    client = await stack.enter_async_context(client_of(*nodes.values()))
    async with client_of(nodes["n1"]) as first:
        await first.ask_json("orders", Operation.CREATE, members=list(nodes))
    return nodes, client


def test_a_group_is_dropped_on_all_members_and_can_be_created_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            nodes, client = await three(stack, tmp_path)
            kv = KvClient(client, "orders")
            await kv.put(b"k", b"old")
            await client.ask_json("orders", Operation.DROP)
            await until(lambda: all("orders" not in node.groups for node in nodes.values()))
            with pytest.raises(Refused, match="there is no group 'orders'"):
                await kv.get(b"k")
            await until(lambda: not any("orders" in directories(tmp_path, name) for name in nodes))
            async with client_of(nodes["n1"]) as first:
                await first.ask_json("orders", Operation.CREATE, members=list(nodes))
            assert (await kv.get(b"k")).outcome is Outcome.ABSENT
            await kv.put(b"k", b"new")
            assert (await kv.get(b"k")).value == b"new"

    asyncio.run(story())


def test_a_member_that_was_away_learns_that_its_group_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.raft.group.LONELY_TICKS", 5)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            async with AsyncExitStack() as life:
                nodes, client = await three(life, tmp_path)
                await KvClient(client, "orders").put(b"k", b"old")
                address = nodes["n1"].transport.address
            given: dict[str, Any] = {}
            for name in ("n1", "n2"):
                given[name] = await stack.enter_async_context(running(settings(tmp_path, name)))
                given[name].transport.learn({"n1": str(given["n1"].transport.address)})
            client = await stack.enter_async_context(client_of(*given.values()))
            await client.ask_json("orders", Operation.DROP)
            await until(lambda: all("orders" not in node.groups for node in given.values()))
            book: dict[str, Any] = {"peers": {"n1": str(given["n1"].transport.address)}}
            third = await stack.enter_async_context(running(settings(tmp_path, "n3", **book)))
            await until(lambda: "orders" not in third.groups)
            await until(lambda: "orders" not in directories(tmp_path, "n3"))
            assert address != given["n1"].transport.address

    asyncio.run(story())


def test_a_removed_member_gives_its_files_back_and_can_be_added_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            nodes, client = await three(stack, tmp_path)
            kv = KvClient(client, "orders")
            await kv.put(b"k", b"1")
            await until(lambda: "orders" in nodes["n3"].groups)
            for times in (1, 2):
                await client.ask_json("orders", Operation.CHANGE, change="-n3")
                await until(lambda: "orders" not in nodes["n3"].groups)
                await until(lambda: "orders" not in directories(tmp_path, "n3"))
                await kv.put(b"k", b"without %d" % times)
                await client.ask_json("orders", Operation.CHANGE, change="+n3")
                await until(lambda: "orders" in nodes["n3"].groups)
                async with client_of(nodes["n3"]) as third:
                    reply = await KvClient(third, "orders").get(b"k")
                    assert reply.value == b"without %d" % times
                (left,) = nodes["n3"].identity.left.values()
                assert left[0] == times

    asyncio.run(story())


def test_a_member_that_was_removed_while_it_was_away_is_told_when_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.raft.group.LONELY_TICKS", 5)
    monkeypatch.setattr(membership, "LONELY_TICKS", 5)

    async def story() -> None:
        async with AsyncExitStack() as life:
            nodes, client = await three(life, tmp_path)
            await KvClient(client, "orders").put(b"k", b"1")
            await until(lambda: "orders" in nodes["n3"].groups)
        async with AsyncExitStack() as stack:
            given: dict[str, Any] = {}
            for name in ("n1", "n2"):
                given[name] = await stack.enter_async_context(running(settings(tmp_path, name)))
                given[name].transport.learn({"n1": str(given["n1"].transport.address)})
            client = await stack.enter_async_context(client_of(*given.values()))
            await client.ask_json("orders", Operation.CHANGE, change="-n3")
            book: dict[str, Any] = {
                "peers": {n: str(node.transport.address) for n, node in given.items()}
            }
            third = await stack.enter_async_context(running(settings(tmp_path, "n3", **book)))
            await until(lambda: "orders" not in third.groups)
            assert (await KvClient(client, "orders").get(b"k")).value == b"1"

    asyncio.run(story())
