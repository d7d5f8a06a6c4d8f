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
        task = asyncio.ensure_future(change())
        try:
            return await self._bounded(task)
        finally:
            task.cancel()

    async def _check(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._check_disk())
        # One that is cancelled must not end the wait of the others.
        await asyncio.shield(self._checking)

    async def _check_disk(self) -> None:
        storage = self._storage
        if self._clock.monotonic_s() - storage.written_s < WRITTEN_S and not storage.refused:
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

    async def _bounded(self, task: asyncio.Task[T]) -> T:
        now_s = self._clock.monotonic_s
        limit_s = now_s() + RUN_S
        refused_s: float | None = None
        while True:
            await asyncio.wait({task}, timeout=CHECK_S)
            if task.done():
                return task.result()
            refused = self._storage.refused
            refused_s = (now_s() if refused_s is None else refused_s) if refused else None
            if refused_s is not None and now_s() - refused_s >= REFUSED_S:
                raise ChangeUnknown(f"the disk refuses to write it: {refused}")
            if now_s() >= limit_s:
                raise ChangeUnknown(f"no result after {RUN_S:g} s")
