"""Drives operations in steps from the event loop; threads make the calls that wait for the disk.

1. An operation (`topics/disk_steps.py`) runs in the loop until it yields.
2. After `None` it continues in the next turn of its owner, by default in the loop's next iteration.
3. After a `DiskCall` it continues when a thread has made the call. Each object has a queue: calls
   on the same object are made one at a time, in order. `DiskCall.find` runs only when the call is
   the next one, because an earlier call may have done the same work.
4. If the owner is not alive when a call returns, the operation is closed.

A topic has several such objects: for its appends, its reads, its cursors, its subscriptions and its
schemas. So a topic on a slow disk occupies a few threads at most, and other topics use the rest. No
thread waits for another thread.

Closing or deleting a topic blocks the calls that open it again. It uses a pool of its own,
`release`: in the common pool it could wait behind the calls that wait for it.

Used only in the thread of the event loop, by the broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.topics.disk_steps import DiskCall, Steps

    Ended = Callable[[Any, Exception | None], None]
    """Callback with the result of an operation, or with its error."""

__all__ = ["WORK_THREADS", "WorkThreads"]

WORK_THREADS = 64
"""Started on demand. Threads mostly wait for a disk, so there are more threads than cores."""
RELEASE_THREADS = 16
"""Threads that close and delete topics; they wait for the disk only."""

T = TypeVar("T")

log = get_logger("lithify.pulsar")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WORK_THREADS, thread_name_prefix="lithify-topics")


@cache
def _release_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(RELEASE_THREADS, thread_name_prefix="lithify-release")


def _always() -> bool:
    return True


def _next_iteration(then: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(then)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of an operation: whether it is alive, and how to schedule its next turn."""

    is_alive: Callable[[], bool] = _always
    soon: Callable[[Callable[[], None]], None] = _next_iteration


_NO_OWNER = Owner()


class WorkThreads:
    """The operations of one broker."""

    def __init__(self) -> None:
        self._queues: dict[object, deque[tuple[DiskCall, Ended]]] = {}
        """Waiting calls, by object. An object has a queue while a thread runs a call on it."""
        self._active: set[object] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def is_busy(self, on: object) -> bool:
        """Does a thread run a call on this object?"""
        return on in self._active

    def carry_out(self, steps: Steps[T], ended: Ended, owner: Owner = _NO_OWNER) -> None:
        """Run an operation and call `ended`; before this returns, if the operation never waits."""
        self._continue(steps, ended, owner, None, None)

    def wait_for(
        self, steps: Steps[T], yielded: DiskCall | None, ended: Ended, owner: Owner
    ) -> None:
        """Continue an operation from its step `yielded`."""
        proceed = partial(self._continue, steps, ended, owner)
        answer = self._request(yielded, proceed, owner)
        if answer is not None:
            proceed(*answer)

    async def run(self, steps: Steps[T]) -> T:
        """Run an operation and return its result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def ended(result: T, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.carry_out(steps, ended, Owner(lambda: not future.cancelled()))
        return await future

    async def release(self, call: Callable[[], None]) -> None:
        """Make a call in the release pool."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_release_pool(), call)

    @property
    def active(self) -> bool:
        """Does any thread run a call?"""
        return bool(self._tasks)

    async def settled(self) -> None:
        """Wait until no thread runs a call."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _continue(
        self,
        steps: Steps[T],
        ended: Ended,
        owner: Owner,
        result: object,
        error: Exception | None,
    ) -> None:
        if not owner.is_alive():
            steps.close()
            return
        while True:
            try:
                yielded = steps.send(result) if error is None else steps.throw(error)
            except StopIteration as stop:
                ended(stop.value, None)
                return
            except Exception as problem:  # noqa: BLE001  (passed to the caller)
                ended(None, problem)
                return
            proceed = partial(self._continue, steps, ended, owner)
            answer = self._request(yielded, proceed, owner)
            if answer is None:
                return
            result, error = answer

    def _request(
        self, yielded: DiskCall | None, then: Ended, owner: Owner
    ) -> tuple[None, Exception | None] | None:
        """Schedule a step and then call `then`; if there is nothing to do, return its arguments."""
        if yielded is None:
            owner.soon(partial(then, None, None))
            return None
        queue = self._queues.get(yielded.on)
        if queue is not None:
            queue.append((yielded, then))
            return None
        try:
            call = yielded.find()
        except Exception as problem:  # noqa: BLE001  (raised in the operation)
            return None, problem
        if call is None:
            return None, None
        self._start(yielded.on, call, then)
        return None

    def _start(self, on: object, call: Callable[[], object], then: Ended) -> None:
        self._queues[on] = deque()
        self._active.add(on)
        task = asyncio.get_running_loop().create_task(self._work(on, call, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, on: object, call: Callable[[], object] | None, then: Ended) -> None:
        queue = self._queues[on]
        loop = asyncio.get_running_loop()
        while call is not None:
            result: object = None
            error: Exception | None = None
            self._active.add(on)
            try:
                result = await loop.run_in_executor(_pool(), call)
            except Exception as problem:  # noqa: BLE001  (raised in the operation)
                error = problem
            # Calls that `then` requests wait behind the queue.
            self._active.discard(on)
            _call(then, result, error)
            call = None
            while queue and call is None:
                work, then = queue.popleft()
                try:
                    call = work.find()
                except Exception as problem:  # noqa: BLE001  (raised in the operation)
                    _call(then, None, problem)
                else:
                    if call is None:
                        _call(then, None, None)
                        # Yield to the loop: thousands may wait for the same topic.
                        await asyncio.sleep(0)
        del self._queues[on]


def _call(then: Ended, result: object, error: Exception | None) -> None:
    try:
        then(result, error)
    except Exception:
        # A failed callback must not block the operations behind it.
        log.exception("an operation could not continue")
