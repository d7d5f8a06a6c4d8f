"""Jobs in the calling thread."""

from __future__ import annotations

import pytest

from lithify.compaction.jobs import LocalJobs, ignore_progress, no_check
from lithify.errors import InvalidInput, RunCancelled


def double(task: int, check: object) -> int:
    return 2 * task


def test_results_come_with_the_number_of_their_task() -> None:
    done = LocalJobs().run("double", double, [7, 8], check=no_check, progress=ignore_progress)
    assert list(done) == [(0, 14), (1, 16)]


def test_progress_is_told_by_weight() -> None:
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
