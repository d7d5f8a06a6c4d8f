"""Puts that come at the same time are written together, one group while another is synced.

A thread that puts would wait three times: for the writer's lock, for the write, for the fsync. With
many of them it costs more to wake threads than to write. So each waits once:

1. A put joins those that wait, and sleeps until it is told to lead or what came of it.
2. The first of them leads if nobody else does, and if no fsync is under way. While one is, it leads
   as soon as half of all puts wait: the rest are those that the fsync is for, and come again later.
3. The one that leads takes all that wait, under the writer's lock. Those whose ids are free are
   appended, as many as fit into the segment in one write.
4. When the group before is durable it gives the lead up, so that the next group is written while
   it waits for the fsync of its own.
5. Then it leaves and wakes another of its group, which leaves and wakes a third, and so on. Woken
   all at once they would wake only to queue for the interpreter's lock.

So the disk and the interpreter work at the same time, on two groups of about half the puts each:
the slower the disk, the larger they are. A put that is alone waits for nobody. One whose content
stands in parts takes the writer's lock itself, as deletes and other changes do; all share fsyncs.

Invariants: if some wait, then one of them leads or an fsync is under way, at whose end one is told
to. Of a group whose fortune is known, one is awake or all have left. Whoever is interrupted leaves
as well: it hands the lead on, and wakes the next one if that was its turn.

Called by `operations.py`, from any thread.
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

EARLY_MIN = 8
"""Puts that are written while an fsync is under way: fewer are not worth a write of their own, and
on a slow disk they had better wait for more."""


class _Waiting:
    """A put that waits for what comes of it."""

    __slots__ = (
        "blob_id",
        "error",
        "leads",
        "left",
        "pending",
        "position",
        "record",
        "rest",
        "told",
    )

    def __init__(self, blob_id: str, record: NewRecord) -> None:
        self.blob_id = blob_id
        self.record = record
        self.leads = False
        self.left = False
        self.pending: Pending | None = None
        self.position = -1
        self.error: Exception | None = None
        self.rest: deque[_Waiting] | None = None
        """Those of its group that still sleep, if it is its turn to wake the next one."""
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
        self._disk = threading.Lock()
        """Held by the group that waits for its fsync."""
        self._lock = threading.Lock()
        """For all below; the last one taken."""
        self._waiting: deque[_Waiting] = deque()
        self._inside: set[_Waiting] = set()
        """All that have come and not left."""
        self._led = False
        self._syncing = False

    def put(self, blob_id: str, record: NewRecord) -> int:
        """Append a put and wait until it is durable; its position."""
        if record.parts:
            return self._put_alone(blob_id, record)
        own = _Waiting(blob_id, record)
        try:
            with self._lock:
                self._inside.add(own)
                self._waiting.append(own)
                self._appoint()
            own.told.acquire()
            if own.leads:
                self._lead(own)
        except BaseException:
            with self._lock, suppress(ValueError):
                self._waiting.remove(own)
            raise
        finally:
            self._leave(own)
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

    def _appoint(self) -> None:
        """Tell the first one to lead, if it is time; under the lock."""
        count = len(self._waiting)
        early = count >= EARLY_MIN and 2 * count >= len(self._inside)
        if count and not self._led and (early or not self._syncing):
            first = self._waiting[0]
            first.leads = self._led = True
            first.told.release()

    def _leave(self, own: _Waiting) -> None:
        """Wait no more: the lead goes to the next one, and the next of the group is woken."""
        with self._lock:
            own.left = True
            self._inside.discard(own)
            if own.leads:
                own.leads = self._led = False
            self._appoint()
            while own.rest:
                following = own.rest.popleft()
                if not following.left:
                    following.rest = own.rest
                    following.told.release()
                    break

    def _lead(self, own: _Waiting) -> None:
        group: list[_Waiting] = []
        try:
            with self._writer.lock:
                with self._lock:
                    count = min(len(self._waiting), GROUP_MAX)
                    group = [self._waiting.popleft() for _ in range(count)]
                self._append(group)
            with self._disk:
                self._sync(own, group)
        except BaseException:
            # They may be in the log or not, but nobody looks after them any more.
            cause = InterruptedError(errno.EINTR, "the write was interrupted")
            for each in group:
                each.error = each.error or WriteFailed(self._writer.path, cause)
            raise
        finally:
            own.rest = deque(each for each in group if each is not own)

    def _sync(self, own: _Waiting, group: Sequence[_Waiting]) -> None:
        """Wait until all of them are durable, while somebody else leads."""
        try:
            with self._lock:
                own.leads = self._led = False
                self._syncing = True
                self._appoint()
            for each in group:
                each.settle()
        finally:
            with self._lock:
                self._syncing = False

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
