"""Finds the newest message of one key by key indexes, without a scan of the log.

1. Hash the key; the hash determines its bucket.
2. Read this one bucket of the key index of every segment above the horizon, and of every segment of
   the view at or below it, newest segment first. Ignore rows that a dead set lists. In a topic in
   publish order, the first segment that has the key has the result; in event-time order all
   segments are searched. A segment without an index gets one.
3. The active segment has no index. Its rows are kept in memory and extended by the next lookup.
4. Read the entry. For a tombstone, or a key without messages, the result is None.

The last chunk of a chunked message represents the message; the same rows locate the chunks before
it. Some chunks may have been sent more than once, and an earlier message may have had the same
uuid. If a chunk was trimmed with the log, the message is incomplete: the result is None.

Memory: one bucket of one segment, and the rows of the active segment while it is active.

One thread at a time; owned by the topic. May wait for the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.limits.budget import Budget
from lithify.compaction.tasks.jobs import no_check
from lithify.errors import Corrupt, UnsupportedVersion
from lithify.log.key_index.key_index import KeyRows
from lithify.log.segments.frame import LogEntry
from lithify.positions import NO_POSITION
from lithify.topics.compaction.build_key_index import IndexTask, SegmentRows, run_index
from lithify.topics.compaction.key_index_flags import (
    CHUNK_LAST,
    CHUNK_PART,
    KEYLESS,
    OPAQUE,
    TOMBSTONE,
)
from lithify.topics.compaction.newest_per_key import read_rows
from lithify.topics.messages.key_siphash import key_hash
from lithify.topics.messages.message import decode_entry, encode_entry, parse_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from lithify.fs import FileSystem
    from lithify.log.dead_set.dead_set import DeadSet
    from lithify.log.log import Log
    from lithify.log.reader import Snapshot
    from lithify.topics.messages.message import Message

__all__ = ["NewestOfKey"]

_COLUMNS = ("hash_high", "hash_low", "position", "slot", "flags", "event_ms", "group")


@dataclass(frozen=True, slots=True)
class _Candidate:
    event_ms: int
    position: int
    slot: int
    flags: int
    group: int


class NewestOfKey:
    """Key lookups in one topic."""

    def __init__(self, fs: FileSystem, log: Log) -> None:
        self._fs = fs
        self._log = log
        self._active: tuple[int, int, SegmentRows] | None = None
        """(segment, first position that is not in the rows, rows) of the active segment."""

    def newest(self, key: bytes, *, by_event_time: bool, partition: int = -1) -> Message | None:
        """The newest message of a key; None if there is none or it is a tombstone."""
        with self._log.snapshot("look-up") as snapshot:
            best: _Candidate | None = None
            for rows in self._sources(snapshot, key, by_event_time=by_event_time):
                candidate = _newest_in(rows, by_event_time=by_event_time)
                # Segments come newest first, so of equal times the first candidate wins.
                if candidate is not None and (best is None or candidate.event_ms > best.event_ms):
                    best = candidate
                if best is not None and not by_event_time:
                    break
            if best is None or best.flags & TOMBSTONE:
                return None
            if best.flags & CHUNK_LAST:
                sources = self._sources(snapshot, key, by_event_time=by_event_time)
                return _chunked(snapshot, [*_parts_of(best, sources), best.position], partition)
            entry = snapshot.get(best.position, compacted=True)
            # A segment may span the horizon: entries of it below the horizon are in the view or
            # deleted.
            return None if entry is None else _message(entry, best.slot, partition)

    def _sources(self, snapshot: Snapshot, key: bytes, *, by_event_time: bool) -> Iterator[KeyRows]:
        """The rows of a key, segment by segment, newest first."""
        manifest = snapshot.manifest
        high, low = key_hash(key, manifest.log_id)
        yield _rows_of(self._active_rows(snapshot), high, low)
        horizon = manifest.horizon if manifest.view is not None else -1
        new = [ref for ref in manifest.segments[:-1] if ref.last_position > horizon]
        order = int(by_event_time)
        for segment in reversed([*(manifest.view or ()), *new]):
            task = IndexTask(
                self._fs, self._log.directory, segment, manifest.log_id, order, Budget()
            )
            rows = _sealed_rows(task, high, low)
            yield _live(rows, snapshot.dead_set(segment)) if len(rows) else rows

    def _active_rows(self, snapshot: Snapshot) -> KeyRows:
        active = snapshot.manifest.active
        segment_id, start, rows = self._active or (-1, 0, None)
        if rows is None or segment_id != active.id:
            start, rows = active.first_position, SegmentRows(0, snapshot.manifest.log_id)
        for frames in snapshot.read_frames(start):
            rows.add(frames)
            start = int(frames.positions[-1]) + 1
        self._active = active.id, start, rows
        return rows.rows()


def _sealed_rows(task: IndexTask, high: int, low: int) -> KeyRows:
    bucket = high >> 56
    try:
        rows, _ = read_rows(task, bucket, bucket + 1, _COLUMNS)
    except (Corrupt, UnsupportedVersion):
        # There is no index, or it is not usable.
        run_index(task, no_check)
        rows, _ = read_rows(task, bucket, bucket + 1, _COLUMNS)
    return _rows_of(rows, high, low)


def _live(rows: KeyRows, dead: DeadSet | None) -> KeyRows:
    if dead is None:
        return rows
    dead_rows = dead.entries.contains_many(rows.position)
    return _select(rows, ~(dead_rows | dead.parts.dead_slots(rows.position, rows.slot)))


def _select(rows: KeyRows, keep: NDArray[np.bool_]) -> KeyRows:
    return KeyRows(**{name: getattr(rows, name)[keep] for name in _COLUMNS})


def _rows_of(rows: KeyRows, high: int, low: int) -> KeyRows:
    of_key = (rows.hash_high == np.uint64(high)) & (rows.hash_low == np.uint64(low))
    return _select(rows, of_key & (rows.flags & (KEYLESS | OPAQUE) == 0))


def _newest_in(rows: KeyRows, *, by_event_time: bool) -> _Candidate | None:
    """The newest of the rows of a key, which are ordered by position."""
    whole = np.flatnonzero(rows.flags & CHUNK_PART == 0)
    if not len(whole):
        return None
    at = whole[-1]
    if by_event_time:
        at = whole[len(whole) - 1 - int(np.argmax(rows.event_ms[whole][::-1]))]
    return _Candidate(
        int(rows.event_ms[at]),
        int(rows.position[at]),
        int(rows.slot[at]),
        int(rows.flags[at]),
        int(rows.group[at]),
    )


def _parts_of(last: _Candidate, sources: Iterable[KeyRows]) -> list[int]:
    """Positions of the chunks before the last chunk, after any earlier message of that uuid."""
    positions: list[int] = []
    before = NO_POSITION
    for rows in sources:
        same = (rows.group == np.uint64(last.group)) & (rows.position < last.position)
        positions += rows.position[same & (rows.flags & CHUNK_PART != 0)].tolist()
        others = rows.position[same & (rows.flags & CHUNK_LAST != 0)]
        before = max(before, int(others.max(initial=NO_POSITION)))
    return sorted(position for position in positions if position > before)


def _chunked(snapshot: Snapshot, positions: list[int], partition: int) -> Message | None:
    """Assemble a message from its chunks at these positions; None if it is incomplete."""
    optional = (snapshot.get(position, compacted=True) for position in positions)
    entries = [entry for entry in optional if entry is not None]
    if len(entries) < len(positions):
        return None
    payloads: dict[int, memoryview] = {}
    for entry in entries:
        # If a chunk was sent again, the later copy wins.
        metadata, payload = parse_entry(entry.body)
        payloads[metadata.chunk_id] = payload
    numbers = range(metadata.num_chunks_from_msg)
    if any(number not in payloads for number in numbers):
        return None
    body = encode_entry(metadata, b"".join(payloads[number] for number in numbers))
    last = entries[-1]
    return _message(
        LogEntry(last.position, last.time_ms, body, last.flags, last.tag), -1, partition
    )


def _message(entry: LogEntry, slot: int, partition: int) -> Message | None:
    messages = decode_entry(entry, partition)
    return next((each for each in messages if each.id.batch_index == slot), None)
