"""The writing side of a blob store: room, appends, recent rows, and what failed.

One operation at a time holds `lock` while it looks, decides and appends; it waits for its fsync
without it, so that operations share fsyncs.

1. `ready` brings the recent rows in line with the log, if an append or an fsync has failed.
2. `append` makes room, rolling if need be, then appends the parts of a put and the record itself.
   Nobody appends in between, so they stand side by side: while a large put is copied into the log,
   or the log is rolled, the others wait.
3. The row goes to the recent ones at once. Readers see it when the log says it is durable.

Each append is told to stand behind the one before it. After a failed fsync, which takes everything
with it that was not acknowledged, nothing can be appended until `ready` has thrown out the rows of
what is gone. A put that fails half-way leaves parts without a put: nobody finds them, and the next
compaction drops them.

Called by the store.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.blobs.errors import BlobStoreFull, BlobTooLarge
from lithify.blobs.index import RECENT_ROWS_MAX, Recent
from lithify.blobs.indexing import put_index, scan_rows
from lithify.blobs.records import Kind, flags_of, part_bytes, parts_of
from lithify.blobs.rows import Row, rows_of_frames
from lithify.compaction.jobs import no_check
from lithify.errors import WriteFailed
from lithify.log.frame import HEADER_BYTES

if TYPE_CHECKING:
    from lithify.blobs.index import BlobIndex
    from lithify.blobs.settings import Shape
    from lithify.blobs.spool import Spool
    from lithify.log.commit import Pending
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest
    from lithify.log.reader import Snapshot

__all__ = ["BlobWriter", "read_recent", "recent_of", "used_bytes"]


def read_recent(log: Log) -> Recent:
    """The records of the active segment, from the log."""
    with log.snapshot("recent writes") as snapshot:
        return recent_of(snapshot)


def recent_of(snapshot: Snapshot) -> Recent:
    """The records of the active segment of a snapshot."""
    active = snapshot.manifest.active
    recent = Recent(active.id)
    for frames in snapshot.read_frames(active.first_position):
        recent.add_rows(rows_of_frames(frames))
    return recent


def used_bytes(manifest: Manifest) -> int:
    """What the sealed segments take."""
    return sum(segment.file_bytes for segment in manifest.segments)


class BlobWriter:
    """See the module."""

    def __init__(self, log: Log, index: BlobIndex, shape: Shape) -> None:
        self._log = log
        self._index = index
        self._shape = shape
        self._last: Pending | None = None
        self._stale = False
        self._sealed: tuple[Manifest, int] | None = None
        self.lock = threading.RLock()

    def ready(self) -> None:
        """Recent rows are those of the log; the caller has the lock."""
        if self._is_stale() or self._index.recent.segment_id != self._log.manifest.active.id:
            self._log.sync()
            self._index.recent = read_recent(self._log)
            self._settled()

    def _is_stale(self) -> bool:
        """Has something failed that recent rows may still speak of?"""
        last = self._last
        if last is not None and last.done():
            try:
                last.result()
            except WriteFailed:
                # Whatever failed before it took it along, so that the last one stands for all.
                self._stale = True
        return self._stale

    def _settled(self) -> None:
        """What failed is forgotten: the next append need not stand behind it."""
        self._last = None
        self._stale = False

    def append(
        self,
        kind: Kind,
        id_hash: bytes,
        body: bytes,
        *,
        life_version: int,
        expiry_ms: int,
        now_ms: int,
        spool: Spool | None = None,
    ) -> Pending:
        """Append a record; a put whose content is not in its body has it in `spool`."""
        content_bytes = 0 if spool is None else spool.size
        parts = parts_of(content_bytes)
        whole = b"" if spool is None or parts else spool.whole()
        frame_bytes = HEADER_BYTES + len(body) + len(whole)
        size = frame_bytes + part_bytes(content_bytes)
        if size > self._shape.record_bytes_max:
            raise BlobTooLarge(size, self._shape.record_bytes_max)
        self._make_room(size, self._shape.reserve_bytes if kind is Kind.PUT else 0)
        before = self._log.active_bytes
        try:
            if spool is not None and parts:
                self._append_parts(spool, now_ms)
            pending = self._log.append(
                body,
                more=whole,
                time_ms=now_ms,
                flags=flags_of(kind),
                tag=parts,
                after=self._last,
            )
        except BaseException:
            self._stale = True
            raise
        self._last = pending
        if self._log.active_bytes != before + size:
            # An fsync has failed since: this append is gone too, and its `result` will say so.
            self._stale = True
            return pending
        offset = before + size - frame_bytes
        row = Row(kind, pending.position, parts + 1, size, offset, life_version, now_ms, expiry_ms)
        self._index.recent.add(id_hash, row)
        return pending

    def _append_parts(self, spool: Spool, now_ms: int) -> None:
        for bodies in spool.pieces():
            self._last = self._log.append_many(
                bodies, time_ms=now_ms, flags=flags_of(Kind.PART), after=self._last
            )

    def _make_room(self, size: int, reserve_bytes: int) -> None:
        """Roll if the record does not fit; refuse it, changing nothing, if it fits nowhere."""
        shape, log = self._shape, self._log
        used = self._sealed_bytes()
        room = shape.segment_bytes - shape.closing_bytes - log.active_bytes
        rolls = log.must_roll(size) or self._index.recent.count >= RECENT_ROWS_MAX
        if rolls:
            used += log.active_bytes + shape.closing_bytes
            room = shape.record_bytes_max
        is_last = used + 2 * shape.segment_bytes > shape.capacity_bytes
        fits = used + shape.segment_bytes <= shape.capacity_bytes or not rolls
        if not fits or (is_last and room - size < reserve_bytes):
            raise BlobStoreFull(log.directory, size, shape.capacity_bytes)
        if rolls:
            self._roll()

    def seal(self) -> None:
        """Roll, if the capacity has room for a segment more; for those who need sealed ones."""
        shape, log = self._shape, self._log
        with self.lock:
            self.ready()
            used = self._sealed_bytes() + log.active_bytes + shape.closing_bytes
            if used + shape.segment_bytes <= shape.capacity_bytes and self._index.recent.count:
                self._roll()

    def _sealed_bytes(self) -> int:
        """`used_bytes`, summed up once a generation."""
        manifest = self._log.manifest
        if self._sealed is None or self._sealed[0] is not manifest:
            self._sealed = manifest, used_bytes(manifest)
        return self._sealed[1]

    def _roll(self) -> None:
        log, index, recent = self._log, self._index, self._index.recent
        log.roll()
        manifest = log.manifest
        sealed = next(s for s in reversed(manifest.segments) if s.id == recent.segment_id)
        task = index.task(sealed)
        if self._is_stale():
            # An fsync failed while this waited for the log: ask the segment what is left in it.
            recent = Recent(sealed.id)
            recent.add_rows(scan_rows(task, no_check))
        try:
            put_index(task, recent.rows())
        except OSError:
            # It can be made at any time: until then memory has what it would say.
            index.hold(sealed, recent)
        index.recent = Recent(manifest.active.id)
        self._settled()
