"""Common parts of rules that judge by key: bucket ranges in, one bit per row out.

    index      build missing key indexes, one task per segment
    ranges     tasks that each judge a range of buckets of every index, one bit per row
    dead sets  tasks that turn the bits of all ranges into the live set, one task per segment

1. All rows of a key are in the same bucket of every index, so each range is judged independently.
   `plan_ranges` divides the buckets so that parallel tasks stay within their memory.
2. A task returns for each segment the bits of its rows, in index order, and what died, by cause.
   The driver receives one bit per row, never a key.
3. `by_segment` regroups the results by segment, `live_rows` joins their bits.

The stores define rows and how they are judged. Called by the stores' rules.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from lithify.compaction.tasks.find_or_build_key_index import has_index
from lithify.errors import JobFailed, PlanStale
from lithify.log.file_names import key_index_name
from lithify.log.key_index.key_index import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion
    from lithify.compaction.reports.report import Cause
    from lithify.compaction.tasks.find_or_build_key_index import IndexTask
    from lithify.compaction.tasks.jobs import Check

__all__ = [
    "BucketResult",
    "add_up_dropped",
    "by_segment",
    "count_dropped",
    "in_order",
    "live_rows",
    "make_indexes",
    "plan_ranges",
    "run_job",
]

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A", bound="BucketResult")


class BucketResult(Protocol):
    """The result of a task for one segment, within its range of buckets."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def bits(self) -> bytes:
        """One bit per row, the first one highest; set for live rows."""

    @property
    def dropped(self) -> Mapping[Cause, tuple[int, int]]:
        """(rows, bytes) that became dead by this judgement, by cause."""


def make_indexes(
    question: LiveSetQuestion,
    missing: Sequence[IndexTask],
    make: Callable[[IndexTask, Check], object],
) -> None:
    """Build the key indexes of these segments, and check that they are visible here."""
    weights = [task.segment.file_bytes for task in missing]
    for number, _ in run_job(question, "index", make, missing, weights):
        task = missing[number]
        if not has_index(task):
            path = f"{task.directory}/{key_index_name(task.segment.name)}"
            raise JobFailed("index", f"{path} was written but is missing: is the directory shared?")


def run_job(
    question: LiveSetQuestion,
    name: str,
    function: Callable[[T, Check], R],
    tasks: Sequence[T],
    weights: Sequence[int],
) -> Iterator[tuple[int, R]]:
    """Run a job of the question: (task number, result) in order of completion."""
    return question.jobs.run(
        name,
        function,
        tasks,
        weights=weights,
        check=question.check,
        progress=question.progress,
    )


def in_order(results: Iterable[tuple[int, R]]) -> Iterator[R]:
    """The results in task order, each as soon as all earlier ones are there."""
    early: dict[int, R] = {}
    next_number = 0
    for number, result in results:
        early[number] = result
        while next_number in early:
            yield early.pop(next_number)
            next_number += 1


def plan_ranges(rows: int, slots: int, memory_bytes: int, row_bytes: int) -> list[tuple[int, int]]:
    """Divide the buckets so that `slots` parallel tasks fit into `memory_bytes`."""
    share = max(1, memory_bytes // max(1, slots) // row_bytes)
    tasks = min(BUCKETS, max(slots, -(-rows // share)))
    cuts = [BUCKETS * number // tasks for number in range(tasks + 1)]
    return list(pairwise(cuts))


def by_segment(answers: Iterable[Sequence[A]]) -> list[tuple[A, ...]]:
    """Regroup the results of each range by segment."""
    return list(zip(*answers, strict=True))


def count_dropped(
    liveness: NDArray[np.uint8], lengths: NDArray[np.uint32], causes: Mapping[int, Cause]
) -> dict[Cause, tuple[int, int]]:
    """(rows, bytes) by cause, from the liveness of rows."""
    counts = np.bincount(liveness, minlength=256)
    sizes = np.bincount(liveness, weights=lengths, minlength=256)
    return {
        cause: (int(counts[value]), int(sizes[value]))
        for value, cause in causes.items()
        if counts[value]
    }


def add_up_dropped(answers: Iterable[BucketResult]) -> dict[Cause, tuple[int, int]]:
    """Sum what died in a segment over all ranges."""
    dropped: dict[Cause, tuple[int, int]] = {}
    for each in answers:
        for cause, (rows, size) in each.dropped.items():
            so_far = dropped.get(cause, (0, 0))
            dropped[cause] = so_far[0] + rows, so_far[1] + size
    return dropped


def live_rows(index: IndexTask, answers: Iterable[BucketResult], rows: int) -> NDArray[np.int64]:
    """The row numbers of a segment's live rows.

    The rows must be those that were judged: if the index was rebuilt in between with another number
    of rows, the run is stale.
    """
    bits = [np.unpackbits(np.frombuffer(a.bits, np.uint8), count=a.rows) for a in answers]
    live = np.concatenate(bits)
    if len(live) != rows:
        path = f"{index.directory}/{key_index_name(index.segment.name)}"
        raise PlanStale(f"{path} had {len(live)} rows when it was judged, now it has {rows}")
    return np.flatnonzero(live)
