"""The common parts of all policies: the limits, and packing segments into groups.

1. Check that ids are unique, positions ascend and the sizes add up below `LOG_BYTES_MAX`.
2. Cut the log into runs at every active or busy segment; those are kept, and no group spans one.
3. Select within each run: this part is the policy. A segment without live entries can only be
   dropped, is never a source and never separates its neighbours.
4. Pack live segments into groups: in log order, a segment joins the open group if target and
   sources stay within the limits, otherwise it opens the next one. A segment that exceeds the
   limits alone is a group of its own. So no group of several sources exceeds the limits, and,
   apart from the limit of the sources, no two neighbouring targets would fit into one.
5. A group of one source without dead bytes would gain nothing: the source is kept.

Pure; called by the policies.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from lithify.compaction.planning.plan import DroppedSegment, KeptSegment, Plan, SegmentGroup
from lithify.errors import InvalidInput, InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lithify.compaction.planning.plan import SegmentStats

__all__ = [
    "LOG_BYTES_MAX",
    "NOTHING_TO_GAIN",
    "Limits",
    "assemble",
    "at_least",
    "groups_of",
    "pack",
    "runs_of",
]

NOTHING_TO_GAIN = "fully live and merges with no neighbour"

LOG_BYTES_MAX = 2**53
"""8 PiB: up to here sums of sizes are exact as floats, so that equal costs compare as equal."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a plan: size of a target, number of sources, overhead of a file.

    `sources_max` applies to the policy `neighbours` only. `overhead_bytes` is the size of a segment
    file beyond its frames. `source_bytes_max` bounds the frames of a group's sources, including
    dead ones: a group is one task, which has to read past them.
    """

    target_bytes_max: int
    target_entries_max: int
    sources_max: int = 8
    overhead_bytes: int = 160
    source_bytes_max: int = LOG_BYTES_MAX

    def __post_init__(self) -> None:
        at_least("target_bytes_max", self.target_bytes_max, 1)
        at_least("target_entries_max", self.target_entries_max, 1)
        at_least("sources_max", self.sources_max, 1)
        at_least("overhead_bytes", self.overhead_bytes, 0)
        at_least("source_bytes_max", self.source_bytes_max, 1)

    def admit(self, sources: Sequence[SegmentStats]) -> bool:
        """May one target hold the live entries of `sources`?"""
        return (
            sum(source.live_bytes for source in sources) <= self.target_bytes_max
            and sum(source.bytes for source in sources) <= self.source_bytes_max
            and sum(source.live_entries for source in sources) <= self.target_entries_max
        )


def pack(
    segments: Iterable[SegmentStats], limits: Limits, sources_max: int = LOG_BYTES_MAX
) -> list[list[SegmentStats]]:
    """Step 4 of the module: the sources of each target, including those not worth a rewrite."""
    packed: list[list[SegmentStats]] = []
    for segment in segments:
        if segment.is_dead:
            continue
        is_full = not packed or len(packed[-1]) >= sources_max
        if is_full or not limits.admit([*packed[-1], segment]):
            packed.append([])
        packed[-1].append(segment)
    return packed


def groups_of(segments: Iterable[SegmentStats], limits: Limits, reason: str) -> list[SegmentGroup]:
    """Steps 4 and 5 of the module."""
    return [
        SegmentGroup.of(sources, reason)
        for sources in pack(segments, limits)
        if len(sources) > 1 or sources[0].dead_bytes > 0
    ]


def runs_of(segments: Sequence[SegmentStats]) -> Iterator[list[SegmentStats]]:
    """Steps 1 and 2 of the module: the non-empty runs that a plan may change."""
    _check_log(segments)
    run: list[SegmentStats] = []
    for segment in segments:
        if segment.blocked_by is None:
            run.append(segment)
        elif run:
            yield run
            run = []
    if run:
        yield run


def assemble(
    policy: str,
    segments: Sequence[SegmentStats],
    limits: Limits,
    *,
    dead: Iterable[SegmentStats] = (),
    groups: Sequence[SegmentGroup] = (),
    why_kept: Callable[[SegmentStats], str],
) -> Plan:
    """The plan that drops `dead`, rewrites `groups` and keeps all other segments."""
    dropped = tuple(DroppedSegment(segment.id, segment.bytes, "no live entry") for segment in dead)
    touched = {item.segment for item in dropped}
    touched.update(source for group in groups for source in group.sources)
    kept = tuple(
        KeptSegment(segment.id, segment.blocked_by or why_kept(segment))
        for segment in segments
        if segment.id not in touched
    )
    return Plan(policy, dropped, tuple(groups), kept, limits.overhead_bytes)


def _check_log(segments: Sequence[SegmentStats]) -> None:
    for segment, times in Counter(stats.id for stats in segments).items():
        if times > 1:
            raise InvalidInput(f"{times} segments have the id {segment}, must be unique")
    for before, after in pairwise(segments):
        if after.first_position <= before.last_position:
            raise InvalidInput(
                f"segment {after.id} starts at position {after.first_position}, must be above "
                f"{before.last_position}, where segment {before.id} before it ends"
            )
    total_bytes = sum(segment.bytes for segment in segments)
    total_entries = sum(segment.entries for segment in segments)
    if max(total_bytes, total_entries) > LOG_BYTES_MAX:
        raise InvalidInput(
            f"the segments have {total_entries} entries in {total_bytes} bytes, "
            f"must be at most {LOG_BYTES_MAX}"
        )


def at_least(name: str, value: int, least: int) -> None:
    """Raise if a setting is below its minimum."""
    if value < least:
        raise InvalidSetting(name, value, f"at least {least}")
