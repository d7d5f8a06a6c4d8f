"""The catalog on several nodes, against what their callers were told.

Random commands, snapshots, compactions, restarts, held nodes and lost answers, in a random order of
the steps of all nodes. At the end all nodes follow, and:

- every acknowledged change is in the catalog, in the version that was named; every refused one is
  not there; an unknown one is there as a whole or not at all
- versions have no gaps, their activations ascend, and all nodes have the same ones
- each listener got each version once and in order, but for those that a snapshot had replaced
  while its node was behind the floor
- a node that starts then has the same catalog
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant, DropTenant
from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.manager.activation import ALONE, ActivationTiming
from lithify.catalog.manager.errors import CatalogBusy, CatalogStopped
from lithify.catalog.manager.manager import CatalogManager
from lithify.catalog.update_log.errors import AppendOutcomeUnknown, SnapshotContention
from lithify.clock import ManualClock
from lithify.errors import InvalidInput
from lithify.raft.net.client_operations import MayHaveHappened
from lithify.testing.memory_metastore import Happens, MemoryMetastoreCluster, Moment
from tests.property.catalog_told import Told, VersionListener, check_versions

if TYPE_CHECKING:
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.testing.memory_metastore import MemoryMetastore

NODES = 3
AT_ONCE = ("lose", "deliver", "hold", "apply", "install", "follow")
DO_NOT_WAIT = ActivationTiming(delay_ms=0, skew_ms=1)


class World:
    """The nodes; every step of every node waits for a random number of turns of the loop."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.cluster = MemoryMetastoreCluster(self.clock)
        self.stores = [self.cluster.node() for _ in range(NODES)]
        for store in self.stores:
            store.gate = self.gate
        self.told = Told()
        self.listening: dict[MemoryMetastore, VersionListener] = {}
        self.managers: list[CatalogManager] = []
        self.calls: set[asyncio.Task[None]] = set()
        self.names = 0
        self.errors: list[BaseException] = []

    async def gate(self, _request: str, _moment: Moment) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    async def manager(self, store: MemoryMetastore) -> CatalogManager:
        timing = self.random.choice((ALONE, DO_NOT_WAIT))
        manager = CatalogManager(store, self.clock, timing=lambda: timing, sleep=self.sleep)
        listener = VersionListener()
        manager.listen(listener, replayed=True)
        self.listening[store] = listener
        await manager.start()
        return manager

    def call(self, operation: str, node: int, size: int) -> None:
        """Do it now, or let it run beside the others."""
        if operation in AT_ONCE:
            getattr(self, operation)(node, size)
            return

        async def run() -> None:
            try:
                await getattr(self, operation)(node, size)
            except Exception as error:  # noqa: BLE001  (compared at the end)
                self.errors.append(error)

        task = asyncio.create_task(run())
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)

    async def create(self, node: int, size: int) -> None:
        names = tuple(f"t{self.names + n}" for n in range(size))
        self.names += size
        manager = self.managers[node]
        try:
            executed = await manager.execute([CreateTenant(name) for name in names])
        except AppendOutcomeUnknown:
            self.told.unknown.append(names)
        except (CatalogBusy, CatalogStopped):
            self.told.refused.append(names)
        else:
            assert all(executed.applied)
            # A node that stopped meanwhile answers, and does not apply it.
            versions = manager.versions
            if versions.earliest.version <= executed.version <= versions.latest.version:
                there = manager.versions.at_version(executed.version)
                assert all(there.tenant(name) for name in names)
                assert there.activation == executed.activation
            self.told.made.update(dict.fromkeys(names, executed.version))

    async def refused(self, node: int, size: int) -> None:
        """A batch of which the last command is wrong."""
        names = tuple(f"wrong{self.names + n}" for n in range(size))
        self.names += size
        commands: list[CatalogCommand] = [CreateTenant(name) for name in names]
        commands.append(DropTenant("none"))
        try:
            await self.managers[node].execute(commands)
        except (InvalidInput, CatalogBusy, CatalogStopped):
            self.told.refused.append(names)
        else:
            raise AssertionError("a wrong batch was executed")

    async def snapshot(self, node: int, size: int) -> None:
        manager = self.managers[node]
        version = max(manager.versions.latest.version - size, 1)
        with suppress(CatalogVersionTrimmed, SnapshotContention, MayHaveHappened):
            await manager.snapshot(version)

    async def compact(self, node: int, size: int) -> None:
        revision = self.cluster.state.revision - size
        if revision > 0:
            await self.stores[node].compact(revision)

    async def restart(self, node: int, _size: int) -> None:
        old = self.managers[node]
        await old.stop()
        new = await self.manager(self.stores[node])
        self.managers[node] = new

    def lose(self, node: int, size: int) -> None:
        fates = [self.random.choice(list(Happens)) for _ in range(size)]
        self.stores[node].lose_answers(*fates)

    def deliver(self, _node: int, _size: int) -> None:
        self.cluster.deliver()

    def hold(self, node: int, _size: int) -> None:
        self.stores[node].hold()

    def apply(self, node: int, size: int) -> None:
        self.stores[node].apply(size)

    def install(self, node: int, _size: int) -> None:
        self.stores[node].install()

    def follow(self, node: int, _size: int) -> None:
        self.stores[node].follow()

    async def settle(self) -> None:
        """All nodes follow, and all calls end."""
        for store in self.stores:
            store.follow()
            store._lost.clear()
        self.cluster.deliver()
        while self.calls:
            await asyncio.gather(*self.calls)
        # One more change is seen by every node only after all before it.
        last = (await self.managers[0].execute([CreateTenant("last")])).version
        for manager in self.managers:
            await manager.wait_ready(last)


OPERATIONS = st.tuples(
    st.sampled_from(
        ("create",) * 6 + ("snapshot",) * 2 + ("refused", "compact", "restart", *AT_ONCE)
    ),
    st.integers(0, NODES - 1),
    st.integers(1, 3),
    st.integers(0, 40),  # turns of the loop until the next one
)


def check(world: World) -> None:
    check_versions(world.told, [manager.versions for manager in world.managers])


@settings(max_examples=150)
@given(st.lists(OPERATIONS, min_size=5, max_size=60), st.integers(0, 2**32))
def test_all_nodes_agree_with_the_answers_of_callers(
    operations: list[tuple[str, int, int, int]], seed: int
) -> None:
    async def story() -> None:
        world = World(seed)
        world.managers = list(await asyncio.gather(*map(world.manager, world.stores)))
        try:
            for operation, node, size, turns in operations:
                if operation == "restart":
                    await world.restart(node, size)
                else:
                    world.call(operation, node, size)
                for _ in range(turns):
                    await asyncio.sleep(0)
            await world.settle()
            assert world.errors == []
            check(world)
            fresh = await world.manager(world.cluster.node())
            world.managers.append(fresh)
            await fresh.wait_ready(world.managers[0].versions.latest.version)
            check(world)
            for listener in world.listening.values():
                assert listener.last == world.managers[0].versions.latest
        finally:
            for manager in world.managers:
                await manager.stop()

    asyncio.run(asyncio.wait_for(story(), 60))
