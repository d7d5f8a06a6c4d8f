"""The policies by name: pure functions from segment statistics to a `Plan`.

| name | function | what it rewrites | rounds until it is idle |
|---|---|---|---|
| `whole-dead` | `plan_whole_dead` | nothing, only drops | 1 |
| `all` | `plan_all` | everything, packed up to the target limits | 1 |
| `stats` | `plan_cheapest_range` | the range that frees segments most cheaply | one per segment |
| `neighbours` | `plan_neighbours` | neighbours that fit into one, sparse segments | a few |
| `hybrid` | `plan_hybrid` | as `stats`, periodically as `all` | as the one it used |
| `view` | `plan_view` | sparse segments and runs of small ones, up to a cap | a few |

A round is a plan applied to the statistics, with no further deaths meanwhile.

Installed packages may add policies (`plugins.py`).

All policies share validation, cutting and packing (`packing.py`). `stats` is in
`cheapest_range.py`, `neighbours` in `merge_sparse_neighbours.py`, `view` in `compacted_view.py`,
the others are here.

Each group becomes one segment with its live bytes, and no policy makes a group without live
entries. So no plan makes a log larger, and every non-empty plan makes progress.

Pure: no files, clocks, threads or randomness.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lithify.compaction.policies.cheapest_range import plan_cheapest_range
from lithify.compaction.policies.compacted_view import plan_view
from lithify.compaction.policies.merge_sparse_neighbours import plan_neighbours
from lithify.compaction.policies.packing import (
    LOG_BYTES_MAX,
    NOTHING_TO_GAIN,
    Limits,
    assemble,
    at_least,
    groups_of,
    runs_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lithify.compaction.planning.plan import Plan, SegmentGroup, SegmentStats

__all__ = [
    "LOG_BYTES_MAX",
    "POLICIES",
    "Limits",
    "plan_all",
    "plan_hybrid",
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
        plan = plan_cheapest_range(segments, limits, benefit_segments_min=benefit_segments_min)
    return replace(plan, policy=f"hybrid:{plan.policy}")


POLICIES: Mapping[str, Callable[..., Plan]] = MappingProxyType(
    {
        "whole-dead": plan_whole_dead,
        "all": plan_all,
        "stats": plan_cheapest_range,
        "neighbours": plan_neighbours,
        "hybrid": plan_hybrid,
        "view": plan_view,
    }
)
"""Each takes the segments, the limits and its own options as keyword arguments."""
