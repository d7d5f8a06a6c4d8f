"""Group commit: many appends, one fsync.

All appends between two fsyncs belong to one `Tick`. Whoever waits first has the fsync made; the
others find it done. There is no committer thread:

- `pending.result()` in a thread: the first of a tick to come makes the fsync itself, after the one
  that may be running; the others of the tick wait for it.
- `await pending` in an event loop: the fsync goes to a small pool of threads at the end of the
  loop's current round, so that all tasks that are ready to append share it.

A tick fails as a whole: if the fsync fails, nothing of it was acknowledged.
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
    """What a pending append needs of its log."""

    def sync_tick(self, tick: Tick) -> None:
        """Make what belongs to a tick durable and complete it; nothing if that is done."""


class Tick:
    """The appends that one fsync will cover."""

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
        """The fsync returned or failed; wake everybody."""
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
        """Block until the tick has ended. Who comes first has the fsync made.

        The others wait for the tick and not for the log's lock: behind that they would queue with
        those of the next tick, and wait for its fsync too.
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
            # Whoever was to make the fsync was interrupted.
            log.sync_tick(self)

    def future(self, log: Syncable) -> asyncio.Future[None] | None:
        """A future of the running loop that ends with the tick; None if it has ended."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.done:
                return None
            future = loop.create_future()
            self._futures.append(future)
            # For each loop anew: another one may have been closed before it came to its turn.
            first, self._scheduled = self._scheduled is not loop, loop
        if first:
            loop.call_soon(_sync_pool().submit, _sync_quietly, log, self)
        return future


def _sync_quietly(log: Syncable, tick: Tick) -> None:
    # The error is in the tick, where those who wait for it look.
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
        # The loop was closed while its tasks waited: nobody is left to be woken.
        return


class Pending:
    """An append on its way to being durable. `await` it, or call `result()`."""

    __slots__ = ("_log", "_tick", "position", "runs")

    def __init__(self, position: int, tick: Tick, log: Syncable) -> None:
        self.position = position
        """Of the entry; of the last one if several were appended."""
        self.runs: list[tuple[int, int]] = [(position, position)]
        """First and last position of each stretch, if several were appended without positions."""
        self._tick = tick
        self._log = log

    def done(self) -> bool:
        """Is it acknowledged or failed?"""
        return self._tick.done

    def result(self) -> int:
        """Wait until it is durable as configured; the position. Raises if it failed."""
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
