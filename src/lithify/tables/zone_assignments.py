"""The assignments of all zones, kept by the leader of the metastore.

A zone gets the assignments of its partitions when it has a table. They are `ending` when it has had
none since the low watermark, so nothing there can be read. Then the groups are dropped. An
assignment goes when its group has ended, or is absent on every node.

Every step is conditional and may be repeated, so two leaders at once do no harm. One event loop.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.objects import ZoneDescriptor
from lithify.errors import LithifyError
from lithify.logger import get_logger
from lithify.raft.errors import GroupAbsent
from lithify.raft.net.client_operations import ClientOperation, GroupNotFound
from lithify.tables.assignments import group_name, new_assignments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.versions import CatalogVersions
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.tables.assignments import Assigned, Assignment, Assignments, Partition

__all__ = ["ZoneAssignments", "catalogs_since"]

log = get_logger("lithify.tables")


def catalogs_since(versions: CatalogVersions, time: int) -> list[Catalog]:
    """The versions of the catalog that a reader at this time or later can use."""
    try:
        first = versions.at_time(time)
    except CatalogVersionTrimmed:
        first = versions.earliest
    numbers = range(first.version, versions.latest.version + 1)
    return [versions.at_version(each) for each in numbers]


def _zones_with_tables(catalog: Catalog) -> set[int]:
    return {table.zone_id for table in catalog.tables()}


class ZoneAssignments:
    """See the module. `alive` returns the names of the nodes that are."""

    def __init__(
        self,
        metastore: LocalMetastore,
        versions: CatalogVersions,
        assignments: Assignments,
        alive: Callable[[], Collection[str]],
    ) -> None:
        self._metastore = metastore
        self._versions = versions
        self._assignments = assignments
        self._alive = alive

    async def step(self, low_watermark: int) -> None:
        """Do what is to be done, on the leader; `low_watermark` is 0 if there is none yet."""
        try:
            if not self._metastore.leading_term:
                return
            await self._create()
            if low_watermark:
                await self._mark_ending(low_watermark)
            for partition, known in list(self._assignments.known.items()):
                if known.assignment.ending:
                    await self._end(partition, known)
        except LithifyError as error:
            log.info("assignments of partitions wait", reason=str(error))

    async def _create(self) -> None:
        catalog = self._versions.latest
        members = self._metastore.group.config.members
        known, alive = self._assignments.known, self._alive()
        wanted: dict[Partition, Assignment] = {}
        for zone_id in _zones_with_tables(catalog):
            zone = catalog.get(ZoneDescriptor, zone_id)
            wanted.update(new_assignments(zone, catalog.version, members, alive, known))
        if wanted:
            await self._assignments.create(wanted)

    async def _mark_ending(self, low_watermark: int) -> None:
        known = self._assignments.known
        unused = {zone for zone, _ in known} - _zones_with_tables(self._versions.latest)
        if unused:
            for catalog in catalogs_since(self._versions, low_watermark):
                unused -= _zones_with_tables(catalog)
        for partition, each in list(known.items()):
            if partition[0] in unused and not each.assignment.ending:
                ending = replace(each.assignment, ending=True)
                await self._assignments.replace(partition, each, ending)

    async def _end(self, partition: Partition, known: Assigned) -> None:
        name = group_name(partition)
        try:
            with suppress(GroupAbsent, GroupNotFound):
                await self._metastore.node.requests.ask(name, ClientOperation.DROP, b"{}")
        except LithifyError as error:
            log.info("a partition is not ended yet", group=name, reason=str(error))
        else:
            await self._assignments.replace(partition, known, None)
