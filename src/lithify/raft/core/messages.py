"""Every message of the protocol, and what the driver tells the core. Pure values.

Between members, all with sender, receiver and the sender's term:

    AppendRequest    -> AppendReply         entries, and the probe for where two logs part
    Heartbeat        -> HeartbeatReply      the leader lives; confirms reads
    VoteRequest      -> VoteReply           elections, and with `pre` the question before one
    InstallSnapshot  -> AppendReply         the state was transferred and waits to be installed
    ReadRequest      -> ReadReply           a follower's linearizable read
    TimeoutNow                              be the next leader, at once

From the driver, to its own core: `StorageAppended`, `Applied`, `SnapshotStatus`, `Unreachable`.

`str` of each is one line, which logs and stories print.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.raft.core.values import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.raft.core.values import SnapshotMeta
    from lithify.raft.entry import Entry

__all__ = [
    "AppendReply",
    "AppendRequest",
    "Applied",
    "Heartbeat",
    "HeartbeatReply",
    "InstallSnapshot",
    "LocalMessage",
    "Message",
    "ReadReply",
    "ReadRequest",
    "SnapshotStatus",
    "StorageAppended",
    "TimeoutNow",
    "Unreachable",
    "VoteReply",
    "VoteRequest",
    "describe_entries",
]


def describe_entries(entries: Iterable[Entry]) -> str:
    """Such as `[4/2 "x", 5/2 noop]`: index, term, payload."""
    shown = []
    for entry in entries:
        if entry.kind == EntryKind.NOOP:
            what = "noop"
        elif entry.kind == EntryKind.CONFIG:
            what = f"({entry.payload.decode()})"
        elif entry.kind == EntryKind.END:
            what = "end"
        else:
            what = '"' + entry.payload.decode(errors="backslashreplace") + '"'
        shown.append(f"{entry.index}/{entry.term} {what}")
    return "[" + ", ".join(shown) + "]"


@dataclass(frozen=True, slots=True)
class Message:
    """The root of what members send each other."""

    sender: str
    to: str
    term: int

    def _line(self, what: str) -> str:
        return f"{self.sender}->{self.to} term {self.term} {what}"


@dataclass(frozen=True, slots=True)
class AppendRequest(Message):
    """Append these entries if your log has `prev_index` in `prev_term`."""

    prev_index: int
    prev_term: int
    entries: list[Entry]
    commit: int

    def __str__(self) -> str:
        what = f"append after {self.prev_index}/{self.prev_term} commit {self.commit}"
        return self._line(f"{what} {describe_entries(self.entries)}")


@dataclass(frozen=True, slots=True)
class AppendReply(Message):
    """Durable up to `index`; or rejected because nothing matches at `index`.

    A rejection says up to where the follower may have the same log: its last index that could be,
    and the term there.
    """

    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0

    def __str__(self) -> str:
        if self.rejected:
            return self._line(f"no match at {self.index}, try {self.hint_index}/{self.hint_term}")
        return self._line(f"has {self.index}")


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """The leader lives. `commit` is never above what the receiver has acknowledged to it."""

    commit: int
    round: int

    def __str__(self) -> str:
        return self._line(f"heartbeat commit {self.commit} round {self.round}")


@dataclass(frozen=True, slots=True)
class HeartbeatReply(Message):
    """The sender follows the leader of this term, at least since `round` was sent."""

    round: int

    def __str__(self) -> str:
        return self._line(f"heard round {self.round}")


@dataclass(frozen=True, slots=True)
class VoteRequest(Message):
    """May I lead? With `pre`: would you say yes, if I asked? `term` is the term asked for.

    `forced` is set when the leader itself hands over: then nobody waits until it is silent.
    """

    last_index: int
    last_term: int
    pre: bool = False
    forced: bool = False

    def __str__(self) -> str:
        what = "pre-vote" if self.pre else "forced vote" if self.forced else "vote"
        return self._line(f"{what}? log ends at {self.last_index}/{self.last_term}")


@dataclass(frozen=True, slots=True)
class VoteReply(Message):
    """Yes or no; a yes to `pre` has the term that was asked for, a no that of the sender."""

    granted: bool
    pre: bool = False

    def __str__(self) -> str:
        what = "pre-vote" if self.pre else "vote"
        return self._line(f"{what}: {'yes' if self.granted else 'no'}")


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """Your log is complete: campaign at once, without asking first."""

    def __str__(self) -> str:
        return self._line("campaign now")


@dataclass(frozen=True, slots=True)
class ReadRequest(Message):
    """A follower's client wants to read; `context` is the follower's own number for it."""

    context: int

    def __str__(self) -> str:
        return self._line(f"read {self.context}?")


@dataclass(frozen=True, slots=True)
class ReadReply(Message):
    """The read is linearizable once `index` is applied."""

    context: int
    index: int

    def __str__(self) -> str:
        return self._line(f"read {self.context} at {self.index}")


@dataclass(frozen=True, slots=True)
class InstallSnapshot(Message):
    """The snapshot is staged at the receiver and durable; may it take the place of the log?

    The receiver's driver makes this message when the transfer is complete, in the leader's name.
    """

    snapshot: SnapshotMeta

    def __str__(self) -> str:
        return self._line(f"install snapshot {self.snapshot}")


@dataclass(frozen=True, slots=True)
class StorageAppended:
    """The storage append of this number, and all before it, are durable."""

    number: int


@dataclass(frozen=True, slots=True)
class Applied:
    """Entries up to `index` have been applied to the state machine."""

    index: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The transfer that `SendSnapshot` asked for is over; `index` is that of what was sent."""

    peer: str
    index: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Messages to this peer were lost: what was sent to it should be taken back."""

    peer: str


LocalMessage = StorageAppended | Applied | SnapshotStatus | Unreachable
