"""Every message of the protocol, and the reports of the driver to the core. Pure values.

Between members, all with sender, receiver and the sender's term:

    AppendRequest    -> AppendReply         entries, and the probe for where two logs diverge
    Commit                                  entries that the receiver has, or will have, committed
    Heartbeat        -> HeartbeatReply      the leader is alive; confirms reads
    VoteRequest      -> VoteReply           elections, and with `pre` the pre-vote
    InstallSnapshot  -> AppendReply         the state was transferred and waits to be installed
    ReadRequest      -> ReadReply           a follower's linearizable read
    TimeoutNow                              campaign at once
    Sleep            -> SleepReply          the group is idle (`sleep.py`)
    WakeUp                                  the sender waits for its leader to wake

From the driver, to its own core: `StorageAppended`, `Applied`, `SnapshotStatus`, `Unreachable`,
`PeerChanged`, `SleepCheck`.

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
    "Commit",
    "Heartbeat",
    "HeartbeatReply",
    "InstallSnapshot",
    "LocalMessage",
    "PeerChanged",
    "RaftMessage",
    "ReadReply",
    "ReadRequest",
    "Sleep",
    "SleepCheck",
    "SleepReply",
    "SnapshotStatus",
    "StorageAppended",
    "TimeoutNow",
    "Unreachable",
    "VoteReply",
    "VoteRequest",
    "WakeUp",
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
class RaftMessage:
    """The root of the messages between members."""

    sender: str
    to: str
    term: int

    def _line(self, what: str) -> str:
        return f"{self.sender}->{self.to} term {self.term} {what}"


@dataclass(frozen=True, slots=True)
class AppendRequest(RaftMessage):
    """Append these entries if the log has `prev_index` in `prev_term`."""

    prev_index: int
    prev_term: int
    entries: list[Entry]
    commit: int

    def __str__(self) -> str:
        what = f"append after {self.prev_index}/{self.prev_term} commit {self.commit}"
        return self._line(f"{what} {describe_entries(self.entries)}")


@dataclass(frozen=True, slots=True)
class AppendReply(RaftMessage):
    """Durable up to `index`; or rejected because the log does not match at `index`.

    A rejection contains the last index at which the follower may have the same log, and its term.
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
class Commit(RaftMessage):
    """All entries up to `index`, which is of the sender's term, are committed.

    A log that has this entry agrees with the leader's up to it: one leader has appended it. Another
    log ignores the message; a heartbeat tells it later. No answer: the receiver's next entry or
    heartbeat is answered.
    """

    index: int

    def __str__(self) -> str:
        return self._line(f"commit {self.index}")

    def as_append(self) -> AppendRequest:
        """The message with the same effect for a member of an earlier version."""
        return AppendRequest(self.sender, self.to, self.term, self.index, self.term, [], self.index)


@dataclass(frozen=True, slots=True)
class Heartbeat(RaftMessage):
    """The leader is alive. `commit` is never above what the receiver has acknowledged to it."""

    commit: int
    round: int

    def __str__(self) -> str:
        return self._line(f"heartbeat commit {self.commit} round {self.round}")


@dataclass(frozen=True, slots=True)
class HeartbeatReply(RaftMessage):
    """The sender follows the leader of this term, at least since `round` was sent."""

    round: int

    def __str__(self) -> str:
        return self._line(f"heard round {self.round}")


@dataclass(frozen=True, slots=True)
class VoteRequest(RaftMessage):
    """Requests a vote, or with `pre` asks whether it would be granted; `term` is the term to lead.

    `forced` is set when the leader itself transfers leadership: receivers then do not wait until it
    is silent.
    """

    last_index: int
    last_term: int
    pre: bool = False
    forced: bool = False

    def __str__(self) -> str:
        what = "pre-vote" if self.pre else "forced vote" if self.forced else "vote"
        return self._line(f"{what}? log ends at {self.last_index}/{self.last_term}")


@dataclass(frozen=True, slots=True)
class VoteReply(RaftMessage):
    """The vote; a granted pre-vote has the requested term, a refusal that of the sender."""

    granted: bool
    pre: bool = False

    def __str__(self) -> str:
        what = "pre-vote" if self.pre else "vote"
        return self._line(f"{what}: {'yes' if self.granted else 'no'}")


@dataclass(frozen=True, slots=True)
class TimeoutNow(RaftMessage):
    """The receiver's log is complete: campaign at once, without a pre-vote."""

    def __str__(self) -> str:
        return self._line("campaign now")


@dataclass(frozen=True, slots=True)
class ReadRequest(RaftMessage):
    """A client of a follower wants to read; `context` is the follower's own number for it."""

    context: int

    def __str__(self) -> str:
        return self._line(f"read {self.context}?")


@dataclass(frozen=True, slots=True)
class ReadReply(RaftMessage):
    """The read is linearizable once `index` is applied."""

    context: int
    index: int

    def __str__(self) -> str:
        return self._line(f"read {self.context} at {self.index}")


@dataclass(frozen=True, slots=True)
class InstallSnapshot(RaftMessage):
    """The snapshot is staged at the receiver and durable; it may replace the log.

    The receiver's driver creates this message when the transfer is complete, in the leader's name.
    """

    snapshot: SnapshotMeta

    def __str__(self) -> str:
        return self._line(f"install snapshot {self.snapshot}")


@dataclass(frozen=True, slots=True)
class Sleep(RaftMessage):
    """The leader is alive, and has nothing to do; all members have its log, which ends at `index`.

    That entry is of its term. `epoch` is that of its process.
    """

    index: int
    round: int
    epoch: int

    def __str__(self) -> str:
        return self._line(f"sleep at {self.index} round {self.round}")


@dataclass(frozen=True, slots=True)
class SleepReply(RaftMessage):
    """The sender sleeps since this round; `epoch` is that of its process."""

    round: int
    epoch: int

    def __str__(self) -> str:
        return self._line(f"sleeps in round {self.round}")


@dataclass(frozen=True, slots=True)
class WakeUp(RaftMessage):
    """The sender is awake, and its leader may sleep."""

    def __str__(self) -> str:
        return self._line("wake up")


@dataclass(frozen=True, slots=True)
class StorageAppended:
    """The storage appends up to this number are durable."""

    number: int


@dataclass(frozen=True, slots=True)
class Applied:
    """Entries up to `index` have been applied to the state machine."""

    index: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The transfer of a `SendSnapshot` is complete or failed; `index` is that of the snapshot."""

    peer: str
    index: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Messages to this peer were lost: what was sent ahead must be sent again."""

    peer: str


@dataclass(frozen=True, slots=True)
class PeerChanged:
    """The epoch of a peer's process is another one, or unknown, or the peer does not sleep."""

    peer: str


@dataclass(frozen=True, slots=True)
class SleepCheck:
    """About a minute has passed since the last one: check whether the others sleep too."""


LocalMessage = StorageAppended | Applied | SnapshotStatus | Unreachable | PeerChanged | SleepCheck
