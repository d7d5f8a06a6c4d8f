from __future__ import annotations

import time
from dataclasses import replace

from lithify.compaction.policies.cheapest_range import plan_cheapest_range
from tests.unit.compaction.policies.test_built_in import LIMITS, expect, log, story


def test_stats_takes_the_range_that_frees_a_segment_most_cheaply() -> None:
    plan = plan_cheapest_range(
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
    plan = plan_cheapest_range(
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
    plan = plan_cheapest_range(
        log("1 1/9 10/99\n2 0/9 0/99\n3 1/9 10/99"), LIMITS, benefit_segments_min=2
    )
    assert story(plan) == expect("""
        drop 2 0 0 B of 99 B no live entry
        rewrite 1,3 2 of 18 20 B of 198 B best range: 20 B live, frees 2 segments
    """)


def test_stats_on_a_tie_takes_the_earliest_range() -> None:
    plan = plan_cheapest_range(
        log("1 1/9 40/99\n2 1/9 40/99\n3 9/9 99/99\n4 1/9 40/99\n5 1/9 40/99"), LIMITS
    )
    assert [group.sources for group in plan.groups] == [(1, 2)]


def test_stats_on_a_tie_takes_the_widest_of_the_earliest_ranges() -> None:
    # 1-2 costs 60 for one segment, 1-3 costs 120 for two: 60 a segment, both of them.
    plan = plan_cheapest_range(
        log("1 1/9 30/99\n2 1/9 30/99\n3 1/9 60/99"), replace(LIMITS, target_bytes_max=120)
    )
    assert [group.sources for group in plan.groups] == [(1, 2, 3)]


def test_stats_wants_its_least_benefit() -> None:
    segments = log("1 1/9 50/99\n2 1/9 50/99\n3 9/9 99/99")
    plan = plan_cheapest_range(segments, LIMITS, benefit_segments_min=2)
    assert story(plan) == expect("""
        keep 1 - - no range frees 2 or more segments
        keep 2 - - no range frees 2 or more segments
        keep 3 - - no range frees 2 or more segments
    """)


def test_stats_leaves_a_range_alone_whose_segments_do_not_fit_together() -> None:
    # 180 live bytes could be two targets, but no two of these segments fit into one.
    plan = plan_cheapest_range(log("1 1/9 60/99\n2 1/9 60/99\n3 1/9 60/99"), LIMITS)
    assert plan.is_empty


def test_stats_keeps_a_full_segment_inside_its_range() -> None:
    segments = log("1 1/9 1/99\n2 1/9 1/99\n3 9/9 100/100\n4 1/9 1/99\n5 1/9 1/99")
    plan = plan_cheapest_range(segments, LIMITS, benefit_segments_min=2)
    assert story(plan) == expect("""
        rewrite 1-2 2 of 18 2 B of 198 B best range: 104 B live, frees 2 segments
        rewrite 4-5 2 of 18 2 B of 198 B best range: 104 B live, frees 2 segments
        keep 3 - - fully live and merges with no neighbour
    """)


def test_stats_is_not_held_up_by_a_cheap_range_that_frees_nothing() -> None:
    # By bytes 1-2 would be one target for 12 bytes, but their 12 entries need two, so that
    # rewriting them frees no segment; 3-4 cost 100 bytes and do free one.
    segments = log("1 6/9 6/9\n2 6/9 6/9\n3 5/9 50/90\n4 5/9 50/90")
    plan = plan_cheapest_range(segments, LIMITS)
    assert [group.sources for group in plan.groups] == [(3, 4)]


def test_stats_judges_two_thousand_segments_at_once() -> None:
    table = "\n".join(
        f"{number} {number * 7 % 5}/9 {number * 7 % 5 * 11}/99" for number in range(2000)
    )
    segments = log(table)
    started_s = time.process_time()
    plan = plan_cheapest_range(segments, LIMITS, benefit_segments_min=1000)
    assert time.process_time() - started_s < 0.5
    assert plan.segments_freed >= 1000
