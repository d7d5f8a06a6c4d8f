"""What a node does for its tables beside requests.

    for work in TableWork(...).works():
        ...                         # run each until the node stops

Assignments follow the catalog, groups follow the assignments, the low watermark follows the time,
and what falls below it goes. One event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate
    from lithify.tables.index_builds import IndexBuilds
    from lithify.tables.settings import TableSettings
    from lithify.tables.tables import Tables
    from lithify.tables.zone_assignments import ZoneAssignments

__all__ = ["TableWork"]

ASSIGN_S = 2.0
"""The interval of checks of the assignments that no change of the catalog has caused."""
SWEEP_S = 1.0
BUILD_S = 0.2
"""The interval at which unfinished indexes are checked."""
WATERMARK_S_MAX = 30.0

log = get_logger("lithify.tables")


class TableWork:
    """See the module."""

    def __init__(
        self,
        tables: Tables,
        zones: ZoneAssignments,
        builds: IndexBuilds,
        settings: TableSettings,
    ) -> None:
        self._tables = tables
        self._zones = zones
        self._builds = builds
        # The watermark is late by this much.
        self._raise_s = min(settings.table_availability_ms / 10_000, WATERMARK_S_MAX)
        self._to_assign = asyncio.Event()
        self._to_build = asyncio.Event()

    def works(self) -> tuple[Callable[[], Coroutine[None, None, None]], ...]:
        """Coroutine functions that run until they are cancelled."""
        hosting = self._tables.hosting
        return (
            *(hosting.follow, hosting.run, hosting.maintain),
            *(self._assign, self._raise_watermark, self._sweep, self._build),
        )

    async def catalog_changed(
        self,
        before: Catalog,  # noqa: ARG002
        after: Catalog,  # noqa: ARG002
        update: CatalogUpdate | None,  # noqa: ARG002
        /,
    ) -> None:
        """A listener of the catalog."""
        self._to_assign.set()
        self._to_build.set()

    def leader_changed(self, group: str, leader: str, term: int) -> None:  # noqa: ARG002
        """A listener of `GroupListeners`: what a leader does is not left until the next check."""
        self._to_assign.set()
        self._to_build.set()
        self._tables.hosting.wake()

    async def _assign(self) -> None:
        while True:
            self._to_assign.clear()
            await self._zones.step(self._tables.low_watermark.value)
            await _woken(self._to_assign, ASSIGN_S)

    async def _raise_watermark(self) -> None:
        while True:
            await asyncio.sleep(self._raise_s)
            try:
                await self._tables.low_watermark.update()
            except LithifyError as error:
                # The disk refuses the file: nothing goes until it takes it.
                log.warning("the low watermark stays", reason=str(error))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._tables.handles.sweep()

    async def _build(self) -> None:
        while True:
            self._to_build.clear()
            is_busy = await self._builds.step()
            await _woken(self._to_build, BUILD_S if is_busy else ASSIGN_S)


async def _woken(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
