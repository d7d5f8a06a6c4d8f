"""Policies: pure functions from segment statistics to a `Plan`.

| name | function | what it rewrites | rounds until it is idle |
|---|---|---|---|
| `whole-dead` | `plan_whole_dead` | nothing, only drops | 1 |
| `all` | `plan_all` | everything, packed up to the target limits | 1 |
| `stats` | `plan_stats_based` | the range that frees segments most cheaply | one per segment |
| `neighbours` | `plan_neighbours` | neighbours that fit into one, sparse segments | a few |
| `hybrid` | `plan_hybrid` | as `stats`, periodically as `all` | as the one it used |
| `view` | `plan_view` | sparse segments and runs of small ones, up to a cap | a few |

A round is a plan applied to the statistics, with no further deaths meanwhile.

Installed packages may add policies (`plugins.py`).

All policies share validation, cutting and packing (`packing.py`); `view` is in `view.py`.

Each group becomes one segment with its live bytes, and no policy makes a group without live
entries. So no plan makes a log larger, and every non-empty plan makes progress.

Pure: no files, clocks, threads or randomness.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.planning.plan import Plan, SegmentGroup, SegmentStats, human_bytes
from lithify.compaction.policies.compacted_view import plan_view
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
from lithify.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "LOG_BYTES_MAX",
    "POLICIES",
    "Limits",
    "plan_all",
    "plan_hybrid",
    "plan_neighbours",
    "plan_stats_based",
    "plan_view",
    "plan_whole_dead",
]


def plan_whole_dead(segments: Sequence[SegmentStats], limits: Limits) -> Plan:
    """Drop the segments without live entries; copies nothing."""
    dead = [segment for run in runs_of(segments) for segment in run if segment.is_dead]
    return assemble(
        "whole-dead", segments, limits, dead=dead, why_kept=lambda _: "has live entries"
    )


def plan_all(segments: Sequence[SegmentStats], limits: Limits) -> Plan:
    """Drop dead segments and pack all others, whatever the gain."""
    dead: list[SegmentStats] = []
    groups: list[SegmentGroup] = []
    for run in runs_of(segments):
        dead.extend(segment for segment in run if segment.is_dead)
        groups.extend(groups_of(run, limits, "everything is packed"))
    return assemble(
        "all", segments, limits, dead=dead, groups=groups, why_kept=lambda _: NOTHING_TO_GAIN
    )


def plan_stats_based(
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


def plan_neighbours(
    segments: Sequence[SegmentStats], limits: Limits, *, density_min: float = 0.5
) -> Plan:
    """Merge adjacent segments whose live entries fit into one target, at most `sources_max` each.

    A group of several sources frees at least one file. A segment that fits with no neighbour is
    rewritten alone if less than `density_min` of it is live, by entries or by bytes, otherwise
    kept. A segment above the limits of a target is kept, whatever is dead in it.
    """
    if not 0 < density_min <= 1:
        raise InvalidSetting("density_min", density_min, "above 0 and at most 1")
    dead: list[SegmentStats] = []
    groups: list[SegmentGroup] = []
    reasons: dict[int, str] = {}
    for run in runs_of(segments):
        dead.extend(segment for segment in run if segment.is_dead)
        for sources in pack(run, limits, limits.sources_max):
            reason = _why_kept_alone(sources[0], limits, density_min)
            if len(sources) > 1:
                groups.append(SegmentGroup.of(sources, "neighbours fit into one"))
            elif reason is None:
                groups.append(SegmentGroup.of(sources, "sparse"))
            else:
                reasons[sources[0].id] = reason
    return assemble(
        "neighbours",
        segments,
        limits,
        dead=dead,
        groups=groups,
        why_kept=lambda kept: reasons[kept.id],
    )


def plan_hybrid(
    segments: Sequence[SegmentStats],
    limits: Limits,
    *,
    last_full_ms: int,
    now_ms: int,
    full_every_ms: int,
    benefit_segments_min: int = 1,
) -> Plan:
    """Use `stats`, or `all` if the last full plan is `full_every_ms` old.

    `last_full_ms` is 0 for a log without a full plan. The plan's policy says which one made it,
    `hybrid:all` or `hybrid:stats`; the caller records when a full one was published.
    """
    at_least("full_every_ms", full_every_ms, 0)
    is_due = now_ms - last_full_ms >= full_every_ms
    if is_due:
        plan = plan_all(segments, limits)
    else:
        plan = plan_stats_based(segments, limits, benefit_segments_min=benefit_segments_min)
    return replace(plan, policy=f"hybrid:{plan.policy}")


POLICIES: Mapping[str, Callable[..., Plan]] = MappingProxyType(
    {
        "whole-dead": plan_whole_dead,
        "all": plan_all,
        "stats": plan_stats_based,
        "neighbours": plan_neighbours,
        "hybrid": plan_hybrid,
        "view": plan_view,
    }
)
"""Each takes the segments, the limits and its own options as keyword arguments."""


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


def _why_kept_alone(segment: SegmentStats, limits: Limits, density_min: float) -> str | None:
    """Why `neighbours` keeps a segment that fits with no neighbour; None if it is rewritten."""
    density = min(segment.live_entries / segment.entries, segment.live_bytes / segment.bytes)
    if not limits.admit([segment]):
        return (
            f"its {segment.live_entries} live entries of {human_bytes(segment.live_bytes)} are "
            "above the limits of a target"
        )
    if density >= density_min:
        return f"{density:.0%} live, and merges with no neighbour"
    return None
