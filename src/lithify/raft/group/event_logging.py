"""Logs the events of a group: elections, leaders, members, snapshots.

    election begun     once until there is a leader, not once per attempt
    leader changed     with the term
    quorum lost        a leader steps down
    members changed    with the index of the entry; in force, perhaps not committed yet
    snapshot installed another member's snapshot replaces the log
    log cut            entries that were never committed are replaced
    transfer given up

One line each, from the consensus core's events (`core/events.py`). Votes are not logged, because
there are many. Called in the node's event loop.
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
    """The log lines of one member; see the module."""

    def __init__(self, group: str, *, is_alone: bool = False) -> None:
        """`is_alone`: there are no other nodes, so elections are no news."""
        self._group = group
        self._is_alone = is_alone
        self._leader = ""
        self._electing = False

    def take(self, event: CoreEvent) -> None:
        """Log an event, if it is in the list."""
        if isinstance(event, RoleChanged):
            if not self._is_alone:
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
