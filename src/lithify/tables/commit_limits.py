"""Until when the tables are as a transaction sees them: the limit of a commit.

    limit = await limits.limit(catalog, {table.id}, above=0)
    limit = limits.known_limit(catalog, {table.id})         # 0: it has to be asked for

A node that has all versions of the catalog up to the safe time S of the metastore knows every
version that is active up to S + delay: each is appended that long before. So tables are as a
transaction sees them below the next change of them that is known, and below S + delay. Alone, a
node knows all versions, and there is no other limit.

What was known once stays known, so it is asked for again only when a commit may take longer than
until then. One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.manager.activation import ALONE
from lithify.catalog.objects import TableDescriptor
from lithify.catalog.update_log.format import VERSION_KEY, parse_version
from lithify.errors import LithifyError
from lithify.hybrid_time import MAX_TIMESTAMP, add_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.manager.activation import ActivationTiming
    from lithify.catalog.manager.manager import CatalogManager
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["CommitLimits"]

AHEAD_MS = 250
"""A commit may take this long before its limit has to be asked for again."""
SOON_MS = 100
"""This long before, it is asked for in the background, if commits do not wait for it."""


class CommitLimits:
    """See the module."""

    def __init__(
        self,
        metastore: LocalMetastore,
        catalog: CatalogManager,
        timing: Callable[[], ActivationTiming],
    ) -> None:
        self._metastore = metastore
        self._catalog = catalog
        self._timing = timing
        self._known = 0
        """All versions that are active up to this time are known."""
        self._asking: asyncio.Task[None] | None = None

    async def limit(self, seen: Catalog, tables: Collection[int], above: int = 0) -> int:
        """The time below which tables are as in a version; above a time if possible."""
        if self._timing() == ALONE:
            known = MAX_TIMESTAMP
        else:
            ahead = add_ms(self._catalog.now(), AHEAD_MS)
            known = await self.until_known(max(ahead, above + 1))
        return min(known, self._next_change(seen, tables))

    def known_limit(self, seen: Catalog, tables: Collection[int]) -> int:
        """The same if it is known without asking; otherwise 0."""
        known = MAX_TIMESTAMP
        if self._timing() != ALONE:
            known, ahead = self._known, add_ms(self._catalog.now(), AHEAD_MS)
            if known < add_ms(ahead, SOON_MS) and (self._asking is None or self._asking.done()):
                self._asking = asyncio.get_running_loop().create_task(self._ask_again())
            if known < ahead:
                return 0
        return min(known, self._next_change(seen, tables))

    async def until_known(self, time: int) -> int:
        """Wait until all versions up to a time are known; returns the time up to which they are."""
        timing = self._timing()
        if timing == ALONE:
            return MAX_TIMESTAMP
        if self._known < time:
            await self._metastore.wait_safe_time(add_ms(time, -timing.delay_ms))
            safe = self._metastore.state.time
            # Read after the time: it is not older than what the time has.
            newest = await self._metastore.get(VERSION_KEY, local=True)
            if newest is not None:
                await self._catalog.wait_applied(parse_version(newest.value))
            self._known = max(self._known, add_ms(safe, timing.delay_ms))
        return self._known

    async def close(self) -> None:
        """The node stops."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask_again(self) -> None:
        # A commit that needs it raises the error.
        with suppress(LithifyError):
            await self.until_known(add_ms(self._catalog.now(), AHEAD_MS + SOON_MS))

    def _next_change(self, seen: Catalog, tables: Collection[int]) -> int:
        """The activation of the first version in which tables are not as they are seen."""
        versions = self._catalog.versions
        for number in range(seen.version + 1, versions.latest.version + 1):
            try:
                catalog = versions.at_version(number)
            except CatalogVersionTrimmed:
                return versions.earliest.activation
            if any(_differs(seen, catalog, table) for table in tables):
                return catalog.activation
        return MAX_TIMESTAMP


def _differs(one: Catalog, other: Catalog, table_id: int) -> bool:
    """Do writers have to treat a table in two ways?"""
    return _as_written(one, table_id) != _as_written(other, table_id)


def _as_written(catalog: Catalog, table_id: int) -> object:
    table = catalog.find(TableDescriptor, table_id)
    if table is None:
        return None
    return table.schema_version, [each.id for each in catalog.alive_indexes_of(table_id)]
