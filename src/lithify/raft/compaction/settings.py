"""The compaction settings of a group, checked when they are created. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from lithify.compaction.limits.budget import Budget
from lithify.compaction.limits.pace_by_latency import PaceSettings
from lithify.settings import check_range

__all__ = ["GroupCompactionSettings"]

LINK_KEEP_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupCompactionSettings:
    """Triggers and limits of merges (phase 3). A trigger that is None is off."""

    after_drops: int | None = 8
    """Runs of phase 1 after which a merge is due."""
    dead_ratio: float | None = None
    """Share of dead entries, up to the horizon, at which a merge is due."""
    dead_bytes: int | None = None
    """Estimated dead bytes, up to the horizon, at which a merge is due."""
    interval_ms: int | None = None
    """Time between two merges."""
    link_keep_ms: int = LINK_KEEP_MS
    """Time for which the old names of merged segments link to the merged one."""
    budget: Budget = field(default_factory=Budget)
    pace: PaceSettings = field(default_factory=PaceSettings)
    """How a run slows down while appends to the write-ahead log take longer."""

    def __post_init__(self) -> None:
        check_range("after_drops", self.after_drops, 1, 2**31)
        check_range("dead_ratio", self.dead_ratio, 0, 1)
        check_range("dead_bytes", self.dead_bytes, 1, 2**62)
        check_range("interval_ms", self.interval_ms, 1, 2**48)
        check_range("link_keep_ms", self.link_keep_ms, 0, 2**48)
