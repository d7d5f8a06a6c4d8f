"""Messages by which a snapshot goes from a leader to a member. Pure values.

    leader                                  member
    SnapshotOffer(0, head)            ->
                                      <-    SnapshotAck(0, applied)
    SnapshotEntries(1, live entries)  ->                                 those above `applied`,
                                      <-    SnapshotAck(1)               in the order of the log
    ...
    SnapshotPiece(n, data)            ->
                                      <-    SnapshotAck(n)
    SnapshotPiece(n + 1, data, last)  ->
                                      <-    SnapshotAck(n + 1)           it has come
                                      <-    SnapshotAck(n + 1, DONE)     it is in force

All of one transfer carry its number, which the leader draws. Messages of a transfer are numbered,
and the next is sent when one is acknowledged: that is all there is of flow control, and one that is
lost is sent again. `REFUSED` ends a transfer; the member's log is as it was.

Every message may be lost, doubled or late. `term` is that of the leader who sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from lithify.raft.core.messages import RaftMessage

if TYPE_CHECKING:
    from lithify.raft.entry import Entry
    from lithify.raft.storage.snapshots.snapshot_file import Head

__all__ = [
    "SnapshotAck",
    "SnapshotEntries",
    "SnapshotOffer",
    "SnapshotPiece",
    "TransferMessage",
    "TransferState",
]


class TransferState(IntEnum):
    """How a transfer is, for the member that receives."""

    GOING = 0
    DONE = 1
    """The snapshot, or something newer, is in force."""
    REFUSED = 2
    """Nothing more will come of it."""


@dataclass(frozen=True, slots=True)
class TransferMessage(RaftMessage):
    """The root: the transfer it belongs to, and its number there."""

    transfer: int
    number: int


@dataclass(frozen=True, slots=True)
class SnapshotOffer(TransferMessage):
    """A snapshot is there for you; how far are you?"""

    head: Head

    def __str__(self) -> str:
        return self._line(f"offers snapshot {self.head.meta}")


@dataclass(frozen=True, slots=True)
class SnapshotEntries(TransferMessage):
    """Live entries, ascending."""

    entries: list[Entry]

    def __str__(self) -> str:
        return self._line(f"snapshot message {self.number}: {len(self.entries)} live entries")


@dataclass(frozen=True, slots=True)
class SnapshotPiece(TransferMessage):
    """A piece of the state."""

    data: bytes
    last: bool = False

    def __str__(self) -> str:
        what = f"snapshot message {self.number}: {len(self.data)} bytes"
        return self._line(what + (", the last" if self.last else ""))


@dataclass(frozen=True, slots=True)
class SnapshotAck(TransferMessage):
    """Everything up to this number has come."""

    applied: int
    """What the member has applied when the transfer began: live entries up to there it has."""
    state: TransferState = TransferState.GOING

    def __str__(self) -> str:
        return self._line(f"has snapshot message {self.number}, {self.state.name.lower()}")
