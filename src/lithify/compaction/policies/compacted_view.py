"""The policy `view`: maintains a compacted view at a cost proportional to its changes.

1. Segments without live entries are dropped.
2. Small neighbours are merged. The size class of a segment says how often its live bytes can be
   multiplied by 8 and still fit into a target; class 0 is large. From the highest class down, a
   stretch of 8 or more neighbours of at least that class is merged, if the largest has no more than
   half of their bytes. So a copied entry lands in a segment at least twice as large as before, and
   is copied only a few times until its segment has the size of a target. The view has few segments,
   however small the runs that add to it.
3. Of the others, segments with less than `density_min` of their bytes live are rewritten, adjacent
   ones together. At 0.7, about twice as many bytes are rewritten as are new.
4. If the sum exceeds `rewrite_bytes_max`, the groups that free most per byte written come first,
   the oldest first on a tie, and the others wait for the next run. The first group is always taken,
   so that every run makes progress. Segments of a view age together: without the cap a single run
   could have to rewrite most of it.

Pure.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from lithify.compaction.planning.plan import human_bytes
from lithify.compaction.policies.packing import (
    LOG_BYTES_MAX,
    NOTHING_TO_GAIN,
    Limits,
    assemble,
    at_least,
    groups_of,
    runs_of,
)
from lithify.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from lithify.compaction.planning.plan import Plan, SegmentGroup, SegmentStats

__all__ = ["plan_view"]

NEIGHBOURS_MIN = 8
"""Least number of small neighbours to merge, and the ratio between size classes."""


def plan_view(
    segments: Sequence[SegmentStats],
    limits: Limits,
    *,
    density_min: float = 0.7,
    rewrite_bytes_max: float = LOG_BYTES_MAX,
) -> Plan:
    """Drop dead segments, rewrite sparse ones, merge small ones; see the module."""
    if not 0 <= density_min <= 1:
        raise InvalidSetting("density_min", density_min, "0 to 1")
    at_least("rewrite_bytes_max", int(rewrite_bytes_max), 1)
    dead: list[SegmentStats] = []
    groups: list[SegmentGroup] = []
    for run in runs_of(segments):
        dead.extend(segment for segment in run if segment.is_dead)
        live = [segment for segment in run if not segment.is_dead]
        groups.extend(_groups(live, limits, density_min))
    place = {segment.id: at for at, segment in enumerate(segments)}
    groups.sort(key=lambda group: place[group.sources[0]])
    chosen = _within(groups, int(rewrite_bytes_max), limits.overhead_bytes)
    waiting = {source for group in groups for source in group.sources}
    cap = f"waits: a run rewrites {human_bytes(int(rewrite_bytes_max))}, others free more for it"

    def why_kept(segment: SegmentStats) -> str:
        if segment.id in waiting:
            return cap
        if segment.live_bytes < segment.bytes:
            return f"dense: {segment.live_bytes / segment.bytes:.0%} live"
        return NOTHING_TO_GAIN

    return assemble("view", segments, limits, dead=dead, groups=chosen, why_kept=why_kept)


def _groups(
    live: Sequence[SegmentStats], limits: Limits, density_min: float
) -> Iterator[SegmentGroup]:
    """The groups worth rewriting in one run of neighbours, without the cap."""
    classes = {segment.id: _size_class(segment, limits) for segment in live}
    taken: set[int] = set()
    for size_class in range(max(classes.values(), default=0), 0, -1):
        small = {id_ for id_, found in classes.items() if found >= size_class} - taken
        for stretch in _stretches(live, small):
            sizes = [segment.live_bytes for segment in stretch]
            if len(stretch) >= NEIGHBOURS_MIN and 2 * max(sizes) <= sum(sizes):
                taken.update(segment.id for segment in stretch)
                yield from groups_of(stretch, limits, f"{len(stretch)} small neighbours")

    sparse = {s.id for s in live if s.live_bytes < density_min * s.bytes} - taken
    for stretch in _stretches(live, sparse):
        yield from groups_of(stretch, limits, f"under {density_min:.0%} live")


def _stretches(
    segments: Sequence[SegmentStats], wanted: AbstractSet[int]
) -> Iterator[list[SegmentStats]]:
    """Maximal stretches of neighbours whose ids are all wanted."""
    for is_wanted, stretch in groupby(segments, lambda segment: segment.id in wanted):
        if is_wanted:
            yield list(stretch)


def _size_class(segment: SegmentStats, limits: Limits) -> int:
    size_class, size = 0, segment.live_bytes * NEIGHBOURS_MIN
    while size <= limits.target_bytes_max:
        size_class += 1
        size *= NEIGHBOURS_MIN
    return size_class


def _within(
    groups: Sequence[SegmentGroup], bytes_max: int, overhead_bytes: int
) -> list[SegmentGroup]:
    """The groups within the cap, in log order."""

    def cost(number: int) -> tuple[float, int]:
        group = groups[number]
        freed = group.bytes - group.live_bytes + overhead_bytes * (len(group.sources) - 1)
        return group.live_bytes / max(freed, 1), number

    chosen: list[int] = []
    left = bytes_max
    for number in sorted(range(len(groups)), key=cost):
        if not chosen or groups[number].live_bytes <= left:
            chosen.append(number)
            left -= groups[number].live_bytes
    return [groups[number] for number in sorted(chosen)]
