"""The state of a member: term, vote, log, members and role. All code that changes it is here.

    follower --silence--> pre-candidate --majority would--> candidate --majority did--> leader
        ^------- a higher term, or a leader of this term: from anywhere -------------------'

The rules about terms, which are checked before all others (`receive`):

1. A message of a higher term makes this member a follower of that term, with two exceptions. A
   pre-vote request changes nothing, nor does its answer if granted. A member that has received a
   message of its leader within an election timeout ignores candidates, unless the leader itself
   transfers leadership. So a member that was disconnected, or was removed, does not depose a
   working leader.
2. A message of a lower term is not processed. A leader of a lower term is sent the current term, so
   that it steps down; a pre-vote request is refused.
3. Any other message is of this term and is passed to the role.

The state of a role (votes, progress, reads, a transfer) is in the role's object and is discarded
with it: nothing needs to be reset. The roles call the engine to change the other state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core.candidate import Candidate
from lithify.raft.core.configuration_change import Membership
from lithify.raft.core.errors import Diverged
from lithify.raft.core.events import ConfigChanged, LogCut, RoleChanged, VoteIgnored
from lithify.raft.core.follower import Follower
from lithify.raft.core.leader import Leader
from lithify.raft.core.log import RaftLog
from lithify.raft.core.messages import (
    AppendReply,
    AppendRequest,
    Commit,
    Heartbeat,
    InstallSnapshot,
    Sleep,
    SleepReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from lithify.raft.core.outbox import Outbox
from lithify.raft.core.values import NOBODY, HardState
from lithify.raft.core.voting import answer_vote

if TYPE_CHECKING:
    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.core.ready import ReadState, SendSnapshot
    from lithify.raft.core.role_state import RoleState
    from lithify.raft.core.settings import CoreSettings
    from lithify.raft.core.storage import LogView
    from lithify.raft.core.values import SnapshotMeta
    from lithify.raft.entry import Entry

__all__ = ["Engine"]

SCAN_BYTES = 8 << 20
"""Bytes of the log to read at a time, at the start, to find membership changes."""


class Engine:
    """See the module. Only `RaftCore`, the roles and voting call it."""

    def __init__(self, settings: CoreSettings, storage: LogView) -> None:
        self.settings = settings
        self.node = settings.node
        self.log = RaftLog(storage)
        self.members = self._read_members()
        self.outbox = Outbox()
        self.snapshots: list[SendSnapshot] = []
        self.reads: list[ReadState] = []
        state = storage.hard_state()
        self.term, self.vote = state.term, state.vote
        self._written = (self.term, self.vote)
        """Term and vote as last returned for storing."""
        self.role: RoleState = Follower(self, NOBODY)

    def _read_members(self) -> Membership:
        snapshot = self.log.snapshot
        members = Membership(snapshot.index, snapshot.config)
        first, end = snapshot.index + 1, self.log.last_index + 1
        while first < end:
            entries = self.log.entries(first, end, SCAN_BYTES)
            members.add(entries)
            first += len(entries)
        members.settle(self.log.committed)
        return members

    # Terms and messages.

    def receive(self, message: RaftMessage) -> None:
        """Process a message of another member, or this member's own vote."""
        if self.role.asleep and not isinstance(message, Sleep | SleepReply):
            self.role.wake()
        if isinstance(message, VoteRequest) and not self.may_vote:
            self.settings.events(VoteIgnored(self.node, message.sender, message.term, NOBODY))
            return
        if message.term > self.term:
            if isinstance(message, VoteRequest):
                if self.role.has_live_leader and not message.forced:
                    leader = self.role.leader
                    event = VoteIgnored(self.node, message.sender, message.term, leader)
                    self.settings.events(event)
                    return
                if not message.pre:
                    self.follow(message.term, NOBODY)
            elif isinstance(message, VoteReply) and message.pre and message.granted:
                pass
            elif isinstance(
                message, AppendRequest | Commit | Heartbeat | InstallSnapshot | Sleep | TimeoutNow
            ):
                self.follow(message.term, message.sender)
            else:
                self.follow(message.term, NOBODY)
        elif message.term < self.term:
            self._answer_old_term(message)
            return
        if isinstance(message, VoteRequest):
            answer_vote(self, message)
        else:
            self.role.receive(message)

    def _answer_old_term(self, message: RaftMessage) -> None:
        if isinstance(message, AppendRequest | Commit | Heartbeat | InstallSnapshot | Sleep):
            self.hold(AppendReply(self.node, message.sender, self.term, 0))
        elif isinstance(message, VoteRequest) and message.pre:
            self.hold(VoteReply(self.node, message.sender, self.term, granted=False, pre=True))

    def hold(self, message: RaftMessage) -> None:
        """Send a message once everything known now is durable."""
        self.outbox.hold(message, unwritten=self.has_unwritten)

    def release(self, number: int) -> None:
        """Storage appends up to `number` are durable."""
        self.log.acknowledge(number)
        for message in self.outbox.release(number):
            if message.to == self.node:
                self.receive(message)
            else:
                self.outbox.send(message)
        self.role.stored()

    # State to store.

    @property
    def has_unwritten(self) -> bool:
        """Whether there is state that was not returned for storing."""
        return self.log.has_next_append or self._written != (self.term, self.vote)

    def take_hard_state(self) -> HardState | None:
        """Term and vote, if they must be stored."""
        if self._written == (self.term, self.vote):
            return None
        self._written = (self.term, self.vote)
        return HardState(self.term, self.vote, self.log.committed)

    # Roles.

    @property
    def may_vote(self) -> bool:
        """Whether this member's directory holds the votes that it gave under its name."""
        return self.settings.may_vote(self.members.config)

    @property
    def may_campaign(self) -> bool:
        """Whether this member can lead. While it installs a snapshot it has no log to lead with."""
        could = self.members.may_campaign(self.node) and not self.log.installing
        return could and self.may_vote

    def follow(self, term: int, leader: str) -> None:
        """Become a follower; a new term begins without a vote."""
        if term > self.term:
            self.term, self.vote = term, NOBODY
        self._enter(Follower(self, leader))

    def campaign(self, *, forced: bool = False) -> None:
        """Start an election: first a pre-vote, unless the leader forces it."""
        if not self.may_campaign:
            return
        if forced:
            self.stand(forced=True)
            return
        candidate = Candidate(self, pre=True)
        self._enter(candidate)
        candidate.request_votes(forced=False)

    def stand(self, *, forced: bool) -> None:
        """Become a candidate in the next term."""
        self.term, self.vote = self.term + 1, self.node
        candidate = Candidate(self, pre=False)
        self._enter(candidate)
        candidate.request_votes(forced=forced)

    def lead(self) -> None:
        """Become the leader of this term."""
        leader = Leader(self)
        self._enter(leader)
        leader.begin()

    def _enter(self, role: RoleState) -> None:
        self.role = role
        self.report_role()

    def report_role(self) -> None:
        """Report the current role."""
        event = RoleChanged(self.node, self.role.kind, self.term, self.role.leader)
        self.settings.events(event)

    # The log.

    def append(self, entries: list[Entry]) -> None:
        """Append entries; a configuration among them is in force at once."""
        self.log.append(entries)
        if self.members.add(entries):
            self._report_config()

    def cut(self, last_index: int) -> None:
        """Remove uncommitted entries, and the configurations in them."""
        self.settings.events(LogCut(self.node, last_index))
        self.log.cut(last_index)
        if self.members.cut(last_index):
            self._report_config()

    def restore(self, snapshot: SnapshotMeta) -> None:
        """Replace log and members by a snapshot."""
        self.log.restore(snapshot)
        self.members.restore(snapshot.index, snapshot.config)

    def check_committed(self, leader: str, index: int, term: int) -> None:
        """Raise `Diverged` if a committed entry here differs from that of the leader of this term.

        A leader has all committed entries, and its log does not change within its term. So a
        difference is never a late message: one of the two has lost what it acknowledged.
        """
        log = self.log
        if log.first_index - 1 <= index <= log.committed and log.term(index) != term:
            raise Diverged(self.node, leader, index, (log.term(index), term))

    def commit_to(self, index: int) -> bool:
        """Mark entries up to `index` as committed; returns whether that is an advance."""
        advanced = self.log.commit_to(index)
        if advanced:
            self.members.settle(index)
        return advanced

    def _report_config(self) -> None:
        config = self.members.config
        self.settings.events(ConfigChanged(self.node, self.members.index, config))
        self.role.members_changed()
