"""When a group's segments are merged without being asked: by drops, by what is dead, by time.

1. After `after_drops` runs of phase 1 since the last merge.
2. When `dead_ratio` of the entries, or `dead_bytes` of the bytes, are dead. Only what is known
   without reading is looked at. What the last merge has left because it could not be merged is not
   counted again.
3. Every `interval_ms`.

Each can be switched on alone (`settings.py`). Values and arithmetic; the group's thread calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.compaction.schedule import Trigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.compaction.plan import SegmentStats
    from lithify.raft.compaction.settings import CompactionSettings

__all__ = ["MergeTriggers"]


@dataclass(frozen=True, slots=True)
class _Dead:
    """What is dead in the compacting section."""

    entries: int = 0
    size_bytes: int = 0
    of_entries: int = 0

    @classmethod
    def of(cls, stats: Sequence[SegmentStats]) -> _Dead:
        return cls(
            sum(each.entries - each.live_entries for each in stats),
            sum(each.dead_bytes for each in stats),
            sum(each.entries for each in stats),
        )


class MergeTriggers:
    """See the module."""

    def __init__(self, settings: CompactionSettings, now_ms: int) -> None:
        self._settings = settings
        self._drops = 0
        self._left = _Dead()
        self._merged_ms = now_ms

    def by_time(self, now_ms: int) -> Trigger | None:
        """Is the interval over?"""
        interval_ms = self._settings.interval_ms
        is_over = interval_ms is not None and now_ms >= self._merged_ms + interval_ms
        return Trigger.PERIODIC if is_over else None

    def by_drop(
        self, stats: Sequence[SegmentStats], kept: Sequence[SegmentStats]
    ) -> Trigger | None:
        """Phase 1 has looked at segments and kept some of them: is a merge due now?"""
        settings, dead = self._settings, _Dead.of(kept)
        self._drops += bool(stats)
        entries = dead.entries - self._left.entries
        size_bytes = dead.size_bytes - self._left.size_bytes
        by_drops = settings.after_drops is not None and self._drops >= settings.after_drops
        by_ratio = settings.dead_ratio is not None and (
            entries > 0 and entries >= settings.dead_ratio * dead.of_entries
        )
        by_bytes = settings.dead_bytes is not None and size_bytes >= settings.dead_bytes
        return Trigger.THRESHOLD if by_drops or by_ratio or by_bytes else None

    def begun(self, now_ms: int) -> None:
        """A merge begins."""
        self._drops, self._merged_ms = 0, now_ms

    def failed(self, now_ms: int) -> None:
        """It has failed: the interval begins anew."""
        self._merged_ms = now_ms

    def ended(self, stats: Sequence[SegmentStats], *, merged: bool) -> None:
        """A job is over, and these are the segments; after a merge, what it has left."""
        dead = _Dead.of(stats)
        if merged or dead.entries < self._left.entries:
            self._left = dead
