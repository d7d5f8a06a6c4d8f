"""Where the records of a blob are: a look-up by the hash of its id, newest segment first.

1. The active segment's records are **recent**: in memory, filled by writes and, when the store is
   opened, from the log's tail.
2. Each sealed segment has a key index on disk and a bloom filter in memory. The filter says for
   all but about one in a hundred other blobs that the segment has nothing of them. Else one of the
   index's 256 buckets is read, and kept for the next look-up.
3. Rows that the segment's dead set names are not there.

A bloom filter is an array of 64-bit words, two bytes a row but 1 MiB at most. A hash chooses a word
and five bits of it. It is made from the index when that is opened; nothing of it is on disk.

Memory: the filters; 62 bytes for each row of the kept buckets, `rows_max` at most; the recent rows
of one segment, `RECENT_ROWS_MAX` at most, after which the store rolls.

Invariant: a reader that has a snapshot finds in it what it had when it was taken. When the active
segment is sealed, its key index is written before its successor becomes the recent one.

One thread writes at a time; any number may look up. Called by the store.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lithify.blobs.indexing import IndexTask, read_rows, scan_rows
from lithify.blobs.records import Kind
from lithify.blobs.rows import row_at, rows_of, split_hash, values_of
from lithify.compaction.jobs import no_check
from lithify.log.keyindex import BUCKETS, COLUMNS
from lithify.log.reader import read_dead_set

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lithify.blobs.rows import Row
    from lithify.fs import FileSystem
    from lithify.liveset import LiveSet
    from lithify.log.keyindex import KeyRows
    from lithify.log.manifest import Manifest, SegmentRef
    from lithify.log.reader import Snapshot

__all__ = ["RECENT_ROWS_MAX", "BlobIndex", "Bloom", "Found", "Recent"]

RECENT_ROWS_MAX = 250_000
"""Of about 400 bytes each: 100 MB."""

BLOOM_WORDS_MAX = 2**17
_BITS = 5


@dataclass(frozen=True, slots=True)
class Found:
    """The records of a blob that count."""

    newest: Row
    put: Row | None
    """None: its content was compacted away."""
    segment: SegmentRef | None
    """The put's."""


class _Segment(Protocol):
    def find(self, id_hash: bytes) -> list[Row]:
        """The blob's rows, in the order of positions."""


class Recent:
    """The records of the active segment."""

    __slots__ = ("_rows", "count", "segment_id")

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.count = 0
        self._rows: dict[bytes, tuple[Row, ...]] = {}

    def add(self, id_hash: bytes, row: Row) -> None:
        """A record was appended."""
        # Replaced, never changed: readers take no lock.
        self._rows[id_hash] = (*self._rows.get(id_hash, ()), row)
        self.count += 1

    def add_rows(self, rows: KeyRows, dead: LiveSet | None = None) -> None:
        """Records were found in a segment; those at positions in `dead` do not count."""
        for id_hash, row in values_of(rows, np.arange(len(rows))):
            if dead is None or row.position not in dead:
                self.add(id_hash, row)

    def find(self, id_hash: bytes) -> list[Row]:
        """The blob's rows, in the order of positions."""
        return list(self._rows.get(id_hash, ()))

    def rows(self) -> KeyRows:
        """All of them, in the order of positions; for the one who writes."""
        return rows_of((key, row) for key, rows in self._rows.items() for row in rows)


class Bloom:
    """Says of a hash that it is not among those it was made from, or that it may be."""

    __slots__ = ("_mask", "_words")

    def __init__(self, low: NDArray[np.uint64]) -> None:
        words = 8
        while words * 4 < len(low) and words < BLOOM_WORDS_MAX:
            words *= 2
        self._mask = words - 1
        filled = np.zeros(words, np.uint64)
        bits = np.zeros(len(low), np.uint64)
        for number in range(_BITS):
            shift = low >> np.uint64(34 + 6 * number) & np.uint64(63)
            bits |= np.uint64(1) << shift
        np.bitwise_or.at(filled, low & np.uint64(self._mask), bits)
        self._words = filled.data

    def may_have(self, low: int) -> bool:
        """False only if it does not."""
        bits = 0
        for number in range(_BITS):
            bits |= 1 << (low >> 34 + 6 * number & 63)
        word: int = self._words[low & self._mask]
        return word & bits == bits


class _Buckets:
    """Buckets that were read lately, up to so many rows; shared by all segments."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._rows = 0
        self._kept: OrderedDict[tuple[str, int], KeyRows] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, task: IndexTask, bucket: int) -> KeyRows:
        key = task.segment.name, bucket
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        rows, _ = read_rows(task, bucket, bucket + 1, tuple(COLUMNS))
        with self._lock:
            if key not in self._kept:
                self._kept[key] = rows
                self._rows += len(rows)
            while self._rows > self._rows_max and len(self._kept) > 1:
                self._rows -= len(self._kept.popitem(last=False)[1])
        return rows


class _Sealed:
    """A sealed segment, with what was dead in it when it was opened."""

    __slots__ = ("_bloom", "_buckets", "_dead", "_task")

    def __init__(self, task: IndexTask, buckets: _Buckets) -> None:
        low, _ = read_rows(task, 0, BUCKETS, ("hash_low",))
        self._task = task
        self._buckets = buckets
        self._bloom = Bloom(low.hash_low)
        self._dead = _dead_in(task)

    def find(self, id_hash: bytes) -> list[Row]:
        high, low = split_hash(id_hash)
        if not self._bloom.may_have(low):
            return []
        rows = self._buckets.get(self._task, high >> 56)
        same = np.flatnonzero(rows.hash_low == np.uint64(low)).tolist()
        found = [row_at(rows, number) for number in same if rows.hash_high.item(number) == high]
        if self._dead is not None:
            found = [row for row in found if row.position not in self._dead]
        return found


class BlobIndex:
    """See the module."""

    def __init__(
        self, fs: FileSystem, directory: str, log_id: bytes, rows_max: int, recent: Recent
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._log_id = log_id
        self._buckets = _Buckets(rows_max)
        self._segments: dict[tuple[str, str], _Segment] = {}
        self._lock = threading.Lock()
        self.recent = recent

    def task(self, segment: SegmentRef) -> IndexTask:
        """What makes and reads the key index of a segment."""
        return IndexTask(self._fs, self._directory, segment, self._log_id)

    def hold(self, segment: SegmentRef, rows: Recent) -> None:
        """Use what is in memory of a sealed segment, because its key index cannot be written."""
        with self._lock:
            self._segments[_key(segment)] = rows

    def retain(self, manifest: Manifest) -> None:
        """Forget segments that the log no longer has; a reader that still needs one opens it."""
        present = {_key(segment) for segment in manifest.segments}
        with self._lock:
            self._segments = {k: v for k, v in self._segments.items() if k in present}

    def load(self, manifest: Manifest) -> None:
        """Open the sealed segments; an index that is missing or damaged is made again."""
        for segment in manifest.segments:
            if segment.sealed:
                self._segment(segment)

    def find(self, snapshot: Snapshot, recent: Recent, id_hash: bytes, below: int) -> Found | None:
        """What the snapshot has of a blob at positions under `below`; None: nothing.

        `recent` is what `self.recent` was before the snapshot was taken and still is after it.
        """
        newest: Row | None = None
        for segment in reversed(snapshot.manifest.segments):
            for row in reversed(self._rows(segment, recent, id_hash)):
                if row.position >= below:
                    continue
                newest = newest or row
                if row.kind is Kind.PUT:
                    return Found(newest, row, segment)
        return None if newest is None else Found(newest, None, None)

    def _rows(self, segment: SegmentRef, recent: Recent, id_hash: bytes) -> list[Row]:
        # A segment that was just sealed may not have been handed over yet: then its successor,
        # which is not the recent one, has nothing in it.
        if segment.id == recent.segment_id:
            return recent.find(id_hash)
        return self._segment(segment).find(id_hash) if segment.sealed else []

    def _segment(self, segment: SegmentRef) -> _Segment:
        found = self._segments.get(_key(segment))
        if found is None:
            task = self.task(segment)
            try:
                found = _Sealed(task, self._buckets)
            except OSError:
                # A disk that is full has no room for an index that is missing.
                found = Recent(segment.id)
                rows = scan_rows(task, no_check)
                found.add_rows(rows, _dead_in(task))
            with self._lock:
                self._segments[_key(segment)] = found
        return found


def _dead_in(task: IndexTask) -> LiveSet | None:
    """The dead positions of a segment; None: there are none."""
    ref = task.segment.dead
    return None if ref is None else read_dead_set(task.fs, task.directory, ref).entries


def _key(segment: SegmentRef) -> tuple[str, str]:
    return segment.name, "" if segment.dead is None else segment.dead.name
