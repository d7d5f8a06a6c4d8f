"""Which threshold calls for a merge of a group's segments: of drops, or of what is dead.

1. After `after_drops` runs of phase 1 since the last merge.
2. When `dead_ratio` of the entries, or `dead_bytes` of the bytes, are dead. Only what is known
   without reading is looked at. What the last merge has left because it could not be merged is not
   counted again.

Each can be switched on alone (`settings.py`). The queue of runs counts the interval itself. Values
and arithmetic; the group's thread calls.
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

    def __init__(self, settings: GroupCompactionSettings) -> None:
        self._settings = settings
        self._drops = 0
        self._left = _Dead()

    def by_drop(self, stats: Sequence[SegmentStats], kept: Sequence[SegmentStats]) -> str:
        """Phase 1 has looked at segments and kept some: which threshold was reached, as text."""
        settings, dead = self._settings, _Dead.of(kept)
        self._drops += bool(stats)
        entries = dead.entries - self._left.entries
        size_bytes = dead.size_bytes - self._left.size_bytes
        if settings.after_drops is not None and self._drops >= settings.after_drops:
            return f"{self._drops} drops, threshold {settings.after_drops}"
        if settings.dead_ratio is not None and (
            entries > 0 and entries >= settings.dead_ratio * dead.of_entries
        ):
            ratio = settings.dead_ratio
            return f"{entries} of {dead.of_entries} entries are dead, threshold {ratio:.0%}"
        if settings.dead_bytes is not None and size_bytes >= settings.dead_bytes:
            return f"{size_bytes} bytes are dead, threshold {settings.dead_bytes}"
        return ""

    def record_begin(self) -> None:
        """A merge begins."""
        self._drops = 0

    def record_job(self, stats: Sequence[SegmentStats], *, merged: bool) -> None:
        """A job is over, and these are the segments; after a merge, what it has left."""
        dead = _Dead.of(stats)
        if merged or dead.entries < self._left.entries:
            self._left = dead
