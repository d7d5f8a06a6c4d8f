"""The survivors task: finds the live rows of all key indexes of a log, for a range of buckets.

1. Read the needed columns of each segment's key index, for the range only. A damaged index is
   rebuilt in place.
2. Mark rows in a segment's dead set as dead.
3. Find the winners with `newest_and_tombstone_kernels.judge_buckets`.
4. Keep chunks that wait for the last chunk of their message, or drop them if it is abandoned
   (`unfinished_chunks.py`).
5. Return for each segment a bitmap with one bit per row, set for live rows, in index order, and the
   counts of newly dead messages by cause.

`lithify.compaction.live_set_rules.by_key` has the parts that all rules by key share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance
from lithify.compaction.live_set_rules.by_key import count_dropped
from lithify.compaction.reports.report import Cause
from lithify.compaction.tasks.find_or_build_key_index import IndexTask, read_index
from lithify.compaction.tasks.jobs import no_check
from lithify.log.open_segments import read_dead_set
from lithify.positions import NO_POSITION
from lithify.topics.compaction import newest_and_tombstone_kernels as kernels
from lithify.topics.compaction.build_key_index import run_index
from lithify.topics.compaction.key_index_flags import CHUNK_PART

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lithify.compaction.limits.budget import Budget
    from lithify.fs import FileSystem
    from lithify.log.key_index.key_index import KeyRows
    from lithify.log.manifest import SegmentRef

__all__ = [
    "ROW_BYTES",
    "LivenessLimits",
    "Survivors",
    "SurvivorsTask",
    "read_rows",
    "run_survivors",
]

ROW_BYTES = 80
"""Memory per row of a task: its columns, twice while they are joined, liveness and hash table."""

_COLUMNS = ("hash_high", "hash_low", "flags", "publish_ms", "event_ms", "group", "length")
_CAUSES = {
    kernels.SUPERSEDED: Cause.SUPERSEDED,
    kernels.TOMBSTONE_DROPPED: Cause.TOMBSTONE,
    kernels.KEYLESS_DROPPED: Cause.KEYLESS,
    kernels.EXPIRED: Cause.EXPIRED,
}


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """The limits that separate live from dead."""

    by_event_time: bool = False
    keep_keyless: bool = True
    tombstones_until_ms: int = 2**62
    """Drop tombstones published at or before this time."""
    keys_until_ms: int = -1
    """Drop keys last published at or before this time."""
    given_up_through: int = NO_POSITION
    """Drop chunks up to this position whose last chunk is missing."""


@dataclass(frozen=True, slots=True)
class SurvivorsTask:
    """Buckets `first` to `stop` (exclusive) of these segments, in position order."""

    fs: FileSystem
    directory: str
    log_id: bytes
    segments: tuple[SegmentRef, ...]
    first: int
    stop: int
    judging: LivenessLimits
    budget: Budget


@dataclass(frozen=True, slots=True)
class Survivors:
    """The live rows of one segment in the task's range of buckets."""

    rows: int
    bits: bytes
    """One bit per row, most significant bit first; set for live rows."""
    dropped: dict[Cause, tuple[int, int]] = field(default_factory=dict)
    """(messages, bytes) that this task found dead, by cause."""
    waiting: int = 0
    """Live rows that are chunks without their last chunk."""


def run_survivors(task: SurvivorsTask, check: Callable[[], None]) -> list[Survivors]:
    """Compute the live rows of a range of buckets, one result per segment."""
    allowance = Allowance(task.budget, SystemClock(), check)
    parts = []
    for segment in task.segments:
        check()
        parts.append(_read_part(task, segment, allowance.read))
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([getattr(part.rows, name) for part in parts]) for name in _COLUMNS
    }
    liveness = np.concatenate([part.liveness for part in parts])
    ends = np.cumsum([len(part.liveness) for part in parts])
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
        liveness,
    )
    lengths = columns["length"]
    results = []
    for part, (start, stop) in zip(parts, pairwise((0, *ends)), strict=True):
        segment_liveness = liveness[start:stop]
        waiting = _settle_waiting(segment_liveness, part.rows, judging.given_up_through)
        results.append(_survivors_of(segment_liveness, lengths[start:stop], waiting))
    return results


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one segment in the task's range."""

    rows: KeyRows
    liveness: NDArray[np.uint8]
    starts: NDArray[np.int64]


def _read_part(
    task: SurvivorsTask, segment: SegmentRef, before_read: Callable[[int], None]
) -> _Part:
    index = IndexTask(
        task.fs,
        task.directory,
        segment,
        task.log_id,
        int(task.judging.by_event_time),
        task.budget,
    )
    columns = _COLUMNS if segment.dead is None else (*_COLUMNS, "position", "slot")
    rows, starts = read_rows(index, task.first, task.stop, columns, before_read)
    if segment.dead is None and (rows.flags & CHUNK_PART).any():
        # Only waiting chunks need positions, so they are read on demand.
        wanted = (*_COLUMNS, "position")
        rows, starts = read_rows(index, task.first, task.stop, wanted, before_read)
    count = int(starts[task.stop] - starts[task.first])
    liveness = np.full(count, kernels.LIVE, dtype=np.uint8)
    if segment.dead is not None:
        dead = read_dead_set(task.fs, task.directory, segment.dead)
        liveness[dead.messages(rows.position, rows.slot)] = kernels.DEAD_BEFORE
    return _Part(rows, liveness, starts[task.first : task.stop + 1] - starts[task.first])


def read_rows(
    task: IndexTask,
    first: int,
    stop: int,
    columns: Sequence[str],
    before_read: Callable[[int], None] = lambda _: None,
) -> tuple[KeyRows, NDArray[np.int64]]:
    """(rows of a range of buckets, first row of each bucket); rebuilds a damaged index."""

    def rebuild(damaged: IndexTask) -> None:
        run_index(damaged, no_check)

    return read_index(task, first, stop, columns, rebuild, before_read)


def _settle_waiting(liveness: NDArray[np.uint8], rows: KeyRows, given_up_through: int) -> int:
    """Step 4: settle the liveness of waiting chunks in place; the number of retained ones."""
    waiting = np.flatnonzero(liveness == kernels.WAITING)
    if not len(waiting):
        return 0
    given_up = rows.position[waiting] <= given_up_through
    liveness[waiting] = np.where(given_up, kernels.EXPIRED, kernels.LIVE)
    return int(np.count_nonzero(~given_up))


def _survivors_of(
    liveness: NDArray[np.uint8], lengths: NDArray[np.uint32], waiting: int
) -> Survivors:
    dropped = count_dropped(liveness, lengths, _CAUSES)
    live = np.packbits(liveness == kernels.LIVE)
    return Survivors(len(liveness), live.tobytes(), dropped, waiting)
