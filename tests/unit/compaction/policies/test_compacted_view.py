from __future__ import annotations

import pytest

from lithify.compaction.planning.plan import SegmentStats, apply_plan
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.policies.compacted_view import plan_view
from lithify.errors import InvalidSetting
from tests.unit.compaction.policies.test_built_in import LIMITS, expect, log, story


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
