"""Operations that may wait for the disk, as generators: what each does is said once.

An operation yields what it waits for, and goes on with the result:

    Work(on, find)   a call for a thread. Calls on the same object run one at a time, in the order
                     in which they were asked for. `find` is called when it is their turn, in the
                     thread that drives the operation, and says what to call, or None if nothing is
                     left to do. The result of the call is sent back, an error is thrown in.
    None             the operation has taken long enough: others have their turn now.

A broker drives operations from its event loop and makes the calls in threads
(`pulsar/disk_threads.py`). `run_here` drives one to its end in the caller's thread, for the library
and for tests.

Between a `yield` and what follows it anything may have happened to the topic: an operation looks
again. One whose client is gone is closed once its call has returned, so what must follow a call in
any case stands in a `finally`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["DiskCall", "Steps", "once", "run_here"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DiskCall:
    """A call that waits for the disk; see the module."""

    on: object
    find: Callable[[], Callable[[], object] | None]


Steps = Generator[DiskCall | None, Any, T]


def once(work: DiskCall) -> Steps[Any]:
    """An operation that makes one call; its result."""
    return (yield work)


def run_here(steps: Steps[T]) -> T:
    """Run an operation to its end in this thread; its result."""
    result: object = None
    error: Exception | None = None
    while True:
        try:
            wanted = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result, error = None, None
        if wanted is not None:
            try:
                call = wanted.find()
                result = None if call is None else call()
            except Exception as problem:  # noqa: BLE001  (the operation gets it)
                error = problem
