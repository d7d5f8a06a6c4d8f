"""Jobs: how a run gets its heavy work done, in this process or as Spark tasks.

A job is one module-level function and many tasks. A task is a picklable value with everything the
function needs: file system, directory, names, and its share of the budget (`Budget.share`), which
the function keeps to by an `Allowance` of its own.

    for number, result in jobs.run("index", run_index, tasks, check=check, progress=progress): …

1. Results come as they are finished, in any order, with the number of their task.
2. `check` is asked between tasks and, where the work is done in this process, inside them. What it
   raises ends the job: tasks that have not begun never do, and it reaches the caller.
3. `progress` is told the job's name, the weight that is done and that of all tasks. A task weighs 1
   unless `weights` say otherwise; bytes are a good weight.

A task may run twice, because a retry may follow an attempt that is still on its way: it writes
under a name of its own, and only the caller publishes.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol, TypeVar

from lithify.errors import InvalidInput, RunCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Check = Callable[[], None]
    """Returns, or raises to stop the work."""
    Progress = Callable[[str, int, int], None]
    """Is told (name of the job or phase, weight done, weight of everything)."""

__all__ = ["Jobs", "LocalJobs", "ThreadJobs", "ignore_progress", "no_check"]

CHECK_S = 0.1

T = TypeVar("T")
R = TypeVar("R")


class Jobs(Protocol):
    """Carries out tasks."""

    @property
    def slots(self) -> int:
        """How many tasks run side by side."""

    def run(
        self,
        name: str,
        function: Callable[[T, Check], R],
        tasks: Sequence[T],
        *,
        weights: Sequence[int] = (),
        check: Check,
        progress: Progress,
    ) -> Iterator[tuple[int, R]]:
        """(number of the task, its result), as they are finished."""


class LocalJobs:
    """One task after the other, in the calling thread."""

    slots = 1

    def run(
        self,
        name: str,
        function: Callable[[T, Check], R],
        tasks: Sequence[T],
        *,
        weights: Sequence[int] = (),
        check: Check,
        progress: Progress,
    ) -> Iterator[tuple[int, R]]:
        """See `Jobs`."""
        each = _weights(name, tasks, weights)
        done, total = 0, sum(each)
        for number, task in enumerate(tasks):
            check()
            progress(name, done, total)
            result = function(task, check)
            done += each[number]
            progress(name, done, total)
            yield number, result


class ThreadJobs:
    """Tasks side by side in threads of this process, for work that is done in compiled code.

    The caller's thread asks `check`, ten times a second; tasks are told to stop by their own.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def run(
        self,
        name: str,
        function: Callable[[T, Check], R],
        tasks: Sequence[T],
        *,
        weights: Sequence[int] = (),
        check: Check,
        progress: Progress,
    ) -> Iterator[tuple[int, R]]:
        """See `Jobs`."""
        each = _weights(name, tasks, weights)
        done, total = 0, sum(each)
        stopped = threading.Event()

        def go_on() -> None:
            if stopped.is_set():
                raise RunCancelled(f"job {name} was stopped")

        with ThreadPoolExecutor(self.slots, name) as pool:
            numbers = {pool.submit(function, task, go_on): n for n, task in enumerate(tasks)}
            waiting = set(numbers)
            try:
                while waiting:
                    check()
                    progress(name, done, total)
                    finished, waiting = wait(waiting, CHECK_S, FIRST_COMPLETED)
                    for future in finished:
                        done += each[numbers[future]]
                        yield numbers[future], future.result()
                progress(name, done, total)
            finally:
                stopped.set()
                pool.shutdown(cancel_futures=True)


def _weights(name: str, tasks: Sequence[object], weights: Sequence[int]) -> Sequence[int]:
    if weights and len(weights) != len(tasks):
        raise InvalidInput(f"job {name} has {len(tasks)} tasks but {len(weights)} weights")
    return weights or [1] * len(tasks)


def no_check() -> None:
    """For work that nobody stops."""


def ignore_progress(name: str, done: int, total: int) -> None:
    """For work that nobody watches."""
