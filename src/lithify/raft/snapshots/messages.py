"""Messages that transfer a snapshot from a leader to a member. Pure values.

    leader                                  member
    SnapshotOffer(0, head)            ->
                                      <-    SnapshotAck(0, applied)
    SnapshotEntries(1, live entries)  ->                                 those above `applied`,
                                      <-    SnapshotAck(1)               in the order of the log
    ...
    SnapshotPiece(n, data)            ->
                                      <-    SnapshotAck(n)
    SnapshotPiece(n + 1, data, last)  ->
                                      <-    SnapshotAck(n + 1)           received
                                      <-    SnapshotAck(n + 1, DONE)     in force

All messages of a transfer carry its number, which the leader chooses at random, and are numbered
themselves. A few are sent ahead of their acknowledgements; that is the flow control. Lost messages
are sent again. `REFUSED` ends a transfer; the member's log is unchanged.

Every message may be lost, repeated or delayed. `term` is the sending leader's.
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
    """The state of a transfer at the receiving member."""

    GOING = 0
    DONE = 1
    """The snapshot, or something newer, is in force."""
    REFUSED = 2
    """The transfer has failed."""


@dataclass(frozen=True, slots=True)
class TransferMessage(RaftMessage):
    """The base class: the number of the transfer, and of the message in it."""

    transfer: int
    number: int


@dataclass(frozen=True, slots=True)
class SnapshotOffer(TransferMessage):
    """Offers a snapshot; the answer has the member's applied index."""

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
    """Everything up to this number is received."""

    applied: int
    """The applied index when the transfer started: the member has live entries up to there."""
    state: TransferState = TransferState.GOING

    def __str__(self) -> str:
        return self._line(f"has snapshot message {self.number}, {self.state.name.lower()}")
