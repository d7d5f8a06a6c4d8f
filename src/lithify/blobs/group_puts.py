"""Group commit: concurrent puts are written together, one group while another is synced.

Without groups, a thread would wait three times per put: for the writer's lock, for the write and
for the fsync. With many threads, waking them costs more than writing. Here each thread waits once:

1. A put joins the queue and sleeps until it becomes the leader or has an outcome.
2. The first in the queue leads if there is no leader and no fsync in progress. During an fsync, it
   leads as soon as half of all puts are queued: the other half waits for that fsync and will return
   later.
3. The leader takes the whole queue, under the writer's lock. It appends the puts whose ids are
   free, as many as fit into the segment in one write.
4. When the previous group is durable, the leader gives up the lead. The next group is written while
   this one waits for its fsync.
5. Then the leader returns and wakes one member of its group, which returns and wakes the next, and
   so on. If all woke at once, they would only queue for the interpreter's lock.

So the disk and the interpreter work in parallel, on two groups of about half the puts each: the
slower the disk, the larger the groups. A single put waits for no other put. A put whose content is
in parts takes the writer's lock itself, as deletes and other changes do. All share fsyncs.

Invariants: if the queue is not empty, one of its members leads or an fsync is in progress, at whose
end a leader is appointed. Once a group's outcome is known, at least one member is awake or all have
returned. An interrupted put hands over its duties: it passes on the lead, and wakes the next member
if that was its turn.

Called by `writes.py`, from any thread.
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

    from lithify.blobs.log_writer import BlobWriter, NewRecord
    from lithify.blobs.reads import BlobReads
    from lithify.log.group_commit import Pending

__all__ = ["GroupPuts"]

GROUP_MAX = 256
"""Puts per write. Each has three buffers, and one system call takes 1024."""

EARLY_MIN = 8
"""Minimum number of puts to write during an fsync. Fewer are not worth a write of their own; on a
slow disk they should wait for more.
"""


class _Waiting:
    """A put that waits for its outcome."""

    __slots__ = (
        "blob_id",
        "error",
        "leads",
        "left",
        "pending",
        "position",
        "record",
        "rest",
        "wake",
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
        """The sleeping members of its group, if it must wake the next one."""
        self.wake = threading.Lock()
        """Released when this put becomes the leader or has an outcome: the cheapest lock to sleep
        on."""
        self.wake.acquire()

    def settle(self) -> None:
        """Wait until the put is durable or has failed."""
        if self.pending is not None:
            try:
                self.pending.result()
            except (LithifyError, OSError) as error:
                self.error = error


class GroupPuts:
    """See the module."""

    def __init__(self, writer: BlobWriter, reads: BlobReads) -> None:
        self._writer = writer
        self._reads = reads
        self._disk = threading.Lock()
        """Held by the group that waits for its fsync."""
        self._lock = threading.Lock()
        """Protects all fields below; acquired last."""
        self._waiting: deque[_Waiting] = deque()
        self._inside: set[_Waiting] = set()
        """All puts that have arrived and not returned."""
        self._led = False
        self._syncing = False

    def put(self, blob_id: str, record: NewRecord) -> int:
        """Append a put and wait until it is durable; returns its position."""
        if record.parts:
            return self._put_alone(blob_id, record)
        own = _Waiting(blob_id, record)
        try:
            with self._lock:
                self._inside.add(own)
                self._waiting.append(own)
                self._appoint()
            own.wake.acquire()
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
            if self._reads.state(record.id_hash) is not None:
                raise BlobExists(blob_id)
            pending = self._writer.append(record)
        return pending.result()

    def _appoint(self) -> None:
        """Make the first in the queue the leader, if it is time. The caller holds the lock."""
        count = len(self._waiting)
        early = count >= EARLY_MIN and 2 * count >= len(self._inside)
        if count and not self._led and (early or not self._syncing):
            first = self._waiting[0]
            first.leads = self._led = True
            first.wake.release()

    def _leave(self, own: _Waiting) -> None:
        """Leave the queue: pass on the lead and wake the next member of the group."""
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
                    following.wake.release()
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
            # They may be in the log or not; no thread waits for their outcome.
            cause = InterruptedError(errno.EINTR, "the write was interrupted")
            for each in group:
                each.error = each.error or WriteFailed(self._writer.path, cause)
            raise
        finally:
            own.rest = deque(each for each in group if each is not own)

    def _sync(self, own: _Waiting, group: Sequence[_Waiting]) -> None:
        """Wait until the group is durable, while another put may lead."""
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
        """Append each put, or refuse it."""
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
        """The puts whose ids are free; the others are refused."""
        free: dict[bytes, _Waiting] = {}
        with self._reads.states() as state:
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
