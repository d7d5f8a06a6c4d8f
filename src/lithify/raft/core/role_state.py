"""The interface of the roles: `follower.py`, `candidate.py` and `leader.py`.

A role is created when it is entered and discarded when it is left. It processes messages of the
engine's term (`receive`), ticks, and calls the engine to change state that outlives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core.errors import DropReason, ReadDropped
from lithify.raft.core.messages import (
    ReadRequest,
)
from lithify.raft.core.values import NOBODY

if TYPE_CHECKING:
    from lithify.raft.core.member_state import Engine
    from lithify.raft.core.messages import RaftMessage, SnapshotStatus, Unreachable
    from lithify.raft.core.ready import Role

__all__ = ["RoleState"]


class RoleState:
    """The interface of all roles. A role ignores what does not concern it."""

    kind: Role
    leader: str = NOBODY
    asleep: bool = False
    """Whether it sends nothing and needs no ticks until it is woken."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        ticks = engine.settings.election_ticks
        self.elapsed = 0
        self.timeout = ticks + engine.settings.draw(ticks)

    @property
    def has_live_leader(self) -> bool:
        """Whether a message of a leader was received within an election timeout."""
        return bool(self.leader) and self.elapsed < self.engine.settings.election_ticks

    def wake(self) -> None:
        """Something happens in the group."""

    def peer_changed(self, peer: str) -> None:
        """The driver knows another epoch of a node, or none."""

    def check_sleep(self) -> None:
        """Find out whether the others still sleep."""

    def rest(self) -> None:
        """Restart the election timeout: this member has just voted for another."""
        self.elapsed = 0

    def tick(self) -> None:
        """Advance the clock by one tick."""
        self.elapsed += 1
        if self.elapsed >= self.timeout and self.engine.may_campaign:
            self.elapsed = 0
            self.engine.campaign()

    def receive(self, message: RaftMessage) -> None:
        """Process a message of this term."""
        raise NotImplementedError

    def stored(self) -> None:
        """More state is durable."""

    def members_changed(self) -> None:
        """Another configuration is in force."""

    def flush(self) -> None:
        """Build the messages that are deferred until `ready()`."""

    def snapshot_sent(self, status: SnapshotStatus) -> None:
        """A transfer is complete or failed."""

    def unreachable(self, report: Unreachable) -> None:
        """Messages to a peer were lost."""

    def read(self, context: int) -> None:
        """Begin a linearizable read: ask the leader."""
        if not self.leader:
            raise ReadDropped(DropReason.NO_LEADER)
        engine = self.engine
        engine.outbox.send(ReadRequest(engine.node, self.leader, engine.term, context))
