"""A run slows down when those who use the log wait longer, and speeds up when they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.compaction.limits.budget import Allowance, Budget
from lithify.compaction.limits.latencies import Latencies
from lithify.compaction.limits.pace_by_latency import (
    WINDOW_S,
    Pacer,
    PaceSettings,
    SharedRate,
    limit_ms,
    next_rate,
    with_pace,
)
from lithify.errors import InvalidSetting
from lithify.fs import MemoryFileSystem

MIB = 2**20
SETTINGS = PaceSettings(bytes_per_s_min=MIB, bytes_per_s_max=64 * MIB)


class Story:
    """A run, with users beside it."""

    def __init__(self, before_ms: float | None = None) -> None:
        self.clock = ManualClock()
        self.latencies = Latencies()
        if before_ms is not None:
            self.gets(before_ms)
        disk = MemoryFileSystem()
        disk.mkdir("/log")
        self.rate = SharedRate(disk, "/log/PACE.tmp")
        self.pacer = Pacer(SETTINGS, self.latencies, self.rate, self.clock)

    def gets(self, each_ms: float, count: int = 100) -> None:
        for _ in range(count):
            self.latencies.add(each_ms / 1000)

    def window(self, each_ms: float | None = None) -> float:
        """A window passes in which gets take this long; the rate after it in MiB/s."""
        if each_ms is not None:
            self.gets(each_ms)
        self.clock.advance(WINDOW_S)
        self.pacer.adjust_rate()
        return self.pacer.bytes_per_s / MIB


def test_it_halves_while_gets_are_slow_and_climbs_when_they_are_not() -> None:
    story = Story(before_ms=2)
    assert story.window(2) == 64
    assert [story.window(9) for _ in range(4)] == [32, 16, 8, 4]
    assert [story.window(2) for _ in range(3)] == [6, 8, 10]
    assert story.window(9) == 5


def test_without_latencies_the_rate_rises() -> None:
    story = Story(before_ms=2)
    story.window(50)
    assert [story.window() for _ in range(3)] == [34, 36, 38]


def test_it_stays_between_minimum_and_maximum() -> None:
    story = Story()
    assert [story.window(500) for _ in range(9)][-3:] == [1, 1, 1]
    assert [story.window() for _ in range(40)][-1] == 64


def test_between_two_windows_it_does_nothing() -> None:
    story = Story()
    story.gets(500)
    story.pacer.adjust_rate()
    assert story.pacer.bytes_per_s == 64 * MIB


def test_the_limit_depends_on_the_latency_before_the_run() -> None:
    assert limit_ms(SETTINGS, None) == 20
    assert limit_ms(SETTINGS, 4) == 8
    assert limit_ms(SETTINGS, 15) == 20, "never above the limit of the settings"
    assert limit_ms(SETTINGS, 0.01) == 1, "a millisecond is never too long"


@given(
    st.integers(MIB, 64 * MIB),
    st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=200),
)
def test_any_history_keeps_to_the_limits(rate: int, history: list[float | None]) -> None:
    for p95_ms in history:
        before, rate = rate, next_rate(SETTINGS, rate, p95_ms, 20)
        assert SETTINGS.bytes_per_s_min <= rate <= SETTINGS.bytes_per_s_max
        if p95_ms is not None and p95_ms > 20:
            assert rate <= max(SETTINGS.bytes_per_s_min, before / 2)
        else:
            assert rate == min(SETTINGS.bytes_per_s_max, before + 2 * MIB)


def test_all_tasks_together_keep_to_the_rate_and_follow_it() -> None:
    story = Story()
    paced = with_pace(Budget(), story.rate, 64 * MIB)
    tasks = [Allowance(paced.share(4), story.clock) for _ in range(4)]
    assert {task.writes.bytes_per_s for task in tasks} == {16 * MIB}
    story.window(500)
    for task in tasks:
        task.write(0)
    assert {task.writes.bytes_per_s for task in tasks} == {8 * MIB}
    assert {task.reads.bytes_per_s for task in tasks} == {8 * MIB}


def test_a_limit_of_the_budget_stays_one() -> None:
    story = Story()
    budget = with_pace(Budget(write_bytes_per_s=8 * MIB), story.rate, 64 * MIB)
    allowance = Allowance(budget, story.clock)
    assert allowance.writes.bytes_per_s == 8 * MIB
    assert allowance.reads.bytes_per_s == 64 * MIB
    assert budget.share(2).write_bytes_per_s == 4 * MIB


def test_a_torn_or_missing_rate_keeps_the_current_one() -> None:
    story = Story()
    paced = with_pace(Budget(), story.rate, 64 * MIB)
    allowance = Allowance(paced, story.clock)
    assert allowance.writes.bytes_per_s == 64 * MIB, "before any rate is written"
    story.window(500)
    allowance.write(0)
    with story.rate.fs.open_append(story.rate.path) as file:
        file.write(b"more")
    assert story.rate.read() is None
    story.pacer.close()
    story.clock.advance(1)
    allowance.write(0)
    assert allowance.writes.bytes_per_s == 32 * MIB
    story.pacer.close()


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="at most bytes_per_s_max"):
        PaceSettings(bytes_per_s_min=2 * MIB, bytes_per_s_max=MIB)
    with pytest.raises(InvalidSetting, match="p95_rise_max"):
        PaceSettings(p95_rise_max=0.5)


@given(st.lists(st.floats(0, 4000), min_size=1, max_size=300))
def test_the_percentile_is_at_most_a_quarter_too_high(seconds: list[float]) -> None:
    latencies = Latencies()
    for each in seconds:
        latencies.add(each)
    ordered = sorted(int(each * 1e6) for each in seconds)
    exact = ordered[-(-len(ordered) * 19 // 20) - 1] / 1000
    found = latencies.p95_ms()
    assert found is not None
    assert exact < found <= exact * 1.25 + 0.001


def test_only_new_latencies_count() -> None:
    latencies = Latencies()
    latencies.add(1.0)
    before = latencies.counts()
    assert latencies.p95_ms(before) is None
    latencies.add(0.001)
    assert latencies.p95_ms(before) == 1.024
