"""Scans of tables by other programs, such as Spark jobs: what they read stays until they end.

    held = await holds.hold("3f9a", "orders", at=0, version=None, owner="Spark on host1")
    await holds.hold("3f9a", "orders", at=held.timestamp, version=None, owner="…")     # renewed
    await holds.finish("3f9a", part=3, parts=8)          # after the last part it is released
    await holds.release("3f9a")

A scan reads one moment: a timestamp, or the last one at which a version of the catalog was in
force. While it is held

- the low watermark of this node, and thereby of all leaders, is not above its timestamp;
- the version of the catalog is pinned (`pins.py`), with the name `scan-<name>`.

A hold ends `HOLD_MS` after it was last renewed: a job that was killed holds nothing for longer. The
name is drawn by the client, which renews the hold at any node; each node holds what it is asked to.
A hold that has ended is taken again, if its moment can still be read. One event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.catalog_compaction.pins import NamedPin, place_pin, release_pin
from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import NOT_FOUND
from lithify.hybrid_time import describe
from lithify.logger import get_logger
from lithify.tables.reads import table_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.catalog.manager.manager import CatalogManager
    from lithify.catalog.objects import TableDescriptor
    from lithify.clock import Clock
    from lithify.metastore.metastore import Metastore
    from lithify.tables.reads import TableReader
    from lithify.tables.tables import Tables

__all__ = ["HOLD_MS", "HeldScan", "ScanEnded", "ScanHolds"]

HOLD_MS = 300_000
SCANS_MAX = 1000
PREFIX = "scan-"
"""Of the names of pins."""

log = get_logger("lithify.tables")


class ScanEnded(LithifyError):
    """A scan that has ended, or that this node does not hold."""

    exit_code = NOT_FOUND

    def __init__(self, name: str) -> None:
        super().__init__(f"scan {name} is not held here: hold it again")


@dataclass(slots=True)
class HeldScan:
    """A scan in progress."""

    reader: TableReader
    table: TableDescriptor
    ends: ExitStack
    renew: Callable[[], None]
    """Renews the lock on the low watermark."""
    pinned_ms: int = 0
    """Until then its version is pinned."""
    expiry: asyncio.TimerHandle | None = None
    done: set[int] = field(default_factory=set)
    """The parts that have been read."""

    @property
    def timestamp(self) -> int:
        """The moment that is read."""
        return self.reader.timestamp


class ScanHolds:
    """See the module."""

    def __init__(
        self, tables: Tables, catalog: CatalogManager, metastore: Metastore, clock: Clock
    ) -> None:
        self.tables = tables
        self._catalog = catalog
        self._metastore = metastore
        self._clock = clock
        self._held: dict[str, HeldScan] = {}
        self._taking = asyncio.Lock()

    async def hold(
        self, name: str, table: str, *, at: int = 0, version: int | None = None, owner: str
    ) -> HeldScan:
        """Begin a scan, or renew its hold.

        At a time, now, or as a version of the catalog has seen it last.
        """
        async with self._taking:
            held = self._held.get(name)
            if held is not None and at not in (0, held.timestamp):
                raise InvalidInput(f"scan {name} reads at {describe(held.timestamp)}, not at {at}")
            if held is None:
                if len(self._held) >= SCANS_MAX:
                    raise InvalidInput(f"{SCANS_MAX} scans are in progress, the maximum")
                held = await self._begin(table, at if version is None else self._last(version))
                self._held[name] = held
            try:
                await self._renew(name, held, owner)
            except BaseException:
                self._end(name)
                raise
            return held

    async def finish(self, name: str, part: int, parts: int) -> None:
        """A part was read; the scan ends with the last one."""
        held = self._held.get(name)
        if held is not None:
            held.done.add(part)
            if len(held.done) >= parts:
                await self.release(name)

    async def release(self, name: str) -> None:
        """End a scan; no change if it has ended."""
        self._end(name)
        await release_pin(self._metastore, PREFIX + name)

    def _last(self, version: int) -> int:
        """The last timestamp at which a version was in force; the present one if it still is."""
        versions, now = self._catalog.versions, self._catalog.now()
        wanted = versions.at_version(version)
        if wanted.activation > now:
            raise InvalidInput(f"version {version} of the catalog is not in force yet")
        if version == versions.latest.version:
            return now
        return min(now, versions.at_version(version + 1).activation - 1)

    async def _begin(self, table: str, at: int) -> HeldScan:
        at = at or self._catalog.now()
        with ExitStack() as ends:
            renew = ends.enter_context(self.tables.low_watermark.read_lock(at))
            reader = await self.tables.open_reader(at, ends)
            return HeldScan(reader, table_named(reader.catalog, table), ends.pop_all(), renew)

    async def _renew(self, name: str, held: HeldScan, owner: str) -> None:
        held.renew()
        now_ms = self._clock.now_ms()
        if held.pinned_ms - now_ms < HOLD_MS * 2 // 3:
            expires_ms = now_ms + HOLD_MS
            version, reason = held.reader.catalog.version, f"scan of table {held.table.name}"
            pin = NamedPin(PREFIX + name, version, owner, reason, expires_ms)
            await place_pin(self._metastore, self._clock, pin)
            held.pinned_ms = expires_ms
        if held.expiry is not None:
            held.expiry.cancel()
        loop = asyncio.get_running_loop()
        held.expiry = loop.call_later(HOLD_MS / 1000, self.expire, name)

    def expire(self, name: str) -> None:
        """A hold was not renewed in time."""
        log.info("a scan was not renewed", scan=name)
        # Its pin expires by itself.
        self._end(name)

    def _end(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            if held.expiry is not None:
                held.expiry.cancel()
            held.ends.close()

    def get(self, name: str) -> HeldScan:
        """A scan in progress."""
        held = self._held.get(name)
        if held is None:
            raise ScanEnded(name)
        return held
