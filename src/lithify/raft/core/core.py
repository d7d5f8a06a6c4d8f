"""One member of one Raft group, as a state machine without I/O: the part that users drive.

    core = RaftCore(CoreSettings("n1", draw=random.randrange), storage)
    core.tick()                        # every so often; the only clock
    core.step(message)                 # from a peer, or from the own storage
    core.propose(b"...")               # on the leader
    ready = core.ready()               # what is to be written, sent and applied; see `ready.py`

Given the same calls and the same draws, it does the same. It is not thread-safe, never blocks, and
needs nothing but `LogView`. A driver without threads does the work of a `Ready` at once and calls
`advance(ready)`; one with threads steps `StorageAppended` and `Applied` when each is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.raft.core.engine import Engine
from lithify.raft.core.errors import DropReason, ProposalDropped, TransferDropped
from lithify.raft.core.leader import Leader
from lithify.raft.core.messages import Applied, SnapshotStatus, StorageAppended, Unreachable
from lithify.raft.core.ready import Ready, StorageAppend
from lithify.raft.core.roles import Follower

if TYPE_CHECKING:
    from lithify.raft.core.config import ConfChange, Config
    from lithify.raft.core.errors import Dropped
    from lithify.raft.core.messages import LocalMessage, Message
    from lithify.raft.core.ready import Role
    from lithify.raft.core.settings import CoreSettings
    from lithify.raft.core.storage import LogView

__all__ = ["RaftCore", "Status"]


@dataclass(frozen=True, slots=True)
class Status:
    """A member at one instant."""

    node: str
    role: Role
    term: int
    vote: str
    leader: str
    last_index: int
    last_term: int
    stable: int
    """Durable up to here."""
    commit: int
    applied: int
    config: Config
    config_index: int
    progress: dict[str, str]
    """On the leader, a line for each peer."""

    def __str__(self) -> str:
        who = f"{self.node} {self.role} term {self.term}"
        vote = f" vote {self.vote}" if self.vote else ""
        leader = f" leader {self.leader}" if self.leader else ""
        log = f"log {self.last_index}/{self.last_term} stable {self.stable}"
        return f"{who}{vote}{leader} {log} commit {self.commit} applied {self.applied}"


class RaftCore:
    """See the module."""

    def __init__(self, settings: CoreSettings, storage: LogView) -> None:
        self._engine = Engine(settings, storage)

    # In.

    def tick(self) -> None:
        """One unit of time went by."""
        self._engine.role.tick()

    def step(self, message: Message | LocalMessage) -> None:
        """Take a message of a peer, or word that some work is done."""
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
        elif message.to != engine.node:
            raise InvalidInput(f"a message to {message.to} has come to {engine.node}")
        else:
            engine.receive(message)

    def propose(self, payload: bytes) -> int:
        """Append a command; its index. It is committed if that index comes up with this term."""
        return self._leader(ProposalDropped).propose([payload]).start

    def propose_many(self, payloads: list[bytes]) -> range:
        """Append commands; their indexes. Refused as a whole or not at all."""
        return self._leader(ProposalDropped).propose(payloads)

    def propose_change(self, change: ConfChange) -> int:
        """Append a change of members; its index."""
        return self._leader(ProposalDropped).propose_change(change)

    def prepared(self, change: ConfChange) -> ConfChange:
        """What to propose first, so that nobody has to be elected by those who know nothing."""
        return self._leader(ProposalDropped).prepared(change)

    def propose_end(self) -> int:
        """Append the end of the group; its index. Nothing behind it is to be applied."""
        return self._leader(ProposalDropped).propose_end()

    def propose_note(self, payload: bytes) -> int:
        """Append something that is for the members and not for the machine; its index."""
        return self._leader(ProposalDropped).propose_note(payload)

    def read(self, context: int) -> None:
        """Begin a linearizable read; it comes up in `Ready.reads` under this number, or never.

        A number is used once, also over restarts: begin at a random one. Otherwise a late answer to
        an old read could be taken for one to a new.
        """
        self._engine.role.read(context)

    def transfer(self, to: str) -> None:
        """Hand leadership over to a voter."""
        self._leader(TransferDropped).transfer(to)

    def hand_over(self) -> None:
        """Let another lead, if this one does: it cannot write, or read what is to be applied."""
        if isinstance(self._engine.role, Leader):
            self._engine.role.hand_over()

    def _leader(self, error: type[Dropped]) -> Leader:
        role = self._engine.role
        if isinstance(role, Leader):
            return role
        raise error(DropReason.NOT_LEADER if role.leader else DropReason.NO_LEADER, role.leader)

    def campaign(self) -> None:
        """Try to be elected now, as if the leader had been silent."""
        if not isinstance(self._engine.role, Leader):
            self._engine.campaign()

    def forget_leader(self) -> None:
        """Be free to vote for another at once; without effect on one that follows nobody."""
        role = self._engine.role
        if isinstance(role, Follower) and role.leader:
            role.forget_leader()

    # Out.

    def ready(self) -> Ready:
        """What is to be done now. It counts as handed out."""
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
        """All work of a `Ready` is done: written, and applied."""
        if ready.append is not None:
            self.step(StorageAppended(ready.append.number))
        if ready.apply:
            self.step(Applied(ready.apply[-1].index))

    # About it.

    @property
    def term(self) -> int:
        """The term that it is in."""
        return self._engine.term

    @property
    def leader(self) -> str:
        """Who leads in this term; empty if it knows nobody."""
        return self._engine.role.leader

    @property
    def may_vote(self) -> bool:
        """Would it vote, and campaign?"""
        return self._engine.may_vote

    @property
    def config(self) -> Config:
        """The members that are in force."""
        return self._engine.members.config

    @property
    def open_configs(self) -> list[Config]:
        """The members that may turn out to be the committed ones: those in force among them."""
        return self._engine.members.open

    def check_committed(self, leader: str, index: int, term: int) -> None:
        """A leader has this at an index; `Diverged` if something else is committed here."""
        self._engine.check_committed(leader, index, term)

    def config_at(self, index: int) -> Config:
        """The members at an index, for a snapshot of it. Ask before its `Applied` is stepped."""
        return self._engine.members.at(index)

    def status(self) -> Status:
        """Everything worth seeing."""
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
        )
