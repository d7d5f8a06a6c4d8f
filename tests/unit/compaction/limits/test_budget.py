from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.clock import ManualClock
from lithify.compaction.limits.budget import START_S, Allowance, Budget
from lithify.compaction.limits.token_bucket import SLEEP_S_MIN
from lithify.compaction.run.control import RunControl
from lithify.errors import InvalidSetting, PlanStale, RunCancelled
from tests.unit.compaction.limits.test_token_bucket import SteppingClock


@pytest.mark.parametrize(
    "settings",
    [
        {"read_bytes_per_s": 0},
        {"read_bytes_per_s": 1023},
        {"write_bytes_per_s": -5},
        {"memory_bytes": 1000},
        {"memory_bytes": 1 << 60},
        {"scratch_bytes": -1},
    ],
)
def test_a_budget_names_the_setting_it_refuses(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(settings))):
        Budget(**settings)


def test_an_allowance_counts_what_passes_and_what_was_waited_for() -> None:
    clock = ManualClock(start_ms=0)
    allowance = Allowance(Budget(read_bytes_per_s=10_000, write_bytes_per_s=20_000), clock)

    allowance.read(6_000)
    allowance.write(22_000)

    assert (allowance.bytes_read, allowance.bytes_written) == (6_000, 22_000)
    assert allowance.waited_s == pytest.approx(0.6 - START_S + 1.0, abs=1e-6)


def test_the_bytes_of_a_millisecond_pass_at_once() -> None:
    allowance = Allowance(Budget(read_bytes_per_s=1_000_000), ManualClock())

    allowance.read(1_000)
    assert allowance.waited_s == 0

    allowance.read(1_000)
    assert 0.001 <= allowance.waited_s <= 0.001 + 2 * SLEEP_S_MIN


def test_tasks_side_by_side_share_a_budget() -> None:
    budget = Budget(
        read_bytes_per_s=100 << 10, memory_bytes=256 << 20, scratch_bytes=7, delete_bytes_per_s=None
    )
    assert budget.share(4) == replace(budget, read_bytes_per_s=25 << 10, memory_bytes=64 << 20)
    assert budget.share(1) == budget.share(0) == budget
    assert budget.share(10_000) == replace(budget, read_bytes_per_s=1 << 10, memory_bytes=1 << 20)


def test_many_short_tasks_keep_to_the_rate_together() -> None:
    clock = ManualClock(start_ms=0)
    budget = Budget(read_bytes_per_s=10_240)
    for _ in range(100):
        Allowance(budget, clock).read(1024)
    assert clock.monotonic_s() == pytest.approx(10, rel=0.01)


def test_a_task_can_be_stopped_by_its_check() -> None:
    def stop() -> None:
        raise PlanStale("no longer")

    allowance = Allowance(Budget(), ManualClock(), stop)
    for stopped in (allowance.check, lambda: allowance.read(1), lambda: allowance.write(0)):
        with pytest.raises(PlanStale, match="no longer"):
            stopped()


def test_a_cancelled_run_stops_at_its_next_call() -> None:
    control = RunControl()
    allowance = Allowance(Budget(), ManualClock(), control.check)
    allowance.check()
    allowance.read(100)

    control.cancel()

    for stopped in (allowance.check, lambda: allowance.read(1), lambda: allowance.write(0)):
        with pytest.raises(RunCancelled, match="the run was cancelled"):
            stopped()


def test_a_run_that_sleeps_for_its_rate_can_be_cancelled() -> None:
    clock = SteppingClock()
    control = RunControl()
    allowance = Allowance(Budget(write_bytes_per_s=1024), clock, control.check)
    clock.when_asleep = control.cancel

    with pytest.raises(RunCancelled):
        allowance.write(1 << 30)

    assert clock.monotonic_s() < 0.2
    assert allowance.bytes_written == 0
