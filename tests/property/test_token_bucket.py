from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.compaction.limits.token_bucket import SLEEP_S_MIN, TokenBucket

RATES = st.integers(1, 10_000_000)
PAUSES_S = st.floats(0, 5)


@settings(deadline=None)
@given(
    rate=RATES,
    burst_bytes=st.integers(1, 1_000_000),
    steps=st.lists(st.tuples(PAUSES_S, st.floats(0, 3)), min_size=1, max_size=30),
)
def test_no_window_passes_more_than_its_rate_and_a_burst(
    rate: int, burst_bytes: int, steps: list[tuple[float, float]]
) -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(rate, clock, burst_bytes)
    passed: list[tuple[float, int]] = []
    for pause_s, bursts in steps:
        clock.advance(pause_s)
        # A take of many bursts at a low rate is slept through in tenths of a second: keep it short.
        size_bytes = min(int(burst_bytes * bursts), rate * 10)
        bucket.take(size_bytes)
        passed.append((clock.monotonic_s(), size_bytes))

    for first, (start_s, _) in enumerate(passed):
        total = 0
        largest = burst_bytes
        for end_s, size_bytes in passed[first:]:
            total += size_bytes
            largest = max(largest, size_bytes)
            # Slack: a byte for the rounding of seconds, and the shortest sleep, by which the first
            # take of the window may have come late.
            assert total <= rate * (end_s - start_s + SLEEP_S_MIN) + largest + 1


@settings(deadline=None)
@given(rate=RATES, sizes=st.lists(st.integers(0, 1_000_000), min_size=1, max_size=20))
def test_no_taker_waits_longer_than_the_rate_demands(rate: int, sizes: list[int]) -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(rate, clock, burst_bytes=1)
    sizes = [min(size, rate * 10) for size in sizes]

    waited_s = sum(bucket.take(size) for size in sizes)

    # Each take may sleep a tenth of a millisecond too long, and the next sleeps less by that.
    assert waited_s <= sum(sizes) / rate + 0.001


@settings(deadline=None)
@given(steps=st.lists(st.tuples(RATES, PAUSES_S, st.integers(0, 100_000)), min_size=1, max_size=20))
def test_a_changing_rate_never_passes_more_than_all_rates_allow(
    steps: list[tuple[int, float, int]],
) -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(1_000, clock, burst_bytes=100)
    allowed = 100.0
    total = 0
    for rate, pause_s, size_bytes in steps:
        before_s = clock.monotonic_s()
        bucket.set_rate(rate)
        clock.advance(pause_s)
        size = min(size_bytes, rate * 10)
        bucket.take(size)
        total += size
        allowed += rate * (clock.monotonic_s() - before_s)
        assert total <= allowed + 1
