"""The interface of one member of a Raft group: a state machine without I/O.

    core = RaftCore(CoreSettings("n1", draw=random.randrange), storage)
    core.tick()                        # called periodically; the only clock
    core.step(message)                 # from a peer, or from the own storage
    core.propose(b"...")               # on the leader
    ready = core.ready()               # what to write, send and apply; see `ready.py`

It is deterministic: the same calls and the same draws have the same result. It is not thread-safe,
never blocks, and needs only a `LogView`. A driver without threads does the work of a `Ready` at
once and calls `advance(ready)`; one with threads steps `StorageAppended` and `Applied` when each is
done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.raft.core.errors import DropReason, ProposalDropped, TransferDropped
from lithify.raft.core.follower import Follower
from lithify.raft.core.leader import Leader
from lithify.raft.core.member_state import Engine
from lithify.raft.core.messages import (
    Applied,
    PeerChanged,
    SleepCheck,
    SnapshotStatus,
    StorageAppended,
    Unreachable,
)
from lithify.raft.core.ready import Ready, StorageAppend

if TYPE_CHECKING:
    from lithify.raft.core.configuration import ConfChange, Config
    from lithify.raft.core.errors import Dropped
    from lithify.raft.core.log import RaftLog
    from lithify.raft.core.messages import LocalMessage, RaftMessage
    from lithify.raft.core.ready import Role
    from lithify.raft.core.settings import CoreSettings
    from lithify.raft.core.storage import LogView

__all__ = ["RaftCore", "Status"]


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a member at one instant."""

    node: str
    role: Role
    term: int
    vote: str
    leader: str
    last_index: int
    last_term: int
    stable: int
    """The last durable index."""
    commit: int
    applied: int
    config: Config
    config_index: int
    progress: dict[str, str]
    """On the leader, one line per peer."""
    asleep: bool = False

    def __str__(self) -> str:
        who = f"{self.node} {self.role} term {self.term}"
        vote = f" vote {self.vote}" if self.vote else ""
        leader = f" leader {self.leader}" if self.leader else ""
        log = f"log {self.last_index}/{self.last_term} stable {self.stable}"
        asleep = " asleep" if self.asleep else ""
        return f"{who}{vote}{leader} {log} commit {self.commit} applied {self.applied}{asleep}"


class RaftCore:
    """See the module."""

    def __init__(self, settings: CoreSettings, storage: LogView) -> None:
        self._engine = Engine(settings, storage)

    @property
    def log(self) -> RaftLog:
        """The log as consensus sees it."""
        return self._engine.log

    # In.

    def tick(self) -> None:
        """Advance the clock by one tick."""
        self._engine.role.tick()

    def step(self, message: RaftMessage | LocalMessage) -> None:
        """Process a message of a peer, or a report that some work is done."""
        engine = self._engine
        if isinstance(message, StorageAppended):
            engine.release(message.number)
        elif isinstance(message, Applied):
            engine.log.confirm_applied(message.index)
            engine.members.forget(engine.log.applied)
        elif isinstance(message, SnapshotStatus):
            engine.role.snapshot_sent(message)
        elif isinstance(message, Unreachable):
            engine.role.unreachable(message)
        elif isinstance(message, PeerChanged):
            engine.role.peer_changed(message.peer)
        elif isinstance(message, SleepCheck):
            if engine.role.asleep:
                engine.role.check_sleep()
        elif message.to != engine.node:
            raise InvalidInput(f"message to {message.to} was delivered to {engine.node}")
        else:
            engine.receive(message)

    def propose(self, payload: bytes) -> int:
        """Append a command; returns its index. It is committed if it is applied with this term."""
        return self._leader(ProposalDropped).propose([payload]).start

    def propose_many(self, payloads: list[bytes]) -> range:
        """Append commands; returns their indexes. They are refused as a whole or not at all."""
        return self._leader(ProposalDropped).propose(payloads)

    def propose_change(self, change: ConfChange) -> int:
        """Append a membership change; returns its index."""
        return self._leader(ProposalDropped).propose_change(change)

    def prepared(self, change: ConfChange) -> ConfChange:
        """The change to propose first: new voters are added as learners before they can vote."""
        return self._leader(ProposalDropped).prepared(change)

    def propose_end(self) -> int:
        """Append the end of the group; returns its index. No later entry is applied."""
        return self._leader(ProposalDropped).propose_end()

    def propose_note(self, payload: bytes) -> int:
        """Append a note for the members, hidden from the state machine; returns its index."""
        return self._leader(ProposalDropped).propose_note(payload)

    def read(self, context: int) -> None:
        """Begin a linearizable read; it may be answered in `Ready.reads` with this number.

        A number must be used only once, also across restarts: begin at a random one. Otherwise a
        late answer to an old read could be taken for one to a new read.
        """
        self._engine.role.wake()
        self._engine.role.read(context)

    def transfer(self, to: str) -> None:
        """Transfer leadership to a voter."""
        self._leader(TransferDropped).transfer(to)

    def hand_over(self) -> None:
        """Transfer leadership to any other voter, if this member leads.

        It cannot write, or cannot read an entry that it must apply.
        """
        if isinstance(self._engine.role, Leader):
            self._engine.role.wake()
            self._engine.role.hand_over()

    def _leader(self, error: type[Dropped]) -> Leader:
        role = self._engine.role
        role.wake()
        if isinstance(role, Leader):
            return role
        raise error(DropReason.NOT_LEADER if role.leader else DropReason.NO_LEADER, role.leader)

    def campaign(self) -> None:
        """Start an election now, as if the election timeout had passed."""
        engine = self._engine
        if isinstance(engine.role, Leader):
            return
        if engine.may_campaign and all(
            config.electorate == {engine.node} for config in engine.members.open
        ):
            # No other member can have committed another log. So its state is known, also if the
            # disk refuses the vote.
            engine.commit_to(engine.log.stable)
        engine.campaign()

    def forget_leader(self) -> None:
        """Allow a vote for another leader at once; no effect without a known leader."""
        role = self._engine.role
        if isinstance(role, Follower) and role.leader:
            role.forget_leader()

    # Out.

    def ready(self) -> Ready:
        """The work to do now. Each item is returned once."""
        engine, log = self._engine, self._engine.log
        engine.role.flush()
        append = None
        if engine.has_unwritten or engine.outbox.wants_append:
            number = engine.outbox.handed = engine.outbox.handed + 1
            entries, snapshot = log.next_append(number)
            append = StorageAppend(number, entries, engine.take_hard_state(), snapshot)
        apply_bytes_max = engine.settings.apply_bytes_max
        can_apply = log.can_apply(apply_bytes_max)
        apply = log.next_apply(apply_bytes_max) if can_apply else []
        if can_apply and not apply:
            # The disk does not read them. Clients would wait until they are repaired.
            self.hand_over()
        snapshots, engine.snapshots = engine.snapshots, []
        reads, engine.reads = engine.reads, []
        return Ready(
            append,
            engine.outbox.take(),
            apply,
            snapshots,
            reads,
            engine.role.kind,
            engine.term,
            engine.role.leader,
            log.committed,
        )

    def advance(self, ready: Ready) -> None:
        """Report that all work of a `Ready` is done: written, and applied."""
        if ready.append is not None:
            self.step(StorageAppended(ready.append.number))
        if ready.apply:
            self.step(Applied(ready.apply[-1].index))

    # State.

    @property
    def term(self) -> int:
        """The current term."""
        return self._engine.term

    @property
    def leader(self) -> str:
        """The leader of this term; empty if it is not known."""
        return self._engine.role.leader

    @property
    def asleep(self) -> bool:
        """Whether it needs no ticks until something happens."""
        return self._engine.role.asleep

    @property
    def may_vote(self) -> bool:
        """Whether it votes and campaigns."""
        return self._engine.may_vote

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._engine.members.config

    @property
    def open_configs(self) -> list[Config]:
        """The configurations that may turn out to be committed, including the one in force."""
        return self._engine.members.open

    def check_committed(self, leader: str, index: int, term: int) -> None:
        """Compare an entry of the leader; raises `Diverged` if another one is committed here."""
        self._engine.check_committed(leader, index, term)

    def config_at(self, index: int) -> Config:
        """The members at an index, for a snapshot of it. Call before its `Applied` is stepped."""
        return self._engine.members.at(index)

    def status(self) -> Status:
        """A summary of the state."""
        engine, log = self._engine, self._engine.log
        role = engine.role
        peers = role.progress if isinstance(role, Leader) else {}
        return Status(
            engine.node,
            role.kind,
            engine.term,
            engine.vote,
            role.leader,
            log.last_index,
            log.last_term,
            log.stable,
            log.committed,
            log.applied,
            engine.members.config,
            engine.members.index,
            {peer: str(progress) for peer, progress in sorted(peers.items())},
            role.asleep,
        )
