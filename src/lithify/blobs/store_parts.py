"""The shared parts of an open blob store: its log, index, writer and clock.

`open_parts` builds them when a store is opened. It reads the rows of the active segment from the
log and opens the key indexes of the sealed segments; a missing index is rebuilt.

Called by the store, which passes it to its readers, writers and replication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.blobs.content.spool import Spool
from lithify.blobs.index import BlobIndex
from lithify.blobs.log_writer import BlobWriter, read_recent
from lithify.blobs.monotonic_clock import MonotonicClock
from lithify.log.open_segments import OpenSegments

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.blobs.content.spool import Content
    from lithify.blobs.settings import BlobSettings, StoreShape
    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.log import Log

__all__ = ["StoreParts", "open_parts"]


@dataclass(frozen=True, slots=True)
class StoreParts:
    """See the module."""

    fs: FileSystem
    log: Log
    index: BlobIndex
    segments: OpenSegments
    writer: BlobWriter
    clock: MonotonicClock
    shape: StoreShape
    settings: Callable[[], BlobSettings]
    """The current settings."""
    random_bytes: Callable[[int], bytes]

    def spool(self, content: Content) -> Spool:
        """Buffer a content, which may be as large as a segment."""
        limit = self.shape.record_bytes_max
        return Spool(content, limit, self.fs, self.log.directory, self.random_bytes)

    def deleted_before_ms(self, now_ms: int) -> int:
        """Blobs that were deleted before this time are gone: their content may be erased."""
        return now_ms - self.settings().deleted_retention_ms


def open_parts(
    fs: FileSystem,
    log: Log,
    shape: StoreShape,
    settings: Callable[[], BlobSettings],
    clock: Clock,
    random_bytes: Callable[[int], bytes],
) -> StoreParts:
    """Build the parts for a log that is open."""
    manifest = log.manifest
    rows_max = settings().index_rows_max
    index = BlobIndex(fs, log.directory, manifest.log_id, rows_max, read_recent(log))
    index.load(manifest)
    return StoreParts(
        fs,
        log,
        index,
        OpenSegments(fs, log.directory, settings().open_files_max),
        BlobWriter(log, index, shape),
        MonotonicClock(clock),
        shape,
        settings,
        random_bytes,
    )
