"""Managers on a metastore in memory, and a time that passes when a task waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lithify.catalog.manager.activation import ALONE, ActivationTiming
from lithify.catalog.manager.manager import CatalogManager
from lithify.clock import ManualClock
from lithify.testing.memory_metastore import MemoryMetastoreCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate
    from lithify.testing.memory_metastore import MemoryMetastore

CLUSTER = ActivationTiming(delay_ms=500, skew_ms=200)


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 100))


class Nodes:
    """The nodes of a cluster, each with a clock that is off by at most the skew."""

    def __init__(self, timing: ActivationTiming = ALONE) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryMetastoreCluster(self.clock)
        self.timing = timing
        self._managers: list[CatalogManager] = []

    async def sleep(self, seconds: float) -> None:
        """Time passes for all."""
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    def manager(self, metastore: MemoryMetastore | None = None) -> CatalogManager:
        manager = CatalogManager(
            metastore or self.cluster.node(),
            self.clock,
            timing=lambda: self.timing,
            sleep=self.sleep,
        )
        self._managers.append(manager)
        return manager

    async def started(self, metastore: MemoryMetastore | None = None) -> CatalogManager:
        manager = self.manager(metastore)
        await manager.start()
        return manager

    async def stop(self) -> None:
        for manager in self._managers:
            await manager.stop()


def with_nodes(
    story: Callable[[Nodes], Coroutine[object, object, None]], timing: ActivationTiming = ALONE
) -> None:
    """Run a story, and stop all nodes after it."""

    async def whole() -> None:
        nodes = Nodes(timing)
        try:
            await story(nodes)
        finally:
            await nodes.stop()

    run(whole())


class Heard:
    """A listener that checks the chain of what it gets."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.updates: list[CatalogUpdate | None] = []
        self.last: Catalog | None = None

    async def __call__(self, before: Catalog, after: Catalog, update: CatalogUpdate | None) -> None:
        assert self.last is None or before is self.last
        assert update is None or (before.version + 1, after.version) == (
            update.version,
            update.version,
        )
        self.last = after
        self.versions.append(after.version)
        self.updates.append(update)
