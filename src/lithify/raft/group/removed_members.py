"""How members learn that they are none any more, so that they give their files back.

A member that was removed is sent nothing from then on, and may not even have got the entry that
removes it. One that was away when its group was dropped comes back to nobody. So:

1. The leader tells whom it has removed, when that is committed. What it says may be lost.
2. A member that knows no leader asks every node it knows of, each `LONELY_TICKS`.
3. A node that has the group in its list of dropped ones says so: that is for good (`ended`). It
   also tells members of which it does not know that they know, at once and every `TELL_TICKS`. Who
   is told answers (`EndKnown`), whether it had the group or not. When all have, it may be struck
   off. Nobody says one or the other before its own end of it is durable, and a leader nothing else
   afterwards: what it sent before would else begin the group anew where it has been struck off.
4. A leader whose configuration is committed, and some entry of its term too, tells one who is not
   in it. Nobody else does: a member that lags may not know yet of one that was added.

Who is told by a leader (not `ended`) believes it if it has heard of no later term, and if nothing
in its log is of that term and above the index that was committed when this was said. Then none of
its entries has counted for a majority since it was removed: it was not added again.

But others may lag, and take it for a member still. To them it must be no less than it was, should
it be added again, and so it remembers (`RemovedMembership`):

- the term that it was in: it begins in the next one, with its own vote, so that it votes twice in
  none. A leader that has known it before, and might take late answers for word of its new entries,
  is thereby told of a later term and stands anew;
- the end of its log: it hears no candidate whose log ends before that, as it would not have given
  it a vote then. Together with others who are gone it could else choose a leader that lacks what
  they had all acknowledged.

Groups of two clusters may have the same key: each first group has the key `default`, which was not
drawn (`raft/storage/file_names.py`). A node that was given another cluster's address may be sent
messages of a group that has only the key in common. `is_foreign` finds those that no member of the
own group can have sent:

- to the only voter, what a leader sends: nobody else can lead;
- what a second leader of one term sends;
- that it is no member, from one whom no configuration in force here has. So a member that was away
  while all others were replaced keeps its files.

Pure; `group.py` decides, `raft/node/node.py` sends and does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lithify.raft.core.messages import AppendRequest, Heartbeat, RaftMessage, VoteRequest
from lithify.raft.core.ready import Role
from lithify.raft.snapshots.messages import SnapshotOffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.core.configuration import Config
    from lithify.raft.core.core import Status

__all__ = [
    "LONELY_TICKS",
    "NEVER_LEFT",
    "TELL_TICKS",
    "EndKnown",
    "MemberGone",
    "MemberQuery",
    "RemovedMembership",
    "believes",
    "gone_word",
    "is_foreign",
]

LONELY_TICKS = 50
TELL_TICKS = 600


class RemovedMembership(NamedTuple):
    """What a node remembers of a group that it was removed from."""

    times: int
    """How often it was."""
    term: int
    last_term: int
    last_index: int

    def again(self, status: Status) -> RemovedMembership:
        """It was removed once more."""
        end = max((self.last_term, self.last_index), (status.last_term, status.last_index))
        return RemovedMembership(self.times + 1, max(self.term, status.term), *end)

    def hears(self, message: RaftMessage) -> bool:
        """May a member that begins anew be given this message?"""
        if not isinstance(message, VoteRequest):
            return True
        return (message.last_term, message.last_index) >= (self.last_term, self.last_index)


NEVER_LEFT = RemovedMembership(0, -1, 0, 0)


@dataclass(frozen=True, slots=True)
class MemberQuery(RaftMessage):
    """Is the sender still a member?"""

    def __str__(self) -> str:
        return self._line("still a member?")


@dataclass(frozen=True, slots=True)
class MemberGone(RaftMessage):
    """The receiver is no member; the group may be none any more."""

    index: int
    """Committed when this was said."""
    ended: bool

    def __str__(self) -> str:
        return self._line("the group has ended" if self.ended else f"no member at {self.index}")


@dataclass(frozen=True, slots=True)
class EndKnown(RaftMessage):
    """The sender knows that the group has ended, and has nothing of it."""

    def __str__(self) -> str:
        return self._line("the end is known")


def gone_word(status: Status, applied_term: int, who: str) -> MemberGone | None:
    """What a leader has to say to one who is no member; None if it is one, or nobody can tell."""
    if status.role is not Role.LEADER or applied_term != status.term:
        return None
    if who in status.config.members or status.config_index > status.applied:
        return None
    return MemberGone(status.node, who, status.term, status.applied, ended=False)


def believes(status: Status, word: MemberGone) -> bool:
    """Does a member that is told so go?"""
    if word.ended:
        return True
    has_later = status.last_term >= word.term and status.last_index > word.index
    return word.term >= status.term and not has_later


def is_foreign(message: RaftMessage, configs: Sequence[Config], leader: str, term: int) -> bool:
    """Is this from another group with the same key? See the module.

    `configs` are those that may be in force, `leader` is the one of `term` that is known.
    """
    speaks_as_leader = isinstance(message, AppendRequest | Heartbeat | SnapshotOffer)
    if not speaks_as_leader and not isinstance(message, MemberGone):
        return False
    if all(config.electorate == {message.to} for config in configs):
        return True
    if speaks_as_leader:
        return message.term == term and leader not in ("", message.sender)
    members = frozenset[str]().union(*(config.members for config in configs))
    return bool(members) and message.sender not in members
