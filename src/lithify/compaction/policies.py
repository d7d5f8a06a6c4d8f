"""Policies: pure functions from segment statistics to a `Plan`.

| name | function | what it rewrites | rounds until it has no more to do |
|---|---|---|---|
| `whole-dead` | `plan_whole_dead` | nothing, only drops | 1 |
| `all` | `plan_all` | everything, packed up to the target limits | 1 |
| `stats` | `plan_stats_based` | the range that frees a segment most cheaply | one a segment |
| `sparse` | `plan_sparse_neighbours` | neighbours of which little is live | 1 |
| `hybrid` | `plan_hybrid` | as `stats`, from time to time as `all` | as the one it used |

A round is a plan applied to the statistics, with nothing else dying meanwhile.

All of them work the same way:

1. Check that ids are unique, positions ascend and the sizes add up below `LOG_BYTES_MAX`.
2. Cut the log into runs at every active or busy segment; those are kept, and no group spans one.
3. Choose inside each run. A segment with no live entry can only be dropped, is never a source
   and never separates its neighbours.
4. Pack live segments into groups: in log order, a segment joins the open group if the target
   stays within the limits, else it opens the next one. A segment that is above the limits alone
   is a group alone. No group of several sources therefore exceeds the limits, and no two
   neighbouring targets would fit into one, which is why `all` needs a single round.
5. A group of one source with no dead byte would gain nothing: it is kept.

Each group becomes one segment of its live bytes and no policy makes a group of nothing, so that
no plan makes a log larger and every plan that is not empty makes progress.

Nothing here touches files, clocks, threads or randomness; anybody may call it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.plan import Dropped, Group, Kept, Plan, SegmentStats, human_bytes
from lithify.errors import InvalidInput, InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = [
    "LOG_BYTES_MAX",
    "POLICIES",
    "Limits",
    "plan_all",
    "plan_by_name",
    "plan_hybrid",
    "plan_sparse_neighbours",
    "plan_stats_based",
    "plan_whole_dead",
]

LOG_BYTES_MAX = 2**53
"""8 PiB: up to here a sum of sizes is exact as a float, so that equal costs compare as equal."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a plan: the target of a group, its number of sources, the cost of a file.

    `sources_max` binds the policy `sparse` only. `overhead_bytes` is what a segment file takes
    beyond its frames.
    """

    target_bytes_max: int
    target_entries_max: int
    sources_max: int = 8
    overhead_bytes: int = 160

    def __post_init__(self) -> None:
        _at_least("target_bytes_max", self.target_bytes_max, 1)
        _at_least("target_entries_max", self.target_entries_max, 1)
        _at_least("sources_max", self.sources_max, 1)
        _at_least("overhead_bytes", self.overhead_bytes, 0)

    def admit(self, sources: Sequence[SegmentStats]) -> bool:
        """Whether one target may hold what is live in `sources`."""
        return (
            sum(source.live_bytes for source in sources) <= self.target_bytes_max
            and sum(source.live_entries for source in sources) <= self.target_entries_max
        )


def plan_whole_dead(segments: Sequence[SegmentStats], limits: Limits) -> Plan:
    """Drop the segments with no live entry and leave the rest alone; copies nothing."""
    dead = [segment for run in _runs(segments) for segment in run if segment.is_dead]
    return _assemble(
        "whole-dead", segments, limits, dead=dead, why_kept=lambda _: "has live entries"
    )


def plan_all(segments: Sequence[SegmentStats], limits: Limits) -> Plan:
    """Drop what is dead and pack everything else, however little that gains."""
    dead: list[SegmentStats] = []
    groups: list[Group] = []
    for run in _runs(segments):
        dead.extend(segment for segment in run if segment.is_dead)
        groups.extend(_groups(run, limits, "everything is packed"))
    return _assemble(
        "all", segments, limits, dead=dead, groups=groups, why_kept=lambda _: _NOTHING_TO_GAIN
    )


def plan_stats_based(
    segments: Sequence[SegmentStats], limits: Limits, *, benefit_segments_min: int = 1
) -> Plan:
    """Rewrite the contiguous range that copies the fewest bytes for each segment it frees.

    Cost is the live bytes of the range. Benefit is the number of its segments less the number of
    targets that packing makes of them. The latter is not simply the live bytes divided by the
    target size, rounded up: a source is never split over two targets, and the entry limit binds
    too. With the quotient a range could promise a segment that packing never frees, win every
    round and starve all others.

    A range with a benefit under `benefit_segments_min` does not count. On a tie the earliest
    range wins, then the widest. Time is quadratic in the number of segments.
    """
    _at_least("benefit_segments_min", benefit_segments_min, 1)
    best: _Range | None = None
    for run in _runs(segments):
        found = _cheapest_range(run, limits, benefit_segments_min)
        if found and (best is None or found.ratio < best.ratio):
            best = found
    if best is None:
        reason = f"no range frees {benefit_segments_min} or more segments"
        return _assemble("stats", segments, limits, why_kept=lambda _: reason)
    chosen = {segment.id for segment in best.segments}
    return _assemble(
        "stats",
        segments,
        limits,
        dead=[segment for segment in best.segments if segment.is_dead],
        groups=_groups(best.segments, limits, best.reason()),
        why_kept=lambda kept: _NOTHING_TO_GAIN if kept.id in chosen else "outside the best range",
    )


def plan_sparse_neighbours(
    segments: Sequence[SegmentStats], limits: Limits, *, density_min: float = 0.5
) -> Plan:
    """Merge adjacent segments of which less than `density_min` is live, by entries or by bytes.

    A dense segment closes the open group, and so does a sparse one that is above the limits
    alone: both are kept. A sparse one that does not fit opens the next group. A group may have
    one source, since a sparse segment always has dead bytes to free.
    """
    if not 0 < density_min <= 1:
        raise InvalidSetting("density_min", density_min, "above 0 and at most 1")
    dead: list[SegmentStats] = []
    members: list[list[SegmentStats]] = []
    reasons: dict[int, str] = {}
    for run in _runs(segments):
        group: list[SegmentStats] = []
        for segment in run:
            if segment.is_dead:
                dead.append(segment)
                continue
            if reason := _unfit(segment, limits, density_min):
                reasons[segment.id] = reason
                group = []
                continue
            if not group or len(group) == limits.sources_max or not limits.admit([*group, segment]):
                group = []
                members.append(group)
            group.append(segment)
    groups = [Group.of(group, "sparse neighbours") for group in members]
    return _assemble(
        "sparse", segments, limits, dead=dead, groups=groups, why_kept=lambda kept: reasons[kept.id]
    )


def plan_hybrid(
    segments: Sequence[SegmentStats],
    limits: Limits,
    *,
    last_full_ms: int,
    now_ms: int,
    full_every_ms: int,
) -> Plan:
    """As `stats`, but as `all` once the last full plan is `full_every_ms` old.

    A log that never had a full plan has 0 for `last_full_ms`. The plan's policy says which one
    made it, `hybrid:all` or `hybrid:stats`; the caller remembers when a full one was published.
    """
    _at_least("full_every_ms", full_every_ms, 0)
    is_due = now_ms - last_full_ms >= full_every_ms
    plan = plan_all(segments, limits) if is_due else plan_stats_based(segments, limits)
    return replace(plan, policy=f"hybrid:{plan.policy}")


POLICIES: Mapping[str, Callable[..., Plan]] = MappingProxyType(
    {
        "whole-dead": plan_whole_dead,
        "all": plan_all,
        "stats": plan_stats_based,
        "sparse": plan_sparse_neighbours,
        "hybrid": plan_hybrid,
    }
)
"""Each takes the segments, the limits and its own options by keyword."""


def plan_by_name(
    name: str, segments: Sequence[SegmentStats], limits: Limits, **options: float
) -> Plan:
    """The plan of the policy called `name`; `options` are those of its function."""
    if name not in POLICIES:
        raise InvalidSetting("policy", name, "one of " + ", ".join(POLICIES))
    return POLICIES[name](segments, limits, **options)


_NOTHING_TO_GAIN = "fully live and merges with no neighbour"


@dataclass(frozen=True, slots=True)
class _Range:
    """Neighbours in one run, with what rewriting them costs and frees."""

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

    All starts are worked on at once. Step `width` adds to each range its segment number `width`,
    packing it as `_pack` does, so that after it the arrays describe the range of `width` segments
    from every start that has so many.
    """
    live_bytes = np.array([segment.live_bytes for segment in run], np.int64)
    live_entries = np.array([segment.live_entries for segment in run], np.int64)
    bytes_max = min(limits.target_bytes_max, LOG_BYTES_MAX)
    entries_max = min(limits.target_entries_max, LOG_BYTES_MAX)
    # An overfull target to start with makes the first live segment open a new one.
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
    benefit = len(chosen) - len(_pack(chosen, limits))
    return _Range(chosen, sum(segment.live_bytes for segment in chosen), benefit)


def _pack(segments: Iterable[SegmentStats], limits: Limits) -> list[list[SegmentStats]]:
    """Step 4 of the module: the sources of each target, also of those not worth a rewrite."""
    packed: list[list[SegmentStats]] = []
    room_bytes = room_entries = -1
    for segment in segments:
        if segment.is_dead:
            continue
        if segment.live_bytes > room_bytes or segment.live_entries > room_entries:
            packed.append([])
            room_bytes, room_entries = limits.target_bytes_max, limits.target_entries_max
        packed[-1].append(segment)
        room_bytes -= segment.live_bytes
        room_entries -= segment.live_entries
    return packed


def _groups(segments: Iterable[SegmentStats], limits: Limits, reason: str) -> list[Group]:
    """Steps 4 and 5 of the module."""
    return [
        Group.of(sources, reason)
        for sources in _pack(segments, limits)
        if len(sources) > 1 or sources[0].dead_bytes > 0
    ]


def _unfit(segment: SegmentStats, limits: Limits, density_min: float) -> str | None:
    """Why `sparse` keeps this segment, or `None` when it is to be rewritten."""
    density = min(segment.live_entries / segment.entries, segment.live_bytes / segment.bytes)
    if density >= density_min:
        return f"dense: {density:.0%} live"
    if not limits.admit([segment]):
        return (
            f"sparse, but its {segment.live_entries} live entries of "
            f"{human_bytes(segment.live_bytes)} are above the limits of a target"
        )
    return None


def _runs(segments: Sequence[SegmentStats]) -> Iterator[list[SegmentStats]]:
    """Steps 1 and 2 of the module: the stretches a plan may touch, none of them empty."""
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


def _assemble(
    policy: str,
    segments: Sequence[SegmentStats],
    limits: Limits,
    *,
    dead: Iterable[SegmentStats] = (),
    groups: Sequence[Group] = (),
    why_kept: Callable[[SegmentStats], str],
) -> Plan:
    """The plan that drops `dead`, rewrites `groups` and keeps all the others."""
    dropped = tuple(Dropped(segment.id, segment.bytes, "no live entry") for segment in dead)
    touched = {item.segment for item in dropped}
    touched.update(source for group in groups for source in group.sources)
    kept = tuple(
        Kept(segment.id, segment.blocked_by or why_kept(segment))
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


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidSetting(name, value, f"at least {least}")
