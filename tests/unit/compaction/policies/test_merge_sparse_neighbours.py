from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.compaction.policies.built_in import Limits
from lithify.compaction.policies.merge_sparse_neighbours import plan_neighbours
from tests.unit.compaction.policies.test_built_in import LIMITS, expect, log, story


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
