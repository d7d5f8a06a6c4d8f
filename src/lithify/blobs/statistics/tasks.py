"""The tasks of a store's statistics: valid records by segment and span of time.

1. Read the needed columns of each segment's key index, for one range of buckets. A damaged index is
   rebuilt immediately. No payload is read.
2. Rows in the segment's dead set are dead.
3. Append the rows of the active segment, which are counted like the others.
4. Run `statistics_kernels.add_up`; it returns one line per segment, for any number of rows.

Memory depends on the range of buckets, as in `blobs/validity_tasks.py`, which uses the same ranges.
Runs in any process that sees the files. Called by `statistics.py` and `dataframe.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.build_key_index import IndexTask, has_index, open_index, read_rows, run_index
from lithify.blobs.statistics.kernels import add_up
from lithify.blobs.validity_tasks import ROW_BYTES
from lithify.compaction.live_set_rules.by_key import plan_ranges
from lithify.compaction.tasks.jobs import no_check
from lithify.log.key_index.key_index import KeyRows
from lithify.log.key_index.key_index_kernels import bucket_order
from lithify.log.open_segments import read_dead_set
from lithify.positions import POSITION_MAX
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lithify.fs import FileSystem
    from lithify.log.manifest import Manifest

__all__ = [
    "Spans",
    "StatisticsCounts",
    "StatisticsTask",
    "Subject",
    "plan_statistics",
    "run_statistics",
]

SPANS_MAX = 10_000
_COLUMNS = ("hash_high", "hash_low", "flags", "publish_ms", "event_ms", "length")
"""In the order of the kernel's arguments."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The time range of a forecast: `count` spans of equal length from now on."""

    count: int = 48
    span_ms: int = 3_600_000

    def __post_init__(self) -> None:
        check_range("count", self.count, 0, SPANS_MAX)
        check_range("span_ms", self.span_ms, 1, 2**47)


@dataclass(frozen=True, slots=True)
class Subject:
    """The inputs of the statistics of a store."""

    fs: FileSystem
    directory: str
    manifest: Manifest
    recent: KeyRows
    """The rows of the active segment, in the order of positions."""
    active_bytes: int
    as_of_ms: int
    deleted_retention_ms: int
    replicas_passed: int | None = None

    @property
    def indexes(self) -> tuple[IndexTask, ...]:
        """Of the sealed segments, in the order of positions."""
        sealed = (segment for segment in self.manifest.segments if segment.sealed)
        log_id = self.manifest.log_id
        return tuple(IndexTask(self.fs, self.directory, segment, log_id) for segment in sealed)


@dataclass(frozen=True, slots=True)
class StatisticsTask:
    """The buckets from `first` up to `stop` of these segments, in position order."""

    indexes: tuple[IndexTask, ...]
    recent: KeyRows
    """The rows of the active segment that are in these buckets."""
    first: int
    stop: int
    as_of_ms: int
    deleted_retention_ms: int
    passed: int
    spans: Spans


@dataclass(frozen=True, slots=True)
class StatisticsCounts:
    """One line per segment, the active one last; one column per span, see the kernel."""

    records: NDArray[np.int64]
    bytes: NDArray[np.int64]


def plan_statistics(
    subject: Subject, spans: Spans, slots: int, memory_bytes: int
) -> tuple[list[StatisticsTask], int]:
    """(tasks, total number of rows); reads the headers of the key indexes."""
    indexes = subject.indexes
    rows = len(subject.recent)
    for index in indexes:
        if not has_index(index):
            run_index(index, no_check)
        with open_index(index) as found:
            rows += found.rows
    passed = subject.replicas_passed
    keep = np.ones(len(subject.recent), np.bool_)
    order, starts = bucket_order(subject.recent.hash_high, keep)
    tasks = []
    for first, stop in plan_ranges(rows, slots, memory_bytes, ROW_BYTES):
        inside = order[starts[first] : starts[stop]]
        columns = {name: getattr(subject.recent, name)[inside] for name in _COLUMNS}
        tasks.append(
            StatisticsTask(
                indexes,
                KeyRows(**columns),
                first,
                stop,
                subject.as_of_ms,
                subject.deleted_retention_ms,
                POSITION_MAX if passed is None else passed,
                spans,
            )
        )
    return tasks, rows


def run_statistics(task: StatisticsTask, check: Callable[[], None]) -> StatisticsCounts:
    """Run a task."""
    parts: list[KeyRows] = []
    dead: list[NDArray[np.bool_]] = []
    starts = np.empty((len(task.indexes) + 1, task.stop - task.first + 1), np.int64)
    so_far = 0
    for number, index in enumerate(task.indexes):
        check()
        rows, begins, over = _read(index, task.first, task.stop)
        parts.append(rows)
        dead.append(over)
        starts[number] = begins - begins[0] + so_far
        so_far += len(rows)
    keep = np.ones(len(task.recent), np.bool_)
    _, begins = bucket_order(task.recent.hash_high, keep)
    starts[-1] = begins[task.first : task.stop + 1] + so_far
    columns = [
        np.concatenate([getattr(part, name) for part in (*parts, task.recent)]) for name in _COLUMNS
    ]
    held = [index.segment.last_position > task.passed for index in task.indexes]
    shape = len(task.indexes) + 1, task.spans.count + 2
    tally = StatisticsCounts(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    add_up(
        *columns,
        np.concatenate([*dead, ~keep]),
        starts,
        np.array([*held, task.passed < POSITION_MAX]),
        np.array([task.as_of_ms, task.deleted_retention_ms, task.spans.span_ms], np.int64),
        tally.records,
        tally.bytes,
    )
    return tally


def _read(
    index: IndexTask, first: int, stop: int
) -> tuple[KeyRows, NDArray[np.int64], NDArray[np.bool_]]:
    """(rows, first row of each bucket and the end, which rows are dead) of a segment."""
    ref = index.segment
    columns = _COLUMNS if ref.dead is None else (*_COLUMNS, "position")
    rows, starts = read_rows(index, first, stop, columns)
    begins = starts[first : stop + 1]
    if ref.dead is None:
        return rows, begins, np.zeros(len(rows), np.bool_)
    dead = read_dead_set(index.fs, index.directory, ref.dead)
    return rows, begins, dead.entries.contains_many(rows.position)
