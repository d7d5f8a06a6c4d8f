from __future__ import annotations

import pytest

from lithify.compaction.scheduling.run_order import (
    BACKOFF_MS_MAX,
    REST_MS,
    CompactNow,
    Result,
    Schedule,
    Wait,
    _Candidate,
    _Log,
)
from lithify.compaction.scheduling.triggers import Observation, Trigger
from lithify.errors import InvalidInput

HOUR_MS = 3_600_000
REACHED = Observation(reached="9 new bytes, threshold 1")


def schedule(*names: str, since_ms: int | None = 0) -> Schedule:
    """All logs on disk d; their last runs began at time 0."""
    made = Schedule()
    for name in names:
        made.add(name, "d", since_ms)
    return made


def work(made: Schedule, now_ms: int) -> tuple[str, Trigger]:
    answer = made.next("d", now_ms)
    assert isinstance(answer, CompactNow), answer
    return answer.name, answer.trigger


def run(made: Schedule, now_ms: int, result: Result = Result.DONE) -> str:
    """Run what is next, in no time."""
    answer = made.next("d", now_ms)
    assert isinstance(answer, CompactNow), answer
    made.started(answer, now_ms)
    made.finished(answer.name, now_ms, result)
    return answer.name


def test_with_every_trigger_off_nothing_happens() -> None:
    made = schedule("a")
    made.observe("a", Observation(oldest_unjudged_ms=0), now_ms=5)

    assert made.next("d", 1 << 40) == Wait(None, "no run is due on disk d")


def test_a_first_periodic_run_may_be_due_at_once_and_then_once_per_period() -> None:
    made = schedule("a", since_ms=None)
    made.observe("a", Observation(period_ms=1_000), 70)
    assert work(made, 70) == ("a", Trigger.PERIODIC)
    run(made, 70)
    assert made.next("d", 5_000) == Wait(None, "no run is due on disk d")

    made.observe("a", Observation(period_ms=1_000), 1_069)
    assert made.next("d", 1_069) == Wait(1_070, "next on disk d: a, periodic run is due")
    assert work(made, 1_070) == ("a", Trigger.PERIODIC)


def test_the_period_counts_from_the_last_run_by_the_current_settings() -> None:
    made = schedule("a")
    made.observe("a", Observation(period_ms=HOUR_MS), 0)
    assert isinstance(made.next("d", 1_000), Wait)
    made.observe("a", Observation(period_ms=500), 1_000)
    assert work(made, 1_000) == ("a", Trigger.PERIODIC)
    made.request("a", 1_000)
    run(made, 1_000)
    made.observe("a", Observation(period_ms=500), 1_499)
    assert isinstance(made.next("d", 1_499), Wait), "a person's run counts too"
    made.began("a", None)
    assert work(made, 1_499) == ("a", Trigger.PERIODIC)


def test_a_threshold_is_due_with_the_reason_of_the_store() -> None:
    made = schedule("a")
    made.observe("a", REACHED, now_ms=2)
    assert made.next("d", 2) == CompactNow("a", Trigger.THRESHOLD, "9 new bytes, threshold 1")
    assert made.due_trigger("a", 2) is Trigger.THRESHOLD
    made.observe("a", Observation(), now_ms=3)
    assert made.due_trigger("a", 3) is None


def test_lag_is_due_when_the_oldest_entry_is_older_than_allowed() -> None:
    made = schedule("a")
    made.observe("a", Observation(oldest_unjudged_ms=1_000, lag_ms_max=501), now_ms=1_100)

    assert made.next("d", 1_500) == Wait(1_501, "next on disk d: a, lag run is due")
    assert made.next("d", 1_600) == CompactNow(
        "a", Trigger.LAG, "oldest entry no run has judged is 600 ms old, limit 501"
    )


def test_a_successful_run_uses_up_the_facts() -> None:
    made = schedule("a")
    made.observe("a", Observation(0, 1, "much", unfinished=True), now_ms=10)
    made.request("a", 10)
    run(made, 10)

    assert made.next("d", 1_000_000) == Wait(None, "no run is due on disk d")


def test_a_run_that_resumes_a_killed_one_does_not_consume_the_period() -> None:
    made = schedule("a", since_ms=None)
    made.observe("a", Observation(period_ms=1_000, unfinished=True), 5)
    assert work(made, 5) == ("a", Trigger.UNFINISHED)
    run(made, 5)
    made.observe("a", Observation(period_ms=1_000), 6)
    assert work(made, 6) == ("a", Trigger.PERIODIC)


def test_the_order_of_the_classes() -> None:
    names = ("periodic", "threshold", "lag", "unfinished", "admin")
    made = schedule(*names)
    now_ms = 2_000
    made.observe("periodic", Observation(period_ms=1_000), now_ms)
    made.observe("threshold", REACHED, now_ms)
    made.observe("lag", Observation(oldest_unjudged_ms=1_400, lag_ms_max=500), now_ms)
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
    made = schedule("a", "b", "c")
    for name in ("c", "a", "b", "c"):
        made.request(name, now_ms=7)

    assert [run(made, 7) for _ in range(4)] == ["c", "a", "b", "c"]
    assert isinstance(made.next("d", 7), Wait)


def test_within_a_class_the_longest_waiting_comes_first() -> None:
    made = schedule("a", "b", "c")
    for now_ms, name in ((1, "b"), (2, "c"), (3, "a"), (4, "b")):
        made.observe(name, REACHED, now_ms)

    assert [run(made, 5) for _ in range(3)] == ["b", "c", "a"]


def test_one_run_per_disk_and_disks_do_not_wait_for_each_other() -> None:
    made = schedule("a", "b")
    made.add("c", "e", since_ms=0)
    for name in "abc":
        made.request(name, now_ms=0)
    first = made.next("d", 0)
    assert isinstance(first, CompactNow)
    made.started(first, 0)

    assert made.next("d", 1) == Wait(None, "a is running on disk d")
    other = made.next("e", 1)
    assert isinstance(other, CompactNow)
    made.started(other, 1)
    with pytest.raises(InvalidInput, match="b cannot start: a is running on disk d"):
        made.started(CompactNow("b", Trigger.ADMIN, ""), 1)

    made.finished("a", 2, Result.DONE)
    assert work(made, 2) == ("b", Trigger.ADMIN)


def test_a_busy_log_yields_to_one_that_waited() -> None:
    made = schedule("hot", "idle", since_ms=-1)
    made.observe("idle", Observation(period_ms=1_000), 1_000)
    turns = []
    for now_ms in range(1_000, 1_040, 10):
        made.observe("hot", REACHED, now_ms)
        turns.append(run(made, now_ms))

    assert turns == ["hot", "idle", "hot", "hot"]


def test_repeated_requests_starve_no_other_log() -> None:
    made = schedule("asked", "idle", since_ms=-1)
    made.observe("idle", Observation(period_ms=1_000), 1_000)
    turns = []
    for now_ms in range(1_000, 1_040, 10):
        made.request("asked", now_ms)
        turns.append(run(made, now_ms))

    assert turns == ["asked", "idle", "asked", "asked"]


def test_a_request_made_during_a_run_is_not_used_up_by_it() -> None:
    made = schedule("a")
    made.request("a", 0)
    made.started(CompactNow("a", Trigger.ADMIN, ""), 1)
    made.request("a", 2)
    assert made.due_trigger("a", 2) is None, "it runs"
    made.finished("a", 3, Result.DONE)

    assert work(made, 3) == ("a", Trigger.ADMIN)
    run(made, 3)
    assert isinstance(made.next("d", 4), Wait)


def test_a_failing_log_is_retried_by_itself_after_a_growing_pause() -> None:
    made = schedule("a")
    made.observe("a", REACHED, 0)
    now_ms = 0
    pauses = []
    for _ in range(8):
        run(made, now_ms, Result.FAILED)
        answer = made.next("d", now_ms)
        assert isinstance(answer, Wait)
        assert answer.reason == "next on disk d: a, its pause ends"
        assert answer.until_ms is not None
        pauses.append(answer.until_ms - now_ms)
        now_ms = answer.until_ms
    assert pauses == [*(REST_MS << n for n in range(6)), BACKOFF_MS_MAX, BACKOFF_MS_MAX]

    retry = made.next("d", now_ms)
    assert retry == CompactNow("a", Trigger.THRESHOLD, f"{REACHED.reached}, retry after failure 8")

    run(made, now_ms)
    made.observe("a", REACHED, now_ms)
    run(made, now_ms, Result.FAILED)
    answer = made.next("d", now_ms)
    assert isinstance(answer, Wait)
    assert answer.until_ms == now_ms + REST_MS


@pytest.mark.parametrize("result", [Result.NOTHING, Result.CANCELLED])
def test_triggers_pause_after_a_run_without_a_result(result: Result) -> None:
    made = schedule("a")
    made.observe("a", REACHED, 0)
    run(made, 0, result)
    made.observe("a", REACHED, 1)
    assert made.next("d", 1) == Wait(REST_MS, "next on disk d: a, its pause ends")
    made.request("a", 2)
    assert work(made, 2) == ("a", Trigger.ADMIN), "persons need not wait"


def test_a_run_that_its_log_has_interrupted_is_followed_by_no_pause() -> None:
    made = schedule("a")
    made.observe("a", REACHED, 0)
    run(made, 0, Result.INTERRUPTED)
    made.observe("a", Observation(unfinished=True), 1)
    assert work(made, 1) == ("a", Trigger.UNFINISHED)


def test_withdrawn_triggers_pause() -> None:
    made = schedule("a", "b")
    made.observe("a", Observation(reached="much", period_ms=1), 5)
    made.request("a", 5)
    made.request("b", 5)
    made.request("b", 5)
    made.withdraw("a", 5)
    made.withdraw_first("b")
    assert run(made, 5) == "b"
    made.observe("a", Observation(reached="much", period_ms=1), 6)
    assert made.next("d", 6) == Wait(5 + REST_MS, "next on disk d: a, its pause ends")


def test_a_paused_log_does_not_delay_others() -> None:
    made = schedule("bad", "good")
    made.observe("bad", REACHED, 0)
    run(made, 0, Result.FAILED)
    made.observe("good", REACHED, 5)

    assert work(made, 5) == ("good", Trigger.THRESHOLD)


def test_a_request_that_failed_is_over() -> None:
    made = schedule("a")
    made.request("a", 0)
    run(made, 0, Result.FAILED)
    assert made.next("d", HOUR_MS) == Wait(None, "no run is due on disk d")


def test_a_clock_set_back_delays_periods_and_retries_by_one_round_only() -> None:
    year_ms = 365 * 24 * HOUR_MS
    made = schedule("a", since_ms=year_ms)
    made.add("b", "d", since_ms=year_ms)
    made.add("c", "d", since_ms=year_ms)
    made.observe("a", Observation(period_ms=1_000), year_ms)
    made.observe("b", REACHED, year_ms)
    run(made, year_ms, Result.FAILED)

    assert isinstance(made.next("d", 0), Wait)
    assert run(made, 1_000) == "a"
    assert isinstance(made.next("d", REST_MS - 1), Wait)
    assert run(made, REST_MS) == "b"
    made.observe("c", REACHED, year_ms)
    made.request("a", year_ms)
    assert [run(made, 0), run(made, 0)] == ["a", "c"]


def test_a_log_is_removed_but_not_while_it_runs() -> None:
    made = schedule("a")
    made.request("a", 0)
    made.started(CompactNow("a", Trigger.ADMIN, ""), 0)
    with pytest.raises(InvalidInput, match="a is running"):
        made.remove("a")
    made.finished("a", 1, Result.DONE)

    made.remove("a")

    assert made.due_trigger("a", 2) is None
    made.add("a", "d", since_ms=3)


def test_invalid_calls_are_refused() -> None:
    made = schedule("a")
    with pytest.raises(InvalidInput, match="log a is scheduled already"):
        made.add("a", "e", since_ms=0)
    with pytest.raises(InvalidInput, match="no log named x"):
        made.request("x", 0)
    with pytest.raises(InvalidInput, match="a is not running"):
        made.finished("a", 0, Result.DONE)


def test_a_log_that_is_not_due_is_evaluated_once_until_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = schedule(*"abc")
    looked: list[str] = []
    calls = made._candidates

    def counted(log: _Log, now_ms: int) -> list[_Candidate]:
        looked.append(log.name)
        return calls(log, now_ms)

    monkeypatch.setattr(made, "_candidates", counted)
    for now_ms in range(10, 1_000):
        for name in "abc":
            made.observe(name, Observation(period_ms=1_000), now_ms)
        assert made.due("d", now_ms) is None
        assert made.due_trigger("a", now_ms) is None
    assert sorted(looked) == ["a", "b", "c"]
    made.observe("b", REACHED, 1_000)
    made.observe("c", Observation(), 1_000)
    found = made.due("d", 1_000)
    assert found is not None
    assert found.name == "b"
