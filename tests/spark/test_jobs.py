"""Jobs on Spark, in this process's session and in a worker process: results, errors, stopping."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock
from lithify.compaction.tasks.jobs import ignore_progress, no_check
from lithify.errors import DamagedFile, JobFailed, LogClosed, RunCancelled, SparkUnreachable
from lithify.pipeline.jobs import SUBMITTERS_MAX, SparkJobs, _submitters
from lithify.pipeline.session_process import WorkerJobs
from lithify.pipeline.spark_target import SparkTarget
from tests.spark import tasks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from lithify.compaction.tasks.jobs import Jobs


CLOCK = ManualClock()


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerJobs]:
    target = SparkTarget("local[2,4]")
    jobs = WorkerJobs(CLOCK, idle_s=300, target=target, preload=["tests.spark.tasks"])
    yield jobs
    jobs.close()


@pytest.fixture(params=["session", "worker"])
def jobs(request: pytest.FixtureRequest, spark: SparkSession, worker: WorkerJobs) -> Jobs:
    return SparkJobs(spark) if request.param == "session" else worker


def test_results_come_with_the_number_of_their_task(jobs: Jobs) -> None:
    said: list[tuple[str, int, int]] = []
    found = jobs.run(
        "double", tasks.double, [5, 6, 7], check=no_check, progress=lambda *a: said.append(a)
    )
    assert sorted(found) == [(0, 10), (1, 12), (2, 14)]
    assert said[-1] == ("double", 3, 3)


def test_no_tasks_need_no_job(jobs: Jobs) -> None:
    assert not list(jobs.run("double", tasks.double, [], check=no_check, progress=ignore_progress))


def test_a_worker_keeps_the_memory_that_its_tasks_free(jobs: Jobs) -> None:
    found = jobs.run("fill", tasks.fill_memory, [20], check=no_check, progress=ignore_progress)
    # Of the 10,240 pages of 40 MiB.
    assert [pages < 1000 for _, pages in found] == [True]


def places(spark: SparkSession, *weights: int) -> list[int]:
    """Where tasks of these weights run, if a job is worth as much as 8 of it."""
    jobs = SparkJobs(spark, small_weight=8)
    names = ["t"] * len(weights)
    found = jobs.run(
        "places",
        tasks.partition,
        names,
        weights=weights,
        check=no_check,
        progress=ignore_progress,
    )
    return [place for _, place in sorted(found)]


def test_little_work_is_done_at_once_and_one_task_needs_no_other_process(
    spark: SparkSession,
) -> None:
    assert places(spark, 3, 4) == [-1, -1]
    assert places(spark, 63) == [-1]
    assert places(spark, 64) == [0]


def test_tasks_are_shared_out_evenly_and_the_heaviest_come_first(spark: SparkSession) -> None:
    assert places(spark, 1, 1, 5, 1, 1) == [1, 2, 0, 3, 1]
    # Many light ones are four partitions a slot, and of heavy ones there are as many as it takes.
    assert len(set(places(spark, *[1] * 99))) == 8
    assert len(set(places(spark, *[2**30] * 10))) == 10


def test_an_error_keeps_its_type(jobs: Jobs) -> None:
    with pytest.raises(DamagedFile, match=r"some\.seg"):
        list(jobs.run("fail", tasks.fail, range(5), check=no_check, progress=ignore_progress))


def test_a_file_system_error_is_not_retried(jobs: Jobs, tmp_path: Path) -> None:
    missing = [str(tmp_path / "nothing here")]
    with pytest.raises(FileNotFoundError):
        list(jobs.run("refuse", tasks.refuse, missing, check=no_check, progress=ignore_progress))


def test_a_task_whose_process_is_killed_runs_again(jobs: Jobs, tmp_path: Path) -> None:
    marker = str(tmp_path / "died")
    found = jobs.run("die", tasks.die_once, [marker], check=no_check, progress=ignore_progress)
    assert list(found) == [(0, marker)]


def test_a_job_stops_when_its_run_is_cancelled(jobs: Jobs, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def check() -> None:
        if begun.exists():
            raise RunCancelled("enough")

    with pytest.raises(RunCancelled, match="enough"):
        list(
            jobs.run(
                "endless", tasks.never_end, [str(begun)], check=check, progress=ignore_progress
            )
        )
    again = jobs.run("double", tasks.double, [1], check=no_check, progress=ignore_progress)
    assert list(again) == [(0, 2)]


def test_a_job_that_waits_for_a_thread_is_cancelled_and_never_begins(
    spark: SparkSession, tmp_path: Path
) -> None:
    all_held, go_on = threading.Barrier(SUBMITTERS_MAX + 1), threading.Event()

    def hold() -> None:
        all_held.wait()
        go_on.wait()

    held = [_submitters.submit(hold) for _ in range(SUBMITTERS_MAX)]
    all_held.wait()
    begun = tmp_path / "begun"
    jobs, said = SparkJobs(spark), list[tuple[str, int, int]]()

    def check() -> None:
        if said:
            raise RunCancelled("enough")

    with pytest.raises(RunCancelled, match="enough"):
        list(
            jobs.run(
                "endless",
                tasks.never_end,
                [str(begun)],
                check=check,
                progress=lambda *a: said.append(a),
            )
        )
    assert said == [("endless", 0, 1)]
    go_on.set()
    wait(held)
    again = jobs.run("double", tasks.double, [1], check=no_check, progress=ignore_progress)
    assert list(again) == [(0, 2)]
    assert not begun.exists()


def test_a_job_that_waits_for_another_of_the_worker_is_cancelled_and_never_begins() -> None:
    jobs = WorkerJobs(CLOCK)

    def check() -> None:
        raise RunCancelled("enough")

    job = jobs.run("double", tasks.double, [1], check=check, progress=ignore_progress)
    with jobs._turn, pytest.raises(RunCancelled, match="enough"):
        list(job)
    assert jobs.pid is None
    assert jobs._turn.acquire(blocking=False)


def test_after_closing_no_job_starts_another_worker() -> None:
    jobs = WorkerJobs(CLOCK)
    jobs.close()
    job = jobs.run("double", tasks.double, [1], check=no_check, progress=ignore_progress)
    with pytest.raises(LogClosed, match="the node is stopping"):
        list(job)
    assert jobs.pid is None


class HeldContext:
    """That of a session, in which a job begins only after it was cancelled."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.has_group = threading.Event()
        self._is_cancelled = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def parallelize(self, *given: Any) -> Any:
        self.has_group.set()
        self._is_cancelled.wait()
        return self._context.parallelize(*given)

    def cancelJobGroup(self, group: str) -> None:
        self._context.cancelJobGroup(group)
        self._is_cancelled.set()


def test_a_job_that_is_cancelled_just_before_it_begins_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark cancels what there is of a group, and that is nothing yet."""
    jobs = SparkJobs(spark)
    context = jobs._context = HeldContext(jobs._context)  # type: ignore[assignment]

    def check() -> None:
        if context.has_group.is_set():
            raise RunCancelled("enough")

    endless = [str(tmp_path / "begun")]
    with pytest.raises(RunCancelled, match="enough"):
        list(jobs.run("endless", tasks.never_end, endless, check=check, progress=ignore_progress))


def test_a_killed_worker_fails_its_job_and_the_next_job_gets_another(
    worker: WorkerJobs, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"

    def kill() -> None:
        if begun.exists() and worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(JobFailed, match="worker process exited"):
        list(
            worker.run(
                "endless", tasks.never_end, [str(begun)], check=kill, progress=ignore_progress
            )
        )
    assert worker.pid is None
    again = worker.run("double", tasks.double, [1], check=no_check, progress=ignore_progress)
    assert list(again) == [(0, 2)]


def test_a_worker_stays_warm_and_is_stopped_after_its_idle_time(worker: WorkerJobs) -> None:
    def work() -> int | None:
        list(worker.run("double", tasks.double, [1], check=no_check, progress=ignore_progress))
        return worker.pid

    def idle(seconds: int) -> int | None:
        CLOCK.advance(seconds)
        worker.maintain()
        return worker.pid

    pid = work()
    assert pid is not None
    assert idle(200) == pid
    assert work() == pid
    assert idle(299) == pid
    assert idle(1) is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_whose_spark_does_not_start_says_why() -> None:
    jobs = WorkerJobs(CLOCK, target=SparkTarget("spark://127.0.0.1:1"))
    for _ in range(2):
        with pytest.raises(SparkUnreachable, match=r"spark://127.0.0.1:1: Connection refused"):
            list(jobs.run("double", tasks.double, [1], check=no_check, progress=ignore_progress))
        assert jobs.pid is None
