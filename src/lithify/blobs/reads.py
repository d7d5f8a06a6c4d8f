"""The reads of a blob store: get, head, list, and the lookups that writers make.

1. A read pins the log's generation, so that a compaction keeps its files.
2. The index finds the newest durable records of the blob.
3. `visibility.py` decides whether the caller may see the blob.
4. One read returns the put and a content of up to 64 KiB; then nothing is pinned. A larger content
   keeps the pin and the file until it is closed or read to its end.

Reads do not wait for a writer, except `list` while it copies the rows of the active segment. Called
by the store, from any thread.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.content.reader import Blob, read_head
from lithify.blobs.errors import BlobDeleted, BlobError
from lithify.blobs.index_rows import values_of
from lithify.blobs.records import BlobRecordKind, hash_id
from lithify.blobs.validity_tasks import read_part
from lithify.blobs.visibility import Include, info_of, is_seen, visibility_of
from lithify.errors import DamagedFrame
from lithify.log.key_index.key_index import BUCKETS
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.blobs.content.reader import BlobInfo
    from lithify.blobs.index import FoundRecords, Recent
    from lithify.blobs.index_rows import IndexRow
    from lithify.blobs.records import PutRecord
    from lithify.blobs.store_parts import StoreParts
    from lithify.errors import LithifyError
    from lithify.fs import File
    from lithify.log.manifest import SegmentRef

__all__ = ["BlobReads"]


class BlobReads:
    """See the module."""

    def __init__(
        self, core: StoreParts, explain: Callable[[DamagedFrame, str], LithifyError]
    ) -> None:
        """`explain` is the erase's: returns the error to raise for a bad frame of a blob."""
        self._log = core.log
        self._log_id = core.log.manifest.log_id
        self._index = core.index
        self._segments = core.segments
        self._writer = core.writer
        self._clock = core.clock
        self._explain = explain

    def get(
        self, blob_id: str, include: Include, span: tuple[int, int | None] | None = None
    ) -> Blob:
        """Open a blob, or the half-open range `span` of its bytes."""
        id_hash = hash_id(blob_id, self._log_id)
        pin = self._log.pin("blob get")
        try:
            found = self._index.find(
                self._index.opened(self._log), id_hash, self._log.last_position + 1
            )
            row, ref = visibility_of(blob_id, found, include, self._clock.now_ms())
            assert found is not None
            segment = self._segments.acquire(ref)
        except BaseException:
            pin.release()
            raise

        def release() -> None:
            self._segments.release(ref, segment)
            pin.release()

        try:
            head = read_head(segment.file, row)
            info = info_of(head.put, row, found)
            return Blob(info, head, segment.file, release, self._explain, span)
        except DamagedFrame as damage:
            release()
            raise self._explain(damage, blob_id) from damage
        except BaseException:
            release()
            raise

    def list(self, include: Include, after: int) -> Iterator[BlobInfo]:
        """The blobs whose puts are at positions above `after`, in that order."""
        with self._log.pin("blob list"):
            opened = self._index.opened(self._log)
            below = self._log.last_position + 1
            now_ms = self._clock.now_ms()
            for ref in opened.manifest.segments:
                for id_hash, row in self._puts(ref, opened.recent, after):
                    found = self._index.find(opened, id_hash, below)
                    if found is None or found.put != row or not is_seen(found, include, now_ms):
                        continue
                    with self._segments.use(ref) as segment:
                        put = self._put_unless_erased(segment.file, row)
                    if put is not None:
                        yield info_of(put, row, found)

    def _put_unless_erased(self, file: File, row: IndexRow) -> PutRecord | None:
        try:
            return read_head(file, row).put
        except BlobDeleted:
            return None
        except DamagedFrame as damage:
            explained = self._explain(damage, "")
            if isinstance(explained, BlobDeleted):
                return None
            raise

    def _puts(
        self, ref: SegmentRef, recent: Recent, after: int
    ) -> Sequence[tuple[bytes, IndexRow]]:
        """(hash, row) of the puts of a segment above a position, ascending."""
        if ref.id == recent.segment_id:
            with self._writer.lock:
                rows = recent.rows()
            live = np.ones(len(rows), np.bool_)
        elif ref.sealed and ref.last_position > after:
            rows, dead = read_part(self._index.task(ref), 0, BUCKETS, every=True)
            live = ~dead
        else:
            return []
        chosen = np.flatnonzero(live & (rows.flags == BlobRecordKind.PUT) & (rows.position > after))
        return values_of(rows, chosen[np.argsort(rows.position[chosen])])

    def has_content(self, blob_id: str, found: FoundRecords) -> bool:
        """Whether the put exists and is not erased."""
        if found.segment is None or not found.segment.sealed:
            return found.put is not None
        try:
            self.get(blob_id, Include.ALL).close()
        except BlobError:
            return False
        return True

    @contextmanager
    def states(self) -> Iterator[Callable[[bytes], FoundRecords | None]]:
        """Like `state`, for many blobs: they share one pin and one opened index."""
        with self._log.pin("blob lookups"):
            opened = self._index.opened(self._log)
            yield lambda id_hash: self._index.find(opened, id_hash, POSITION_MAX)

    def state(self, id_hash: bytes) -> FoundRecords | None:
        """A blob's newest records, including those that are not durable yet; for writers."""
        with self._log.pin("blob lookup"):
            return self._index.find(self._index.opened(self._log), id_hash, POSITION_MAX)
