"""The threads of a node that wait for its disk, so that its event loop never does.

    write-ahead log   takes everything queued by the groups since its last round, makes it durable
                      with one fdatasync, and posts the events; meanwhile the next round queues up.
                      When idle it proves that the last batch is durable
    segment writer    moves the entries of a full file to segments, and waits until the groups have
                      taken them in before it continues with the next file. It also deletes unneeded
                      files after the worker's earlier jobs
    worker            one job at a time: snapshots, installs and compaction
    readers           values that clients have requested; several threads, so that a slow read
                      delays neither other reads nor a snapshot

A refused write is retried, after a wait that grows to `REFUSED_S_MAX`; nothing is acknowledged
meanwhile. Any other error in a thread stops the node, by `failed`.

Started and stopped in the event loop's thread, in which all callbacks run.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lithify.clock import SystemClock
from lithify.errors import WriteFailed
from lithify.events import WriteRefused
from lithify.logger import get_logger
from lithify.raft.storage.wal.wal import Rolled

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.storage.segment_writer import Flushed
    from lithify.raft.storage.storage import RaftStorage
    from lithify.raft.storage.wal.wal import Wal, WalEvent

__all__ = ["DiskThreads"]

IDLE_S = 0.2
"""Interval at which an idle write-ahead log proves its last batch, and waits check the end."""
REFUSED_S_MIN, REFUSED_S_MAX = 0.05, 2.0
READERS = 4

log = get_logger("lithify.raft")


class DiskThreads:
    """See the module."""

    def __init__(
        self,
        storage: RaftStorage,
        *,
        written: Callable[[list[WalEvent]], None],
        flushed: Callable[[Rolled, list[Flushed]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._storage = storage
        self._clock = SystemClock()
        self._written = written
        self._flushed = flushed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._ending = threading.Event()
        self._rolled: queue.SimpleQueue[Rolled | Callable[[], None] | None] = queue.SimpleQueue()
        self._settled = threading.Event()
        self._worker = ThreadPoolExecutor(1, "raft-worker")
        self._readers = ThreadPoolExecutor(READERS, "raft-reader")
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=name)
            for name, work in (("raft-wal", self._write), ("raft-segments", self._move))
        ]
        for thread in self._threads:
            thread.start()

    def run(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run a job in the worker; `done` gets its result or error."""
        self._submit(self._worker, self._call, job, done)

    def read(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        """Run a job in a reader; `done` gets its result or error."""
        self._submit(self._readers, self._call, job, done)

    def _submit(self, pool: ThreadPoolExecutor, call: Callable[..., None], *given: object) -> None:
        # While the node stops, writes that complete may lead to new jobs.
        if not self._ending.is_set():
            pool.submit(call, *given)

    def _call(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        result: object
        try:
            result = job()
        except Exception as error:  # noqa: BLE001  (the group that asked for the job decides)
            result = error
        self._post(done, result)

    def remove(self, files: Callable[[], None]) -> None:
        """Delete files when all jobs that were queued before are done.

        Files that are left when the node stops are deleted by the next start.
        """
        self._submit(self._worker, self._rolled.put, files)

    async def close(self) -> None:
        """Write what is queued, and stop all threads; jobs that have not started are dropped."""
        self._ending.set()
        self._storage.wal.end_waits()
        self._rolled.put(None)
        for pool in (self._worker, self._readers):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _post(self, callback: Callable[..., None], *values: object) -> None:
        self._loop.call_soon_threadsafe(callback, *values)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (a node needs this thread)
            self._post(self._failed, error)

    def _write(self) -> None:
        wal = self._storage.wal
        refused_s = REFUSED_S_MIN
        while not self._ending.is_set() or wal.wait(0):
            is_round = wal.wait(IDLE_S)
            events = self._round(wal) if is_round else wal.prove()
            refused = [event for event in events if isinstance(event, WriteRefused)]
            if is_round and not refused:
                self._storage.written_s = self._clock.monotonic_s()
            # If nothing waits, nothing is refused.
            self._storage.refused = str(refused[0]) if refused and is_round else ""
            if not events:
                continue
            self._post(self._written, events)
            for event in events:
                if isinstance(event, Rolled):
                    self._rolled.put(event)
            if refused:
                log.error("write refused", reason=str(refused[0]))
                if self._ending.wait(refused_s):
                    return
                refused_s = min(2 * refused_s, REFUSED_S_MAX)
            else:
                refused_s = REFUSED_S_MIN
        wal.prove()

    def _round(self, wal: Wal) -> list[WalEvent]:
        """Do one round and note its duration: appends and commits of all groups wait for it."""
        start_s = self._clock.monotonic_s()
        events = wal.flush()
        self._storage.latencies.add(self._clock.monotonic_s() - start_s)
        return events

    def _move(self) -> None:
        while (rolled := self._rolled.get()) is not None:
            if not isinstance(rolled, Rolled):
                self._remove(rolled)
                continue
            done = self._flush(rolled)
            if done is None:
                return
            self._settled.clear()
            self._post(self._settle, rolled, done)
            # The next file's entries follow these, so the groups must know these first.
            while not self._settled.wait(IDLE_S):
                if self._ending.is_set():
                    return

    def _remove(self, files: Callable[[], None]) -> None:
        try:
            files()
            return
        except (OSError, WriteFailed) as error:
            reason = str(error)
        # The files are not needed, and the next start retries.
        log.error("files not removed", reason=reason)

    def _flush(self, rolled: Rolled) -> list[Flushed] | None:
        """Write segments, retrying while the disk refuses; None if the node stops."""
        refused_s = REFUSED_S_MIN
        while True:
            try:
                return self._storage.flush(rolled)
            except (OSError, WriteFailed) as error:
                # The file of the write-ahead log stays; the retry cuts torn writes off.
                reason = str(error)
            log.error("segments refused", file=rolled.number, reason=reason)
            if self._ending.wait(refused_s):
                return None
            refused_s = min(2 * refused_s, REFUSED_S_MAX)

    def _settle(self, rolled: Rolled, done: list[Flushed]) -> None:
        try:
            self._flushed(rolled, done)
        finally:
            self._settled.set()
