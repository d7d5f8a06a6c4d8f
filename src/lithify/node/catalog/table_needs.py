"""What the tables of a node need of the catalog's history, for its compaction.

    needs = TableNeeds(tables, catalog)
    needs.minimum_begin()                # `LocalNeeds`
    await needs.placement()

One event loop, that of the Raft node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.catalog_compaction.published import GroupReplica
from lithify.catalog_compaction.runner import Placement

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lithify.catalog.manager.manager import CatalogManager
    from lithify.catalog_compaction.published import Replica
    from lithify.metastore.transaction import Compare
    from lithify.tables.assignments import Partition
    from lithify.tables.tables import Tables

__all__ = ["TableNeeds"]


class TableNeeds:
    """See the module."""

    def __init__(self, tables: Tables, catalog: CatalogManager) -> None:
        self._tables = tables
        self._catalog = catalog
        self._replicas: dict[Partition, GroupReplica] = {}
        """As they were asked for last."""

    @property
    def low_watermark(self) -> int:
        """See `LocalNeeds`."""
        return self._tables.low_watermark.value

    def minimum_begin(self) -> int:
        """See `LocalNeeds`."""
        return self._tables.active.minimum_begin_time()

    def activation(self) -> int:
        """See `LocalNeeds`."""
        return self._catalog.current.activation

    def replicas(self) -> Mapping[Partition, Replica]:
        """See `LocalNeeds`."""
        replicas: dict[Partition, GroupReplica] = {}
        for each, store in self._tables.hosted().items():
            known = self._replicas.get(each)
            same = known is not None and known.group is store.group
            replicas[each] = known if known is not None and same else GroupReplica(store)
        self._replicas = replicas
        return replicas

    async def placement(self) -> Placement:
        """Where the partitions of tables are, as of now; linearizable."""
        assigned = await self._tables.hosting.assignments_now()
        found = {each: known.assignment for each, known in assigned.items()}
        return Placement(
            {each: frozenset(assignment.stable) for each, assignment in found.items()},
            {each: assignment.version for each, assignment in found.items() if assignment.pending},
            {each: frozenset(assignment.to_rebuild) for each, assignment in found.items()},
        )

    async def give_up(self, nodes: Collection[str], demands: tuple[Compare, ...]) -> bool:
        """Have all replicas on nodes be rebuilt."""
        return await self._tables.hosting.assignments.give_up(nodes, demands)
