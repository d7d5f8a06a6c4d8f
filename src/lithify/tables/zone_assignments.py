"""The assignments of all zones, kept by the leader of the metastore.

A zone gets the assignments of its partitions when it has a table. They follow the members of the
cluster and the replicas of the zone (`rebalance.py`); nodes that leave get none (`leaving.py`).
They are `ending` when the zone has had no table since the low watermark, so nothing there can be
read. Then the groups are dropped. An assignment goes when its group has ended, or is absent on
every node.

Every step is conditional and may be repeated, so two leaders at once do no harm. One event loop.
"""

from __future__ import annotations

import asyncio
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
from lithify.tables.leaving import leaving_key
from lithify.tables.rebalance import targets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.versions import CatalogVersions
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.tables.assignments import Assigned, Assignment, Assignments, Partition
    from lithify.tables.leaving import LeavingNodes

__all__ = ["ZoneAssignments", "catalogs_since"]

TOGETHER = 16
"""Assignments that are changed at the same time."""

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
        leaving: LeavingNodes,
        alive: Callable[[], Collection[str]],
    ) -> None:
        self._metastore = metastore
        self._versions = versions
        self._assignments = assignments
        self._leaving = leaving
        self._alive = alive
        self._followed: tuple[object, ...] = ()
        """The version, members and changes of assignments with which nothing was to be moved."""

    async def step(self, low_watermark: int) -> None:
        """Do what is to be done, on the leader; `low_watermark` is 0 if there is none yet."""
        try:
            if not self._metastore.leading_term:
                return
            members = self._metastore.group.config.members
            members -= await self._leaving.read(local=True)
            await self._create(members)
            await self._move(members)
            if low_watermark:
                await self._mark_ending(low_watermark)
            for partition, known in list(self._assignments.known.items()):
                if known.assignment.ending:
                    await self._end(partition, known)
        except LithifyError as error:
            log.info("assignments of partitions wait", reason=str(error))

    async def _create(self, members: frozenset[str]) -> None:
        catalog = self._versions.latest
        known, alive = self._assignments.known, self._alive()
        wanted: dict[Partition, Assignment] = {}
        for zone_id in _zones_with_tables(catalog):
            zone = catalog.get(ZoneDescriptor, zone_id)
            wanted.update(new_assignments(zone, catalog.version, members, alive, known))
        if wanted:
            nodes = {node for each in wanted.values() for node in each.stable}
            await self._assignments.create(wanted, [leaving_key(node) for node in sorted(nodes)])

    async def _move(self, members: frozenset[str]) -> None:
        """Say where partitions are to be moved."""
        assignments, catalog = self._assignments, self._versions.latest
        follows = catalog.version, members, assignments.changes
        if follows == self._followed:
            return
        known = dict(assignments.known)
        new = targets(catalog, members, self._alive(), known)
        if not new:
            self._followed = follows
        items = list(new.items())
        for at in range(0, len(items), TOGETHER):
            await asyncio.gather(
                *(self._retarget(each, known[each], to) for each, to in items[at : at + TOGETHER])
            )

    async def _retarget(self, partition: Partition, known: Assigned, new: Assignment) -> None:
        absent = [leaving_key(node) for node in new.goal]
        if await self._assignments.replace(partition, known, new, absent):
            old, to = ", ".join(known.assignment.goal), ", ".join(new.goal)
            log.info("a partition is to be moved", group=group_name(partition), old=old, new=to)

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
