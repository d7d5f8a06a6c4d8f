"""What happens to a group, as lines of the log: elections, leaders, members, snapshots.

    election begun     once, until somebody leads; not once for each attempt
    leader changed     with the term
    quorum lost        a leader steps down
    members changed    with the index of the entry; it is in force, perhaps not committed yet
    snapshot installed another member's snapshot takes the place of the log
    log cut            entries that were never committed are replaced
    transfer given up

One line each. The consensus core tells (`core/events.py`); votes, which come in masses, are left
out. The node's event loop calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.logger import get_logger
from lithify.raft.core.events import (
    ConfigChanged,
    LogCut,
    QuorumLost,
    RoleChanged,
    SnapshotRestored,
    TransferEnded,
)
from lithify.raft.core.ready import Role

if TYPE_CHECKING:
    from lithify.raft.core.events import CoreEvent

__all__ = ["GroupLogLines"]

log = get_logger("lithify.raft")


class GroupLogLines:
    """Of one member of a group; see the module."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._leader = ""
        self._electing = False

    def take(self, event: CoreEvent) -> None:
        """Write a line, if the event is worth one."""
        if isinstance(event, RoleChanged):
            self._follow(event)
        elif isinstance(event, QuorumLost):
            log.warning("quorum lost", group=self._group, term=event.term)
        elif isinstance(event, ConfigChanged):
            members = str(event.config)
            log.info("members changed", group=self._group, index=event.index, members=members)
        elif isinstance(event, SnapshotRestored):
            log.info("snapshot installed", group=self._group, index=event.snapshot.index)
        elif isinstance(event, LogCut):
            log.info("log cut", group=self._group, last_index=event.last_index)
        elif isinstance(event, TransferEnded):
            log.info("transfer given up", group=self._group, to=event.to)

    def _follow(self, event: RoleChanged) -> None:
        if event.leader and event.leader != self._leader:
            self._leader, self._electing = event.leader, False
            log.info("leader changed", group=self._group, leader=event.leader, term=event.term)
        elif event.leader:
            self._electing = False
        elif event.role in (Role.PRE_CANDIDATE, Role.CANDIDATE) and not self._electing:
            self._electing = True
            log.info("election begun", group=self._group, term=event.term, was=self._leader)
