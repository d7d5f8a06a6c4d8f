"""Operations that may wait for the disk, as generators, so that each is written once.

An operation yields what it waits for, and resumes with the result:

    DiskCall(on, find)  a call for a thread. Calls with the same `on` run one at a time, in
                        request order. When it is the turn of a call, the thread that drives the
                        operation calls `find`, which returns the function to run, or None if there
                        is nothing left to do. The result is sent into the generator; an error is
                        thrown into it.
    None                the operation has used up its time slice; other work runs first.

A broker drives operations from its event loop and runs the calls in threads
(`pulsar/disk_threads.py`). `run_here` runs an operation to its end in the caller's thread, for the
library and for tests.

The topic may change between a `yield` and the code after it, so an operation checks its state
again. If the client has disconnected, the operation is closed after its call has returned: code
that must follow a call in every case belongs in a `finally`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["DiskCall", "Steps", "once", "run_here"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DiskCall:
    """A call that waits for the disk; the module docstring has the protocol."""

    on: object
    find: Callable[[], Callable[[], object] | None]


Steps = Generator[DiskCall | None, Any, T]


def once(call: DiskCall) -> Steps[Any]:
    """An operation of one call; returns its result."""
    return (yield call)


def run_here(steps: Steps[T]) -> T:
    """Run an operation to its end in this thread and return its result."""
    result: object = None
    error: Exception | None = None
    while True:
        try:
            step = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as stop:
            value: T = stop.value
            return value
        result, error = None, None
        if step is not None:
            try:
                call = step.find()
                result = None if call is None else call()
            except Exception as problem:  # noqa: BLE001  (thrown into the operation)
                error = problem
