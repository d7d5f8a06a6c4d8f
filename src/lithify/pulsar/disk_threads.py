"""Drives operations in steps from the event loop; what waits for the disk is done in threads.

1. An operation (`topics/disk_steps.py`) runs in the loop until it yields.
2. For `None` it goes on when its owner's turn comes, by default in the loop's next iteration.
3. For `DiskCall` it goes on when a thread has made the call. Calls on the same object are made one
   at a time, in order: they wait in a queue of that object, and each is asked for only when it is
   its turn, because those before it may have done the same.
4. An operation whose owner is not alive any more is closed when its call has returned.

A topic has some of these objects: for its appends, its reads, its cursors, its subscriptions and
its schemas. So a topic whose disk is slow has a few threads at most, and leaves the others to other
topics. None of these waits for another one.

What others wait for (a topic that is closed or deleted, by whose name nobody can open it meanwhile)
has threads of its own, `release`: in the pool of those who wait it might never have its turn.

The loop's thread only. For the broker.
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
    """Called with the result of an operation, or with its error."""

__all__ = ["WORK_THREADS", "WorkThreads"]

WORK_THREADS = 64
"""Started as they are needed. Each waits for a disk, so there are more than cores."""
RELEASE_THREADS = 16
"""These wait for nothing but a disk."""

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
    """For whom an operation is done: is it still wanted, and how its next turn is had."""

    is_alive: Callable[[], bool] = _always
    soon: Callable[[Callable[[], None]], None] = _next_iteration


_ANYBODY = Owner()


class WorkThreads:
    """The operations of one broker."""

    def __init__(self) -> None:
        self._queues: dict[object, deque[tuple[DiskCall, Ended]]] = {}
        """By the object that a thread is at work on, or was until now: who waits for it."""
        self._active: set[object] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def is_busy(self, on: object) -> bool:
        """Is a thread at work on it?"""
        return on in self._active

    def carry_out(self, steps: Steps[T], ended: Ended, owner: Owner = _ANYBODY) -> None:
        """Run an operation; `ended` is called at its end, before this returns if nothing waits."""
        self._go_on(steps, ended, owner, None, None)

    def wait_for(
        self, steps: Steps[T], wanted: DiskCall | None, ended: Ended, owner: Owner
    ) -> None:
        """The same of an operation that was begun and has yielded `wanted`."""
        go_on = partial(self._go_on, steps, ended, owner)
        answer = self._ask(wanted, go_on, owner)
        if answer is not None:
            go_on(*answer)

    async def run(self, steps: Steps[T]) -> T:
        """Run an operation; its result."""
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
        """Make a call that others wait for, in a thread that waits for none of them."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_release_pool(), call)

    @property
    def active(self) -> bool:
        """Is any thread at work?"""
        return bool(self._tasks)

    async def settled(self) -> None:
        """Wait until no thread is at work."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _go_on(
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
                wanted = steps.send(result) if error is None else steps.throw(error)
            except StopIteration as stop:
                ended(stop.value, None)
                return
            except Exception as problem:  # noqa: BLE001  (whoever asked for it gets it)
                ended(None, problem)
                return
            answer = self._ask(wanted, partial(self._go_on, steps, ended, owner), owner)
            if answer is None:
                return
            result, error = answer

    def _ask(
        self, wanted: DiskCall | None, then: Ended, owner: Owner
    ) -> tuple[None, Exception | None] | None:
        """Have it done, and `then` called; the answer if there is nothing to do."""
        if wanted is None:
            owner.soon(partial(then, None, None))
            return None
        queue = self._queues.get(wanted.on)
        if queue is not None:
            queue.append((wanted, then))
            return None
        try:
            call = wanted.find()
        except Exception as problem:  # noqa: BLE001  (the operation gets it)
            return None, problem
        if call is None:
            return None, None
        self._start(wanted.on, call, then)
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
            except Exception as problem:  # noqa: BLE001  (the operation gets it)
                error = problem
            # What these ask for now waits behind those who are in the queue.
            self._active.discard(on)
            _tell(then, result, error)
            call = None
            while queue and call is None:
                work, then = queue.popleft()
                try:
                    call = work.find()
                except Exception as problem:  # noqa: BLE001  (the operation gets it)
                    _tell(then, None, problem)
                else:
                    if call is None:
                        _tell(then, None, None)
                        # Thousands may wait for the same topic.
                        await asyncio.sleep(0)
        del self._queues[on]


def _tell(then: Ended, result: object, error: Exception | None) -> None:
    try:
        then(result, error)
    except Exception:
        # Those behind it must not wait for ever.
        log.exception("an operation could not go on")
