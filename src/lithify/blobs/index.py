"""Locates the records of a blob: a lookup by the hash of its id, newest segment first.

1. The records of the active segment are **recent**: in memory, added by writes and, when the store
   is opened, read from the log's tail.
2. Each sealed segment has a key index on disk and a bloom filter in memory. For about 99 % of the
   blobs that are not in the segment, the filter says so. Otherwise one of the index's 256 buckets
   is read, sorted by hash, and cached for the next lookup.
3. Rows in the segment's dead set are ignored.

All filters of a generation are in one tuple, newest first: a lookup checks them in one loop and
calls nothing for a segment without the blob.

A bloom filter is an array of 64-bit words, two bytes per row, at most 1 MiB. A hash selects a word
and five bits of it. The filter is built from the index when that is opened; it is not on disk.

Memory: the filters; 62 bytes for each row of the cached buckets, at most `rows_max`; the recent
rows of one segment, at most `RECENT_ROWS_MAX`, after which the store rolls.

Invariant: an `OpenedIndex` never changes while its files are pinned. When the active segment is
sealed, its key index is written before its successor becomes the recent one.

One thread writes at a time; any number may look up. Called by the store.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from lithify.blobs.build_key_index import IndexTask, read_rows, scan_rows
from lithify.blobs.index_rows import pack_rows, rows_of, split_hash, unpack_row, values_of
from lithify.blobs.records import BlobRecordKind
from lithify.compaction.tasks.jobs import no_check
from lithify.log.key_index.key_index import BUCKETS, COLUMNS
from lithify.log.open_segments import read_dead_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lithify.blobs.index_rows import IndexRow
    from lithify.fs import FileSystem
    from lithify.live_set import LiveSet
    from lithify.log.key_index.key_index import KeyRows
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest, SegmentRef
    from lithify.log.reader import Snapshot

__all__ = ["RECENT_ROWS_MAX", "BlobIndex", "Bloom", "FoundRecords", "OpenedIndex", "Recent"]

RECENT_ROWS_MAX = 250_000
"""About 400 bytes each: 100 MB."""

BLOOM_WORDS_MAX = 2**17
_SHIFTS = (34, 40, 46, 52, 58)
"""Each shift selects six bits of a hash, which select one bit; the lowest bits select the word."""


class FoundRecords(NamedTuple):
    """The records that decide the state of a blob."""

    newest: IndexRow
    put: IndexRow | None
    """None: its content was compacted away."""
    segment: SegmentRef | None
    """The segment of the put."""


class Bloom:
    """Bloom filter: tells that a hash is not in the set, or that it may be."""

    __slots__ = ("mask", "words")

    def __init__(self, words: NDArray[np.uint64]) -> None:
        """The number of words is a power of two; use `of` or `anything`."""
        self.mask = len(words) - 1
        self.words = words.data

    @classmethod
    def anything(cls) -> Bloom:
        """A filter that matches everything."""
        return cls(np.full(1, 2**64 - 1, np.uint64))

    @classmethod
    def of(cls, low: NDArray[np.uint64]) -> Bloom:
        """A filter of the blobs with these lower halves of their hashes."""
        words = 8
        while words * 4 < len(low) and words < BLOOM_WORDS_MAX:
            words *= 2
        filled = np.zeros(words, np.uint64)
        bits = np.zeros(len(low), np.uint64)
        for shift in _SHIFTS:
            bits |= np.uint64(1) << (low >> np.uint64(shift) & np.uint64(63))
        np.bitwise_or.at(filled, low & np.uint64(words - 1), bits)
        return cls(filled)

    @staticmethod
    def bits(low: int) -> int:
        """The bits that `words[low & mask]` has if the hash is in the set."""
        a, b, c, d, e = _SHIFTS
        return (
            1 << (low >> a & 63)
            | 1 << (low >> b & 63)
            | 1 << (low >> c & 63)
            | 1 << (low >> d & 63)
            | 1 << (low >> e & 63)
        )


class _Segment(Protocol):
    bloom: Bloom

    def find(self, id_hash: bytes) -> Sequence[IndexRow]:
        """The blob's rows, in the order of positions."""


class Recent:
    """The records of the active segment."""

    __slots__ = ("_rows", "bloom", "count", "segment_id")

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.count = 0
        self.bloom = Bloom.anything()
        self._rows: dict[bytes, tuple[IndexRow, ...]] = {}

    def add(self, id_hash: bytes, row: IndexRow) -> None:
        """Add an appended record."""
        # Replaced, never changed: readers take no lock.
        self._rows[id_hash] = (*self._rows.get(id_hash, ()), row)
        self.count += 1

    def add_rows(self, rows: KeyRows, dead: LiveSet | None = None) -> None:
        """Add the records of a segment, except those at positions in `dead`."""
        for id_hash, row in values_of(rows, np.arange(len(rows))):
            if dead is None or row.position not in dead:
                self.add(id_hash, row)

    def __contains__(self, id_hash: bytes) -> bool:
        return id_hash in self._rows

    def find(self, id_hash: bytes) -> Sequence[IndexRow]:
        """The blob's rows, in the order of positions."""
        return self._rows.get(id_hash, ())

    def rows(self) -> KeyRows:
        """All rows, in the order of positions. The caller holds the writer's lock."""
        return rows_of((key, row) for key, rows in self._rows.items() for row in rows)


class _Bucket:
    """The rows of one bucket of one segment."""

    __slots__ = ("_hashes", "_packed")

    def __init__(self, rows: KeyRows) -> None:
        # A stable sort keeps the rows of one blob in the order of positions.
        order = np.argsort(rows.hash_low, kind="stable")
        self._hashes = rows.hash_low[order].data
        self._packed = pack_rows(rows, order)

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, high: int, low: int) -> list[IndexRow]:
        found = []
        at = bisect_left(self._hashes, low)
        while at < len(self._hashes) and self._hashes[at] == low:
            hash_high, row = unpack_row(self._packed, at)
            if hash_high == high:
                found.append(row)
            at += 1
        return found


class _Buckets:
    """Cache of recently read buckets, shared by all segments; at most `rows_max` rows."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self._rows = 0
        self._kept: OrderedDict[tuple[str, int], _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, task: IndexTask, bucket: int) -> _Bucket:
        key = task.segment.name, bucket
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = _Bucket(read_rows(task, bucket, bucket + 1, tuple(COLUMNS))[0])
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._rows += len(made)
            while self._rows > self.rows_max and len(self._kept) > 1:
                self._rows -= len(self._kept.popitem(last=False)[1])
        return made


class _Sealed:
    """A sealed segment, with the dead set that it had when it was opened."""

    __slots__ = ("_buckets", "_dead", "_task", "bloom")

    def __init__(self, task: IndexTask, buckets: _Buckets) -> None:
        low, _ = read_rows(task, 0, BUCKETS, ("hash_low",))
        self._task = task
        self._buckets = buckets
        self.bloom = Bloom.of(low.hash_low)
        self._dead = _dead_in(task)

    def find(self, id_hash: bytes) -> list[IndexRow]:
        high, low = split_hash(id_hash)
        found = self._buckets.get(self._task, high >> 56).find(high, low)
        if self._dead is not None:
            found = [row for row in found if row.position not in self._dead]
        return found


_Filtered = tuple[int, memoryview, "SegmentRef", _Segment]
"""(mask and words of the filter, segment, its rows)."""


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """A generation of the log and the index of its blobs; it never changes."""

    manifest: Manifest
    recent: Recent
    sealed: tuple[_Filtered, ...]
    """Newest first, without a segment whose rows are still the recent ones."""


class BlobIndex:
    """See the module."""

    def __init__(
        self, fs: FileSystem, directory: str, log_id: bytes, rows_max: int, recent: Recent
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._log_id = log_id
        self.buckets = _Buckets(rows_max)
        self._segments: dict[tuple[str, str], _Segment] = {}
        self._lock = threading.Lock()
        self._opened: OpenedIndex | None = None
        self.recent = recent

    def task(self, segment: SegmentRef) -> IndexTask:
        """The task that builds and reads the key index of a segment."""
        return IndexTask(self._fs, self._directory, segment, self._log_id)

    def hold(self, segment: SegmentRef, rows: Recent) -> None:
        """Use the rows in memory for a sealed segment: its key index cannot be written."""
        with self._lock:
            self._segments[_key(segment)] = rows

    def retain(self, manifest: Manifest) -> None:
        """Drop segments that the log no longer has; a reader that needs one opens it again."""
        present = {_key(segment) for segment in manifest.segments}
        with self._lock:
            self._segments = {k: v for k, v in self._segments.items() if k in present}

    def load(self, manifest: Manifest) -> None:
        """Open the sealed segments; an index that is missing or damaged is rebuilt."""
        for segment in manifest.segments:
            if segment.sealed:
                self._segment(segment)

    def opened(self, log: Log | Snapshot) -> OpenedIndex:
        """The current generation; the caller has pinned it."""
        while True:
            recent, manifest, opened = self.recent, log.manifest, self._opened
            if opened is None or opened.manifest is not manifest or opened.recent is not recent:
                opened = OpenedIndex(manifest, recent, self._filters(manifest, recent))
            # Only then do the recent rows belong to the manifest.
            if self.recent is recent:
                self._opened = opened
                return opened

    def _filters(self, manifest: Manifest, recent: Recent) -> tuple[_Filtered, ...]:
        # A segment that was just sealed may not have been handed over yet. Its successor, which is
        # not the recent one, is then empty.
        filters = []
        for ref in reversed(manifest.segments):
            if ref.sealed and ref.id != recent.segment_id:
                segment = self._segment(ref)
                filters.append((segment.bloom.mask, segment.bloom.words, ref, segment))
        return tuple(filters)

    def find(self, opened: OpenedIndex, id_hash: bytes, below: int) -> FoundRecords | None:
        """The records of a blob at positions below `below`; None: there are none."""
        newest: IndexRow | None = None
        for ref, segment in _newest_first(opened, id_hash):
            for row in reversed(segment.find(id_hash)):
                if row.position >= below:
                    continue
                newest = newest or row
                if row.kind is BlobRecordKind.PUT:
                    return FoundRecords(newest, row, ref)
        return None if newest is None else FoundRecords(newest, None, None)

    def _segment(self, segment: SegmentRef) -> _Segment:
        found = self._segments.get(_key(segment))
        if found is None:
            task = self.task(segment)
            try:
                found = _Sealed(task, self.buckets)
            except OSError:
                # A full disk has no room for a missing index.
                found = Recent(segment.id)
                rows = scan_rows(task, no_check)
                found.add_rows(rows, _dead_in(task))
            with self._lock:
                self._segments[_key(segment)] = found
        return found


def _newest_first(opened: OpenedIndex, id_hash: bytes) -> list[tuple[SegmentRef, _Segment]]:
    """The segments that may have records of a blob."""
    _, low = split_hash(id_hash)
    bits = Bloom.bits(low)
    found = [
        (ref, segment)
        for mask, words, ref, segment in opened.sealed
        if words[low & mask] & bits == bits
    ]
    if id_hash in opened.recent:
        segments = reversed(opened.manifest.segments)
        active = next(ref for ref in segments if ref.id == opened.recent.segment_id)
        found.insert(0, (active, opened.recent))
    return found


def _dead_in(task: IndexTask) -> LiveSet | None:
    """The dead positions of a segment, or None."""
    ref = task.segment.dead
    return None if ref is None else read_dead_set(task.fs, task.directory, ref).entries


def _key(segment: SegmentRef) -> tuple[str, str]:
    return segment.name, "" if segment.dead is None else segment.dead.name
