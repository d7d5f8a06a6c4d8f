"""What happens inside the core, as typed values with one line of text. Pure.

They are rare (elections, changes of members, refusals), so that whoever listens costs nothing while
entries flow. Logs print `str(event)`, stories compare it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.raft.core.config import Config
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
    """The root; `node` is where it happened."""

    node: str


@dataclass(frozen=True, slots=True)
class RoleChanged(CoreEvent):
    """A member has another role, term or leader."""

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
    """A leader was heard too recently to talk about another, or (without one) it may not vote."""

    candidate: str
    term: int
    leader: str

    def __str__(self) -> str:
        asked = f"{self.candidate}'s request at term {self.term}"
        why = f"it has heard {self.leader}" if self.leader else "it may not vote"
        return f"{self.node} ignores {asked}: {why}"


@dataclass(frozen=True, slots=True)
class QuorumLost(CoreEvent):
    """A leader has not heard enough members for an election timeout."""

    term: int

    def __str__(self) -> str:
        return f"{self.node} has not heard a quorum at term {self.term}"


@dataclass(frozen=True, slots=True)
class LogCut(CoreEvent):
    """Entries that were never committed are replaced by those of another leader."""

    last_index: int

    def __str__(self) -> str:
        return f"{self.node} cuts its log after {self.last_index}"


@dataclass(frozen=True, slots=True)
class ConfigChanged(CoreEvent):
    """Another configuration is in force."""

    index: int
    config: Config

    def __str__(self) -> str:
        return f"{self.node} goes by the members of {self.index}: {self.config}"


@dataclass(frozen=True, slots=True)
class SnapshotRestored(CoreEvent):
    """A snapshot takes the place of the log."""

    snapshot: SnapshotMeta

    def __str__(self) -> str:
        return f"{self.node} takes the snapshot {self.snapshot}"


@dataclass(frozen=True, slots=True)
class TransferEnded(CoreEvent):
    """Leadership was not handed over in time, and proposals are taken again."""

    to: str

    def __str__(self) -> str:
        return f"{self.node} gives up handing over to {self.to}"


CoreEventSink = Callable[[CoreEvent], None]


def ignore_core_events(event: CoreEvent) -> None:
    """The sink for those who do not want to know."""
