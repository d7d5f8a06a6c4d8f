"""Catalogs of several nodes over a metastore in memory, in a thread with a loop of its own.

    with MemoryCluster() as cluster:
        definitions = CatalogDefinitions(cluster.member("n1"), fs, "/data", ignore_events)

A member is what `CatalogDefinitions` needs of a node's cluster. The metastore survives whatever
happens to the file systems of the test.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lithify.catalog.manager.activation import ALONE
from lithify.catalog.manager.manager import CatalogManager
from lithify.clock import ManualClock
from lithify.testing.memory_metastore import MemoryMetastoreCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from concurrent.futures import Future

    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.executions import Executed
    from lithify.node.node_registry import NodeAddresses
    from lithify.testing.memory_metastore import MemoryMetastore

T = TypeVar("T")


class Member:
    """One node; see the module."""

    def __init__(
        self,
        name: str,
        catalog: CatalogManager,
        metastore: MemoryMetastore,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self.catalog = catalog
        self.metastore = metastore
        self.identity = "1"
        """Of its directory; a test that replaces that sets another one."""
        self.addresses: dict[str, NodeAddresses] = {}
        """Of the nodes that are known; a test sets them."""
        self._loop = loop

    def nodes(self) -> Mapping[str, NodeAddresses]:
        return self.addresses

    async def execute(self, commands: Sequence[CatalogCommand]) -> Executed:
        return await self.catalog.execute(commands)

    def call(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(function(), self._loop)

    def ask(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        return self.call(function).result()


class MemoryCluster:
    """See the module."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._managers: list[CatalogManager] = []
        self.clock = ManualClock()
        self.metastores = MemoryMetastoreCluster(self.clock)

    def member(self, name: str = "n1") -> Member:
        """A node that has replayed the catalog."""
        return asyncio.run_coroutine_threadsafe(self._started(name), self._loop).result()

    async def _started(self, name: str) -> Member:
        metastore = self.metastores.node()
        manager = CatalogManager(metastore, self.clock, timing=lambda: ALONE)
        self._managers.append(manager)
        await manager.start()
        return Member(name, manager, metastore, self._loop)

    async def _stop(self) -> None:
        for manager in self._managers:
            await manager.stop()
        await self._loop.shutdown_default_executor()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
