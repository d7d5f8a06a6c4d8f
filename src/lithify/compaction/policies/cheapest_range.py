"""The policy `stats`: rewrites the range of segments that costs least per segment freed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.planning.plan import Plan, SegmentStats, human_bytes
from lithify.compaction.policies.packing import (
    LOG_BYTES_MAX,
    NOTHING_TO_GAIN,
    Limits,
    assemble,
    at_least,
    groups_of,
    pack,
    runs_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["plan_cheapest_range"]


def plan_cheapest_range(
    segments: Sequence[SegmentStats], limits: Limits, *, benefit_segments_min: int = 1
) -> Plan:
    """Rewrite the contiguous range that copies the fewest bytes per segment freed.

    Cost is the live bytes of the range. Benefit is the number of its segments minus the number of
    targets after packing. That number is not simply the live bytes divided by the target size,
    rounded up: a source is never split between two targets, and the entry limit applies too. With
    the quotient a range could promise a segment that packing never frees, win every round and
    starve all others.

    Ranges with a benefit below `benefit_segments_min` are ignored. On a tie the earliest range
    wins, then the widest. Time is quadratic in the number of segments.
    """
    at_least("benefit_segments_min", benefit_segments_min, 1)
    best: _Range | None = None
    for run in runs_of(segments):
        found = _cheapest_range(run, limits, benefit_segments_min)
        if found and (best is None or found.ratio < best.ratio):
            best = found
    if best is None:
        reason = f"no range frees {benefit_segments_min} or more segments"
        return assemble("stats", segments, limits, why_kept=lambda _: reason)
    chosen = {segment.id for segment in best.segments}
    return assemble(
        "stats",
        segments,
        limits,
        dead=[segment for segment in best.segments if segment.is_dead],
        groups=groups_of(best.segments, limits, best.reason()),
        why_kept=lambda kept: NOTHING_TO_GAIN if kept.id in chosen else "outside the best range",
    )


@dataclass(frozen=True, slots=True)
class _Range:
    """Adjacent segments of one run, with cost and benefit of a rewrite."""

    segments: Sequence[SegmentStats]
    cost_bytes: int
    benefit_segments: int

    @property
    def ratio(self) -> float:
        return self.cost_bytes / self.benefit_segments

    def reason(self) -> str:
        return (
            f"best range: {human_bytes(self.cost_bytes)} live, "
            f"frees {self.benefit_segments} segments"
        )


def _cheapest_range(
    run: Sequence[SegmentStats], limits: Limits, benefit_segments_min: int
) -> _Range | None:
    """The best range of one run.

    All start positions are processed at once. Step `width` extends each range by one segment,
    packing it as `pack` does, so that after it the arrays describe the range of `width` segments
    from every start that has enough of them.
    """
    live_bytes = np.array([segment.live_bytes for segment in run], np.int64)
    live_entries = np.array([segment.live_entries for segment in run], np.int64)
    bytes_max = min(limits.target_bytes_max, LOG_BYTES_MAX)
    entries_max = min(limits.target_entries_max, LOG_BYTES_MAX)
    # Starting with an overfull target makes the first live segment open a new one.
    open_bytes = np.full(len(run), bytes_max + 1, np.int64)
    open_entries = np.zeros(len(run), np.int64)
    targets = np.zeros(len(run), np.int64)
    costs = np.zeros(len(run), np.int64)
    best = (np.inf, 0, 0)
    for width in range(1, len(run) + 1):
        starts = len(run) - width + 1
        more_bytes, more_entries = live_bytes[width - 1 :], live_entries[width - 1 :]
        costs = costs[:starts] + more_bytes
        open_bytes = open_bytes[:starts] + more_bytes
        open_entries = open_entries[:starts] + more_entries
        opens = (more_entries > 0) & ((open_bytes > bytes_max) | (open_entries > entries_max))
        open_bytes = np.where(opens, more_bytes, open_bytes)
        open_entries = np.where(opens, more_entries, open_entries)
        targets = targets[:starts] + opens
        benefits = width - targets
        ratios = np.where(benefits >= benefit_segments_min, costs / np.maximum(benefits, 1), np.inf)
        start = int(ratios.argmin())
        best = min(best, (float(ratios[start]), start, -width))
    ratio, start, minus_width = best
    if ratio == np.inf:
        return None
    chosen = run[start : start - minus_width]
    benefit = len(chosen) - len(pack(chosen, limits))
    return _Range(chosen, sum(segment.live_bytes for segment in chosen), benefit)
