"""What the consensus core refuses, and why. Nothing has changed when one of these is raised.

LithifyError
└── RaftError
    ├── Dropped             not now, or not here; `reason` says which, `leader` where
    │   ├── ProposalDropped
    │   ├── ReadDropped
    │   └── TransferDropped
    ├── InvalidChange       a change of members that can never be made (also InvalidInput)
    ├── Compacted           an index at or below the snapshot was asked for
    └── LogTooShort         the leader knows this member to have entries that it has not
"""

from __future__ import annotations

from enum import StrEnum

from lithify.errors import InvalidInput, LithifyError

__all__ = [
    "Compacted",
    "DropReason",
    "Dropped",
    "InvalidChange",
    "LogTooShort",
    "ProposalDropped",
    "RaftError",
    "ReadDropped",
    "TransferDropped",
]


class RaftError(LithifyError):
    """The root of what the core raises."""


class DropReason(StrEnum):
    """Why a request was not taken."""

    NO_LEADER = "no leader is known"
    NOT_LEADER = "another member leads"
    OVERLOADED = "too many bytes wait to be committed and written"
    TRANSFERRING = "leadership is being handed over"
    CHANGE_IN_FLIGHT = "a change of members is not finished"
    TERM_NOT_COMMITTED = "the leader has not committed an entry of its term yet"
    NOT_HEARD = "too few of those who would be voters have heard of the group yet"
    NOT_A_VOTER = "only a voter can lead"


class Dropped(RaftError):
    """The request was not taken; `leader` may take it, and is empty if nobody is known to."""

    def __init__(self, reason: DropReason, leader: str = "") -> None:
        self.reason = reason
        self.leader = leader
        where = f", try {leader}" if leader and reason is DropReason.NOT_LEADER else ""
        super().__init__(f"{reason}{where}")


class ProposalDropped(Dropped):
    """Nothing was appended."""


class ReadDropped(Dropped):
    """The read was not begun."""


class TransferDropped(Dropped):
    """Leadership stays where it is."""


class InvalidChange(RaftError, InvalidInput):
    """A change of members that makes no sense for the members there are."""


class Compacted(RaftError):
    """An index at or below the snapshot; its entry may be gone."""

    def __init__(self, index: int, snapshot_index: int) -> None:
        self.index = index
        self.snapshot_index = snapshot_index
        super().__init__(f"index {index} was asked for, but the snapshot is at {snapshot_index}")


class LogTooShort(RaftError):
    """Entries are gone that this member had acknowledged. It must be rebuilt under a new name."""

    def __init__(self, node: str, commit: int, last_index: int) -> None:
        self.node = node
        self.commit = commit
        self.last_index = last_index
        what = f"{node} acknowledged entries up to {commit} at least"
        super().__init__(f"{what}, but its log ends at {last_index}: its disk has lost entries")
