"""Jobs: the heavy work of a run, executed in this process or as Spark tasks.

A job is one module-level function and many tasks. A task is a picklable value with everything the
function needs: file system, directory, names, and its share of the budget (`Budget.share`), which
the function enforces with its own `Allowance`.

    for number, result in jobs.run("index", run_index, tasks, check=check, progress=progress): …

1. Results come in order of completion, in any order of tasks, with the task's number.
2. `check` is called between tasks and, if the work is done in this process, inside them. If it
   raises, the job ends: remaining tasks are not started, and the caller gets the exception.
3. `progress` is called with the job's name, the finished weight and the total weight. A task has
   weight 1 unless `weights` says otherwise; bytes are a good weight.

A task may run twice, because a retry may start while an earlier attempt is still running: it writes
under a unique name, and only the caller publishes.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol, TypeVar

from lithify.errors import InvalidInput, RunCancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Check = Callable[[], None]
    """Returns, or raises to cancel the work."""
    Progress = Callable[[str, int, int], None]
    """Called with (name of the job or phase, finished weight, total weight)."""

__all__ = ["Jobs", "LocalJobs", "ThreadJobs", "ignore_progress", "no_check"]

CHECK_S = 0.1

T = TypeVar("T")
R = TypeVar("R")


class Jobs(Protocol):
    """Executes tasks."""

    @property
    def slots(self) -> int:
        """Number of parallel tasks."""

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
        """(task number, result), in order of completion."""


class LocalJobs:
    """Runs tasks one after the other in the calling thread."""

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
    """Runs tasks in parallel threads of this process, for work in compiled code.

    The caller's thread calls `check` ten times a second; the tasks check a stop flag.
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

        def check_stopped() -> None:
            if stopped.is_set():
                raise RunCancelled(f"job {name} was stopped")

        with ThreadPoolExecutor(self.slots, name) as pool:
            numbers = {
                pool.submit(function, task, check_stopped): n for n, task in enumerate(tasks)
            }
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
    """A check for work that cannot be cancelled."""


def ignore_progress(name: str, done: int, total: int) -> None:
    """A progress callable that does nothing."""
