from __future__ import annotations

from dataclasses import replace

import pytest

from lithify.compaction.schedule import (
    Observation,
    Scheduler,
    ScheduleSettings,
    State,
    Trigger,
    Wait,
    Work,
)
from lithify.errors import InvalidInput, InvalidSetting

OFF = ScheduleSettings(
    period_ms=None,
    threshold_bytes=None,
    threshold_entries=None,
    lag_ms_max=None,
    backoff_ms=1_000,
    backoff_ms_max=5_000,
)
HOUR_MS = 3_600_000


def scheduler(*names: str, **settings: int) -> Scheduler:
    """All logs on disk d, added at time 0, only the given triggers on."""
    made = Scheduler(replace(OFF, **settings))
    for name in names:
        made.add(name, "d", now_ms=0)
    return made


def work(made: Scheduler, now_ms: int) -> tuple[str, Trigger]:
    answer = made.next("d", now_ms)
    assert isinstance(answer, Work), answer
    return answer.name, answer.trigger


def run(made: Scheduler, now_ms: int, error: str | None = None) -> str:
    """Run what is next, in no time."""
    answer = made.next("d", now_ms)
    assert isinstance(answer, Work), answer
    made.started(answer, now_ms)
    made.finished(answer.name, now_ms, error)
    return answer.name


def test_with_every_trigger_off_nothing_happens() -> None:
    made = scheduler("a")
    made.observe("a", Observation(1 << 50, 1 << 50, oldest_unjudged_ms=0), now_ms=5)

    assert made.next("d", 1 << 40) == Wait(None, "nothing calls for a run on disk d")


def test_first_visits_are_spread_over_the_period_and_the_same_every_time() -> None:
    names = [f"log-{number}" for number in range(200)]
    made = scheduler(*names, period_ms=HOUR_MS)
    waits = []
    now_ms = 0
    while now_ms < HOUR_MS:
        answer = made.next("d", now_ms)
        if isinstance(answer, Work):
            waits.append((now_ms, answer.name))
            run(made, now_ms)
        else:
            assert answer.until_ms is not None
            now_ms = answer.until_ms

    assert {name for _, name in waits} == set(names)
    for quarter in range(4):
        visits = [ms for ms, _ in waits if ms // (HOUR_MS // 4) == quarter]
        assert 30 <= len(visits) <= 70
    again = scheduler("log-7", period_ms=HOUR_MS).next("d", 0)
    assert isinstance(again, Wait)
    assert (again.until_ms, "log-7") in waits


def test_a_log_is_visited_once_a_period() -> None:
    made = scheduler("a", period_ms=1_000)
    first = made.next("d", 0)
    assert isinstance(first, Wait)
    assert first.until_ms is not None
    start_ms = first.until_ms
    assert "a, periodic run is due" in first.reason

    assert work(made, start_ms) == ("a", Trigger.PERIODIC)
    run(made, start_ms)

    second = made.next("d", start_ms)
    assert isinstance(second, Wait)
    assert second.until_ms == start_ms + 1_000


def test_thresholds_of_bytes_and_entries() -> None:
    made = scheduler("a", threshold_bytes=100, threshold_entries=10)

    made.observe("a", Observation(new_bytes=99, new_entries=9), now_ms=1)
    assert isinstance(made.next("d", 1), Wait)

    made.observe("a", Observation(new_bytes=100), now_ms=2)
    assert made.next("d", 2) == Work("a", Trigger.THRESHOLD, "100 new bytes, threshold 100")

    made.observe("a", Observation(new_entries=10), now_ms=3)
    assert made.next("d", 3) == Work("a", Trigger.THRESHOLD, "10 new entries, threshold 10")


def test_lag_calls_when_the_oldest_entry_is_older_than_allowed() -> None:
    made = scheduler("a", lag_ms_max=500)
    made.observe("a", Observation(oldest_unjudged_ms=1_000), now_ms=1_100)

    assert made.next("d", 1_500) == Wait(1_501, "next on disk d: a, lag run is due")
    assert made.next("d", 1_600) == Work(
        "a", Trigger.LAG, "oldest entry no run has judged is 600 ms old, limit 500"
    )


def test_a_successful_run_uses_up_the_facts() -> None:
    made = scheduler("a", threshold_bytes=1, lag_ms_max=1)
    made.observe("a", Observation(5, 5, oldest_unjudged_ms=0, unfinished=True), now_ms=10)
    run(made, 10)

    assert made.next("d", 1_000_000) == Wait(None, "nothing calls for a run on disk d")


def test_the_order_of_the_classes() -> None:
    names = ("periodic", "threshold", "lag", "unfinished", "admin")
    made = scheduler(*names, period_ms=1_000, threshold_bytes=10, lag_ms_max=500)
    now_ms = 2_000
    made.observe("threshold", Observation(new_bytes=10), now_ms)
    made.observe("lag", Observation(oldest_unjudged_ms=1_400), now_ms)
    made.observe("unfinished", Observation(unfinished=True), now_ms)
    made.request("admin", now_ms)

    assert [run(made, now_ms) for _ in names] == [
        "admin",
        "unfinished",
        "lag",
        "threshold",
        "periodic",
    ]


def test_requests_are_served_in_the_order_they_came_even_within_a_millisecond() -> None:
    made = scheduler("a", "b", "c")
    for name in ("c", "a", "b", "c"):
        made.request(name, now_ms=7)

    assert [run(made, 7) for _ in range(3)] == ["c", "a", "b"]
    assert isinstance(made.next("d", 7), Wait)


def test_within_a_class_the_longest_waiting_comes_first() -> None:
    made = scheduler("a", "b", "c", threshold_bytes=10)
    for now_ms, name in ((1, "b"), (2, "c"), (3, "a"), (4, "b")):
        made.observe(name, Observation(new_bytes=10 + now_ms), now_ms)

    assert [run(made, 5) for _ in range(3)] == ["b", "c", "a"]


def test_one_run_per_disk_and_disks_do_not_wait_for_each_other() -> None:
    made = scheduler("a", "b")
    made.add("c", "e", now_ms=0)
    for name in "abc":
        made.request(name, now_ms=0)
    first = made.next("d", 0)
    assert isinstance(first, Work)
    made.started(first, 0)

    assert made.next("d", 1) == Wait(None, "a is running on disk d")
    other = made.next("e", 1)
    assert isinstance(other, Work)
    made.started(other, 1)
    with pytest.raises(InvalidInput, match="b cannot start: a is running on disk d"):
        made.started(Work("b", Trigger.ADMIN, ""), 1)

    made.finished("a", 2)
    assert work(made, 2) == ("b", Trigger.ADMIN)


def test_a_hot_log_lets_the_one_that_waited_go_first() -> None:
    made = scheduler("hot", "idle", period_ms=1_000, threshold_bytes=1)
    turns = []
    for now_ms in range(1_000, 1_040, 10):
        made.observe("hot", Observation(new_bytes=5), now_ms)
        turns.append(run(made, now_ms))

    assert turns == ["hot", "idle", "hot", "hot"]


def test_a_request_made_during_a_run_is_not_used_up_by_it() -> None:
    made = scheduler("a")
    made.request("a", 0)
    made.started(Work("a", Trigger.ADMIN, ""), 1)
    made.request("a", 2)
    made.finished("a", 3)

    assert work(made, 3) == ("a", Trigger.ADMIN)
    run(made, 3)
    assert isinstance(made.next("d", 4), Wait)


def test_a_failing_log_is_retried_by_itself_after_a_growing_pause() -> None:
    made = scheduler("a", threshold_bytes=1)
    made.observe("a", Observation(new_bytes=9), 0)
    now_ms = 0
    pauses = []
    for _ in range(5):
        run(made, now_ms, error="disk full")
        answer = made.next("d", now_ms)
        assert isinstance(answer, Wait)
        assert answer.reason == "next on disk d: a, quarantine ends"
        assert answer.until_ms is not None
        pauses.append(answer.until_ms - now_ms)
        now_ms = answer.until_ms
    assert pauses == [1_000, 2_000, 4_000, 5_000, 5_000]

    retry = made.next("d", now_ms)
    assert retry == Work("a", Trigger.THRESHOLD, "9 new bytes, threshold 1, retry after failure 5")

    run(made, now_ms)
    made.observe("a", Observation(new_bytes=9), now_ms)
    run(made, now_ms, error="again")
    answer = made.next("d", now_ms)
    assert isinstance(answer, Wait)
    assert answer.until_ms == now_ms + 1_000


def test_a_quarantined_log_does_not_hold_up_the_others() -> None:
    made = scheduler("bad", "good", threshold_bytes=1)
    made.observe("bad", Observation(new_bytes=1), 0)
    run(made, 0, error="broken")
    made.observe("good", Observation(new_bytes=1), 5)

    assert work(made, 5) == ("good", Trigger.THRESHOLD)


def test_a_request_that_failed_is_tried_again_and_a_new_one_need_not_wait() -> None:
    made = scheduler("a")
    made.request("a", 0)
    run(made, 0, error="broken")
    assert made.next("d", 999) == Wait(1_000, "next on disk d: a, quarantine ends")

    made.request("a", 999)

    assert work(made, 999) == ("a", Trigger.ADMIN)


def test_a_thousand_failures_keep_the_pause_at_its_limit() -> None:
    made = scheduler("a")
    for now_ms in range(0, 10_000, 10):
        made.request("a", now_ms)
        run(made, now_ms, error="broken")

    (status,) = made.status(9_990)
    assert (status.failures, status.until_ms) == (1_000, 9_990 + 5_000)


def test_status_tells_the_state_of_every_log() -> None:
    made = scheduler("done", "failing", "idle", "queued", "running")
    for name in ("done", "failing"):
        made.request(name, 0)
        run(made, 10, error="no space" if name == "failing" else None)
    made.request("running", 20)
    made.started(Work("running", Trigger.ADMIN, ""), 20)
    made.request("queued", 30)

    shown = {
        each.name: (each.state, each.trigger, each.until_ms, each.failures, each.last_result)
        for each in made.status(40)
    }

    assert shown == {
        "done": (State.IDLE, None, None, 0, "done"),
        "failing": (State.QUARANTINED, None, 1_010, 1, "failed: no space"),
        "idle": (State.IDLE, None, None, 0, None),
        "queued": (State.QUEUED, Trigger.ADMIN, None, 0, None),
        "running": (State.RUNNING, Trigger.ADMIN, None, 0, None),
    }
    assert [each.last_finished_ms for each in made.status(40)] == [10, 10, None, None, None]


def test_a_clock_set_back_delays_visits_and_retries_by_one_round_only() -> None:
    year_ms = 365 * 24 * HOUR_MS
    made = Scheduler(replace(OFF, period_ms=1_000))
    made.add("a", "d", now_ms=year_ms)
    made.add("b", "d", now_ms=year_ms)
    made.request("b", year_ms)
    run(made, year_ms, error="broken")

    assert isinstance(made.next("d", 0), Wait)
    assert run(made, 1_000) == "a"
    made.next("d", 1_000)
    assert run(made, 5_000) == "b"


def test_a_removed_log_is_forgotten_but_not_while_it_runs() -> None:
    made = scheduler("a")
    made.request("a", 0)
    made.started(Work("a", Trigger.ADMIN, ""), 0)
    with pytest.raises(InvalidInput, match="a is running"):
        made.remove("a")
    made.finished("a", 1)

    made.remove("a")

    assert made.status(2) == []
    made.add("a", "d", now_ms=3)


def test_mistakes_are_named() -> None:
    made = scheduler("a")
    with pytest.raises(InvalidInput, match="log a is scheduled already"):
        made.add("a", "e", now_ms=0)
    with pytest.raises(InvalidInput, match="no log named x"):
        made.request("x", 0)
    with pytest.raises(InvalidInput, match="a is not running"):
        made.finished("a", 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"period_ms": 0},
        {"period_ms": 10**15},
        {"threshold_bytes": 0},
        {"threshold_entries": -1},
        {"lag_ms_max": 0},
        {"backoff_ms": 0},
        {"backoff_ms_max": 999},
    ],
)
def test_settings_outside_their_limits_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(settings))):
        replace(OFF, **settings)
