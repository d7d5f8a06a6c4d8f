"""Puts that come at the same time are written together.

A thread that puts would wait three times: for the writer's lock, for the write, for the fsync. With
many of them it costs more to wake threads than to write. So each waits once:

1. A put joins those that wait. If nobody leads, its thread leads; else it sleeps.
2. The one that leads takes all that wait, under the writer's lock. Those whose ids are free are
   appended, as many as fit into the segment in one write.
3. It waits for the fsync, hands the lead to the first of those that have come meanwhile, and wakes
   the others of its group, each with what came of it.

While one group is on its way to the disk the next one gathers: the slower the disk, the larger the
groups. A put that is alone waits for nobody. One whose content stands in parts takes the writer's
lock itself, as deletes and other changes do; all share fsyncs.

Invariant: the first of those that wait leads, or has been told to. Whoever is interrupted leaves
and hands the lead on. Called by `operations.py`, from any thread.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.blobs.errors import BlobExists
from lithify.errors import LithifyError, WriteFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.blobs.looks import Looks
    from lithify.blobs.writer import BlobWriter, NewRecord
    from lithify.log.commit import Pending

__all__ = ["Puts"]

GROUP_MAX = 256
"""Puts of one write. Each has three buffers, and one system call takes 1024."""


class _Waiting:
    """A put that waits for what comes of it."""

    __slots__ = ("blob_id", "error", "leads", "pending", "position", "record", "told")

    def __init__(self, blob_id: str, record: NewRecord) -> None:
        self.blob_id = blob_id
        self.record = record
        self.leads = False
        self.pending: Pending | None = None
        self.position = -1
        self.error: Exception | None = None
        self.told = threading.Lock()
        """Free once it is to lead, or is settled: the cheapest thing to sleep on."""
        self.told.acquire()

    def settle(self) -> None:
        """Wait until it is durable, or has failed."""
        if self.pending is not None:
            try:
                self.pending.result()
            except (LithifyError, OSError) as error:
                self.error = error


class Puts:
    """See the module."""

    def __init__(self, writer: BlobWriter, looks: Looks) -> None:
        self._writer = writer
        self._looks = looks
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._led = False

    def put(self, blob_id: str, record: NewRecord) -> int:
        """Append a put and wait until it is durable; its position."""
        if record.parts:
            return self._put_alone(blob_id, record)
        own = _Waiting(blob_id, record)
        with self._lock:
            self._waiting.append(own)
            own.leads, self._led = not self._led, True
        try:
            if not own.leads:
                own.told.acquire()
            if own.leads:
                self._lead(own)
        except BaseException:
            self._leave(own)
            raise
        if own.error is not None:
            raise own.error
        return own.position

    def _put_alone(self, blob_id: str, record: NewRecord) -> int:
        with self._writer.lock:
            self._writer.ready()
            if self._looks.state(record.id_hash) is not None:
                raise BlobExists(blob_id)
            pending = self._writer.append(record)
        return pending.result()

    def _lead(self, own: _Waiting) -> None:
        group: list[_Waiting] = []
        try:
            with self._writer.lock:
                with self._lock:
                    count = min(len(self._waiting), GROUP_MAX)
                    group = [self._waiting.popleft() for _ in range(count)]
                self._append(group)
            for each in group:
                each.settle()
        except BaseException:
            # They may be in the log or not, but nobody looks after them any more.
            cause = InterruptedError(errno.EINTR, "the write was interrupted")
            for each in group:
                each.error = each.error or WriteFailed(self._writer.path, cause)
            raise
        finally:
            self._leave(own)
            for each in group:
                if each is not own:
                    each.told.release()

    def _leave(self, own: _Waiting) -> None:
        """Wait no more; the lead goes to the next one."""
        with self._lock:
            with suppress(ValueError):
                self._waiting.remove(own)
            if not own.leads:
                return
            own.leads = False
            self._led = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].told.release()

    def _append(self, group: Sequence[_Waiting]) -> None:
        """Have each of them appended, or refused."""
        try:
            self._writer.ready()
            left = self._free(group)
        except (LithifyError, OSError) as error:
            for each in group:
                each.error = error
            return
        while left:
            try:
                self._writer.ready()
                count, pending = self._writer.append_together([each.record for each in left])
            except (LithifyError, OSError) as error:
                # The others may be smaller, or the disk may have room again.
                left.pop(0).error = error
                continue
            for position, each in enumerate(left[:count], pending.position - count + 1):
                each.pending, each.position = pending, position
            del left[:count]

    def _free(self, group: Sequence[_Waiting]) -> list[_Waiting]:
        """Those whose ids nobody has; the others are refused."""
        free: dict[bytes, _Waiting] = {}
        with self._looks.states() as state:
            for each in group:
                id_hash = each.record.id_hash
                try:
                    is_taken = id_hash in free or state(id_hash) is not None
                except (LithifyError, OSError) as error:
                    each.error = error
                    continue
                if is_taken:
                    each.error = BlobExists(each.blob_id)
                else:
                    free[id_hash] = each
        return list(free.values())
