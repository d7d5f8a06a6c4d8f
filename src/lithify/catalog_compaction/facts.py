"""What a decision about the catalog's history is made of. Values.

A **published** time of a replica is the minimum begin time of the cluster's read-write transactions
that its newest durable snapshot has. A restart replays the log from that snapshot, so the replica
needs no version that is older. Zero means that none is published yet.

A node's own minimum is that of its published times and its low watermark. The begin times of its
active transactions are not part of it: they count when they are published.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.compaction.planning.horizon import Hold
    from lithify.tables.assignments import Partition

__all__ = ["Abort", "AbortKind", "ClusterFacts", "Floors", "NodeTimes", "Waits"]


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """The answer of a node."""

    node: str
    low_watermark: int
    """A hybrid timestamp; 0 if the node has none yet."""
    minimum_begin: int
    """Of its active read-write transactions, or its time."""
    published: Mapping[Partition, int] = field(default_factory=dict)
    """Of each of its replicas."""


@dataclass(frozen=True, slots=True)
class Floors:
    """History that is kept although nothing needs it."""

    versions_min: int = 1
    age_ms: int = 0


@dataclass(frozen=True, slots=True)
class Waits:
    """How long history is held for what may never end."""

    away_ms: int | None = None
    """For a node that does not answer; None is without limit."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the coordinator knows when it decides."""

    now: int
    """A hybrid timestamp."""
    topology: frozenset[str]
    """The nodes that are there."""
    answers: Mapping[str, NodeTimes]
    assignments: Mapping[Partition, frozenset[str]]
    """As of now."""
    rebalances: Mapping[Partition, int] = field(default_factory=dict)
    """Running ones, and the version whose zone they follow."""
    to_rebuild: Mapping[Partition, frozenset[str]] = field(default_factory=dict)
    """Nodes that are assigned a replica and whose log of it does not count: it is rebuilt."""
    pins: tuple[Hold, ...] = ()
    """Named ones; the position is the version that is pinned."""
    away_ms: Mapping[str, int] = field(default_factory=dict)
    """Of members that have not answered: for how long they have not."""

    def required(self, partition: Partition) -> frozenset[str]:
        """The nodes whose log of a partition counts."""
        return self.assignments[partition] - self.to_rebuild.get(partition, frozenset())

    @property
    def minimum_begin(self) -> int:
        """Of the active read-write transactions of all nodes; 0 if a node has not answered."""
        if not self.answers or self.topology - self.answers.keys():
            return 0
        return min(each.minimum_begin for each in self.answers.values())


class AbortKind(StrEnum):
    """Why a version was not admissible."""

    NO_ANSWER = "no answer"
    """A node of the topology has not answered."""
    NO_LOW_WATERMARK = "no low watermark"
    UNPUBLISHED = "unpublished"
    """A replica has not published a time."""
    MISSING_NODE = "missing node"
    """A node that has a required replica is not in the topology."""
    MISSING_GROUP = "missing group"
    """A node has not the replica that it is assigned."""
    NO_ASSIGNMENT = "no assignment"
    """A partition of a table has no nodes."""
    DROPPED_TABLE = "dropped table"
    """A table that was dropped can still be read at the low watermark."""
    INDEX_BUILD = "index build"
    REBALANCE = "rebalance"


@dataclass(frozen=True, slots=True)
class Abort:
    """A reason why history is kept that nothing else needs."""

    kind: AbortKind
    version: int
    """The version that was not admissible; 0 if the whole run was aborted."""
    node: str = ""
    partition: Partition | None = None
    object: str = ""
    """The table or index."""

    def describe(self) -> str:
        """For example `version 17: missing group: node n2, partition 3 of zone 5, table orders`."""
        parts = [f"node {self.node}"] if self.node else []
        if self.partition is not None:
            parts.append(f"partition {self.partition[1]} of zone {self.partition[0]}")
        if self.object:
            parts.append(self.object)
        what = f"{self.kind}: {', '.join(parts)}" if parts else str(self.kind)
        return f"version {self.version}: {what}" if self.version else what
