"""Scattered live indexes are chosen, lowest first, and moved no faster than allowed."""

from __future__ import annotations

from lithify.live_set import LiveSet
from lithify.raft.compaction.rewrite_pacing import (
    RUN_MIN,
    Rewriter,
    RewriteSettings,
    plan_rewrites,
    scatter,
)

RUN = range(1000, 1000 + RUN_MIN)
LIVE = LiveSet.from_iterable([3, 7, 8, 20, *RUN, 5000])


def test_long_runs_are_left_where_they_are() -> None:
    assert list(plan_rewrites(LIVE, 100)) == [3, 7, 8, 20, 5000]
    assert not plan_rewrites(LiveSet.from_iterable(RUN), 100)
    assert not plan_rewrites(LiveSet.empty(), 100)


def test_the_lowest_are_moved_first() -> None:
    assert list(plan_rewrites(LIVE, 3)) == [3, 7, 8]
    assert list(plan_rewrites(LIVE, 2)) == [3, 7], "in the middle of a run"
    assert not plan_rewrites(LIVE, 0)


def test_a_set_is_scattered_by_its_runs() -> None:
    assert scatter(LiveSet.empty()) == 0
    assert scatter(LiveSet.from_iterable(range(0, 100, 2))) == 1
    assert scatter(LiveSet.from_range(0, 1000)) == 0.001
    rewriter = Rewriter(RewriteSettings(scatter_max=0.5, live_min=50))
    assert rewriter.is_scattered(LiveSet.from_iterable(range(0, 100, 2)))
    assert not rewriter.is_scattered(LiveSet.from_iterable(range(0, 98, 2))), "too few to matter"
    assert not rewriter.is_scattered(LiveSet.from_range(0, 1000))
    assert not Rewriter().is_scattered(LiveSet.from_iterable(range(0, 10**6, 2))), "only by call"


def test_the_number_of_moves_per_tick_is_bounded() -> None:
    rewriter = Rewriter(RewriteSettings(entries_per_tick=2, in_flight_max=3))
    assert list(rewriter.take()) == []
    rewriter.begin(LIVE)
    rewriter.tick()
    assert list(rewriter.take()) == [3, 7]
    assert list(rewriter.take()) == []
    rewriter.tick()
    assert list(rewriter.take()) == [8], "three are in progress"
    rewriter.settled()
    assert list(rewriter.take()) == [20]
    for _ in range(3):
        rewriter.settled()
    rewriter.tick()
    assert list(rewriter.take()) == [5000]
    assert not rewriter.is_active


def test_a_large_command_is_paid_for_by_the_ticks_that_follow() -> None:
    rewriter = Rewriter(RewriteSettings(bytes_per_tick=100))
    rewriter.begin(LIVE)
    taken = []
    for _ in range(4):
        rewriter.tick()
        here = []
        for index in rewriter.take():
            here.append(index)
            rewriter.moved(250)
        taken.append(here)
    assert taken == [[3], [], [7], []]


def test_a_former_leader_moves_no_more_values() -> None:
    rewriter = Rewriter()
    rewriter.begin(LIVE, limit=1)
    rewriter.begin(LIVE)
    rewriter.tick()
    assert list(rewriter.take()) == [3], "it was in progress"
    rewriter.begin(LIVE)
    rewriter.stop()
    assert not rewriter.is_active
    assert list(rewriter.take()) == []
