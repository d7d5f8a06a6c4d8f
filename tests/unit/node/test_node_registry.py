"""The registry of nodes, on a metastore in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.node.node_registry import PREFIX, NodeAddresses, NodeNameTaken, NodeRegistry
from lithify.testing.memory_metastore import MemoryMetastoreCluster
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from lithify.metastore.metastore import KeyValue

TTL_S = 10


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of the event loop; leases count on the clock of the test."""
    monkeypatch.setattr("lithify.node.node_registry.RETRY_S", 0.001)
    monkeypatch.setattr("lithify.metastore.held_lease.HeldLease.keep_s", 0.001)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryMetastoreCluster(self.clock)
        self._reader = self.cluster.node()

    def registry(self, name: str, identity: str, *members: str) -> NodeRegistry:
        found = NodeRegistry(self.cluster.node(), self.clock, name, identity)
        found.set_members(members or (name,), {each: f"{each}:7001" for each in members})
        return found

    async def key(self, name: str) -> KeyValue | None:
        return await self._reader.get(PREFIX + name.encode())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    def pass_lease(self) -> None:
        """Time in which a lease that is not kept ends."""
        self.clock.advance(TTL_S + 1)
        self.cluster.tick()


@asynccontextmanager
async def running(*registries: NodeRegistry) -> AsyncIterator[list[asyncio.Task[None]]]:
    works = [each.register for each in registries] + [each.follow for each in registries]
    for each in registries:
        await each.load()
    tasks = [asyncio.create_task(work()) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, NodeNameTaken):
                await task


def is_alive(registry: NodeRegistry, name: str) -> bool:
    return registry.nodes[name].is_alive


async def turns() -> None:
    """Enough turns of the loop for what should not happen."""
    for _ in range(200):
        await asyncio.sleep(0)


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PROCESS_S_MAX))


def test_a_node_of_several_is_alive_while_it_keeps_its_lease() -> None:
    async def story() -> None:
        world = World()
        one = world.registry("n1", "a", "n1", "n2")
        two = world.registry("n2", "b", "n1", "n2")
        async with running(one):
            async with running(two):
                two.announce(NodeAddresses(pulsar="pulsar://n2"))
                await world.until(lambda: one.nodes["n2"].pulsar == "pulsar://n2")
                assert is_alive(one, "n2")
            while is_alive(one, "n2"):
                # The lease of this node ends too, now and then; it registers again.
                world.pass_lease()
                await asyncio.sleep(0.001)
            assert one.nodes["n2"].pulsar == "pulsar://n2", "its address stays known"
            while (found := await world.key("n1")) is None:
                await asyncio.sleep(0)
            assert found.lease
            one.set_members(("n1",), {})
            assert list(one.nodes) == ["n1"]

    run(story())


def test_a_node_alone_has_no_lease_until_another_joins() -> None:
    async def story() -> None:
        world = World()
        one = world.registry("n1", "a")
        async with running(one):
            assert await world.key("n1") is None, "nothing is announced"
            one.announce(NodeAddresses(http="http://n1"))
            while (found := await world.key("n1")) is None:
                await asyncio.sleep(0)
            assert found.lease == 0
            one.set_members(("n1", "n2"), {})
            while (found := await world.key("n1")) is None or not found.lease:
                await asyncio.sleep(0)

    run(story())


def test_a_name_that_another_directory_keeps_is_refused() -> None:
    async def story() -> None:
        world = World()
        one = world.registry("n1", "a", "n1", "n2")
        other = world.registry("n1", "b", "n1", "n2")
        async with running(one):
            while await world.key("n1") is None:
                await asyncio.sleep(0)
            registering = asyncio.create_task(other.register())
            while not registering.done():
                # Less than a lease: the first node keeps it.
                world.clock.advance(1)
                await asyncio.sleep(0.005)
            with pytest.raises(NodeNameTaken, match="the name n1 is used by another node"):
                registering.result()

    run(story())


def test_the_name_of_a_node_that_has_ended_is_free_when_its_lease_ends() -> None:
    async def story() -> None:
        world = World()
        one = world.registry("n1", "a", "n1", "n2")
        async with running(one):
            while (first := await world.key("n1")) is None:
                await asyncio.sleep(0)
        other = world.registry("n1", "b", "n1", "n2")
        async with running(other) as tasks:
            world.clock.advance(1)
            await turns()
            found = await world.key("n1")
            assert found is not None
            assert found.revision == first.revision, "it waits for the end of the lease"
            world.pass_lease()
            while (found := await world.key("n1")) is None:
                await asyncio.sleep(0)
            assert b'"identity": "b"' in found.value
            assert not any(task.done() for task in tasks)

    run(story())


def test_a_node_that_is_no_member_registers_nothing() -> None:
    async def story() -> None:
        world = World()
        one = world.registry("n1", "a", "n1", "n2")
        one.set_members((), {})
        one.announce(NodeAddresses(http="http://n1"))
        async with running(one):
            await turns()
            assert await world.key("n1") is None

    run(story())
