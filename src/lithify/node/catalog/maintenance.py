"""Catalog compaction on a node: its answers to the coordinator, and its own runs when it leads.

    maintenance = CatalogMaintenance(metastore, catalog, nodes, fs, directory, …)
    maintenance.compaction                     # a `ScheduledLog`

The node answers two questions over the cluster port (`raft/node/node_questions.py`): what it needs,
and to publish a time. What it needs is what its tables need (`table_needs.py`); their low watermark
makes a run due when it rises. `DIRECTORY/catalog` has the reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.catalog_compaction.compaction import CATALOG, CatalogCompaction
from lithify.catalog_compaction.node_times import LocalTimes, decode_times, encode_times
from lithify.catalog_compaction.runner import CatalogRunner
from lithify.errors import InvalidInput, WriteFailed
from lithify.node.catalog.table_needs import TableNeeds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lithify.catalog.manager.manager import CatalogManager
    from lithify.catalog_compaction.facts import NodeTimes
    from lithify.catalog_compaction.runner import CatalogTrimming, Placement
    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.metastore.transaction import Compare
    from lithify.node.node_registry import NodeAddresses
    from lithify.raft.node.node import RaftNode
    from lithify.tables.tables import Tables

__all__ = ["CatalogMaintenance"]

TIMES = "catalog times"
PUBLISH = "catalog publish"


class _Nodes:
    """The other nodes over the cluster port: a `TrimmedCluster`."""

    def __init__(
        self,
        node: RaftNode,
        nodes: Callable[[], Mapping[str, NodeAddresses]],
        needs: TableNeeds,
        timeout_s: float,
    ) -> None:
        self._node = node
        self._nodes = nodes
        self._needs = needs
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
        return await self._needs.placement()

    async def give_up(self, nodes: Collection[str], demands: tuple[Compare, ...]) -> bool:
        return await self._needs.give_up(nodes, demands)


class CatalogMaintenance:
    """See the module. Created in the loop of the Raft node."""

    def __init__(
        self,
        metastore: LocalMetastore,
        catalog: CatalogManager,
        nodes: Callable[[], Mapping[str, NodeAddresses]],
        tables: Tables,
        fs: FileSystem,
        directory: str,
        clock: Clock,
        settings: CatalogTrimming,
        events: EventSink,
    ) -> None:
        path = f"{directory}/{CATALOG}"
        try:
            fs.mkdir(path)
        except OSError as error:
            raise WriteFailed(path, error) from error
        node = metastore.node
        needs = TableNeeds(tables, catalog)
        self._local = LocalTimes(node.identity.node, needs)
        reached = _Nodes(node, nodes, needs, settings.timeout_ms / 1000)
        runner = CatalogRunner(reached, catalog, metastore, clock, settings)
        self.compaction = CatalogCompaction(runner, metastore, fs, path, clock, events)
        tables.low_watermark.listen(self.compaction.watermark_changed)
        node.questions.on(TIMES, self._times)
        node.questions.on(PUBLISH, self._publish)
        node.listeners.on_leader(self.compaction.leader_changed)

    async def _times(self, _: dict[str, Any]) -> dict[str, Any]:
        return encode_times(await self._local.read())

    async def _publish(self, given: dict[str, Any]) -> dict[str, Any]:
        minimum, term = given.get("minimum"), given.get("term")
        if not isinstance(minimum, int) or not isinstance(term, int):
            raise InvalidInput("a time is published with a minimum and a term")
        await self._local.publish(minimum, term)
        return {}
