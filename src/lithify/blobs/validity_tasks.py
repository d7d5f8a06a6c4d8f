"""The tasks of a run over key indexes: validity per range of buckets, live positions per segment.

validity
    1. Read from each segment's key index the judged columns of one range of buckets. A damaged
       index is rebuilt immediately.
    2. Rows in a segment's dead set are already dead.
    3. Append the rows above the horizon: they are not judged, but may be the newest of a blob.
    4. Run `record_fates.judge_rows`. A delete that could be dropped, and a ttl or undelete of an
       expired blob, stay if a replica may not have read them. This is decided by segment: every
       replica must have passed its last position.
    5. Return for each segment one bit per row, set for live rows, in the order of the index, and
       the dropped records by cause.
dead sets
    Convert the bits of all ranges to the live positions of one segment: a record with all its
    parts. Parts without a put, left by a write that failed, are dead.

`lithify.compaction.live_set_rules.by_key` has the code that all rules by key share. Both tasks run
in any process that sees the files. Called by the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.build_key_index import read_rows
from lithify.blobs.record_fates import RecordFate, judge_rows
from lithify.blobs.records import BlobRecordKind
from lithify.compaction.live_set_rules.by_key import count_dropped, live_rows
from lithify.compaction.reports.report import Cause
from lithify.live_set import LiveSet
from lithify.log.key_index.key_index import BUCKETS, COLUMNS, KeyRows
from lithify.log.open_segments import read_dead_set
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lithify.blobs.build_key_index import IndexTask
    from lithify.blobs.record_fates import ValidityTerms

__all__ = [
    "JUDGED_COLUMNS",
    "ROW_BYTES",
    "LiveRecords",
    "LiveRecordsTask",
    "ValidRows",
    "ValidityTask",
    "read_part",
    "run_live_records",
    "run_validity",
]

ROW_BYTES = 120
"""Memory for a row in a task: its columns twice while they are joined, fate and sorting."""

JUDGED_COLUMNS = ("hash_high", "hash_low", "flags", "publish_ms", "event_ms", "length")
_CAUSES: dict[int, Cause] = {
    RecordFate.SUPERSEDED: Cause.SUPERSEDED,
    RecordFate.EXPIRED: Cause.EXPIRED,
    RecordFate.DELETED: Cause.DELETED,
    RecordFate.TOMBSTONE: Cause.TOMBSTONE,
}


@dataclass(frozen=True, slots=True)
class ValidityTask:
    """The buckets from `first` up to `stop` of these segments, in position order."""

    indexes: tuple[IndexTask, ...]
    first: int
    stop: int
    terms: ValidityTerms
    above: KeyRows
    """The rows above the horizon, of these buckets, in the order of positions."""
    passed: int = POSITION_MAX
    """Every replica has read all records up to this position."""


@dataclass(frozen=True, slots=True)
class ValidRows:
    """The result for one segment and the task's range of buckets."""

    rows: int
    bits: bytes
    """One bit per row, the first one highest; set for live rows."""
    dropped: dict[Cause, tuple[int, int]] = field(default_factory=dict)
    """(records, bytes) that this judgement finds dead, by cause."""
    purged_ms: int = -1
    """The time of the youngest delete or expiry change that is dropped; -1: none is."""


@dataclass(frozen=True, slots=True)
class LiveRecordsTask:
    """A segment and its live rows, in pieces by ascending ranges of buckets."""

    index: IndexTask
    valid: tuple[ValidRows, ...]


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """The live positions of a segment."""

    live: LiveSet
    live_entries: int
    live_bytes: int


def run_validity(task: ValidityTask, check: Callable[[], None]) -> list[ValidRows]:
    """Run a validity task."""
    parts: list[KeyRows] = []
    fates: list[NDArray[np.uint8]] = []
    for index in task.indexes:
        check()
        rows, dead = read_part(index, task.first, task.stop)
        parts.append(rows)
        fates.append(np.where(dead, RecordFate.DEAD_BEFORE, RecordFate.LIVE).astype(np.uint8))
    fates.append(np.full(len(task.above), RecordFate.LIVE, np.uint8))
    columns = {
        name: np.concatenate([getattr(part, name) for part in (*parts, task.above)])
        for name in JUDGED_COLUMNS
    }
    judged = np.concatenate(fates)
    judge_rows(
        columns["hash_high"],
        columns["hash_low"],
        columns["flags"],
        columns["publish_ms"],
        columns["event_ms"],
        judged,
        task.terms,
    )
    # A replica that has not read such a change may still have the blob. What a put says is known to
    # every replica that has it.
    is_change = columns["flags"] != BlobRecordKind.PUT
    last = (judged == RecordFate.TOMBSTONE) | ((judged == RecordFate.EXPIRED) & is_change)
    ends = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    for index, (start, stop) in zip(task.indexes, pairwise(ends), strict=True):
        if index.segment.last_position > task.passed:
            judged[start:stop][last[start:stop]] = RecordFate.LIVE
            last[start:stop] = False
    times_ms = np.where(last, columns["publish_ms"], -1)
    return [
        _answer(judged[start:stop], columns["length"][start:stop], times_ms[start:stop])
        for start, stop in pairwise(ends)
    ]


def read_part(
    index: IndexTask, first: int, stop: int, *, every: bool = False
) -> tuple[KeyRows, NDArray[np.bool_]]:
    """(rows of a segment, which of them are dead); all columns if `every`, else the judged ones."""
    ref = index.segment
    columns = JUDGED_COLUMNS if ref.dead is None else (*JUDGED_COLUMNS, "position")
    rows, _ = read_rows(index, first, stop, tuple(COLUMNS) if every else columns)
    if ref.dead is None:
        return rows, np.zeros(len(rows), np.bool_)
    dead = read_dead_set(index.fs, index.directory, ref.dead)
    return rows, dead.entries.contains_many(rows.position)


def _answer(
    fates: NDArray[np.uint8], lengths: NDArray[np.uint32], times_ms: NDArray[np.int64]
) -> ValidRows:
    dropped = count_dropped(fates, lengths, _CAUSES)
    bits = np.packbits(fates == RecordFate.LIVE).tobytes()
    return ValidRows(len(fates), bits, dropped, int(times_ms.max(initial=-1)))


def run_live_records(task: LiveRecordsTask, check: Callable[[], None]) -> LiveRecords:
    """Run a task of the job "dead sets"."""
    check()
    rows, _ = read_rows(task.index, 0, BUCKETS, ("position", "slots", "length"))
    chosen = live_rows(task.index, task.valid, len(rows))
    chosen = chosen[np.argsort(rows.position[chosen], kind="stable")]
    last = rows.position[chosen]
    entries = rows.slots[chosen].astype(np.int64)
    return LiveRecords(
        LiveSet.from_ranges(last - entries + 1, last + 1),
        int(entries.sum()),
        int(rows.length[chosen].sum(dtype=np.int64)),
    )
