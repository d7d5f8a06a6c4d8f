"""Takes a group's snapshots and checkpoints.

A snapshot of the state at the last applied index:

1. The group's thread asks the machine for the live indexes and for the pieces of its state, which
   do not change while later commands are applied. All entries up to the index must be durable: a
   snapshot without the entries it needs is worthless. The core applies only durable entries;
   `due_job` checks it again. If live entries are only in the write-ahead log, the job is held until
   this has proved them: a start cuts off a damaged last batch that nothing follows, and the member
   could not start again without an entry that its snapshot needs.
2. The worker's thread writes the snapshot (`Snapshots.write`). It is valid when that returns.
3. The group's thread applies it: the log drops its dead entries, and compaction is due. Then the
   worker deletes older snapshots, which have no reader.

A snapshot is taken on request, when the machine says that the moment is good, and automatically
after `entries` commands, if their bytes are at least those of the last snapshot: so snapshots write
no more bytes than the log. An automatic snapshot is delayed, up to four times `entries`, until a
tick has passed since the last one: this bounds the rate of snapshots when commands are fast. It is
delayed by as much while a snapshot is being sent, because a new one would end the transfer.

A checkpoint is written in the same way, but frees nothing. When the machine releases an index below
the applied one, the newest checkpoint at or below it becomes a snapshot.

One job runs at a time. A job that fails is retried after `RETRY_TICKS`. A snapshot that could not
be deleted is deleted after the next snapshot, or at the next start.
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

    from lithify.live_set import LiveSet
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
    """The position of a member in applying commands, and its state there."""

    index: int
    term: int
    config: Config
    state: S
    ended: bool = False
    """Was the group ended?"""


@dataclass(frozen=True, slots=True)
class _Taken:
    """The snapshot or checkpoint that a job has written."""

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
        """Applied since the last snapshot began."""
        self._size_bytes = 0
        """Size of the last snapshot."""
        self._wanted = self._checkpoint_wanted = False
        self._renewing = False
        """Is the newest snapshot damaged, so that one of the same index must be written?"""
        self._tidy_wanted = self._tidying = False
        self._release: int | None = None
        self._job: Job | None = None
        self._held_index: int | None = None
        """The applied index when the job was made, while it waits for the proof of the entries."""
        self._pause_ticks = 0
        self._tick_passed = True
        """Has a tick passed since the last snapshot began?"""
        self.taken = 0
        """Snapshots taken in this process."""
        self._damaged = ""
        """The name of the damaged snapshot that the next one replaces."""

    # --- when -------------------------------------------------------------------------------

    def applied(self, entries: int, size_bytes: int) -> None:
        """Count applied commands."""
        self._entries += entries
        self._bytes += size_bytes

    def request(self) -> None:
        """Request a snapshot. It is taken when no other job runs."""
        self._wanted = True

    def renew(self, error: Exception) -> None:
        """Request a snapshot from the state in memory: the newest one on disk is damaged."""
        assert self._storage.stored is not None
        self._damaged = self._storage.stored.directory.rpartition("/")[2]
        self._storage.log.segments.damages.found(self._damaged, error)
        self._wanted = self._renewing = True

    def ask_checkpoint(self) -> None:
        """Request a checkpoint."""
        self._checkpoint_wanted = True

    def tidy(self) -> None:
        """Request that snapshots older than the newest are deleted."""
        self._tidy_wanted = True

    def release(self, index: int, applied: int) -> None:
        """The machine needs only live entries up to an index: take a snapshot there."""
        if index >= applied:
            self._wanted = True
        else:
            self._release = index

    @property
    def is_idle(self) -> bool:
        """Is no snapshot due, now or after some ticks?"""
        wanted = self._wanted or self._checkpoint_wanted or self._tidy_wanted
        return not (wanted or self._pause_ticks or self._release is not None)

    def tick(self) -> None:
        """Count one tick."""
        self._pause_ticks = max(0, self._pause_ticks - 1)
        self._tick_passed = True

    def _is_due(self, *, sending: bool) -> bool:
        interval = self._interval * (4 if sending or not self._tick_passed else 1)
        return self._entries >= interval and self._bytes >= self._size_bytes

    def due_job(self, now: ApplyPosition[S], *, sending: bool) -> Job | None:
        """The next job of the worker, if one is due."""
        log = self._storage.log
        if self._held_index is not None:
            return self._proved_job()
        if self._job is None and self._tidy_wanted:
            self._tidy_wanted, self._tidying = False, True
            self._job = self._tidy()
            return self._job
        if self._job is not None or self._pause_ticks or now.index > log.written_index:
            return None
        if now.index <= log.snapshot_index and not self._renewing:
            # Nothing was applied since the last snapshot.
            self._wanted = self._checkpoint_wanted = False
            return None
        if self._wanted or self._is_due(sending=sending):
            self._wanted = self._tick_passed = self._renewing = False
            self._entries = self._bytes = 0
            self._begin(now, checkpoint=False)
        elif self._release is not None:
            self._job = self._promote(self._release)
            self._release = None
        elif self._checkpoint_wanted:
            self._checkpoint_wanted = False
            self._begin(now, checkpoint=True)
        return self._proved_job()

    def _begin(self, now: ApplyPosition[S], *, checkpoint: bool) -> None:
        """Make the job of a snapshot or checkpoint, and hold it if its entries must be proved."""
        log, live = self._storage.log, self._machine.live_indexes(now.state)
        self._job = self._write(now, live, checkpoint=checkpoint)
        if live.last is not None and live.last > log.segments.last:
            self._held_index = now.index
            log.ask_proof()

    def _proved_job(self) -> Job | None:
        """The current job, unless it is held."""
        log, index = self._storage.log, self._held_index
        if index is None:
            return self._job
        if not log.is_proved:
            return None
        self._held_index = None
        if index < log.snapshot_index:
            # A snapshot of another member was installed meanwhile.
            self._job = None
        return self._job

    # --- how --------------------------------------------------------------------------------

    def _write(self, now: ApplyPosition[S], live: LiveSet, *, checkpoint: bool) -> Job:
        head = Head(SnapshotMeta(now.index, now.term, now.config), self._machine.version)
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
        """Is this the current job?"""
        return job is self._job

    def done(self, result: object) -> bool:
        """Apply the result of the job; True if there is a new snapshot."""
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
            # A snapshot of another member was installed meanwhile.
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
    """An iterable of pieces that counts their bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.size_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size_bytes += len(piece)
            yield piece
