from __future__ import annotations

import pytest

from lithify.topics.rates import NOTE_SECONDS, WINDOW_SECONDS, Rates


def test_a_steady_stream_has_its_rate_from_the_first_second_on() -> None:
    rates = Rates(100.0, [0, 7])
    for second in range(1, 300):
        now_s, counters = 100.0 + second, [10 * second, 7]
        assert rates.per_second(now_s, counters) == [10.0, 0.0]
        rates.note(now_s, counters)


def test_a_stream_that_ends_is_forgotten_after_a_minute() -> None:
    rates = Rates(0.0, [0])
    assert rates.per_second(0.5, [600]) == [600.0], "half a second is not multiplied"
    for second in range(1, 200):
        rates.note(float(second), [600])
        (rate,) = rates.per_second(float(second), [600])
        if second < WINDOW_SECONDS:
            assert rate == pytest.approx(600 / second)
        if second >= WINDOW_SECONDS + NOTE_SECONDS:
            assert rate == 0.0


def test_however_often_it_is_noted_few_notes_are_kept() -> None:
    rates = Rates(0.0, [0])
    for tick in range(100_000):
        rates.note(tick / 100, [tick])
    assert len(rates._notes) <= WINDOW_SECONDS / NOTE_SECONDS + 2


def test_without_notes_it_is_the_rate_since_the_beginning() -> None:
    assert Rates(0.0, [0]).per_second(1000.0, [500]) == [0.5]
