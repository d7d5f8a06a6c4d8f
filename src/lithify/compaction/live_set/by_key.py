"""What rules that judge by key have in common: ranges of buckets in, a bit a row out.

    index      segments without a key index get one, a task each
    ranges     tasks, each with a range of buckets of every index, answer with a bit a row
    verdict    a task a segment turns the bits of all ranges into what is live in it

1. All rows of a key are in the same bucket of every index, so that a range is judged by itself.
   `plan_ranges` cuts the buckets so that the tasks that run side by side stay within their memory.
2. A task answers for each segment: the bits of its rows, in the order of the index, and what died,
   by cause. That is what goes back to the driver: a bit a row, never a key.
3. `by_segment` turns answers by range into answers by segment, `live_rows` joins their bits.

How rows are judged, and what a row is, only the store knows. Called by the stores' rules.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from lithify.compaction.tasks.key_indexes import has_index
from lithify.errors import JobFailed, PlanStale
from lithify.log.file_names import key_index_name
from lithify.log.keyindex.key_index import BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lithify.compaction.live_set.rule import LiveSetQuestion
    from lithify.compaction.reports.report import Cause
    from lithify.compaction.tasks.jobs import Check
    from lithify.compaction.tasks.key_indexes import IndexTask

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
    """What a task says of one segment, for its range of buckets."""

    @property
    def rows(self) -> int:
        """How many there are."""

    @property
    def bits(self) -> bytes:
        """A bit a row, the first one highest; set for live rows."""

    @property
    def dropped(self) -> Mapping[Cause, tuple[int, int]]:
        """(rows, bytes) that are dead since this judgement, by cause."""


def make_indexes(
    question: LiveSetQuestion,
    missing: Sequence[IndexTask],
    make: Callable[[IndexTask, Check], object],
) -> None:
    """Have the indexes of these segments made, and see that they are here."""
    weights = [task.segment.file_bytes for task in missing]
    for number, _ in run_job(question, "index", make, missing, weights):
        task = missing[number]
        if not has_index(task):
            path = f"{task.directory}/{key_index_name(task.segment.name)}"
            raise JobFailed("index", f"{path} was written, and is not here: do executors see it?")


def run_job(
    question: LiveSetQuestion,
    name: str,
    function: Callable[[T, Check], R],
    tasks: Sequence[T],
    weights: Sequence[int],
) -> Iterator[tuple[int, R]]:
    """A job of the question's: (number of a task, its result), as they come."""
    return question.jobs.run(
        name,
        function,
        tasks,
        weights=weights,
        check=question.check,
        progress=question.progress,
    )


def in_order(results: Iterable[tuple[int, R]]) -> Iterator[R]:
    """The results in the order of their tasks, each as soon as those before it are there."""
    early: dict[int, R] = {}
    following = 0
    for number, result in results:
        early[number] = result
        while following in early:
            yield early.pop(following)
            following += 1


def plan_ranges(rows: int, slots: int, memory_bytes: int, row_bytes: int) -> list[tuple[int, int]]:
    """Ranges of buckets for tasks of which `slots` run side by side within `memory_bytes`."""
    share = max(1, memory_bytes // max(1, slots) // row_bytes)
    tasks = min(BUCKETS, max(slots, -(-rows // share)))
    cuts = [BUCKETS * number // tasks for number in range(tasks + 1)]
    return list(pairwise(cuts))


def by_segment(answers: Iterable[Sequence[A]]) -> list[tuple[A, ...]]:
    """From what each range says of every segment to what all ranges say of each."""
    return list(zip(*answers, strict=True))


def count_dropped(
    verdicts: NDArray[np.uint8], lengths: NDArray[np.uint32], causes: Mapping[int, Cause]
) -> dict[Cause, tuple[int, int]]:
    """(rows, bytes) of the verdicts that are named, by what they mean."""
    counts = np.bincount(verdicts, minlength=256)
    sizes = np.bincount(verdicts, weights=lengths, minlength=256)
    return {
        cause: (int(counts[verdict]), int(sizes[verdict]))
        for verdict, cause in causes.items()
        if counts[verdict]
    }


def add_up_dropped(answers: Iterable[BucketResult]) -> dict[Cause, tuple[int, int]]:
    """What died in a segment, in all ranges together."""
    dropped: dict[Cause, tuple[int, int]] = {}
    for each in answers:
        for cause, (rows, size) in each.dropped.items():
            so_far = dropped.get(cause, (0, 0))
            dropped[cause] = so_far[0] + rows, so_far[1] + size
    return dropped


def live_rows(index: IndexTask, answers: Iterable[BucketResult], rows: int) -> NDArray[np.int64]:
    """The numbers of the live ones of a segment's rows.

    They must be the rows that were judged: an index that was made again in between, with more or
    fewer of them, makes the run stale.
    """
    bits = [np.unpackbits(np.frombuffer(a.bits, np.uint8), count=a.rows) for a in answers]
    live = np.concatenate(bits)
    if len(live) != rows:
        path = f"{index.directory}/{key_index_name(index.segment.name)}"
        raise PlanStale(f"{path} had {len(live)} rows when it was judged, now it has {rows}")
    return np.flatnonzero(live)
