"""Leadership transfers with an answer, and repeated changes of members.

A transfer (`LeadershipTransfers`) is answered by the first of these, checked at every tick:

1. The target leads: done.
2. Another member leads, or this member still does after an election timeout, after which its core
   abandons the transfer: refused, with the leader's name.
3. This member knows no leader for `PATIENCE_ELECTIONS` election timeouts: the outcome is unknown.

A repeated change (`in_force`) succeeds if the members are already what it asks for: an operator
whose first answer was lost repeats the command. A node that is to be removed and is not a member
must be known by name, so that a mistyped name is still an error.

Called in the node's event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.raft.core.configuration import Op
from lithify.raft.errors import NotTransferred, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from lithify.errors import LithifyError
    from lithify.raft.core import ConfChange
    from lithify.raft.core.raft_core import Status
    from lithify.raft.group.group import Group

    Done = Callable[[dict[str, Any] | LithifyError], None]

__all__ = ["LeadershipTransfers", "in_force"]

PATIENCE_ELECTIONS = 5


@dataclass(slots=True)
class _Handover:
    group: Group[Any]
    to: str
    term: int
    done: Done
    ticks: int = 0


class LeadershipTransfers:
    """See the module."""

    def __init__(self) -> None:
        self._waiting: list[_Handover] = []

    def begin(self, group: Group[Any], to: str, done: Done) -> None:
        """Start a transfer; raises if that is impossible."""
        group.transfer(to)
        self._waiting.append(_Handover(group, to, group.term, done))
        self.report_decided()

    def tick(self) -> None:
        """Count one tick."""
        for each in self._waiting:
            each.ticks += 1
        self.report_decided()

    def report_decided(self) -> None:
        """Answer the transfers that are decided."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            result = _decided(each)
            if result is None:
                self._waiting.append(each)
            else:
                each.done(result)


def _decided(each: _Handover) -> dict[str, Any] | LithifyError | None:
    group, to, leader = each.group, each.to, each.group.leader
    if leader == to:
        return {"leader": to, "term": group.term}
    if leader and leader != group.node:
        return NotTransferred(to, f"{leader} leads")
    election_ticks = group.election_ticks
    if leader and (group.leading_term != each.term or each.ticks > election_ticks):
        why = f"{to} did not become the leader within {election_ticks} ticks"
        return NotTransferred(to, f"{why}, {leader} leads")
    if each.ticks > PATIENCE_ELECTIONS * election_ticks:
        return OutcomeUnknown(group.name, group.status().last_index)
    return None


def in_force(status: Status, change: ConfChange, known: Container[str]) -> bool:
    """Are the members what a change asks for, and is that committed?"""
    config = status.config
    if not change.changes or config.joint or status.config_index > status.commit:
        return False
    for item in change.changes:
        if item.op == Op.VOTER:
            is_so = item.node in config.voters
        elif item.op == Op.LEARNER:
            is_so = item.node in config.learners
        else:
            is_so = item.node not in config.members and item.node in known
        if not is_so:
            return False
    return True
