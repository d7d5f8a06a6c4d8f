"""How removed members find out, and delete their files.

A removed member gets no more messages, and may not even have received the entry that removes it. A
member that was down when its group was dropped finds no other member. So:

1. The leader notifies a removed member when the removal is committed. The message may be lost.
2. A member that knows no leader asks every node that it knows, every `LONELY_TICKS`.
3. A node that has the group in its list of dropped ones says so; that is final (`ended`). It also
   notifies members that have not confirmed, at once and every `TELL_TICKS`. A notified node answers
   (`EndKnown`), whether it had the group or not. When all have answered, the group may be struck
   off the list. A node sends either message only after its own end of the group is durable, and a
   leader sends nothing else afterwards: otherwise an earlier message of the leader could start the
   group again where it has been struck off.
4. A leader whose configuration is committed, and an entry of its term too, notifies a node that is
   not in the configuration. No other member does: a member that lags may not know that a node was
   added.

A member believes a leader's notification (not `ended`) if it knows no later term, and if its log
has no entry of that term above the index that was committed when the message was sent. Then none of
its entries has counted for a majority since it was removed: it was not added again.

Other members may lag and still count it as a member. If it is added again, it must keep to what it
promised them, so it remembers (`RemovedMembership`):

- its term: it starts in the next one, with its own vote, so that it votes twice in no term. A
  leader that knew it before, and might take late answers as acknowledgements of new entries, then
  learns of a later term and must be elected again;
- the end of its log: it ignores a candidate whose log ends before that, as it would not have voted
  for it then. Otherwise, together with other returned members, it could elect a leader that lacks
  what they had all acknowledged.

Groups of two clusters may have the same key: each first group has the key `default`, which is not
random (`raft/storage/file_names.py`). A node that was given another cluster's address may get
messages of a group that has only the key in common. `is_foreign` finds those that no member of the
own group can have sent:

- to the only voter, messages of a leader: no other node can lead;
- messages of a second leader in one term;
- a removal, from a node that is in no configuration in force here. So a member that was down while
  all others were replaced keeps its files.

Pure; `group.py` decides, `raft/node/node.py` sends and acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lithify.raft.core.messages import (
    AppendRequest,
    Commit,
    Heartbeat,
    RaftMessage,
    Sleep,
    VoteRequest,
)
from lithify.raft.core.ready import Role
from lithify.raft.snapshots.messages import SnapshotOffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.core.configuration import Config
    from lithify.raft.core.raft_core import Status

__all__ = [
    "LONELY_TICKS",
    "NEVER_LEFT",
    "TELL_TICKS",
    "EndKnown",
    "MemberQuery",
    "MemberRemoved",
    "RemovedMembership",
    "believes",
    "is_foreign",
    "removal_notice",
]

LONELY_TICKS = 50
TELL_TICKS = 600


class RemovedMembership(NamedTuple):
    """What a node remembers of a group from which it was removed."""

    times: int
    """The number of removals."""
    term: int
    last_term: int
    last_index: int

    def again(self, status: Status) -> RemovedMembership:
        """It was removed again."""
        end = max((self.last_term, self.last_index), (status.last_term, status.last_index))
        return RemovedMembership(self.times + 1, max(self.term, status.term), *end)

    def hears(self, message: RaftMessage) -> bool:
        """May a member that starts again get this message?"""
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
class MemberRemoved(RaftMessage):
    """The receiver is not a member, or the group has ended."""

    index: int
    """The commit index when it was sent."""
    ended: bool

    def __str__(self) -> str:
        return self._line("the group has ended" if self.ended else f"no member at {self.index}")


@dataclass(frozen=True, slots=True)
class EndKnown(RaftMessage):
    """The sender knows that the group has ended, and has no files of it."""

    def __str__(self) -> str:
        return self._line("the end is known")


def removal_notice(status: Status, applied_term: int, who: str) -> MemberRemoved | None:
    """A leader's message to a node that is not a member; None if it is one, or if unknown."""
    if status.role is not Role.LEADER or applied_term != status.term:
        return None
    if who in status.config.members or status.config_index > status.applied:
        return None
    return MemberRemoved(status.node, who, status.term, status.applied, ended=False)


def believes(status: Status, word: MemberRemoved) -> bool:
    """Does a member with this status accept the notification?"""
    if word.ended:
        return True
    has_later = status.last_term >= word.term and status.last_index > word.index
    return word.term >= status.term and not has_later


def is_foreign(message: RaftMessage, configs: Sequence[Config], leader: str, term: int) -> bool:
    """Is this from another group with the same key? See the module.

    `configs` are those that may be in force, `leader` is the known leader of `term`.
    """
    leads = AppendRequest | Commit | Heartbeat | Sleep | SnapshotOffer
    speaks_as_leader = isinstance(message, leads)
    if not speaks_as_leader and not isinstance(message, MemberRemoved):
        return False
    if all(config.electorate == {message.to} for config in configs):
        return True
    if speaks_as_leader:
        return message.term == term and leader not in ("", message.sender)
    members = frozenset[str]().union(*(config.members for config in configs))
    return bool(members) and message.sender not in members
