"""Makes the active segment of a log durable.

One fsync at a time covers everything that was written before it began. After a failed one in mode
`always` everything that was not acknowledged is truncated, because the operating system may have
dropped those pages while it still returns their contents. In the other modes the bytes stay, and
the error goes to the caller of `sync`.

In mode `interval` the fsync is due `sync_interval_ms` after the last one (`sync_if_due`).

The write lock is not held during the fsync: other threads append meanwhile, for the next one.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

from lithify.errors import LithifyError, LogClosed, WriteFailed
from lithify.events import WriteRefused
from lithify.settings import Durability

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.log.group_commit import Tick
    from lithify.log.write_state import WriteState

__all__ = ["Syncer"]


class Syncer:
    """Runs the fsyncs of one log."""

    def __init__(self, writes: WriteState, clock: Clock) -> None:
        self._writes = writes
        self._clock = clock
        self._lock = threading.Lock()
        self._synced_at_s = clock.monotonic_s()
        """End of the last fsync."""

    def sync(self) -> None:
        """Make everything appended so far durable, in any mode."""
        with self._writes.events, self._lock:
            self._sync()

    def sync_if_due(self) -> None:
        """In mode `interval`: sync if something is not durable and the interval has passed."""
        settings = self._writes.settings
        if settings.durability is Durability.INTERVAL and self._writes.current.active.unsynced:
            waited_ms = (self._clock.monotonic_s() - self._synced_at_s) * 1000
            if waited_ms >= settings.sync_interval_ms:
                self.sync()

    def sync_tick(self, tick: Tick) -> None:
        """Make the appends of a tick durable; does nothing if another thread has done so."""
        with self._writes.events, self._lock:
            if not tick.done:
                self._sync()

    def _sync(self) -> None:
        writes = self._writes
        with writes.lock:
            try:
                writes.check_usable()
            except LogClosed:
                raise  # Closing has completed the tick.
            except LithifyError as refused:
                # The tick must be completed here: no later fsync does it.
                writes.drop_unacknowledged(refused)
                raise
            active = writes.current.active
            mark = active.writer.mark()
            tick = writes.take_tick()
            # No roll replaces the active segment before this fsync has ended.
            writes.syncing = True
        failure: WriteFailed | None = None
        try:
            if mark.end != active.durable.end:
                active.writer.file.fdatasync()
        except OSError as error:
            failure = WriteFailed(active.writer.path, error)
            writes.events.put(WriteRefused(writes.directory, active.writer.path, str(error)))
        except BaseException:
            # Interrupted: no append may wait for this fsync any longer. The next one covers it.
            with writes.lock:
                self._end()
            cause = InterruptedError(errno.EINTR, "fsync was interrupted")
            tick.complete(WriteFailed(active.writer.path, cause))
            raise
        with writes.lock:
            self._end()
            if failure is None:
                active.set_durable(mark)
            else:
                writes.drop_unacknowledged(failure)
                # Under the lock, so that later appends see the failure.
                tick.complete(failure)
        self._synced_at_s = self._clock.monotonic_s()
        if failure is not None:
            raise failure
        tick.complete()

    def _end(self) -> None:
        self._writes.syncing = False
        self._writes.ended.notify_all()
