"""Reading the update log from its snapshot to its newest version.

1. Read which version is the newest and which snapshot is published.
2. Read the chunks of the snapshot and compare them with its digest.
3. Read the updates after it in batches, and yield them in order.

Each read is of the newest state, not of one old revision: an old revision may be compacted. That is
safe because updates and published chunks never change, and are removed only after a newer snapshot
was published. So if something is missing, the snapshot is read again: a newer one is yielded, and
the replay continues from it. If there is none, the log is damaged, which is an error.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.catalog.update_log.errors import SnapshotDamaged, UpdateLogDamaged, UpdateMissing
from lithify.catalog.update_log.format import (
    SNAPSHOT_KEY,
    TAG_BYTES,
    VERSION_KEY,
    SnapshotPointer,
    chunks_of,
    parse_update_key,
    parse_version,
    update_key,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from lithify.metastore.metastore import KeyValue, Metastore

__all__ = [
    "LONG_UPDATE_BYTES",
    "LogHead",
    "LoggedSnapshot",
    "LoggedUpdate",
    "digest_of",
    "read_chunks",
    "read_head",
    "replay_from",
]

LONG_UPDATE_BYTES = 16 * 1024
"""Of a larger update: to decode and apply it may take longer than the event loop can be held."""
BATCH_ROWS = 64
"""Updates per read; small, so that reads of the log do not delay other requests."""


@dataclass(frozen=True, slots=True)
class LoggedUpdate:
    """An update of the log."""

    version: int
    timestamp: int
    """When it was appended: the timestamp of its revision."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class LoggedSnapshot:
    """The snapshot that stands for all updates up to a version."""

    version: int
    chunks: tuple[bytes, ...]
    """As they were given to `UpdateLog.save_snapshot`."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """Where the log starts and ends, at a revision."""

    revision: int
    newest: int
    pointer: SnapshotPointer | None
    pointer_revision: int

    @property
    def snapshot(self) -> int:
        """The version of the snapshot; 0 if there is none."""
        return self.pointer.version if self.pointer else 0


async def read_head(metastore: Metastore) -> LogHead:
    """The head of the log: a watch after its revision yields the updates above its newest."""
    found = await metastore.range(SNAPSHOT_KEY, SNAPSHOT_KEY + b"\0")
    newest = await metastore.get(VERSION_KEY)
    revision = found.revision
    if newest is not None and newest.revision > revision:
        # The watch would repeat this update. A snapshot published meanwhile must not be missed.
        revision = newest.revision
        found = await metastore.range(SNAPSHOT_KEY, SNAPSHOT_KEY + b"\0")
    row = found.rows[0] if found.rows else None
    return LogHead(
        revision,
        parse_version(newest.value) if newest else 0,
        SnapshotPointer.parse(row.value) if row else None,
        row.revision if row else 0,
    )


async def read_chunks(metastore: Metastore, version: int) -> list[KeyValue]:
    """The chunks of a snapshot, as far as they are there."""
    start, end = chunks_of(version)
    rows: list[KeyValue] = []
    while True:
        found = await metastore.range(start, end, limit=BATCH_ROWS)
        rows += found.rows
        if not found.more:
            return rows
        start = found.rows[-1].key + b"\0"


async def digest_of(chunks: Iterable[bytes]) -> bytes:
    """The digest of a snapshot; other tasks run between two chunks."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        await asyncio.sleep(0)
    return digest.digest()


async def replay_from(
    metastore: Metastore, head: LogHead, after: int, until: int
) -> AsyncGenerator[LoggedSnapshot | LoggedUpdate, None]:
    """What follows version `after` up to version `until`; see the module."""
    version = after
    while True:
        if head.pointer is not None and head.snapshot > version:
            chunks = await _read_snapshot(metastore, head.pointer)
            if chunks is not None:
                version = head.snapshot
                yield LoggedSnapshot(version, chunks)
        # After an unreadable snapshot the loop below finds nothing, and the head is read again.
        async with aclosing(_read_updates(metastore, version, until)) as updates:
            async for update in updates:
                version = update.version
                yield update
        if version >= until:
            return
        again = await read_head(metastore)
        if again.snapshot == head.snapshot:
            if head.snapshot > version:
                raise SnapshotDamaged(head.snapshot)
            raise UpdateMissing(version + 1, until)
        head = again


async def _read_snapshot(
    metastore: Metastore, pointer: SnapshotPointer
) -> tuple[bytes, ...] | None:
    """The chunks of a snapshot, or None if they are not those that were written."""
    rows = await read_chunks(metastore, pointer.version)
    chunks = tuple(row.value for row in rows[: pointer.chunks])
    return chunks if await digest_of(chunks) == pointer.digest else None


async def _read_updates(
    metastore: Metastore, after: int, until: int
) -> AsyncGenerator[LoggedUpdate, None]:
    """The updates that follow a version without a gap."""
    version = after
    while version < until:
        start, end = update_key(version + 1), update_key(until + 1)
        found = await metastore.range(start, end, limit=BATCH_ROWS)
        for row in found.rows:
            if parse_update_key(row.key) != version + 1:
                return
            version += 1
            if row.timestamp == 0:
                raise UpdateLogDamaged(version, "has no time")
            yield LoggedUpdate(version, row.timestamp, row.value[TAG_BYTES:])
        if not found.rows:
            return
