"""The writing side of a blob store: room, appends, recent rows, and what failed.

One operation at a time holds `lock` while it looks, decides and appends; it waits for its fsync
without it, so that operations share fsyncs.

1. `ready` brings the recent rows in line with the log, if an append or an fsync has failed.
2. `append` asks whether there is room (`room.py`), rolls if need be, then appends the parts of a
   put and the record itself. Nobody appends in between, so they stand side by side: while a large
   put is copied into the log, or the log is rolled, the others wait. `append_together` takes
   several small puts in one write.
3. The row goes to the recent ones at once. Readers see it when the log says it is durable.

Each append is told to stand behind the one before it. After a failed fsync, which takes everything
with it that was not acknowledged, nothing can be appended until `ready` has thrown out the rows of
what is gone. A put that fails half-way leaves parts without a put: nobody finds them, and the next
compaction drops them.

Called by the sides of a store that write.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.errors import BlobStoreFull, BlobTooLarge
from lithify.blobs.index import RECENT_ROWS_MAX, Recent
from lithify.blobs.indexing import put_index, scan_rows
from lithify.blobs.records import Kind, flags_of, part_bytes, parts_of
from lithify.blobs.room import Use, has_room
from lithify.blobs.rows import Row, rows_of_frames
from lithify.blobs.validity import Fate, judge_rows
from lithify.compaction.jobs import no_check
from lithify.errors import WriteFailed
from lithify.log.frame import HEADER_BYTES, NewEntry
from lithify.log.segment import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.blobs.index import BlobIndex
    from lithify.blobs.settings import Shape
    from lithify.blobs.spool import Spool
    from lithify.blobs.validity import Terms
    from lithify.checksum import Buffer
    from lithify.log.commit import Pending
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
    """What the sealed segments take."""
    return sum(segment.file_bytes for segment in manifest.segments)


class NewRecord:
    """A record on its way into the log."""

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
        kind: Kind,
        id_hash: bytes,
        body: bytes,
        *,
        life_version: int,
        expiry_ms: int,
        time_ms: int,
        spool: Spool | None = None,
    ) -> None:
        """A put has its content in `spool`."""
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
        """The content, if it stands in the record."""
        self.frame_bytes = HEADER_BYTES + len(body) + len(self.whole)
        self.size = self.frame_bytes + part_bytes(content_bytes)


class BlobWriter:
    """See the module."""

    def __init__(self, log: Log, index: BlobIndex, shape: Shape) -> None:
        self._log = log
        self._index = index
        self._shape = shape
        self._last: Pending | None = None
        self._stale = False
        self._sealed: tuple[Manifest, int, int] | None = None
        self.lock = threading.RLock()

    @property
    def path(self) -> str:
        """Where it writes."""
        return self._log.directory

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

    def append(self, record: NewRecord, *, is_new: bool = False) -> Pending:
        """Append a record, and before it its parts if it has some.

        `is_new`: about a blob that the store does not have, so that it needs the room of a put.
        """
        self._make_room(record, Kind.PUT if is_new else record.kind)
        if record.parts:
            self._append_parts(record)
        return self._write((record,))

    def append_together(self, puts: Sequence[NewRecord]) -> tuple[int, Pending]:
        """Append the first of some puts without parts, and in one write those that fit beside it.

        How many there were. What is raised holds for the first: the others were not tried.
        """
        self._make_room(puts[0], Kind.PUT)
        shape, use = self._shape, self._use()
        use = use.with_record(shape, puts[0].size, 1, rolls=False)
        limit = shape.segment_bytes - shape.closing_bytes
        rows = RECENT_ROWS_MAX - self._index.recent.count
        count = 1
        while count < len(puts) and count < rows:
            use = use.with_record(shape, puts[count].size, 1, rolls=False)
            if use.active_bytes > limit or not has_room(shape, Kind.PUT, use):
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
            # An fsync has failed since: this append is gone too, and its `result` will say so.
            self._stale = True
            return pending
        for position, r in enumerate(records, pending.position - len(records) + 1):
            row = Row(
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
                    bodies, time_ms=record.time_ms, flags=flags_of(Kind.PART), after=self._last
                )
        except BaseException:
            self._stale = True
            raise

    def _make_room(self, record: NewRecord, kind: Kind) -> None:
        """Roll if the record does not fit; refuse it, changing nothing, if it fits nowhere."""
        shape, log, size = self._shape, self._log, record.size
        if size > shape.record_bytes_max:
            raise BlobTooLarge(size, shape.record_bytes_max)
        rolls = log.must_roll(size) or self._index.recent.count >= RECENT_ROWS_MAX
        after = self._use().with_record(shape, size, record.parts + 1, rolls=rolls)
        if not has_room(shape, kind, after):
            raise BlobStoreFull(log.directory, size, shape.capacity_bytes)
        if rolls:
            self._roll()

    def seal(self) -> None:
        """Roll, if the capacity has room for one more file; for those who need sealed segments."""
        with self.lock:
            self.ready()
            after = self._use().with_record(self._shape, 0, 0, rolls=True)
            if has_room(self._shape, Kind.PUT, after) and self._index.recent.count:
                self._roll()

    def seal_full(self, terms: Terms) -> None:
        """Roll, if a run needs that to free a full store."""
        with self.lock:
            if self.must_seal(terms):
                self._roll()

    def must_seal(self, terms: Terms) -> bool:
        """Does the store lack room for the largest put, and has the active segment dead bytes?

        A run judges sealed segments only: what is dead in the active one would stay.
        """
        shape = self._shape
        with self.lock:
            self.ready()
            largest = self._use().with_record(shape, shape.record_bytes_max, 1, rolls=True)
            return not has_room(shape, Kind.PUT, largest) and self._dead_bytes(terms) > 0

    def _dead_bytes(self, terms: Terms) -> int:
        """Of the active segment, also those of puts that were cut off.

        The newest record of a blob that has one here is here. What stays dead for another run, as
        the delete of a put that is elsewhere, counts as dead.
        """
        rows = self._index.recent.rows()
        fates = np.full(len(rows), Fate.LIVE, np.uint8)
        columns = (rows.hash_high, rows.hash_low, rows.flags, rows.publish_ms, rows.event_ms)
        judge_rows(*columns, fates, terms)
        # A change whose put is in another segment is not expired for that.
        waits = (fates == Fate.EXPIRED) & (rows.event_ms >= terms.as_of_ms)
        live_bytes = int(rows.length[(fates == Fate.LIVE) | waits].sum(dtype=np.int64))
        return self._log.active_bytes - SEGMENT_HEADER_BYTES - live_bytes

    def _use(self) -> Use:
        """What the store has in it now."""
        log = self._log
        active = log.manifest.active
        sealed_bytes, sealed_entries = self._sealed_use()
        entries = sealed_entries + log.next_position - active.first_position
        return Use(sealed_bytes, log.active_bytes, entries)

    def _sealed_use(self) -> tuple[int, int]:
        """(bytes, live entries) of the sealed segments, summed up once a generation."""
        manifest = self._log.manifest
        if self._sealed is None or self._sealed[0] is not manifest:
            entries = sum(s.live_entries for s in manifest.segments if s.sealed)
            self._sealed = manifest, used_bytes(manifest), entries
        return self._sealed[1:]

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
