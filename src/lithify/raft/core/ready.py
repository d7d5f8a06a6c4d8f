"""What a core wants done: the value that `ready()` hands out. Pure.

A driver's duties, in any order but for what is said:

1. `append`: make it durable. Appends complete in the order they were handed out; when one has, step
   `StorageAppended(number)`. One call may stand for several: the last number is enough.
2. `messages`: send them, any time, in any order; each may be lost.
3. `apply`: apply these entries in order, then step `Applied(index)`. They are durable already.
4. `snapshots`: begin a transfer to each peer, and step `SnapshotStatus` when it is over.
5. `reads`: answer each once `index` is applied.

A driver may call `ready()` again before the work of the last one is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lithify.raft.core.messages import describe_entries

if TYPE_CHECKING:
    from lithify.raft.core.messages import Message
    from lithify.raft.core.values import HardState, SnapshotMeta
    from lithify.raft.entry import Entry

__all__ = ["ReadState", "Ready", "Role", "SendSnapshot", "StorageAppend"]


class Role(StrEnum):
    """What a member is in its term."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class StorageAppend:
    """Work for the storage, all or nothing, in the order of the numbers.

    1. `snapshot`: it takes the place of the whole log. Applies handed out before are done or
       dropped first; the state machine goes on from the snapshot.
    2. `entries`: appended. The first may lie at or below the last stored index: everything from
       there on is replaced.
    3. `hard_state`: replaces the one before.
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

    `term` is that of the leader who asks: it goes into the `InstallSnapshot` at the other end.
    """

    peer: str
    term: int
    index: int
    """The snapshot of this moment; a newer one may be sent instead."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """The read with this context sees all that was done before it, once `index` is applied."""

    context: int
    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """See the module."""

    append: StorageAppend | None
    messages: list[Message]
    apply: list[Entry]
    snapshots: list[SendSnapshot]
    reads: list[ReadState]
    role: Role
    term: int
    leader: str
    commit: int
    """Role, term, leader and commit index at this moment. When term or leader change, reads that
    were under way are lost and must be asked again."""
