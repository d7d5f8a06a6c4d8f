"""Members that begin when the process says so, on real sockets and files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lithify.errors import InvalidInput
from lithify.raft.kv.client import KvClient
from lithify.raft.node.held_members import release
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_member_changes import Three, change, three
from tests.unit.raft.node.test_node import client_of

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "default"


async def with_rows(world: Three, first: int) -> None:
    async with client_of(await world.leader()) as client:
        for number in range(first, first + 10):
            await KvClient(client, GROUP).put(b"%d" % number, b"v")


async def restarted_held(world: Three, name: str) -> None:
    await world.stop(name)
    await with_rows(world, 10)
    world.held = True
    await world.start(name)


def test_a_member_that_is_held_takes_part_when_it_is_released(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as world:
            await with_rows(world, 0)
            name = (await world.others())[0]
            await restarted_held(world, name)
            node, leader = world.nodes[name], await world.leader()
            await until(lambda: leader.identity.node in node.transport.connected)
            with pytest.raises(InvalidInput, match="is there already"):
                node.create(GROUP, [name])
            await with_rows(world, 20)
            assert (node.groups, node.is_waiting(GROUP)) == ({}, True)
            release(node, {})
            last = leader.groups[GROUP].applied_index
            await until(lambda: node.groups[GROUP].applied_index >= last)
            assert (node.groups[GROUP].stopped, node.is_waiting(GROUP)) == (None, False)

    asyncio.run(story())


def test_a_member_that_is_released_with_a_reason_replays_nothing_and_is_rebuilt(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with three(tmp_path) as world:
            await with_rows(world, 0)
            name = (await world.others())[0]
            await restarted_held(world, name)
            node = world.nodes[name]
            release(node, {GROUP: "it was away"})
            assert str(node.groups[GROUP].stopped) == "it was away"
            # Still a member, so that it must keep what it has promised.
            async with client_of(await world.leader()) as client:
                await with_rows(world, 20)
                assert node.groups[GROUP].applied_index == 0
                await change(client, f"-{name}")
                await until(lambda: GROUP not in node.groups)
                await change(client, f"+{name}")
            leader = await world.leader()
            last = leader.groups[GROUP].applied_index
            await until(lambda: GROUP in node.groups and node.groups[GROUP].applied_index >= last)
            assert name in leader.groups[GROUP].config.electorate
            assert node.groups[GROUP].stopped is None

    asyncio.run(story())


def test_a_member_that_is_released_with_a_reason_stays_stopped_if_it_is_killed(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with three(tmp_path) as world:
            await with_rows(world, 0)
            name = (await world.others())[0]
            await restarted_held(world, name)
            release(world.nodes[name], {GROUP: "it was away"})
            await world.stop(name)
            world.held = False
            node = await world.start(name)
            assert str(node.groups[GROUP].stopped) == "it was away"
            assert node.groups[GROUP].applied_index == 0

    asyncio.run(story())
