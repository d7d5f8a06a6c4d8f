"""The thread in which a process runs its Raft node, and what else uses its groups.

    cluster = ClusterThread(lambda: RaftNode(settings, fs, machine_of), failed)
    cluster.start()                                         # returns when the node is open
    future = cluster.call(lambda: cluster.node.propose("metastore", command))
    index, reply = future.result()
    cluster.close()

The thread has an event loop of its own, so neither the groups nor the clients of the process wait
for each other. Other threads use the groups by `call`, which runs a coroutine in that loop.

1. `start` raises what the node raises when it opens its directory or its port. If the user
   interrupts it, it waits `OPEN_S` at most: then the thread continues alone, and closes what it
   has opened.
2. A node that fails later ends the thread: `failed` gets the error, in this thread, once.
3. `close` accepts no more calls, gives those in progress `CALLS_S`, and stops the node. Calls that
   are still in progress then end with the typed errors of a node that stops.

A process that ends without `close` is not kept by the thread: it stops when the main thread has
ended. Nothing acknowledged is lost.

Any thread may call; `start` and `close` wait.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from lithify.errors import LogClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lithify.raft.node.node import RaftNode

__all__ = ["ClusterThread"]

T = TypeVar("T")

EXIT_S = 0.5
"""Interval at which the thread checks whether the process ends."""
CALLS_S = 2.0
"""How long calls in progress may take when the thread is closed."""
OPEN_S = 1.0
"""How long a start that is interrupted waits for a directory that is being opened."""


class ClusterThread:
    """See the module."""

    def __init__(
        self, open_node: Callable[[], RaftNode], failed: Callable[[BaseException], None]
    ) -> None:
        self._open_node = open_node
        self._failed = failed
        self._opened: Future[RaftNode] = Future()
        # The threads of the disk keep the process until this one has stopped them. Before they are
        # started, a process may end: opening a directory can take long.
        self._thread = threading.Thread(target=self._main, name="lithify-cluster", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event | None = None
        """None until there is a loop."""
        self._calls: set[asyncio.Task[Any]] = set()
        self._lock = threading.Lock()
        self._ended = False
        self.node: RaftNode
        """The node, after `start`; used in its loop only."""

    def start(self) -> None:
        """Start the thread, and wait until the node is open."""
        try:
            self._thread.start()
            self.node = self._opened.result()
        except BaseException:
            self._end()
            if self._thread.is_alive():
                self._thread.join(OPEN_S)
            raise

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine in the loop of the node; `LogClosed` if it has stopped."""
        with self._lock:
            if self._ended:
                raise LogClosed("the Raft node of the process has stopped")
            return asyncio.run_coroutine_threadsafe(self._called(function), self._loop)

    def close(self) -> None:
        """Stop the node, and wait for the thread. Idempotent."""
        self._end()
        if self._opened.done():
            self._thread.join()

    def _end(self) -> None:
        with self._lock:
            if not self._ended:
                self._ended = True
                if self._stop is not None:
                    self._loop.call_soon_threadsafe(self._stop.set)

    # --- in the thread ----------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001  (the process decides)
            if not self._opened.done():
                self._opened.set_exception(error)
            elif threading.main_thread().is_alive():
                self._failed(error)
        finally:
            self._ended = True

    async def _run(self) -> None:
        stop, stop_node = asyncio.Event(), asyncio.Event()
        with self._lock:
            self._loop, self._stop = asyncio.get_running_loop(), stop
            if self._ended:
                stop.set()
        node = self._open_node()
        closing = asyncio.create_task(self._finish_calls(stop, stop_node))
        try:
            await node.run(stop_node, lambda _: self._opened.set_result(node))
        finally:
            with self._lock:
                self._ended = True
            closing.cancel()
            # The node has ended their requests: they need a few turns of the loop.
            if self._calls:
                await asyncio.wait(self._calls, timeout=CALLS_S)

    async def _finish_calls(self, stop: asyncio.Event, stop_node: asyncio.Event) -> None:
        while not stop.is_set() and threading.main_thread().is_alive():
            with suppress(TimeoutError):
                async with asyncio.timeout(EXIT_S):
                    await stop.wait()
        # Calls that were accepted and have not begun begin in this turn of the loop.
        await asyncio.sleep(0)
        if self._calls:
            await asyncio.wait(self._calls, timeout=CALLS_S)
        stop_node.set()

    async def _called(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await function()
        finally:
            self._calls.discard(task)
