"""Events of the core, as typed values with one line of text. Pure.

They are rare (elections, membership changes, refusals), so that sinks cost nothing while entries
are replicated. Logs print `str(event)`, stories compare it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.raft.core.configuration import Config
    from lithify.raft.core.ready import Role
    from lithify.raft.core.values import SnapshotMeta

__all__ = [
    "ConfigChanged",
    "CoreEvent",
    "CoreEventSink",
    "LogCut",
    "QuorumLost",
    "RoleChanged",
    "SnapshotRestored",
    "TransferEnded",
    "VoteAnswered",
    "VoteIgnored",
    "ignore_core_events",
]


@dataclass(frozen=True, slots=True)
class CoreEvent:
    """The root; `node` is the member that reports it."""

    node: str


@dataclass(frozen=True, slots=True)
class RoleChanged(CoreEvent):
    """A member has a new role, term or leader."""

    role: Role
    term: int
    leader: str

    def __str__(self) -> str:
        led = f", led by {self.leader}" if self.leader and self.leader != self.node else ""
        return f"{self.node} is {self.role} at term {self.term}{led}"


@dataclass(frozen=True, slots=True)
class VoteAnswered(CoreEvent):
    """A vote was given or refused."""

    candidate: str
    term: int
    pre: bool
    why: str
    granted: bool

    def __str__(self) -> str:
        verb = "gives" if self.granted else "refuses"
        what = "pre-vote" if self.pre else "vote"
        return f"{self.node} {verb} {self.candidate} its {what} at term {self.term}: {self.why}"


@dataclass(frozen=True, slots=True)
class VoteIgnored(CoreEvent):
    """A leader is active, or (without one) this member may not vote."""

    candidate: str
    term: int
    leader: str

    def __str__(self) -> str:
        asked = f"{self.candidate}'s request at term {self.term}"
        why = f"it has heard from {self.leader}" if self.leader else "it may not vote"
        return f"{self.node} ignores {asked}: {why}"


@dataclass(frozen=True, slots=True)
class QuorumLost(CoreEvent):
    """A leader has not received answers of a quorum for an election timeout."""

    term: int

    def __str__(self) -> str:
        return f"{self.node} has no answers of a quorum at term {self.term}"


@dataclass(frozen=True, slots=True)
class LogCut(CoreEvent):
    """Uncommitted entries are replaced by those of another leader."""

    last_index: int

    def __str__(self) -> str:
        return f"{self.node} cuts its log after {self.last_index}"


@dataclass(frozen=True, slots=True)
class ConfigChanged(CoreEvent):
    """Another configuration is in force."""

    index: int
    config: Config

    def __str__(self) -> str:
        return f"{self.node} uses the members at {self.index}: {self.config}"


@dataclass(frozen=True, slots=True)
class SnapshotRestored(CoreEvent):
    """A snapshot replaces the log."""

    snapshot: SnapshotMeta

    def __str__(self) -> str:
        return f"{self.node} installs the snapshot {self.snapshot}"


@dataclass(frozen=True, slots=True)
class TransferEnded(CoreEvent):
    """The transfer of leadership timed out; proposals are accepted again."""

    to: str

    def __str__(self) -> str:
        return f"{self.node} aborts the transfer to {self.to}"


CoreEventSink = Callable[[CoreEvent], None]


def ignore_core_events(event: CoreEvent) -> None:
    """A sink that drops events."""
