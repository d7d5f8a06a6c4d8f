"""Changes of the catalog that end in bounded time, also if the disk or the quorum fails.

    changes = BoundedChanges(raft_node)
    executed = await changes.run(partial(catalog.execute, commands))

1. If the write-ahead log of the Raft node was not written to in the last `WRITTEN_S`, or the disk
   is nearly full, a small file is written beside it. If the disk refuses that, the change is
   refused by `WriteFailed`: nothing was done. Requests at the same time share one such check.
2. The change runs. A command that was proposed cannot be withdrawn: the log writes it as soon as
   the disk accepts it. So if the disk refuses what waits for it during `REFUSED_S`, or if there is
   no result after `RUN_S`, the change raises `ChangeUnknown`, and its outcome is open.

In the event loop of the Raft node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from lithify.clock import SystemClock
from lithify.errors import LithifyError, WriteFailed
from lithify.exit_codes import OUTCOME_UNKNOWN
from lithify.fs.full_disk_reserve import LEFT_BYTES
from lithify.fs.write_probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from lithify.raft.node.node import RaftNode
    from lithify.raft.storage.storage import RaftStorage

__all__ = ["BoundedChanges", "ChangeUnknown"]

T = TypeVar("T")

WRITTEN_S = 1.0
PROBE_BYTES = 16 * 1024
"""More than almost all changes write."""
REFUSED_S = 5.0
"""The log retries a refused write after at most two seconds."""
RUN_S = 75.0
"""Two requests to a metastore without a quorum, of 30 s each, and the wait for the activation."""
CHECK_S = 0.25


class ChangeUnknown(LithifyError):
    """A change was made, or was not, or still may be."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"the outcome of the change is unknown: {why}")


class BoundedChanges:
    """See the module."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._storage = node.storage
        self._clock = SystemClock()
        self._checking: asyncio.Task[None] | None = None

    async def run(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a change; see the module."""
        if not self._node.reads_only:
            await self._check()
        return await self._bounded(change)

    def _is_written(self) -> bool:
        """Has the disk accepted what the log wrote last, just now?"""
        storage = self._storage
        return self._clock.monotonic_s() - storage.written_s < WRITTEN_S and not storage.refused

    async def _check(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._check_disk())
        # One that is cancelled must not end the wait of the others.
        await asyncio.shield(self._checking)

    async def _check_disk(self) -> None:
        storage = self._storage
        if self._is_written():
            free_bytes = await asyncio.to_thread(storage.fs.free_bytes, storage.directory)
            if free_bytes >= LEFT_BYTES:
                return
        await asyncio.to_thread(self._probe)

    def _probe(self) -> None:
        directory = self._storage.directory
        try:
            probe(self._storage.fs, directory, PROBE_BYTES)
        except OSError as error:
            raise WriteFailed(directory, error) from error

    async def _bounded(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # Without a task for the change: each turn of the loop would add to its duration.
        try:
            async with asyncio.timeout(None) as limit:
                ending = _Ending(self._storage, limit)
                try:
                    return await change()
                finally:
                    ending.close()
        except TimeoutError:
            if not limit.expired():
                raise
            raise ChangeUnknown(ending.why) from None


class _Ending:
    """Lets a change time out when its outcome will not be known soon."""

    def __init__(self, storage: RaftStorage, limit: asyncio.Timeout) -> None:
        self.why = ""
        self._storage = storage
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + RUN_S
        self._refused_s: float | None = None
        """Since when the disk refuses what waits for it."""
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def close(self) -> None:
        """The change has ended."""
        self._timer.cancel()

    def _check(self) -> None:
        now_s, refused = self._loop.time(), self._storage.refused
        if not refused:
            self._refused_s = None
        elif self._refused_s is None:
            self._refused_s = now_s
        if self._refused_s is not None and now_s - self._refused_s >= REFUSED_S:
            self.why = f"the disk refuses to write it: {refused}"
        elif now_s >= self._until_s:
            self.why = f"no result after {RUN_S:g} s"
        if self.why:
            self._limit.reschedule(now_s)
        else:
            self._timer = self._loop.call_later(CHECK_S, self._check)
