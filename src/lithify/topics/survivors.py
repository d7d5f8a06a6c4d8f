"""The survivors task: which rows of the key indexes of a log are live, for a range of buckets.

1. Of every segment's key index read the columns that the judgement needs, for the range only.
   An index that turns out to be damaged is made again on the spot.
2. Rows that a segment's dead set names count as dead.
3. `survivor_kernels.judge_buckets` finds the winners.
4. Answer for each segment with one bit a row, set for live ones, in the order of the index, and
   with what died by cause.

Memory is that of the range: `plan_ranges` cuts the 256 buckets so that a task stays below a limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.compaction.report import Cause
from lithify.errors import Corrupt, UnsupportedVersion
from lithify.log.keyindex import BUCKETS
from lithify.log.reader import read_dead_set
from lithify.topics import survivor_kernels as kernels
from lithify.topics.indexing import IndexTask, open_index, run_index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lithify.compaction.budget import Budget
    from lithify.fs import FileSystem
    from lithify.log.deadset import DeadSet
    from lithify.log.keyindex import KeyRows
    from lithify.log.manifest import SegmentRef

__all__ = [
    "ROW_BYTES",
    "Judging",
    "Survivors",
    "SurvivorsTask",
    "plan_ranges",
    "read_rows",
    "run_survivors",
]

ROW_BYTES = 80
"""Of memory, for a row in a task: its columns twice while they are joined, verdict and table."""

_COLUMNS = ("hash_high", "hash_low", "flags", "publish_ms", "event_ms", "group", "length")
_CAUSES = {
    kernels.SUPERSEDED: Cause.SUPERSEDED,
    kernels.TOMBSTONE_DROPPED: Cause.TOMBSTONE,
    kernels.KEYLESS_DROPPED: Cause.KEYLESS,
    kernels.EXPIRED: Cause.EXPIRED,
}


@dataclass(frozen=True, slots=True)
class Judging:
    """The settings that decide between live and dead."""

    by_event_time: bool = False
    keep_keyless: bool = True
    tombstones_until_ms: int = 2**62
    """Tombstones published at or before this time go."""
    keys_until_ms: int = -1
    """Keys last published at or before this time go."""


@dataclass(frozen=True, slots=True)
class SurvivorsTask:
    """The buckets from `first` up to `stop` of all these segments, in position order."""

    fs: FileSystem
    directory: str
    log_id: bytes
    segments: tuple[SegmentRef, ...]
    first: int
    stop: int
    judging: Judging
    budget: Budget


@dataclass(frozen=True, slots=True)
class Survivors:
    """Of one segment, for the task's range of buckets."""

    rows: int
    bits: bytes
    """A bit a row, the first one highest; set for live rows."""
    dropped: dict[Cause, tuple[int, int]] = field(default_factory=dict)
    """(messages, bytes) that are dead since this judgement, by cause."""


def plan_ranges(rows: int, slots: int, memory_bytes: int) -> list[tuple[int, int]]:
    """Ranges of buckets for tasks of which `slots` run side by side within `memory_bytes`."""
    share = max(1, memory_bytes // max(1, slots) // ROW_BYTES)
    tasks = min(BUCKETS, max(slots, -(-rows // share)))
    cuts = [BUCKETS * number // tasks for number in range(tasks + 1)]
    return list(pairwise(cuts))


def run_survivors(task: SurvivorsTask, check: Callable[[], None]) -> list[Survivors]:
    """Carry out a task."""
    parts = []
    for segment in task.segments:
        check()
        parts.append(_read_part(task, segment))
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(part.rows, name) for part in parts]) for name in _COLUMNS
    }
    verdicts = np.concatenate([part.verdicts for part in parts])
    ends = np.cumsum([len(part.verdicts) for part in parts])
    starts = np.stack([part.starts for part in parts])
    starts[1:] += ends[:-1, None]
    judging = task.judging
    kernels.judge_buckets(
        columns["hash_high"],
        columns["hash_low"],
        columns["flags"],
        columns["publish_ms"],
        columns["event_ms"],
        columns["group"],
        starts,
        judging.by_event_time,
        judging.keep_keyless,
        judging.tombstones_until_ms,
        judging.keys_until_ms,
        verdicts,
    )
    lengths = columns["length"]
    return [
        _answer(verdicts[start:stop], lengths[start:stop]) for start, stop in pairwise((0, *ends))
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one segment in the task's range."""

    rows: KeyRows
    verdicts: NDArray[np.uint8]
    starts: NDArray[np.int64]


def _read_part(task: SurvivorsTask, segment: SegmentRef) -> _Part:
    columns = _COLUMNS if segment.dead is None else (*_COLUMNS, "position", "slot")
    rows, starts = read_rows(
        IndexTask(
            task.fs,
            task.directory,
            segment,
            task.log_id,
            int(task.judging.by_event_time),
            task.budget,
        ),
        task.first,
        task.stop,
        columns,
    )
    count = int(starts[task.stop] - starts[task.first])
    verdicts = np.full(count, kernels.LIVE, dtype=np.uint8)
    if segment.dead is not None:
        dead = read_dead_set(task.fs, task.directory, segment.dead)
        verdicts[_is_dead(dead, rows.position, rows.slot)] = kernels.DEAD_BEFORE
    return _Part(rows, verdicts, starts[task.first : task.stop + 1] - starts[task.first])


def read_rows(
    task: IndexTask, first: int, stop: int, columns: Sequence[str]
) -> tuple[KeyRows, NDArray[np.int64]]:
    """(rows of a range of buckets, first row of each bucket); a damaged index is made again."""
    for attempt in (1, 2):
        try:
            with open_index(task) as index:
                return index.read(first, stop, columns), index.starts
        except (Corrupt, UnsupportedVersion):
            if attempt == 2:
                raise
            run_index(task, lambda: None)
    raise AssertionError


def _is_dead(
    dead: DeadSet, positions: NDArray[np.int64], slots: NDArray[np.int32]
) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = dead.entries.contains_many(positions)
    return found | dead.parts.dead_slots(positions, slots)


def _answer(verdicts: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> Survivors:
    counts = np.bincount(verdicts, minlength=kernels.EXPIRED + 1)
    sizes = np.bincount(verdicts, weights=lengths, minlength=kernels.EXPIRED + 1)
    dropped = {
        cause: (int(counts[verdict]), int(sizes[verdict]))
        for verdict, cause in _CAUSES.items()
        if counts[verdict]
    }
    live = np.packbits(verdicts == kernels.LIVE)
    return Survivors(len(verdicts), live.tobytes(), dropped)
