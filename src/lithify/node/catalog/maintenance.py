"""Catalog compaction on a node: its answers to the coordinator, and its own runs when it leads.

    maintenance = CatalogMaintenance(metastore, catalog, nodes, fs, directory, …)
    maintenance.compaction                     # a `ScheduledLog`
    await maintenance.follow()               # until cancelled

The node answers two questions over the cluster port (`raft/node/node_questions.py`): what it needs,
and to publish a time. `DIRECTORY/catalog` has the reports and the low watermark.

`NodeNeeds` is a node without tables: it has a low watermark, and no transactions and replicas. The
watermark is raised once per `WATERMARK_S`, which makes a run due, and when the coordinator asks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from lithify.catalog_compaction.compaction import CATALOG, CatalogCompaction
from lithify.catalog_compaction.node_times import LocalTimes, decode_times, encode_times
from lithify.catalog_compaction.runner import CatalogRunner, Placement
from lithify.errors import InvalidInput, LithifyError, WriteFailed
from lithify.logger import get_logger
from lithify.tables.low_watermark import LowWatermark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.catalog.manager.manager import CatalogManager
    from lithify.catalog_compaction.facts import NodeTimes, Partition
    from lithify.catalog_compaction.node_times import LocalNeeds
    from lithify.catalog_compaction.published import Replica
    from lithify.catalog_compaction.runner import CatalogTrimming
    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.node.node_registry import NodeAddresses
    from lithify.raft.node.node import RaftNode
    from lithify.tables.low_watermark import WatermarkSettings

__all__ = ["CatalogMaintenance", "NodeNeeds", "NodeTables"]

WATERMARK_S = 60.0
TIMES = "catalog times"
PUBLISH = "catalog publish"

log = get_logger("lithify.node")


class NodeTables(Protocol):
    """The needs of a node, and where the partitions of tables are."""

    async def refresh(self) -> None:
        """Raise what may be raised; called before the needs are read."""

    async def placement(self) -> Placement:
        """Of the partitions of tables, as of now; linearizable."""

    @property
    def needs(self) -> LocalNeeds:
        """Of this node."""


class NodeNeeds:
    """A node without tables: `LocalNeeds` and `NodeTables`."""

    def __init__(self, watermark: LowWatermark, catalog: CatalogManager) -> None:
        self._watermark = watermark
        self._catalog = catalog

    @property
    def low_watermark(self) -> int:
        """See `LocalNeeds`."""
        return self._watermark.value

    def minimum_begin(self) -> int:
        """See `LocalNeeds`."""
        return self._catalog.now()

    def activation(self) -> int:
        """See `LocalNeeds`."""
        return self._catalog.current.activation

    def replicas(self) -> Mapping[Partition, Replica]:
        """See `LocalNeeds`."""
        return {}

    @property
    def needs(self) -> LocalNeeds:
        """See `NodeTables`."""
        return self

    async def refresh(self) -> None:
        """See `NodeTables`."""
        await self._watermark.update()

    async def placement(self) -> Placement:
        """See `NodeTables`."""
        return Placement()


class _Nodes:
    """The other nodes over the cluster port: a `TrimmedCluster`."""

    def __init__(
        self,
        node: RaftNode,
        nodes: Callable[[], Mapping[str, NodeAddresses]],
        tables: NodeTables,
        timeout_s: float,
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._tables = tables
        self._timeout_s = timeout_s

    def topology(self) -> frozenset[str]:
        alive = (name for name, each in self._nodes().items() if each.is_alive)
        return frozenset(alive) | {self._node.identity.node}

    async def times(self, node: str) -> NodeTimes:
        questions = self._node.questions
        return decode_times(await questions.ask(node, TIMES, {}, timeout_s=self._timeout_s))

    async def publish(self, node: str, minimum: int, term: int) -> None:
        given = {"minimum": minimum, "term": term}
        await self._node.questions.ask(node, PUBLISH, given, timeout_s=self._timeout_s)

    async def placement(self) -> Placement:
        return await self._tables.placement()


class CatalogMaintenance:
    """See the module. Created in the loop of the Raft node."""

    def __init__(
        self,
        metastore: LocalMetastore,
        catalog: CatalogManager,
        nodes: Callable[[], Mapping[str, NodeAddresses]],
        fs: FileSystem,
        directory: str,
        clock: Clock,
        settings: CatalogTrimming,
        watermark: WatermarkSettings,
        events: EventSink,
    ) -> None:
        path = f"{directory}/{CATALOG}"
        try:
            fs.mkdir(path)
        except OSError as error:
            raise WriteFailed(path, error) from error
        node = metastore.node
        self.watermark = LowWatermark(fs, path, clock, watermark, events)
        self.watermark.open(catalog.versions.earliest.activation)
        self._tables: NodeTables = NodeNeeds(self.watermark, catalog)
        self._local = LocalTimes(node.identity.node, self._tables.needs)
        reached = _Nodes(node, nodes, self._tables, settings.timeout_ms / 1000)
        runner = CatalogRunner(reached, catalog, metastore, clock, settings)
        self.compaction = CatalogCompaction(runner, metastore, fs, path, clock, events)
        node.questions.on(TIMES, self._times)
        node.questions.on(PUBLISH, self._publish)
        node.listeners.on_leader(self.compaction.leader_changed)

    async def follow(self) -> None:
        """Raise the low watermark on a schedule, until cancelled."""
        while True:
            before = self.watermark.value
            try:
                await self._tables.refresh()
            except LithifyError as error:
                log.warning("the low watermark cannot be raised", reason=str(error))
            if self.watermark.value != before:
                await self.compaction.watermark_changed(self.watermark.value)
            await asyncio.sleep(WATERMARK_S)

    async def _times(self, _: dict[str, Any]) -> dict[str, Any]:
        await self._tables.refresh()
        return encode_times(await self._local.read())

    async def _publish(self, given: dict[str, Any]) -> dict[str, Any]:
        minimum, term = given.get("minimum"), given.get("term")
        if not isinstance(minimum, int) or not isinstance(term, int):
            raise InvalidInput("a time is published with a minimum and a term")
        await self._local.publish(minimum, term)
        return {}
