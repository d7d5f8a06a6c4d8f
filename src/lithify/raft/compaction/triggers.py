"""Decides when a group's segments are due for a merge (phase 3).

1. `after_drops` runs of phase 1 have ended since the last merge began.
2. `dead_ratio` of the entries, or `dead_bytes` of the bytes, are dead. The counts are those known
   without reading a segment. Dead entries that the last merge could not remove do not count.

Each threshold has its own setting (`settings.py`). The queue of runs measures the interval. Pure;
the group's thread calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.compaction.planning.plan import SegmentStats
    from lithify.raft.compaction.settings import GroupCompactionSettings

__all__ = ["MergeTriggers"]


@dataclass(frozen=True, slots=True)
class _Dead:
    """Dead entries and bytes up to the horizon."""

    entries: int = 0
    size_bytes: int = 0
    total_entries: int = 0

    @classmethod
    def of(cls, stats: Sequence[SegmentStats]) -> _Dead:
        return cls(
            sum(each.entries - each.live_entries for each in stats),
            sum(each.dead_bytes for each in stats),
            sum(each.entries for each in stats),
        )


class MergeTriggers:
    """See the module."""

    def __init__(self, settings: GroupCompactionSettings) -> None:
        self._settings = settings
        self._drops = 0
        self._remaining = _Dead()
        """What the last merge has not removed."""

    def by_drop(self, stats: Sequence[SegmentStats], kept: Sequence[SegmentStats]) -> str:
        """Count a drop, if there were segments to judge; the threshold reached, or empty."""
        settings, dead = self._settings, _Dead.of(kept)
        self._drops += bool(stats)
        entries = dead.entries - self._remaining.entries
        size_bytes = dead.size_bytes - self._remaining.size_bytes
        if settings.after_drops is not None and self._drops >= settings.after_drops:
            return f"{self._drops} drops, threshold {settings.after_drops}"
        if settings.dead_ratio is not None and (
            entries > 0 and entries >= settings.dead_ratio * dead.total_entries
        ):
            ratio = settings.dead_ratio
            return f"{entries} of {dead.total_entries} entries are dead, threshold {ratio:.0%}"
        if settings.dead_bytes is not None and size_bytes >= settings.dead_bytes:
            return f"{size_bytes} bytes are dead, threshold {settings.dead_bytes}"
        return ""

    def record_begin(self) -> None:
        """Count drops from zero: a merge begins."""
        self._drops = 0

    def record_job(self, stats: Sequence[SegmentStats], *, merged: bool) -> None:
        """After a job: note what is dead in the segments, if it was a merge or less is dead."""
        dead = _Dead.of(stats)
        if merged or dead.entries < self._remaining.entries:
            self._remaining = dead
