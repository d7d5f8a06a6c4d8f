"""Receives a snapshot from the leader; the log is unchanged until the very end.

    receiving.receive(message, applied)     # from the leader; answers come out of `take`
    receiving.written(event)                # live entries are durable
    receiving.due_job()                     # all is received and durable: load the state
    receiving.loaded(job, result)           # an `InstallSnapshot` for the core, or None
    receiving.answered(meta, committed)     # the core's answer
    receiving.finish()                      # the snapshot has become the log

1. An offer starts an install (`RaftStorage.begin_install`), unless it is known already. Another
   offer aborts the current one: the leader has a newer snapshot, or starts again.
2. Entries and pieces are accepted in the order of their numbers and acknowledged. A repeated one is
   acknowledged again; one after a gap is not.
3. When the last piece is received and all entries are durable, the worker loads the state, and
   checks that every live entry that this member cannot have was received.
4. Then the core is asked. If it accepts the snapshot, the snapshot replaces the log once all
   earlier appends are durable (`raft/group/finish_install.py`). If not, nothing has changed.

It is aborted after `silence_ticks` without a message, or when another term begins; but not after
the core has accepted it, since the core then has no other log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.errors import LithifyError, WriteFailed
from lithify.raft.core.messages import InstallSnapshot
from lithify.raft.pending_work import Job
from lithify.raft.snapshots.messages import (
    SnapshotAck,
    SnapshotEntries,
    SnapshotOffer,
    SnapshotPiece,
    TransferState,
)

if TYPE_CHECKING:
    from lithify.live_set import LiveSet
    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.core.values import SnapshotMeta
    from lithify.raft.machine import Machine
    from lithify.raft.snapshots.messages import TransferMessage
    from lithify.raft.storage.snapshots.install import Install
    from lithify.raft.storage.storage import RaftStorage
    from lithify.raft.storage.wal.wal import Written

__all__ = ["Received", "Receiving"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Received(Generic[S]):
    """A complete snapshot."""

    install: Install
    state: S
    live: LiveSet


class Receiving(Generic[S]):
    """See the module."""

    def __init__(
        self,
        group: str,
        node: str,
        storage: RaftStorage,
        machine: Machine[S],
        silence_ticks: int,
    ) -> None:
        self._group = group
        self._node = node
        self._storage = storage
        self._machine = machine
        self._silence_ticks_max = silence_ticks
        self._silent_ticks = 0
        self._install: Install | None = None
        self._offer: SnapshotOffer | None = None
        self._number = 0
        """The number of the last accepted message."""
        self._complete = False
        self._job: Job | None = None
        self._received: Received[S] | None = None
        self._taken = False
        """The core has accepted the snapshot: it will be the log."""
        self._out: list[RaftMessage] = []

    # --- messages ---------------------------------------------------------------------------

    def take(self) -> list[RaftMessage]:
        """Take the answers to be sent."""
        out, self._out = self._out, []
        return out

    def receive(self, message: TransferMessage, term: int, applied: int) -> None:
        """Process a leader's message; `term` and `applied` are this member's."""
        if message.term != term or self._taken:
            # The core learns a newer term by itself, and the offer is repeated.
            return
        if isinstance(message, SnapshotOffer):
            self._begin(message, applied)
            return
        offer = self._offer
        if offer is None or self._install is None or message.transfer != offer.transfer:
            self._answer(message, message.number, applied, TransferState.REFUSED)
            return
        self._silent_ticks = 0
        if message.number == self._number + 1:
            try:
                self._add(message, self._install)
            except (OSError, WriteFailed):
                # Most likely the disk is full: the leader retries, with growing pauses.
                self._end(TransferState.REFUSED)
                return
        if message.number <= self._number:
            self._answer(message, self._number, self._install.applied, TransferState.GOING)

    def _begin(self, offer: SnapshotOffer, applied: int) -> None:
        if self._offer is not None and offer.transfer == self._offer.transfer:
            if self._install is not None and not self._number:
                self._answer(offer, 0, self._install.applied, TransferState.GOING)
            return
        if applied >= offer.head.meta.index:
            self._answer(offer, 0, applied, TransferState.DONE)
        elif offer.head.machine_version > self._machine.version:
            self._answer(offer, 0, applied, TransferState.REFUSED)
        elif self._job is None:
            self.abort()
            self._number, self._complete = 0, False
            self._silent_ticks = 0
            try:
                self._install = self._storage.begin_install(self._group, offer.head, applied)
            except (OSError, WriteFailed):
                self._answer(offer, 0, applied, TransferState.REFUSED)
                return
            self._offer = offer
            self._answer(offer, 0, applied, TransferState.GOING)

    def _add(self, message: TransferMessage, install: Install) -> None:
        if isinstance(message, SnapshotEntries):
            install.add(message.entries)
        elif isinstance(message, SnapshotPiece):
            install.piece(message.data)
            self._complete = message.last
        self._number = message.number

    def _answer(self, to: TransferMessage, number: int, applied: int, state: TransferState) -> None:
        ack = SnapshotAck(self._node, to.sender, to.term, to.transfer, number, applied, state)
        self._out.append(ack)

    # --- completing -------------------------------------------------------------------------

    def written(self, event: Written) -> bool:
        """Are these durable entries of the snapshot that is received?"""
        install = self._install
        if install is None or event.group != install.name:
            return False
        install.mark_durable(event)
        return True

    def due_job(self) -> Job | None:
        """The job that loads the state, when it can start."""
        install = self._install
        if not self._complete or install is None or not install.is_durable or self._job is not None:
            return None
        if self._received is not None:
            return None
        machine = self._machine

        def load() -> Received[S]:
            state = machine.load(install.pieces())
            live = machine.live_indexes(state)
            install.check(live)
            return Received(install, state, live)

        self._job = Job(f"load snapshot {install.head.meta.index}", load)
        return self._job

    def loaded(self, job: Job, result: object) -> InstallSnapshot | None:
        """The question for the core after the job, if the transfer still exists."""
        if job is not self._job:
            return None
        self._job = None
        if self._offer is None or self._install is None:
            return None
        if isinstance(result, BaseException):
            self._end(TransferState.REFUSED)
            if not isinstance(result, LithifyError | OSError):
                raise result
            return None
        assert isinstance(result, Received)
        self._received = result
        offer = self._offer
        return InstallSnapshot(offer.sender, self._node, offer.term, offer.head.meta)

    def is_job(self, job: Job) -> bool:
        """Does the job belong to this?"""
        return job is self._job

    def answered(self, snapshot: SnapshotMeta | None, committed: int) -> None:
        """The core has accepted this snapshot, or not."""
        if self._received is None or self._taken:
            return
        meta = self._received.install.head.meta
        if snapshot == meta:
            self._taken = True
        else:
            # It has everything by now, or follows another leader.
            has_it = committed >= meta.index
            self._end(TransferState.DONE if has_it else TransferState.REFUSED)

    @property
    def received(self) -> Received[S] | None:
        """The snapshot that the core has accepted."""
        return self._received if self._taken else None

    def finish(self) -> None:
        """The snapshot has become the log."""
        self._install = None
        self._end(TransferState.DONE)

    @property
    def is_idle(self) -> bool:
        """Is no snapshot received?"""
        return self._offer is None and self._job is None

    # --- aborting ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Count one tick."""
        self._silent_ticks += 1
        if self._silent_ticks >= self._silence_ticks_max and not self._complete:
            self.abort()

    def abort(self) -> None:
        """Leave the log as it was, unless the core has accepted the snapshot."""
        if self._taken or self._job is not None:
            return
        if self._install is not None:
            self._storage.abort_install(self._install)
        self._install = self._offer = self._received = None
        self._complete = False

    def _end(self, state: TransferState) -> None:
        offer, number = self._offer, self._number
        self._taken = False
        self.abort()
        if offer is not None:
            self._answer(offer, number, offer.head.meta.index, state)
