"""Errors of the consensus core. Nothing has changed when one of these is raised.

LithifyError └── RaftError
    ├── Dropped             not now, or not here; `reason` says which, `leader` where
    │   ├── ProposalDropped
    │   │   ├── QuorumAtRisk    a change that would lose the quorum of members that answer now
    │   │   └── NotCaughtUp     a learner lacks entries that a voter needs
    │   ├── ReadDropped
    │   └── TransferDropped
    │       └── CannotLead      the member that is to lead is no voter
    ├── InvalidChange       a membership change that is impossible (also InvalidInput)
    ├── Compacted           the index is at or below the snapshot
    └── MemberStopped       this member must stop participating in its group
        ├── Diverged        its committed entries are not those of the leader
        └── LogTooShort     it lacks entries that it has acknowledged to the leader
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import CONFLICT

if TYPE_CHECKING:
    from lithify.raft.core.configuration import Config

__all__ = [
    "CannotLead",
    "Compacted",
    "Diverged",
    "DropReason",
    "Dropped",
    "InvalidChange",
    "LogTooShort",
    "MemberStopped",
    "NotCaughtUp",
    "ProposalDropped",
    "QuorumAtRisk",
    "RaftError",
    "ReadDropped",
    "TransferDropped",
]


class RaftError(LithifyError):
    """The root of the errors of the core."""


class DropReason(StrEnum):
    """Why a request was dropped."""

    NO_LEADER = "no leader is known"
    NOT_LEADER = "another member leads"
    OVERLOADED = "too many bytes wait to be committed and written"
    TRANSFERRING = "leadership is being transferred"
    CHANGE_IN_FLIGHT = "a membership change is in progress"
    TERM_NOT_COMMITTED = "the leader has not committed an entry of its term yet"
    LEARNER_FIRST = "a new voter must be a learner until it has the log"
    CATCHING_UP = "a learner does not have the log yet"
    NOT_HEARD = "the change would lose the quorum: too few of its voters answer"
    BEHIND = "this member has not applied the entries that the read must see"
    NOT_A_VOTER = "only a voter can lead"


class Dropped(RaftError):
    """The request was dropped; `leader` may accept it, and is empty if none is known."""

    def __init__(self, reason: DropReason, leader: str = "") -> None:
        self.reason = reason
        self.leader = leader
        where = f", try {leader}" if leader and reason is DropReason.NOT_LEADER else ""
        super().__init__(f"{reason}{where}")


class ProposalDropped(Dropped):
    """Nothing was appended."""


class QuorumAtRisk(ProposalDropped):
    """Too few of the voters, before or after the change, have answered recently."""

    exit_code = CONFLICT

    def __init__(self, leader: str, change: str, voters: frozenset[str], silent: list[str]) -> None:
        super().__init__(DropReason.NOT_HEARD, leader)
        self.silent = silent
        who = f"{', '.join(silent)} of the voters {', '.join(sorted(voters))}"
        self.args = (f"{change} would lose the quorum: {who} did not answer lately",)


class NotCaughtUp(ProposalDropped):
    """Learners lack entries, or do not answer, and cannot vote yet."""

    exit_code = CONFLICT

    def __init__(self, leader: str, wanted: int, has: dict[str, int | None]) -> None:
        super().__init__(DropReason.CATCHING_UP, leader)
        self.has = has
        """The last index of each of them; None for one that does not answer."""
        lines = [
            f"{name} {'does not answer' if index is None else f'has {index} of {wanted} entries'}"
            for name, index in sorted(has.items())
        ]
        self.progress = ", ".join(lines)
        self.args = (f"{self.progress}: a learner until then",)


class ReadDropped(Dropped):
    """The read was not started."""


class TransferDropped(Dropped):
    """The leadership was not transferred."""


class CannotLead(TransferDropped):
    """Leadership was to be transferred to a learner, or to a node that is no member."""

    exit_code = CONFLICT

    def __init__(self, leader: str, node: str, config: Config) -> None:
        super().__init__(DropReason.NOT_A_VOTER, leader)
        self.node = node
        what = "a learner" if node in config.learners else "not a member"
        voters = ", ".join(sorted(config.voters))
        self.args = (f"{node} cannot lead: it is {what}. The voters are {voters}",)


class InvalidChange(RaftError, InvalidInput):
    """A membership change that is impossible for the current members."""


class Compacted(RaftError):
    """An index at or below the snapshot; its entry may be deleted."""

    def __init__(self, index: int, snapshot_index: int) -> None:
        self.index = index
        self.snapshot_index = snapshot_index
        super().__init__(f"index {index} is compacted: the snapshot is at {snapshot_index}")


class MemberStopped(RaftError):
    """A member must stop participating in its group: its state is wrong."""


class Diverged(MemberStopped):
    """The leader has another entry where this member has a committed one."""

    def __init__(self, node: str, leader: str, index: int, terms: tuple[int, int]) -> None:
        self.node = node
        self.leader = leader
        self.index = index
        self.terms = terms
        """The terms of this member's entry and of the leader's."""
        own, other = terms
        what = f"committed entry {index} of {node} has term {own}"
        super().__init__(f"{what}, that of leader {leader} has term {other}: two histories")


class LogTooShort(MemberStopped):
    """The log lacks entries that this member has acknowledged."""

    def __init__(self, node: str, commit: int, last_index: int) -> None:
        self.node = node
        self.commit = commit
        self.last_index = last_index
        what = f"{node} acknowledged entries up to {commit} at least"
        super().__init__(f"{what}, but its log ends at {last_index}: its disk has lost entries")
