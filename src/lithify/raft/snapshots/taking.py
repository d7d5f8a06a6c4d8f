"""Takes a group's snapshots and checkpoints: when, in which order, and what they set free.

A snapshot of the state at the last applied index, step by step:

1. The group's thread asks the machine for the live indexes and for the pieces of its state, which
   stay as they are while commands go on. Everything up to the index is durable by then: the core
   hands out nothing to be applied that is not, and here it is looked at again, because a snapshot
   that is found without the entries it needs is worth nothing.
2. The worker's thread writes it (`Snapshots.write`): it counts when that returns.
3. The group's thread takes it in: the log lets go of what is dead, and compaction has something to
   do. Then the worker removes older snapshots, which nobody looks at any more.

One is due when somebody asks; when the machine says that it is a good moment; and by itself after
`entries` commands, if these were as many bytes as the last snapshot. So snapshots do not write more
than the log does. Those of the last kind wait, up to four times as long, for a tick to pass since
the one before: what one costs, however small, is not spent much more often when commands come fast.
They also wait, as long, while a snapshot is being sent: a new one would end the transfer.

A checkpoint is written the same way and sets nothing free. When the machine releases an index below
the applied one, the newest checkpoint at or below it becomes a snapshot.

One job at a time. One that fails is tried again after `RETRY_TICKS`. What could not be removed goes
with the next snapshot, or the next start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.raft.core.values import SnapshotMeta
from lithify.raft.pending_work import Job
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.snapshots.snapshot_file import Head

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.liveset import LiveSet
    from lithify.raft.core.configuration import Config
    from lithify.raft.machine import Machine
    from lithify.raft.storage.snapshots.snapshot_store import StoredSnapshot
    from lithify.raft.storage.storage import GroupStorage

__all__ = ["ApplyPosition", "SnapshotTaking"]

S = TypeVar("S")

RETRY_TICKS = 50
CHECKPOINTS_MAX = 4


@dataclass(slots=True)
class ApplyPosition(Generic[S]):
    """Where a member is with applying."""

    index: int
    term: int
    config: Config
    state: S
    ended: bool = False
    """The group is no more."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a job has written."""

    stored: StoredSnapshot
    live: LiveSet
    size_bytes: int
    checkpoint: bool = False


class SnapshotTaking(Generic[S]):
    """See the module; the group's thread calls."""

    def __init__(self, storage: GroupStorage, machine: Machine[S], entries: int) -> None:
        self._storage = storage
        self._machine = machine
        self._interval = entries
        self._entries = self._bytes = 0
        """Applied since the last snapshot was begun."""
        self._size_bytes = 0
        """Of the last snapshot."""
        self._wanted = self._checkpoint_wanted = False
        self._renewing = False
        """Is the newest snapshot damaged, so that one of the same index is worth writing?"""
        self._tidy_wanted = self._tidying = False
        self._release: int | None = None
        self._job: Job | None = None
        self._pause_ticks = 0
        self._rested = True
        """Has a tick passed since the last one was begun?"""
        self.taken = 0
        """In this process."""
        self._damaged = ""
        """The name of a snapshot that is written again."""

    # --- when -------------------------------------------------------------------------------

    def applied(self, entries: int, size_bytes: int) -> None:
        """Commands were applied."""
        self._entries += entries
        self._bytes += size_bytes

    def ask(self) -> None:
        """Have one taken as soon as nothing else is under way."""
        self._wanted = True

    def renew(self, error: Exception) -> None:
        """Have the newest snapshot written again, from the state in memory: it is damaged."""
        assert self._storage.stored is not None
        self._damaged = self._storage.stored.directory.rpartition("/")[2]
        self._storage.log.segments.damages.found(self._damaged, error)
        self._wanted = self._renewing = True

    def ask_checkpoint(self) -> None:
        """Have a checkpoint written."""
        self._checkpoint_wanted = True

    def tidy(self) -> None:
        """Have removed what the newest snapshot has made unnecessary."""
        self._tidy_wanted = True

    def release(self, index: int, applied: int) -> None:
        """The machine needs nothing up to an index but what is live."""
        if index >= applied:
            self._wanted = True
        else:
            self._release = index

    def tick(self) -> None:
        """Time has passed."""
        self._pause_ticks = max(0, self._pause_ticks - 1)
        self._rested = True

    def _is_due(self, *, sending: bool) -> bool:
        interval = self._interval * (4 if sending or not self._rested else 1)
        return self._entries >= interval and self._bytes >= self._size_bytes

    def due_job(self, now: ApplyPosition[S], *, sending: bool) -> Job | None:
        """What the worker is to write now."""
        log = self._storage.log
        if self._job is None and self._tidy_wanted:
            self._tidy_wanted, self._tidying = False, True
            self._job = self._tidy()
            return self._job
        if self._job is not None or self._pause_ticks or now.index > log.written_index:
            return None
        if now.index <= log.snapshot_index and not self._renewing:
            # Nothing was applied since.
            self._wanted = self._checkpoint_wanted = False
            return None
        if self._wanted or self._is_due(sending=sending):
            self._wanted = self._rested = self._renewing = False
            self._entries = self._bytes = 0
            self._job = self._write(now, checkpoint=False)
        elif self._release is not None:
            self._job = self._promote(self._release)
            self._release = None
        elif self._checkpoint_wanted:
            self._checkpoint_wanted = False
            self._job = self._write(now, checkpoint=True)
        return self._job

    # --- how --------------------------------------------------------------------------------

    def _write(self, now: ApplyPosition[S], *, checkpoint: bool) -> Job:
        head = Head(SnapshotMeta(now.index, now.term, now.config), self._machine.version)
        live = self._machine.live_indexes(now.state)
        pieces = self._machine.save(now.state)
        place = self._storage.log.place()
        snapshots = self._storage.snapshots

        def write() -> _Taken:
            counted = _Counted(pieces)
            stored = snapshots.write(head, counted, live, place, checkpoint=checkpoint)
            if checkpoint:
                for old in snapshots.checkpoints()[CHECKPOINTS_MAX:]:
                    snapshots.remove_checkpoint(old)
            return _Taken(stored, live, counted.size_bytes, checkpoint)

        return Job(f"{'checkpoint' if checkpoint else 'snapshot'} {now.index}", write)

    def _promote(self, index: int) -> Job:
        snapshots, machine = self._storage.snapshots, self._machine

        def promote() -> _Taken | None:
            stored = snapshots.promote(index)
            if stored is None:
                return None
            live = snapshots.live(stored, lambda pieces: machine.live_indexes(machine.load(pieces)))
            return _Taken(stored, live, 0)

        return Job(f"promotion up to {index}", promote)

    def _tidy(self) -> Job:
        stored, snapshots = self._storage.stored, self._storage.snapshots
        assert stored is not None
        return Job(f"removal before {stored.index}", lambda: snapshots.remove_older(stored))

    def is_job(self, job: Job) -> bool:
        """Is the job one of this?"""
        return job is self._job

    def done(self, result: object) -> bool:
        """The job has ended; is there a new snapshot?"""
        self._job = None
        if self._tidying:
            self._tidying = False
            return False
        if isinstance(result, BaseException):
            self._wanted = True
            self._pause_ticks = RETRY_TICKS
            return False
        if not isinstance(result, _Taken):
            return False
        storage, stored = self._storage, result.stored
        if self._damaged and not result.checkpoint and not self._renewing:
            storage.log.segments.damages.repaired(self._damaged, "a new snapshot")
            self._damaged = ""
        newest = storage.stored
        if newest is not None and newest.index >= stored.index:
            # One of another member was installed meanwhile.
            self.tidy()
            return False
        if result.checkpoint:
            return False
        self._size_bytes = result.size_bytes or self._size_bytes
        storage.stored = stored
        storage.log.snapshot(LiveState(stored.index, result.live), stored.head.meta.term)
        self.tidy()
        self.taken += 1
        return True


class _Counted:
    """Pieces that are counted as they go by."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.size_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size_bytes += len(piece)
            yield piece
