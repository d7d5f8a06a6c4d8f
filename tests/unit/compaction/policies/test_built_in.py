"""Policies as stories: a table of segments in, the explanation of the plan out.

A line of a table is `id live/entries live/bytes [active|busy]`. Every target may hold 10 entries
and 100 bytes, and a file costs nothing beyond its frames, unless a story says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from lithify.compaction.planning.plan import Plan, SegmentStats, apply_plan
from lithify.compaction.policies.built_in import (
    LOG_BYTES_MAX,
    POLICIES,
    Limits,
    plan_all,
    plan_hybrid,
    plan_whole_dead,
)
from lithify.compaction.policies.cheapest_range import plan_cheapest_range
from lithify.compaction.policies.merge_sparse_neighbours import plan_neighbours
from lithify.compaction.policies.plugins import plan_by_name
from lithify.errors import InvalidInput, InvalidSetting

LIMITS = Limits(target_bytes_max=100, target_entries_max=10, overhead_bytes=0)


def log(table: str) -> list[SegmentStats]:
    segments = []
    for place, line in enumerate(table.strip().splitlines()):
        name, counts, sizes, *flags = line.split()
        live_entries, entries = map(int, counts.split("/"))
        live_bytes, size_bytes = map(int, sizes.split("/"))
        segments.append(
            SegmentStats(
                id=int(name),
                first_position=place * 1000,
                last_position=place * 1000 + 999,
                entries=entries,
                bytes=size_bytes,
                live_entries=live_entries,
                live_bytes=live_bytes,
                sealed="active" not in flags,
                busy="busy" in flags,
            )
        )
    return segments


def story(plan: Plan) -> str:
    """The explanation without its total, blanks squeezed, so that a test can say it short."""
    _, _, *lines, _ = plan.explain().splitlines()
    return "\n".join(" ".join(line.split()) for line in lines)


def expect(text: str) -> str:
    return dedent(text).strip()


def test_whole_dead_drops_the_dead_and_copies_nothing() -> None:
    plan = plan_whole_dead(
        log("""
            1 0/5 0/50
            2 1/5 10/50
            3 0/5 0/50 busy
            4 0/0 0/0
            5 0/5 0/50 active
        """),
        LIMITS,
    )
    assert plan.explain() == expect("""
        policy whole-dead
        action  segments  live entries  live bytes   reason
        drop    1         0             0 B of 50 B  no live entry
        drop    4         0             0 B of 0 B   no live entry
        keep    2         -             -            has live entries
        keep    3         -             -            busy
        keep    5         -             -            active
        total: 2 dropped, 0 rewritten into 0, 3 kept; reads 0 B, writes 0 B, \
frees 50 B and 2 segments, at 0 B a file
    """)


def test_all_packs_in_order_up_to_the_bytes_of_a_target() -> None:
    plan = plan_all(
        log("""
            1 1/5 40/90
            2 1/5 60/90
            3 1/5 1/90
            4 0/5 0/90
            5 1/5 99/100
            6 1/1 50/50 active
        """),
        LIMITS,
    )
    assert plan.explain() == expect("""
        policy all
        action   segments  live entries  live bytes      reason
        drop     4         0             0 B of 90 B     no live entry
        rewrite  1-2       2 of 10       100 B of 180 B  everything is packed
        rewrite  3,5       2 of 10       100 B of 190 B  everything is packed
        keep     6         -             -               active
        total: 1 dropped, 4 rewritten into 2, 1 kept; reads 200 B, writes 200 B, \
frees 260 B and 3 segments, at 0 B a file
    """)


def test_all_packs_up_to_the_entries_of_a_target_as_well() -> None:
    plan = plan_all(log("1 6/8 6/8\n2 4/8 4/8\n3 1/8 1/8"), LIMITS)
    assert story(plan) == expect("""
        rewrite 1-2 10 of 16 10 B of 16 B everything is packed
        rewrite 3 1 of 8 1 B of 8 B everything is packed
    """)


def test_a_group_is_cut_where_its_task_would_have_too_much_to_read() -> None:
    table = "1 1/8 1/8\n2 1/8 1/8\n3 1/8 1/8"
    assert story(plan_all(log(table), replace(LIMITS, source_bytes_max=16))) == expect("""
        rewrite 1-2 2 of 16 2 B of 16 B everything is packed
        rewrite 3 1 of 8 1 B of 8 B everything is packed
    """)


def test_all_keeps_a_full_segment_that_stays_alone() -> None:
    plan = plan_all(log("1 9/9 90/90\n2 2/3 20/30\n3 10/10 95/95"), LIMITS)
    assert story(plan) == expect("""
        rewrite 2 2 of 3 20 B of 30 B everything is packed
        keep 1 - - fully live and merges with no neighbour
        keep 3 - - fully live and merges with no neighbour
    """)


def test_all_merges_full_segments_that_fit_into_one() -> None:
    plan = plan_all(log("1 2/2 20/20\n2 2/2 20/20"), replace(LIMITS, overhead_bytes=160))
    assert story(plan) == "rewrite 1-2 4 of 4 40 B of 40 B everything is packed"
    assert plan.bytes_freed == 160


def test_all_rewrites_a_segment_above_the_limits_alone_and_only_once() -> None:
    before = log("1 1/5 10/50\n2 9/9 150/200\n3 1/5 10/50")
    plan = plan_all(before, LIMITS)
    assert [group.sources for group in plan.groups] == [(1,), (2,), (3,)]
    assert plan_all(apply_plan(plan, before), LIMITS).is_empty


def test_a_batch_that_is_partly_live_is_worth_a_rewrite() -> None:
    plan = plan_all(log("1 5/5 30/50"), LIMITS)
    assert [group.sources for group in plan.groups] == [(1,)]


@pytest.mark.parametrize("flag", ["active", "busy"])
def test_no_group_spans_a_segment_that_must_not_be_touched(flag: str) -> None:
    segments = log(f"1 1/9 10/90\n2 1/9 10/90\n3 1/9 10/90 {flag}\n4 1/9 10/90\n5 1/9 10/90")
    for plan in (plan_all(segments, LIMITS), plan_neighbours(segments, LIMITS)):
        assert [group.sources for group in plan.groups] == [(1, 2), (4, 5)]
        assert [(kept.segment, kept.reason) for kept in plan.kept] == [(3, flag)]
    plan = plan_cheapest_range(segments, LIMITS)
    assert [group.sources for group in plan.groups] == [(1, 2)]


@pytest.mark.parametrize(
    ("now_ms", "policy", "sources"),
    [
        (900, "hybrid:stats", [(3, 4)]),
        (1999, "hybrid:stats", [(3, 4)]),
        (2000, "hybrid:all", [(1,), (2,), (3, 4)]),
    ],
)
def test_hybrid_packs_everything_after_its_interval(
    now_ms: int, policy: str, sources: list[tuple[int, ...]]
) -> None:
    segments = log("1 5/9 90/99\n2 5/9 90/99\n3 1/9 10/99\n4 1/9 10/99")
    plan = plan_hybrid(
        segments,
        replace(LIMITS, target_bytes_max=99),
        last_full_ms=1000,
        now_ms=now_ms,
        full_every_ms=1000,
    )
    assert plan.policy == policy
    assert [group.sources for group in plan.groups] == sources


def test_policies_are_found_by_name() -> None:
    segments = log("1 0/9 0/90\n2 4/9 40/90\n3 6/9 60/90")
    assert list(POLICIES) == ["whole-dead", "all", "stats", "neighbours", "hybrid", "view"]
    assert plan_by_name("whole-dead", segments, LIMITS).policy == "whole-dead"
    assert plan_by_name("all", segments, LIMITS).policy == "all"
    assert plan_by_name("stats", segments, LIMITS, benefit_segments_min=9).is_empty
    assert len(plan_by_name("neighbours", segments, LIMITS, density_min=0.7).groups) == 1
    times = {"last_full_ms": 0, "now_ms": 1, "full_every_ms": 1}
    assert plan_by_name("hybrid", segments, LIMITS, **times).policy == "hybrid:all"


def test_an_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(InvalidSetting) as error:
        plan_by_name("best", [], LIMITS)
    assert str(error.value) == (
        "setting policy is 'best', must be one of whole-dead, all, stats, neighbours, hybrid, view"
    )


@pytest.mark.parametrize("name", ["whole-dead", "all", "stats", "neighbours", "view"])
def test_a_log_without_segments_needs_nothing(name: str) -> None:
    assert plan_by_name(name, [], LIMITS) == Plan(name, (), (), (), 0)


@pytest.mark.parametrize("name", ["whole-dead", "all", "stats", "neighbours"])
def test_a_log_that_cannot_be_is_refused(name: str) -> None:
    first, second = log("1 1/9 1/9\n2 1/9 1/9")
    huge = replace(second, bytes=LOG_BYTES_MAX)
    for segments, complaint in (
        ([second, first], "segment 1 starts at position 0, must be above 1999, where segment 2"),
        ([first, replace(second, first_position=999)], "segment 2 starts at position 999"),
        ([first, replace(second, id=1)], "2 segments have the id 1, must be unique"),
        ([first, huge], f"9007199254741001 bytes, must be at most {LOG_BYTES_MAX}"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            plan_by_name(name, segments, LIMITS)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("target_bytes_max", 0),
        ("target_entries_max", 0),
        ("sources_max", 0),
        ("overhead_bytes", -1),
        ("source_bytes_max", 0),
    ],
)
def test_limits_that_cannot_be_are_refused(setting: str, value: int) -> None:
    with pytest.raises(InvalidSetting, match=f"setting {setting} is {value}, must be at least"):
        replace(LIMITS, **{setting: value})


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="benefit_segments_min is 0, must be at least 1"):
        plan_cheapest_range([], LIMITS, benefit_segments_min=0)
    for density_min in (0.0, 1.1, float("nan")):
        with pytest.raises(InvalidSetting, match=r"density_min is .* above 0 and at most 1"):
            plan_neighbours([], LIMITS, density_min=density_min)
    with pytest.raises(InvalidSetting, match="full_every_ms is -1, must be at least 0"):
        plan_hybrid([], LIMITS, last_full_ms=0, now_ms=0, full_every_ms=-1)
