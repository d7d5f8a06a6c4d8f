"""Runs the tasks of a compaction as Spark jobs.

One job per call. Its tasks are distributed over a few partitions of about the same weight, because
each partition has a cost; the heaviest comes first, so that the last ones to finish are small.
Tasks without weights get a partition each. Tasks and results are pickled values; tasks read and
write files.

1. The job is submitted from another thread, under its own job group. These threads are reused: a
   new one needs a connection to Spark, which takes as long as the rest of a small job.
2. The caller's thread checks ten times a second whether the run must stop, and how many tasks are
   complete. To stop, it cancels the job group and raises the reason.
3. An error that a task raises on purpose, or that the file system raises in it, is returned as a
   value and raised here with its type. Spark retries any other failure, such as the death of a
   worker, as often as the master says.

Before the first job on a log the executors of a cluster are checked for access to it, see
`executor_probe.py`.

Work of less than `SMALL_WEIGHT` bytes runs in the calling process, with one thread per core,
because a job costs more than that; a single task runs there up to a higher limit. A job has at most
`WAVE_WEIGHT` bytes of work, or one task, so that a run that is killed has journalled most of its
work.
"""

from __future__ import annotations

import heapq
import os
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.compaction.tasks.jobs import LocalJobs, ThreadJobs
from lithify.errors import LithifyError
from lithify.pipeline.executor_probe import Probe, explain_failure, place_of, run_probe
from lithify.pipeline.spark_target import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["SparkJobs"]

SMALL_WEIGHT = 64 * 2**20
"""A job costs 50 to 100 ms, for any work. One process handles this much in 25 to 50 ms, so a second
one would save less than the job costs.
"""

ALONE = 8
"""A single task gains no parallelism from a job, but above this multiple the retries of Spark are
worth the cost.
"""

SHARES = 4
"""A partition costs 15 ms, or 50 on a busy machine: this fraction of a job, so it is worth this
fraction of the work.
"""

PARTITION_WEIGHT_MAX = 2**30
"""Progress is reported by partitions."""

TURNS = 4
"""Partitions per slot, if that makes them neither too small nor too large: partitions that a slow
slot has not started run on another one.
"""

WAVE_WEIGHT = 32 * 2**30
POLL_S = 0.1

PROBING = "asking executors"
PROBES_MAX = 3
"""Maximum number of jobs that look for new executors; each takes a fraction of a second."""

SUBMITTERS_MAX = 64

_groups = count(1)
_submitters = ThreadPoolExecutor(SUBMITTERS_MAX, "lithify-job")
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class SparkJobs:
    """See `Jobs`. The session is used and not closed."""

    def __init__(self, session: SparkSession, *, small_weight: int = SMALL_WEIGHT) -> None:
        self._context: SparkContext = session.sparkContext
        self._small_weight = small_weight
        self._is_local = is_local(self._context.master or "")
        self._probed: set[str] = set()
        self.slots: int = self._context.defaultParallelism

    def run(
        self,
        name: str,
        function: Callable[[_Task, Callable[[], None]], _Result],
        tasks: Sequence[_Task],
        *,
        weights: Sequence[int] = (),
        check: Callable[[], None],
        progress: Callable[[str, int, int], None],
    ) -> Iterator[tuple[int, _Result]]:
        """See `Jobs.run`."""
        if not tasks:
            return
        sizes = list(weights) or [1] * len(tasks)
        total = sum(sizes)
        alone = ALONE if len(tasks) == 1 else 1
        if weights and total < self._small_weight * alone:
            here = (
                LocalJobs() if len(tasks) == 1 else ThreadJobs(min(self.slots, os.cpu_count() or 1))
            )
            yield from here.run(
                name, function, tasks, weights=weights, check=check, progress=progress
            )
            return
        self._probe(tasks, check, progress)
        done = 0
        for wave in _waves(sizes):
            before, weight = done, sum(sizes[number] for number in wave)

            def so_far(part: float, before: int = before, weight: int = weight) -> None:
                progress(name, before + int(part * weight), total)

            most = self._partitions(weight) if weights else len(wave)
            bundles = [[(n, tasks[n]) for n in each] for each in _bundles(wave, sizes, most)]
            yield from self._job(name, function, bundles, check, so_far)
            done += weight
            progress(name, done, total)

    def _probe(
        self,
        tasks: Sequence[object],
        check: Callable[[], None],
        progress: Callable[[str, int, int], None],
    ) -> None:
        """Check that every executor of a cluster can access the log, once per log."""
        if self._is_local:
            return
        for place in filter(None, map(place_of, tasks)):
            fs, directory = place
            if directory in self._probed:
                continue
            progress(PROBING, 0, 0)
            with Probe(fs, directory) as probe:
                met: set[tuple[str, int]] = set()
                for _ in range(PROBES_MAX):
                    asked = probe.tasks(self._context.defaultParallelism)
                    bundles = [[pair] for pair in enumerate(asked)]
                    answers = self._job(PROBING, run_probe, bundles, check, lambda _: None)
                    probe.judge((asked[number], seen) for number, seen in answers)
                    met |= {(seen.host, seen.process) for _, seen in answers}
                    if len(met) >= self._executors():
                        break
            self._probed.add(directory)
        self.slots = self._context.defaultParallelism

    def _executors(self) -> int:
        """Number of executors of the cluster so far."""
        java: Any = self._context._jsc  # noqa: SLF001  (Python has no name for this)
        return len(java.sc().statusTracker().getExecutorInfos()) - 1  # One is the driver.

    def _partitions(self, weight: int) -> int:
        """The number of partitions for this much work; a multiple of the slots."""
        worth = weight // max(1, self._small_weight // SHARES * self.slots)
        needed = -(-weight // (PARTITION_WEIGHT_MAX * self.slots))
        return self.slots * max(1, min(TURNS, worth), needed)

    def _job(
        self,
        name: str,
        function: Callable[[_Task, Callable[[], None]], _Result],
        bundles: list[list[tuple[int, _Task]]],
        check: Callable[[], None],
        so_far: Callable[[float], None],
    ) -> list[tuple[int, _Result]]:
        group = f"lithify-{name}-{next(_groups)}"

        def submit() -> list[tuple[int, _Result | None, Exception | None]]:
            self._context.setJobGroup(group, f"lithify {name}", interruptOnCancel=True)
            rows = self._context.parallelize(bundles, len(bundles))
            return rows.flatMap(lambda row: [_answer(function, *each) for each in row]).collect()

        job = _submitters.submit(submit)
        try:
            while not wait([job], POLL_S).done:
                check()
                so_far(self._done(group) / len(bundles))
            check()
        except BaseException:
            if not job.cancel():
                # A job that its thread has not begun is not in the group yet.
                self._context.cancelJobGroup(group)
                while not wait([job], POLL_S).done:
                    self._context.cancelJobGroup(group)
            raise
        if failure := job.exception():
            raise explain_failure(name, failure) from failure
        results = []
        for number, result, error in job.result():
            if error is not None:
                raise error
            results.append((number, result))
        return results  # type: ignore[return-value]

    def _done(self, group: str) -> int:
        tracker = self._context.statusTracker()
        done = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                stage_info = tracker.getStageInfo(stage)
                done += stage_info.numCompletedTasks if stage_info else 0
        return done


def _answer(
    function: Callable[[_Task, Callable[[], None]], _Result], number: int, task: _Task
) -> tuple[int, _Result | None, Exception | None]:
    """Runs in a worker."""
    try:
        return number, function(task, _no_check), None
    except (LithifyError, OSError) as error:
        return number, None, error


def _no_check() -> None:
    """A check that never stops: Spark itself stops the tasks of a cancelled job."""


def _waves(sizes: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of the tasks of each job, the heaviest first."""
    wave: list[int] = []
    weight = 0
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        if wave and weight + sizes[number] > WAVE_WEIGHT:
            yield wave
            wave, weight = [], 0
        wave.append(number)
        weight += sizes[number]
    if wave:
        yield wave


def _bundles(wave: Sequence[int], sizes: Sequence[int], most: int) -> list[list[int]]:
    """The numbers of the tasks of each partition, the heaviest first.

    Each task in turn, the heaviest first, is added to the lightest partition so far.
    """
    bundles: list[list[int]] = [[] for _ in range(min(most, len(wave)))]
    lightest = [(0, number) for number in range(len(bundles))]
    for number in wave:
        weight, bundle = heapq.heappop(lightest)
        bundles[bundle].append(number)
        heapq.heappush(lightest, (weight + sizes[number], bundle))
    return [bundles[bundle] for _, bundle in sorted(lightest, key=lambda each: -each[0])]
