"""Group commit: many appends, one fsync.

All appends between two fsyncs share one `Tick`. The first waiter of a tick triggers its fsync;
the others wait for the result. There is no committer thread:

- `pending.result()` in a thread: the first waiter makes the fsync itself, after any fsync in
  progress; the other waiters of the tick wait for it.
- `await pending` in an event loop: the fsync goes to a small thread pool at the end of the loop's
  current iteration, so that all tasks that are ready to append share it.

A tick fails as a whole: if the fsync fails, none of its appends is acknowledged.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from lithify.errors import LithifyError

__all__ = ["Pending", "Syncable", "Tick"]

_SYNC_THREADS = 8


@cache
def _sync_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="lithify-sync")


class Syncable(Protocol):
    """The part of a log that a pending append calls."""

    def sync_tick(self, tick: Tick) -> None:
        """Make the appends of a tick durable and complete it; does nothing if it is complete."""


class Tick:
    """The appends that one fsync covers."""

    __slots__ = ("_ended", "_futures", "_lock", "_scheduled", "_taken", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: LithifyError | None = None
        self._lock = threading.Lock()
        self._taken = False
        self._ended = threading.Event()
        self._futures: list[asyncio.Future[None]] = []
        self._scheduled: asyncio.AbstractEventLoop | None = None

    def complete(self, error: LithifyError | None = None) -> None:
        """End the tick after its fsync returned or failed, and wake all waiters."""
        with self._lock:
            self.error = error
            self.done = True
            futures, self._futures = self._futures, []
        self._ended.set()
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future in futures:
            by_loop.setdefault(future.get_loop(), []).append(future)
        for loop, waiting in by_loop.items():
            _call_if_running(loop, _wake, waiting)

    def wait(self, log: Syncable) -> None:
        """Block until the tick has ended. The first caller makes the fsync.

        The others wait for the tick, not for the log's lock: in the lock's queue they would mix
        with waiters of the next tick, and wait for its fsync too.
        """
        with self._lock:
            first, self._taken = not self._taken, True
        if first:
            try:
                log.sync_tick(self)
            finally:
                self._ended.set()
        else:
            self._ended.wait()
        if not self.done:
            # The thread that was to make the fsync was interrupted.
            log.sync_tick(self)

    def future(self, log: Syncable) -> asyncio.Future[None] | None:
        """A future of the running loop that completes with the tick; None if it has ended."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.done:
                return None
            future = loop.create_future()
            self._futures.append(future)
            # Once per loop: another loop may have been closed before its call ran.
            first, self._scheduled = self._scheduled is not loop, loop
        if first:
            loop.call_soon(_sync_pool().submit, _sync_quietly, log, self)
        return future


def _sync_quietly(log: Syncable, tick: Tick) -> None:
    # The error is stored in the tick, where the waiters read it.
    with suppress(Exception):
        log.sync_tick(tick)


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _call_if_running(
    loop: asyncio.AbstractEventLoop,
    function: Callable[[Iterable[asyncio.Future[None]]], None],
    futures: list[asyncio.Future[None]],
) -> None:
    try:
        loop.call_soon_threadsafe(function, futures)
    except RuntimeError:
        # The loop was closed while its tasks waited: there is no task left to wake.
        return


class Pending:
    """An append that is not yet acknowledged. `await` it, or call `result()`."""

    __slots__ = ("_log", "_tick", "position", "runs")

    def __init__(self, position: int, tick: Tick, log: Syncable) -> None:
        self.position = position
        """Position of the entry; of the last one if several were appended."""
        self.runs: list[tuple[int, int]] = [(position, position)]
        """First and last position of each contiguous run of positions."""
        self._tick = tick
        self._log = log

    def done(self) -> bool:
        """Is it acknowledged or failed?"""
        return self._tick.done

    def result(self) -> int:
        """Wait until it is durable as configured; return the position. Raises if it failed."""
        if not self._tick.done:
            self._tick.wait(self._log)
        return self._outcome()

    def __await__(self) -> Generator[asyncio.Future[None], None, int]:
        future = None if self._tick.done else self._tick.future(self._log)
        if future is not None:
            yield from future
        return self._outcome()

    def _outcome(self) -> int:
        if self._tick.error is not None:
            raise self._tick.error
        assert self._tick.done
        return self.position
