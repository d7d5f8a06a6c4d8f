"""Jobs in the calling thread, and in threads of the calling process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lithify.compaction.tasks.jobs import LocalJobs, ThreadJobs, ignore_progress, no_check
from lithify.errors import InvalidInput, RunCancelled
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable


def double(task: int, check: object) -> int:
    return 2 * task


def test_results_come_with_the_number_of_their_task() -> None:
    done = LocalJobs().run("double", double, [7, 8], check=no_check, progress=ignore_progress)
    assert list(done) == [(0, 14), (1, 16)]


def test_progress_is_reported_by_weight() -> None:
    told: list[tuple[str, int, int]] = []

    def progress(name: str, done: int, total: int) -> None:
        told.append((name, done, total))

    jobs = LocalJobs()
    list(jobs.run("copy", double, [1, 2], weights=[10, 30], check=no_check, progress=progress))
    assert told == [("copy", 0, 40), ("copy", 10, 40), ("copy", 10, 40), ("copy", 40, 40)]
    told.clear()
    list(jobs.run("copy", double, [1], check=no_check, progress=progress))
    assert told == [("copy", 0, 1), ("copy", 1, 1)]


def test_a_job_is_stopped_between_tasks_and_inside_them() -> None:
    worked: list[int] = []

    def check() -> None:
        if len(worked) == 2:
            raise RunCancelled("enough")

    def work(task: int, check: object) -> None:
        worked.append(task)

    running = LocalJobs().run("work", work, [1, 2, 3], check=check, progress=ignore_progress)
    with pytest.raises(RunCancelled, match="enough"):
        list(running)
    assert worked == [1, 2]
    seen: list[object] = []
    running = LocalJobs().run(
        "work", lambda _, inside: seen.append(inside), [1], check=no_check, progress=ignore_progress
    )
    list(running)
    assert seen == [no_check]


def test_there_must_be_a_weight_for_each_task() -> None:
    running = LocalJobs().run(
        "copy", double, [1, 2], weights=[1], check=no_check, progress=ignore_progress
    )
    with pytest.raises(InvalidInput, match="job copy has 2 tasks but 1 weights"):
        list(running)


# Threads


def test_threads_work_side_by_side() -> None:
    together = threading.Barrier(2, timeout=PROCESS_S_MAX)

    def meet(task: int, check: object) -> int:
        together.wait()
        return task

    done = ThreadJobs(2).run("meet", meet, [3, 4, 5, 6], check=no_check, progress=ignore_progress)
    assert sorted(done) == [(0, 3), (1, 4), (2, 5), (3, 6)]


def test_threads_report_progress_and_need_a_weight_for_each_task() -> None:
    told: list[tuple[str, int, int]] = []
    jobs = ThreadJobs(2)
    list(
        jobs.run(
            "copy",
            double,
            [1, 2],
            weights=[10, 30],
            check=no_check,
            progress=lambda *a: told.append(a),
        )
    )
    assert (told[0], told[-1]) == (("copy", 0, 40), ("copy", 40, 40))
    running = jobs.run("copy", double, [1, 2], weights=[1], check=no_check, progress=print)
    with pytest.raises(InvalidInput, match="job copy has 2 tasks but 1 weights"):
        list(running)


def test_an_exception_in_a_thread_ends_the_job_and_stops_the_others() -> None:
    together = threading.Barrier(2, timeout=PROCESS_S_MAX)
    stopped = threading.Event()

    def work(task: int, check: Callable[[], None]) -> None:
        together.wait()
        if task == 0:
            raise InvalidInput("no such thing")
        try:
            while True:
                check()
        except RunCancelled:
            stopped.set()
            raise

    running = ThreadJobs(2).run("work", work, [0, 1], check=no_check, progress=ignore_progress)
    with pytest.raises(InvalidInput, match="no such thing"):
        list(running)
    assert stopped.is_set()


def test_threads_stop_when_the_run_is_cancelled() -> None:
    begun = threading.Event()
    worked: list[int] = []

    def work(task: int, check: Callable[[], None]) -> None:
        worked.append(task)
        begun.set()
        while True:
            check()

    def cancel() -> None:
        if begun.is_set():
            raise RunCancelled("enough")

    running = ThreadJobs(1).run("work", work, [1, 2], check=cancel, progress=ignore_progress)
    with pytest.raises(RunCancelled, match="enough"):
        list(running)
    assert worked == [1]
