"""Follows the update log: every version is applied once, in order.

At the start the log is replayed, then watched from the revision at which the replay began. If the
watch cannot continue, because revisions that it needs were compacted, the log is read again from
the newest version that is here. If a snapshot has replaced versions that are not here, the catalog
jumps to the snapshot. Versions below the newest snapshot are dropped.

A long update is decoded and applied in another thread, while the event loop does other things.

While the metastore is not available the follower tries again. A log that cannot be read ends it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

from lithify.catalog.format import SnapshotDecoder, decode_update
from lithify.catalog.loop_share import LoopShare
from lithify.catalog.manager.version_progress import VersionProgress
from lithify.catalog.update_log.replay import LONG_UPDATE_BYTES, LoggedSnapshot, LoggedUpdate
from lithify.errors import LithifyError
from lithify.exit_codes import UNREACHABLE
from lithify.hybrid_time import add_ms
from lithify.logger import get_logger
from lithify.metastore.errors import RevisionCompacted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate
    from lithify.catalog.update_log.update_log import SnapshotMoved, UpdateLog
    from lithify.catalog.versions import CatalogVersions
    from lithify.hybrid_time import HybridClock

__all__ = ["CatalogFollower", "decode_logged_snapshot"]

RETRY_S = 0.5
UPDATES_PER_TURN = 16
"""Updates of a replay that are applied before other tasks run."""
VERSIONS_PER_TURN = 64
"""Versions that are dropped before others may run: a fraction of a millisecond."""

_log = get_logger("lithify.catalog")


class Announce(Protocol):
    """Called for each version that was applied."""

    def __call__(
        self, before: Catalog, after: Catalog, update: CatalogUpdate | None, *, replayed: bool
    ) -> None:
        """See `CatalogListeners.announce`."""


class _Behind(Exception):
    """The watch has skipped versions."""


async def decode_logged_snapshot(snapshot: LoggedSnapshot) -> Catalog:
    """The catalog of a snapshot; other tasks run between two chunks."""
    decoder = SnapshotDecoder(f"catalog snapshot {snapshot.version}")
    for chunk in snapshot.chunks:
        decoder.feed(chunk)
        await asyncio.sleep(0)
    return decoder.finish()


def _updated(before: Catalog, logged: LoggedUpdate) -> tuple[CatalogUpdate, Catalog]:
    """The update, and the catalog with it."""
    update = decode_update(logged.payload, f"catalog update {logged.version}")
    return update, before.with_update(update, logged.timestamp)


class CatalogFollower:
    """See the module. One event loop."""

    def __init__(
        self,
        log: UpdateLog,
        versions: CatalogVersions,
        time: HybridClock,
        announce: Announce,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.applied = VersionProgress()
        self._log = log
        self._versions = versions
        self._time = time
        self._announce = announce
        self._sleep = sleep
        self._waits_for = ""
        """The reason that was logged last, until a version is applied."""
        self._after = 0
        """The revision of the metastore from which the log is watched."""

    async def catch_up(self, *, replayed: bool = False) -> None:
        """Apply what is in the log and not here."""
        head = await self._log.head()
        turn = 0
        async with aclosing(self._log.replay(head, self._versions.latest.version)) as events:
            async for event in events:
                if isinstance(event, LoggedSnapshot):
                    catalog = await decode_logged_snapshot(event)
                    self._jump(catalog, replayed=replayed)
                else:
                    await self._apply(event, replayed=replayed)
                turn += 1
                if turn % UPDATES_PER_TURN == 0:
                    await asyncio.sleep(0)
        await self._trim(head.snapshot)
        self._after = head.revision

    async def run(self) -> None:
        """Follow the log until cancelled; raises if the log cannot be read."""
        while True:
            try:
                await self._watch()
            except (RevisionCompacted, _Behind) as reason:
                _log.info(
                    "reading the catalog again", version=self.applied.version, why=str(reason)
                )
            except LithifyError as error:
                await self._pause(error)
            while not await self._caught_up():
                pass

    async def _caught_up(self) -> bool:
        try:
            await self.catch_up()
        except LithifyError as error:
            await self._pause(error)
            return False
        return True

    async def _pause(self, error: LithifyError) -> None:
        """Wait if the metastore is not available; another error ends the follower."""
        if error.exit_code != UNREACHABLE:
            raise error
        if str(error) != self._waits_for:
            _log.warning("the catalog waits for the metastore", why=str(error))
        self._waits_for = str(error)
        await self._sleep(RETRY_S)

    async def _watch(self) -> None:
        async with aclosing(self._log.watch(self._after)) as events:
            async for event in events:
                if isinstance(event, LoggedUpdate):
                    await self._apply(event, replayed=False)
                else:
                    await self._follow_snapshot(event)

    async def _apply(self, logged: LoggedUpdate, *, replayed: bool) -> None:
        before = self._versions.latest
        if logged.version <= before.version:
            return
        if logged.version > before.version + 1:
            raise _Behind(f"version {logged.version} follows {before.version}")
        if len(logged.payload) > LONG_UPDATE_BYTES:
            update, after = await asyncio.to_thread(_updated, before, logged)
        else:
            update, after = _updated(before, logged)
        self._versions.append(after)
        # A clock that is behind that of the metastore must still find a version that was appended.
        self._time.observe(add_ms(after.activation, -update.delay_ms))
        self._applied(before, after, update, replayed=replayed)

    def _jump(self, after: Catalog, *, replayed: bool) -> None:
        before = self._versions.latest
        self._versions.replace(after)
        self._time.observe(after.activation)
        self._applied(before, after, None, replayed=replayed)

    def _applied(
        self, before: Catalog, after: Catalog, update: CatalogUpdate | None, *, replayed: bool
    ) -> None:
        self._waits_for = ""
        self._announce(before, after, update, replayed=replayed)
        self.applied.advance(after.version)

    async def _follow_snapshot(self, moved: SnapshotMoved) -> None:
        latest = self._versions.latest.version
        if moved.version > latest:
            raise _Behind(f"snapshot {moved.version} follows version {latest}")
        await self._trim(moved.version)

    async def _trim(self, snapshot: int) -> None:
        """Drop the versions below a snapshot."""
        # Memory of many catalogs is freed a few at a time: all at once delays every other task.
        dropped: list[Catalog] = []
        share = LoopShare()
        for version in range(self._versions.earliest.version, snapshot):
            dropped.append(self._versions.at_version(version))
            if len(dropped) % VERSIONS_PER_TURN == 0:
                await share.give()
        if dropped:
            self._versions.replace(self._versions.at_version(snapshot))
        while dropped:
            del dropped[-VERSIONS_PER_TURN:]
            await share.give()
