"""What holds for every policy on every log: the bounds in `compaction/policies/built_in.py`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lithify.compaction.planning.plan import Plan, SegmentStats, apply_plan
from lithify.compaction.policies.built_in import Limits, plan_all, plan_hybrid, plan_whole_dead
from lithify.compaction.policies.cheapest_range import plan_cheapest_range
from lithify.compaction.policies.compacted_view import plan_view
from lithify.compaction.policies.merge_sparse_neighbours import plan_neighbours

if TYPE_CHECKING:
    from collections.abc import Callable

    Policy = Callable[[tuple[SegmentStats, ...], Limits], Plan]


@st.composite
def logs(draw: st.DrawFn) -> tuple[SegmentStats, ...]:
    """Any valid log: gaps between positions, ids in any order, dead bytes with or without
    dead entries, segments with nothing in them, active and busy ones anywhere."""
    ids = draw(st.lists(st.integers(0, 99), unique=True, max_size=12))
    segments = []
    position = 0
    for segment in ids:
        entries = draw(st.integers(0, 12))
        live_entries = draw(st.integers(0, entries))
        live_bytes = live_entries and draw(st.integers(1, 60))
        dead_bytes = draw(st.integers(min(entries - live_entries, 1), 60)) if entries else 0
        first_position = position + draw(st.integers(0, 3))
        position = first_position + entries
        segments.append(
            SegmentStats(
                id=segment,
                first_position=first_position,
                last_position=position - 1,
                entries=entries,
                bytes=live_bytes + dead_bytes,
                live_entries=live_entries,
                live_bytes=live_bytes,
                sealed=draw(st.sampled_from([True] * 7 + [False])),
                busy=draw(st.sampled_from([False] * 7 + [True])),
            )
        )
    return tuple(segments)


limits_values = st.builds(
    Limits,
    target_bytes_max=st.integers(1, 200) | st.just(2**70),
    target_entries_max=st.integers(1, 40) | st.just(2**70),
    sources_max=st.integers(1, 5),
    overhead_bytes=st.integers(0, 200),
)

stats_policies = st.builds(
    lambda least: partial(plan_cheapest_range, benefit_segments_min=least), st.integers(1, 3)
)
neighbours_policies = st.builds(
    lambda density: partial(plan_neighbours, density_min=density),
    st.floats(0, 1, exclude_min=True),
)
hybrid_policies = st.builds(
    lambda now_ms: partial(plan_hybrid, last_full_ms=10, now_ms=now_ms, full_every_ms=10),
    st.integers(0, 30),
)
view_policies = st.builds(
    lambda density, cap: partial(plan_view, density_min=density, rewrite_bytes_max=cap),
    st.floats(0, 1),
    st.integers(1, 300) | st.just(2**50),
)
policies = (
    st.sampled_from([plan_whole_dead, plan_all])
    | stats_policies
    | neighbours_policies
    | hybrid_policies
    | view_policies
)


def disk_bytes(segments: tuple[SegmentStats, ...], limits: Limits) -> int:
    return sum(segment.bytes + limits.overhead_bytes for segment in segments)


def live_totals(segments: tuple[SegmentStats, ...]) -> tuple[int, int]:
    return sum(stats.live_entries for stats in segments), sum(s.live_bytes for s in segments)


@given(policies, logs(), limits_values)
def test_every_segment_is_in_exactly_one_place(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    plan = policy(segments, limits)
    assert sorted(plan.segments()) == sorted(segment.id for segment in segments)
    assert all(kept.reason for kept in plan.kept)


@given(policies, logs(), limits_values)
def test_active_and_busy_segments_are_kept(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    kept = {item.segment: item.reason for item in policy(segments, limits).kept}
    for segment in segments:
        if not segment.sealed:
            assert kept[segment.id] == "active"
        elif segment.busy:
            assert kept[segment.id] == "busy"


@given(policies, logs(), limits_values)
def test_only_dead_segments_are_dropped_and_only_live_ones_are_copied(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    plan = policy(segments, limits)
    live = {segment.id for segment in segments if segment.live_entries}
    assert live.isdisjoint(dropped.segment for dropped in plan.dropped)
    assert live.issuperset(source for group in plan.groups for source in group.sources)


@given(policies, logs(), limits_values)
def test_groups_are_adjacent_and_in_log_order(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    plan = policy(segments, limits)
    dropped = {item.segment for item in plan.dropped}
    rest = [segment.id for segment in segments if segment.id not in dropped]
    starts = []
    for group in plan.groups:
        starts.append(rest.index(group.sources[0]))
        assert tuple(rest[starts[-1] : starts[-1] + len(group.sources)]) == group.sources
    assert starts == sorted(starts)


@given(policies, logs(), limits_values)
def test_a_target_of_several_sources_is_within_the_limits(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    for group in policy(segments, limits).groups:
        if len(group.sources) > 1:
            assert group.live_bytes <= limits.target_bytes_max
            assert group.live_entries <= limits.target_entries_max


@given(neighbours_policies, logs(), limits_values)
def test_neighbours_obeys_every_limit_even_for_one_source(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    for group in policy(segments, limits).groups:
        assert len(group.sources) <= limits.sources_max
        assert group.live_bytes <= limits.target_bytes_max
        assert group.live_entries <= limits.target_entries_max


@given(policies, logs(), limits_values)
def test_applying_a_plan_frees_what_it_said_and_loses_nothing_live(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    plan = policy(segments, limits)
    after = apply_plan(plan, segments)
    by_id = {segment.id: segment for segment in segments}
    dropped = [by_id[each.segment] for each in plan.dropped]
    copied = [by_id[source] for group in plan.groups for source in group.sources]
    files = len(dropped) + len(copied) - len(plan.groups)
    assert plan.segments_freed == files
    dead_bytes = sum(each.bytes for each in dropped)
    dead_bytes += sum(each.bytes - each.live_bytes for each in copied)
    assert plan.bytes_freed == dead_bytes + files * limits.overhead_bytes
    assert disk_bytes(after, limits) == disk_bytes(segments, limits) - plan.bytes_freed
    assert len(after) == len(segments) - plan.segments_freed
    assert live_totals(after) == live_totals(segments)


@given(policies, logs(), limits_values)
def test_a_plan_that_is_not_empty_makes_progress(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    plan = policy(segments, limits)
    if not plan.is_empty:
        dead_bytes_freed = sum(group.bytes - group.live_bytes for group in plan.groups)
        assert plan.segments_freed > 0 or dead_bytes_freed > 0


@given(st.sampled_from([plan_whole_dead, plan_all]), logs(), limits_values)
def test_a_second_round_has_nothing_left_to_do(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    after = apply_plan(policy(segments, limits), segments)
    assert policy(after, limits).is_empty


@given(neighbours_policies, logs(), limits_values)
def test_neighbours_has_nothing_left_to_do_but_for_the_limit_of_sources(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    limits = replace(limits, sources_max=100)
    after = apply_plan(policy(segments, limits), segments)
    assert policy(after, limits).is_empty


@given(view_policies, logs(), limits_values)
def test_view_ends_after_a_few_rounds(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    rounds = 0
    after = segments
    while not (plan := policy(after, limits)).is_empty:
        after = apply_plan(plan, after)
        rounds += 1
        assert rounds <= 2 * len(segments)


@given(st.integers(1, 3), logs(), limits_values)
def test_stats_ends_after_at_most_one_round_a_segment(
    least: int, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    rounds = 0
    after = segments
    while not (plan := plan_cheapest_range(after, limits, benefit_segments_min=least)).is_empty:
        assert plan.segments_freed >= least
        after = apply_plan(plan, after)
        rounds += 1
        assert rounds * least <= len(segments)


@given(st.integers(1, 3), logs(), limits_values)
def test_stats_finds_the_range_that_trying_them_all_one_by_one_finds(
    least: int, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    best: tuple[float, int, int] | None = None
    for start in range(len(segments)):
        for end in range(start + 1, len(segments) + 1):
            chosen = segments[start:end]
            if any(segment.blocked_by for segment in chosen):
                break
            plan = plan_all(chosen, limits)
            if plan.segments_freed >= least:
                cost_bytes = live_totals(chosen)[1]
                rank = (cost_bytes / plan.segments_freed, start, -end)
                best = rank if best is None else min(best, rank)
    plan = plan_cheapest_range(segments, limits, benefit_segments_min=least)
    if best is None:
        assert plan.is_empty
    else:
        _, start, minus_end = best
        expected = plan_all(segments[start:-minus_end], limits)
        assert plan.dropped == expected.dropped
        assert [g.sources for g in plan.groups] == [g.sources for g in expected.groups]


@given(policies, logs(), limits_values)
def test_a_plan_survives_json_and_can_always_be_explained(
    policy: Policy, segments: tuple[SegmentStats, ...], limits: Limits
) -> None:
    plan = policy(segments, limits)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    lines = plan.explain().splitlines()
    assert len(lines) == 3 + len(plan.dropped) + len(plan.groups) + len(plan.kept)
