"""The work that a core returns from `ready()`. Pure.

The duties of a driver, in any order unless stated:

1. `append`: make it durable. Appends complete in the order they were handed out; after each, step
   `StorageAppended(number)`. One call may acknowledge several: the last number is enough.
2. `messages`: send them, at any time, in any order; each may be lost.
3. `apply`: apply these entries in order, then step `Applied(index)`. They are already durable.
4. `snapshots`: begin a transfer to each peer, and step `SnapshotStatus` when it is complete.
5. `reads`: answer each once `index` is applied.

A driver may call `ready()` again before the work of the last one is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from lithify.raft.core.messages import describe_entries

if TYPE_CHECKING:
    from lithify.raft.core.messages import RaftMessage
    from lithify.raft.core.values import HardState, SnapshotMeta
    from lithify.raft.entry import Entry

__all__ = ["ReadState", "Ready", "Role", "SendSnapshot", "StorageAppend"]


class Role(StrEnum):
    """The role of a member in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class StorageAppend:
    """Work for the storage, atomic, in the order of the numbers.

    1. `snapshot`: replaces the whole log. Earlier applies are completed or dropped first; the state
       machine continues from the snapshot.
    2. `entries`: appended. If the first is at or below the last stored index, they replace
       everything from there on.
    3. `hard_state`: replaces the previous one.
    """

    number: int
    entries: list[Entry]
    hard_state: HardState | None
    snapshot: SnapshotMeta | None

    def __str__(self) -> str:
        parts = [f"write {self.number}:"]
        if self.snapshot is not None:
            parts.append(f"snapshot {self.snapshot}")
        if self.entries:
            parts.append(describe_entries(self.entries))
        if self.hard_state is not None:
            vote = f" vote {self.hard_state.vote}" if self.hard_state.vote else ""
            parts.append(f"term {self.hard_state.term}{vote}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """The entries that `peer` needs next are compacted: send it the newest snapshot.

    `term` is that of the requesting leader; the `InstallSnapshot` at the receiver contains it.
    """

    peer: str
    term: int
    index: int
    """Index of the newest snapshot now; a newer one may be sent instead."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """The read with this context sees everything done before it, once `index` is applied."""

    context: int
    index: int


class Ready(NamedTuple):
    """See the module. A tuple, for the reason in `raft/entry.py`."""

    append: StorageAppend | None
    messages: list[RaftMessage]
    apply: list[Entry]
    snapshots: list[SendSnapshot]
    reads: list[ReadState]
    role: Role
    term: int
    leader: str
    commit: int
    """Role, term, leader and commit index at this moment. When term or leader change, reads in
    progress are lost and must be retried."""

    @property
    def is_empty(self) -> bool:
        """Is there nothing to do?"""
        return self.append is None and not (
            self.messages or self.apply or self.snapshots or self.reads
        )
