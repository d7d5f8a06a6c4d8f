"""The policy `neighbours`: merges adjacent segments that fit into one, and rewrites sparse ones.

The segments of Raft groups are compacted by it. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.compaction.planning.plan import Plan, SegmentGroup, SegmentStats, human_bytes
from lithify.compaction.policies.packing import Limits, assemble, pack, runs_of
from lithify.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DENSITY_MIN", "plan_neighbours"]

DENSITY_MIN = 0.5
"""A segment is sparse below this share of live entries or bytes."""


def plan_neighbours(
    segments: Sequence[SegmentStats], limits: Limits, *, density_min: float = DENSITY_MIN
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
