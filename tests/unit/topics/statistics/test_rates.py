from __future__ import annotations

import pytest

from lithify.topics.statistics.rates import NOTE_SECONDS, WINDOW_SECONDS, Rates, RatesByOwner


def test_a_steady_stream_has_its_rate_from_the_first_second_on() -> None:
    rates = Rates(100.0, [0, 7])
    for second in range(1, 300):
        now_s, counters = 100.0 + second, [10 * second, 7]
        assert rates.per_second(now_s, counters) == [10.0, 0.0]
        rates.sample(now_s, counters)


def test_a_rate_is_zero_a_minute_after_its_stream_ends() -> None:
    rates = Rates(0.0, [0])
    assert rates.per_second(0.5, [600]) == [600.0], "half a second is not multiplied"
    for second in range(1, 200):
        rates.sample(float(second), [600])
        (rate,) = rates.per_second(float(second), [600])
        if second < WINDOW_SECONDS:
            assert rate == pytest.approx(600 / second)
        if second >= WINDOW_SECONDS + NOTE_SECONDS:
            assert rate == 0.0


def test_the_number_of_samples_is_bounded() -> None:
    rates = Rates(0.0, [0])
    for tick in range(100_000):
        rates.sample(tick / 100, [tick])
    assert len(rates._samples) <= WINDOW_SECONDS / NOTE_SECONDS + 2


def test_without_samples_the_rate_is_since_the_start() -> None:
    assert Rates(0.0, [0]).per_second(1000.0, [500]) == [0.5]


def test_rates_of_clients_that_connect_and_disconnect() -> None:
    rates = RatesByOwner(0.0)
    assert rates.per_second(2.0, "a", (10, 100)) == (5.0, 50.0)
    for second in range(0, 60, 5):
        rates.sample(float(second), {"a": (second, 10 * second)})
    assert rates.per_second(60.0, "a", (60, 600)) == (1.0, 10.0)
    late = rates.per_second(60.0, "late", (10, 20))
    assert late == (2.0, 4.0), "since the last note, which it was not there for"
    for second in range(60, 200, 5):
        rates.sample(float(second), {"b": (5, 5)})
    assert rates.per_second(200.0, "b", (5, 5)) == (0.0, 0.0)
