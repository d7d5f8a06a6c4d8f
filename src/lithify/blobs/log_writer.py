"""The appends of a blob store: capacity, appends, recent rows, and failed writes.

One operation at a time holds `lock` while it reads, decides and appends. It waits for its fsync
without the lock, so that operations share fsyncs.

1. `ready` brings the recent rows in line with the log, if an append or an fsync has failed.
2. `append` checks the capacity (`capacity.py`), rolls if necessary, then appends the parts of a put
   and the record itself. No other append comes in between, so they are contiguous: while a large
   put is copied into the log, or the log is rolled, other writers wait. `append_together` writes
   several small puts in one write.
3. The row is added to the recent ones at once. Readers see it when the log says it is durable.

Each append must follow the one before it. After a failed fsync, which discards all unacknowledged
appends, nothing can be appended until `ready` has removed their rows. A put that fails half-way
leaves parts without a put: no reader finds them, and the next compaction drops them.

Called by the parts of a store that write.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.build_key_index import put_index, scan_rows
from lithify.blobs.capacity import SpaceUse, has_room
from lithify.blobs.errors import BlobStoreFull, BlobTooLarge
from lithify.blobs.index import RECENT_ROWS_MAX, Recent
from lithify.blobs.index_rows import IndexRow, rows_of_frames
from lithify.blobs.record_fates import RecordFate, judge_rows
from lithify.blobs.records import BlobRecordKind, flags_of, part_bytes, parts_of
from lithify.compaction.tasks.jobs import no_check
from lithify.errors import WriteFailed
from lithify.log.segments.frame import HEADER_BYTES, NewEntry
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.blobs.content.spool import Spool
    from lithify.blobs.index import BlobIndex
    from lithify.blobs.record_fates import ValidityTerms
    from lithify.blobs.settings import StoreShape
    from lithify.checksum import Buffer
    from lithify.log.group_commit import Pending
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest
    from lithify.log.reader import Snapshot

__all__ = ["BlobWriter", "NewRecord", "read_recent", "recent_of", "used_bytes"]


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
    """Bytes of the sealed segments."""
    return sum(segment.file_bytes for segment in manifest.segments)


class NewRecord:
    """A record to append."""

    __slots__ = (
        "body",
        "expiry_ms",
        "frame_bytes",
        "id_hash",
        "kind",
        "life_version",
        "parts",
        "size",
        "spool",
        "time_ms",
        "whole",
    )

    def __init__(
        self,
        kind: BlobRecordKind,
        id_hash: bytes,
        body: bytes,
        *,
        life_version: int,
        expiry_ms: int,
        time_ms: int,
        spool: Spool | None = None,
    ) -> None:
        """`spool` has the content of a put."""
        self.kind = kind
        self.id_hash = id_hash
        self.body = body
        self.life_version = life_version
        self.expiry_ms = expiry_ms
        self.time_ms = time_ms
        self.spool = spool
        content_bytes = 0 if spool is None else spool.size
        self.parts = parts_of(content_bytes)
        self.whole: Buffer = b"" if spool is None or self.parts else spool.whole()
        """The content, if it is part of the record."""
        self.frame_bytes = HEADER_BYTES + len(body) + len(self.whole)
        self.size = self.frame_bytes + part_bytes(content_bytes)


class BlobWriter:
    """See the module."""

    def __init__(self, log: Log, index: BlobIndex, shape: StoreShape) -> None:
        self._log = log
        self._index = index
        self._shape = shape
        self._last: Pending | None = None
        self._stale = False
        self._sealed: tuple[Manifest, int, int] | None = None
        self.lock = threading.RLock()

    @property
    def path(self) -> str:
        """The directory of the log."""
        return self._log.directory

    def ready(self) -> None:
        """Bring the recent rows in line with the log. The caller holds the lock."""
        if self._is_stale() or self._index.recent.segment_id != self._log.manifest.active.id:
            self._log.sync()
            self._index.recent = read_recent(self._log)
            self._settled()

    def _is_stale(self) -> bool:
        """Whether an append failed whose rows may still be recent."""
        last = self._last
        if last is not None and last.done():
            try:
                last.result()
            except WriteFailed:
                # A failure of an earlier append includes the last one, so it is enough to check
                # that.
                self._stale = True
        return self._stale

    def _settled(self) -> None:
        """Forget failed appends: the next append need not follow them."""
        self._last = None
        self._stale = False

    def append(self, record: NewRecord, *, is_new: bool = False) -> Pending:
        """Append a record, after its parts if it has some.

        `is_new`: the blob is not in the store, so the record needs the capacity of a put.
        """
        self._make_room(record, BlobRecordKind.PUT if is_new else record.kind)
        if record.parts:
            self._append_parts(record)
        return self._write((record,))

    def append_together(self, puts: Sequence[NewRecord]) -> tuple[int, Pending]:
        """Append the first of these puts without parts, and in one write those that fit beside it.

        Returns their number. An error is about the first one: the others were not tried.
        """
        self._make_room(puts[0], BlobRecordKind.PUT)
        shape, use = self._shape, self._use()
        use = use.with_record(shape, puts[0].size, 1, rolls=False)
        limit = shape.segment_bytes - shape.closing_bytes
        rows = RECENT_ROWS_MAX - self._index.recent.count
        count = 1
        while count < len(puts) and count < rows:
            use = use.with_record(shape, puts[count].size, 1, rolls=False)
            if use.active_bytes > limit or not has_room(shape, BlobRecordKind.PUT, use):
                break
            count += 1
        return count, self._write(puts[:count])

    def _write(self, records: Sequence[NewRecord]) -> Pending:
        offset = self._log.active_bytes
        try:
            pending = self._log.append_together(
                [NewEntry(r.body, r.time_ms, flags_of(r.kind), r.parts, r.whole) for r in records],
                after=self._last,
            )
        except BaseException:
            self._stale = True
            raise
        self._last = pending
        if self._log.active_bytes != offset + sum(r.frame_bytes for r in records):
            # An fsync has failed since: this append is lost too, and its `result` will raise.
            self._stale = True
            return pending
        for position, r in enumerate(records, pending.position - len(records) + 1):
            row = IndexRow(
                r.kind,
                position,
                r.parts + 1,
                r.size,
                offset,
                r.life_version,
                r.time_ms,
                r.expiry_ms,
            )
            self._index.recent.add(r.id_hash, row)
            offset += r.frame_bytes
        return pending

    def _append_parts(self, record: NewRecord) -> None:
        assert record.spool is not None
        try:
            for bodies in record.spool.pieces():
                self._last = self._log.append_many(
                    bodies,
                    time_ms=record.time_ms,
                    flags=flags_of(BlobRecordKind.PART),
                    after=self._last,
                )
        except BaseException:
            self._stale = True
            raise

    def _make_room(self, record: NewRecord, kind: BlobRecordKind) -> None:
        """Roll if the record does not fit; refuse it, without a change, if it fits nowhere."""
        shape, log, size = self._shape, self._log, record.size
        if size > shape.record_bytes_max:
            raise BlobTooLarge(size, shape.record_bytes_max)
        rolls = log.must_roll(size) or self._index.recent.count >= RECENT_ROWS_MAX
        after = self._use().with_record(shape, size, record.parts + 1, rolls=rolls)
        if not has_room(shape, kind, after):
            raise BlobStoreFull(log.directory, size, shape.capacity_bytes)
        if rolls:
            self.roll()

    def seal(self) -> None:
        """Roll, if the capacity has room for one more file; erasing needs sealed segments."""
        with self.lock:
            self.ready()
            after = self._use().with_record(self._shape, 0, 0, rolls=True)
            if has_room(self._shape, BlobRecordKind.PUT, after) and self._index.recent.count:
                self.roll()

    def seal_full(self, terms: ValidityTerms) -> None:
        """Roll, if a run needs that to free space in a full store."""
        with self.lock:
            if self.must_seal(terms):
                self.roll()

    def must_seal(self, terms: ValidityTerms) -> bool:
        """Whether the store lacks room for the largest put and its active segment has dead bytes.

        A run judges sealed segments only: dead bytes of the active one would stay.
        """
        shape = self._shape
        with self.lock:
            self.ready()
            largest = self._use().with_record(shape, shape.record_bytes_max, 1, rolls=True)
            return not has_room(shape, BlobRecordKind.PUT, largest) and self._dead_bytes(terms) > 0

    def _dead_bytes(self, terms: ValidityTerms) -> int:
        """Dead bytes of the active segment, including parts without a put.

        If a blob has a record here, its newest one is here. A record that another run keeps, like
        the delete of a put in another segment, counts as dead.
        """
        rows = self._index.recent.rows()
        fates = np.full(len(rows), RecordFate.LIVE, np.uint8)
        columns = (rows.hash_high, rows.hash_low, rows.flags, rows.publish_ms, rows.event_ms)
        judge_rows(*columns, fates, terms)
        # A change whose put is in another segment is not expired because of that.
        waits = (fates == RecordFate.EXPIRED) & (rows.event_ms >= terms.as_of_ms)
        live_bytes = int(rows.length[(fates == RecordFate.LIVE) | waits].sum(dtype=np.int64))
        return self._log.active_bytes - SEGMENT_HEADER_BYTES - live_bytes

    def _use(self) -> SpaceUse:
        """The current use of the store."""
        log = self._log
        active = log.manifest.active
        sealed_bytes, sealed_entries = self._sealed_use()
        entries = sealed_entries + log.next_position - active.first_position
        return SpaceUse(sealed_bytes, log.active_bytes, entries)

    def _sealed_use(self) -> tuple[int, int]:
        """(bytes, live entries) of the sealed segments, computed once per generation."""
        manifest = self._log.manifest
        if self._sealed is None or self._sealed[0] is not manifest:
            entries = sum(s.live_entries for s in manifest.segments if s.sealed)
            self._sealed = manifest, used_bytes(manifest), entries
        return self._sealed[1:]

    def roll(self) -> None:
        """Seal the active segment and write its key index. The caller holds `lock`."""
        log, index, recent = self._log, self._index, self._index.recent
        log.roll()
        manifest = log.manifest
        sealed = next(s for s in reversed(manifest.segments) if s.id == recent.segment_id)
        task = index.task(sealed)
        if self._is_stale():
            # An fsync failed while this waited for the log: read the segment to see what is left.
            recent = Recent(sealed.id)
            recent.add_rows(scan_rows(task, no_check))
        try:
            put_index(task, recent.rows())
        except OSError:
            # The index can be built at any time; until then its rows stay in memory.
            index.hold(sealed, recent)
        index.recent = Recent(manifest.active.id)
        self._settled()
