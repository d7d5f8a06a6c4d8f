"""Policies as stories: a table of segments in, the explanation of the plan out.

A line of a table is `id live/entries live/bytes [active|busy]`. Every target may hold 10 entries
and 100 bytes, and a file costs nothing beyond its frames, unless a story says otherwise.
"""

from __future__ import annotations

import time
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
from lithify.compaction.policies.compacted_view import plan_view
from lithify.compaction.policies.neighbours import plan_neighbours
from lithify.compaction.policies.plugins import plan_by_name
from lithify.compaction.policies.stats_based import plan_stats_based
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
    plan = plan_stats_based(segments, LIMITS)
    assert [group.sources for group in plan.groups] == [(1, 2)]


def test_stats_takes_the_range_that_frees_a_segment_most_cheaply() -> None:
    plan = plan_stats_based(
        log("""
            1 5/5 90/99
            2 2/9 30/99
            3 2/9 20/99
            4 2/9 25/99
            5 5/5 99/99
        """),
        LIMITS,
    )
    # Copying 75 bytes frees two segments, 37.5 each; 3-4 alone would cost 45 for one.
    assert plan.explain() == expect("""
        policy stats
        action   segments  live entries  live bytes     reason
        rewrite  2-4       6 of 27       75 B of 297 B  best range: 75 B live, frees 2 segments
        keep     1         -             -              outside the best range
        keep     5         -             -              outside the best range
        total: 0 dropped, 3 rewritten into 1, 2 kept; reads 75 B, writes 75 B, \
frees 222 B and 2 segments, at 0 B a file
    """)


def test_stats_takes_a_run_of_dead_segments_first_and_whole() -> None:
    plan = plan_stats_based(
        log("1 1/9 1/99\n2 0/9 0/99\n3 0/9 0/99\n4 1/9 1/99\n5 0/9 0/99"), LIMITS
    )
    assert story(plan) == expect("""
        drop 2 0 0 B of 99 B no live entry
        drop 3 0 0 B of 99 B no live entry
        keep 1 - - outside the best range
        keep 4 - - outside the best range
        keep 5 - - outside the best range
    """)


def test_stats_drops_the_dead_inside_its_range() -> None:
    plan = plan_stats_based(
        log("1 1/9 10/99\n2 0/9 0/99\n3 1/9 10/99"), LIMITS, benefit_segments_min=2
    )
    assert story(plan) == expect("""
        drop 2 0 0 B of 99 B no live entry
        rewrite 1,3 2 of 18 20 B of 198 B best range: 20 B live, frees 2 segments
    """)


def test_stats_on_a_tie_takes_the_earliest_range() -> None:
    plan = plan_stats_based(
        log("1 1/9 40/99\n2 1/9 40/99\n3 9/9 99/99\n4 1/9 40/99\n5 1/9 40/99"), LIMITS
    )
    assert [group.sources for group in plan.groups] == [(1, 2)]


def test_stats_on_a_tie_takes_the_widest_of_the_earliest_ranges() -> None:
    # 1-2 costs 60 for one segment, 1-3 costs 120 for two: 60 a segment, both of them.
    plan = plan_stats_based(
        log("1 1/9 30/99\n2 1/9 30/99\n3 1/9 60/99"), replace(LIMITS, target_bytes_max=120)
    )
    assert [group.sources for group in plan.groups] == [(1, 2, 3)]


def test_stats_wants_its_least_benefit() -> None:
    segments = log("1 1/9 50/99\n2 1/9 50/99\n3 9/9 99/99")
    plan = plan_stats_based(segments, LIMITS, benefit_segments_min=2)
    assert story(plan) == expect("""
        keep 1 - - no range frees 2 or more segments
        keep 2 - - no range frees 2 or more segments
        keep 3 - - no range frees 2 or more segments
    """)


def test_stats_leaves_a_range_alone_whose_segments_do_not_fit_together() -> None:
    # 180 live bytes could be two targets, but no two of these segments fit into one.
    plan = plan_stats_based(log("1 1/9 60/99\n2 1/9 60/99\n3 1/9 60/99"), LIMITS)
    assert plan.is_empty


def test_stats_keeps_a_full_segment_inside_its_range() -> None:
    segments = log("1 1/9 1/99\n2 1/9 1/99\n3 9/9 100/100\n4 1/9 1/99\n5 1/9 1/99")
    plan = plan_stats_based(segments, LIMITS, benefit_segments_min=2)
    assert story(plan) == expect("""
        rewrite 1-2 2 of 18 2 B of 198 B best range: 104 B live, frees 2 segments
        rewrite 4-5 2 of 18 2 B of 198 B best range: 104 B live, frees 2 segments
        keep 3 - - fully live and merges with no neighbour
    """)


def test_stats_is_not_held_up_by_a_cheap_range_that_frees_nothing() -> None:
    # By bytes 1-2 would be one target for 12 bytes, but their 12 entries need two, so that
    # rewriting them frees no segment; 3-4 cost 100 bytes and do free one.
    segments = log("1 6/9 6/9\n2 6/9 6/9\n3 5/9 50/90\n4 5/9 50/90")
    plan = plan_stats_based(segments, LIMITS)
    assert [group.sources for group in plan.groups] == [(3, 4)]


def test_stats_judges_two_thousand_segments_at_once() -> None:
    table = "\n".join(
        f"{number} {number * 7 % 5}/9 {number * 7 % 5 * 11}/99" for number in range(2000)
    )
    segments = log(table)
    started_s = time.process_time()
    plan = plan_stats_based(segments, LIMITS, benefit_segments_min=1000)
    assert time.process_time() - started_s < 0.5
    assert plan.segments_freed >= 1000


def test_neighbours_that_fit_into_one_are_merged() -> None:
    plan = plan_neighbours(
        log("""
            1 4/9 40/90
            2 0/9 0/90
            3 4/9 80/90
            4 8/9 40/90
            5 5/10 50/100
            6 4/9 40/90
            7 9/9 90/90
            8 1/9 10/90 active
        """),
        Limits(target_bytes_max=1000, target_entries_max=9),
    )
    assert plan.explain() == expect("""
        policy neighbours
        action   segments  live entries  live bytes      reason
        drop     2         0             0 B of 90 B     no live entry
        rewrite  1,3       8 of 18       120 B of 180 B  neighbours fit into one
        rewrite  4         8 of 9        40 B of 90 B    sparse
        rewrite  5-6       9 of 19       90 B of 190 B   neighbours fit into one
        keep     7         -             -               100% live, and merges with no neighbour
        keep     8         -             -               active
        total: 1 dropped, 5 rewritten into 3, 2 kept; reads 250 B, writes 730 B, \
frees 780 B and 3 segments, at 160 B a file
    """)


@pytest.mark.parametrize(
    ("limits", "sources"),
    [
        (replace(LIMITS, target_bytes_max=8), [(1, 2), (3, 4), (5,)]),
        (replace(LIMITS, target_entries_max=6), [(1, 2, 3), (4, 5)]),
        (replace(LIMITS, sources_max=4), [(1, 2, 3, 4), (5,)]),
        (replace(LIMITS, sources_max=1), [(1,), (2,), (3,), (4,), (5,)]),
    ],
)
def test_neighbours_opens_the_next_group_where_a_limit_is_met(
    limits: Limits, sources: list[tuple[int, ...]]
) -> None:
    segments = log("\n".join(f"{number} 2/9 4/90" for number in range(1, 6)))
    assert [group.sources for group in plan_neighbours(segments, limits).groups] == sources


def test_dead_segments_do_not_use_up_the_sources_of_a_group() -> None:
    plan = plan_neighbours(
        log("1 1/9 1/90\n2 0/9 0/90\n3 0/9 0/90\n4 1/9 1/90"), replace(LIMITS, sources_max=2)
    )
    assert [group.sources for group in plan.groups] == [(1, 4)]


def test_neighbours_passes_over_a_segment_that_is_above_the_limits_alone() -> None:
    plan = plan_neighbours(log("1 1/9 1/90\n2 11/30 50/300\n3 1/9 1/90"), LIMITS)
    assert story(plan) == expect("""
        rewrite 1 1 of 9 1 B of 90 B sparse
        rewrite 3 1 of 9 1 B of 90 B sparse
        keep 2 - - its 11 live entries of 50 B are above the limits of a target
    """)


def test_neighbours_with_another_density() -> None:
    segments = log("1 8/10 80/100\n2 9/10 90/100\n3 1/10 10/100")
    limits = replace(LIMITS, target_entries_max=9)
    plan = plan_neighbours(segments, limits, density_min=0.9)
    assert [group.sources for group in plan.groups] == [(1,), (3,)]
    assert plan_neighbours(segments, limits, density_min=0.1).is_empty


@pytest.mark.parametrize(
    ("now_ms", "policy", "sources"),
    [
        (900, "hybrid:stats", [(3, 4)]),
        (1999, "hybrid:stats", [(3, 4)]),
        (2000, "hybrid:all", [(1,), (2,), (3, 4)]),
    ],
)
def test_hybrid_packs_everything_when_the_last_time_is_long_ago(
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


# --- view -----------------------------------------------------------------------------------


def test_view_rewrites_what_is_sparse_and_keeps_what_is_dense() -> None:
    plan = plan_view(
        log("""
            1 5/9 60/100
            2 9/9 70/100
            3 0/9 0/100
            4 1/9 20/100
            5 1/9 30/100
            6 9/9 90/90
            7 9/9 40/90 busy
        """),
        LIMITS,
    )
    assert story(plan) == expect("""
        drop 3 0 0 B of 100 B no live entry
        rewrite 1 5 of 9 60 B of 100 B under 70% live
        rewrite 4-5 2 of 18 50 B of 200 B under 70% live
        keep 2 - - dense: 70% live
        keep 6 - - fully live and merges with no neighbour
        keep 7 - - busy
    """)


def test_view_merges_eight_small_neighbours_and_leaves_seven() -> None:
    seven = "\n".join(f"{n} 1/1 5/5" for n in range(1, 8))
    assert plan_view(log(seven), LIMITS).is_empty
    eight = f"{seven}\n8 1/1 5/6\n9 9/9 90/90"
    assert story(plan_view(log(eight), LIMITS)) == expect("""
        rewrite 1-8 8 of 8 40 B of 41 B 8 small neighbours
        keep 9 - - fully live and merges with no neighbour
    """)


def test_view_does_not_copy_a_large_segment_for_the_sake_of_small_ones() -> None:
    table = "1 1/1 9/9\n" + "\n".join(f"{n} 1/1 1/1" for n in range(2, 9))
    assert plan_view(log(table), LIMITS).is_empty
    (group,) = plan_view(log(f"{table}\n9 1/1 1/1"), LIMITS).groups
    assert group.sources == tuple(range(2, 10))


def test_view_rewrites_no_more_than_its_cap_and_takes_the_best_first() -> None:
    segments = log("""
        1 1/2 50/80
        2 9/9 99/99
        3 1/9 10/99
        4 9/9 99/99
        5 1/9 30/99
    """)
    assert story(plan_view(segments, LIMITS, rewrite_bytes_max=45)) == expect("""
        rewrite 3 1 of 9 10 B of 99 B under 70% live
        rewrite 5 1 of 9 30 B of 99 B under 70% live
        keep 1 - - waits: a run rewrites 45 B, others free more for it
        keep 2 - - fully live and merges with no neighbour
        keep 4 - - fully live and merges with no neighbour
    """)
    # Even one that is above the cap alone comes when it is its turn.
    assert [g.sources for g in plan_view(segments[:2], LIMITS, rewrite_bytes_max=1).groups] == [
        (1,)
    ]


def test_view_keeps_few_segments_and_copies_little_however_small_the_runs_are() -> None:
    limits = Limits(target_bytes_max=100_000, target_entries_max=10**9, overhead_bytes=0)
    segments: list[SegmentStats] = []
    written = 0
    for number in range(2000):
        position = number * 1000
        segments.append(SegmentStats(number, position, position + 9, 10, 100, 10, 100))
        plan = plan_view(segments, limits)
        written += plan.bytes_written
        segments = list(apply_plan(plan, segments))
    assert len(segments) < 40
    assert written < 5 * 2000 * 100


@pytest.mark.parametrize("options", [{"density_min": 1.1}, {"rewrite_bytes_max": 0}])
def test_view_refuses_absurd_settings(options: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(options))):
        plan_view([], LIMITS, **options)


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
        plan_stats_based([], LIMITS, benefit_segments_min=0)
    for density_min in (0.0, 1.1, float("nan")):
        with pytest.raises(InvalidSetting, match=r"density_min is .* above 0 and at most 1"):
            plan_neighbours([], LIMITS, density_min=density_min)
    with pytest.raises(InvalidSetting, match="full_every_ms is -1, must be at least 0"):
        plan_hybrid([], LIMITS, last_full_ms=0, now_ms=0, full_every_ms=-1)
