from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.limits.token_bucket import TokenBucket
from lithify.errors import InvalidInput, InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable


class SteppingClock(ManualClock):
    """Calls `when_asleep` in each sleep, which is where other threads would act."""

    def __init__(self) -> None:
        super().__init__(start_ms=0)
        self.when_asleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.when_asleep()


def test_a_full_bucket_lets_its_burst_pass_and_then_the_rate_holds() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(1_000, clock, burst_bytes=500)

    assert bucket.take(500) == 0
    assert bucket.take(100) == pytest.approx(0.1)
    clock.advance(0.3)
    assert bucket.take(300) == pytest.approx(0, abs=0.001)
    assert clock.monotonic_s() == pytest.approx(0.4, abs=0.001)


def test_a_pause_saves_no_more_than_the_burst() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(1_000, clock, burst_bytes=500)
    clock.advance(3_600)

    assert bucket.take(1_500) == pytest.approx(1.0, abs=0.001)


def test_a_take_above_the_burst_waits_in_proportion() -> None:
    bucket = TokenBucket(1_000, ManualClock(start_ms=0), burst_bytes=10)

    assert bucket.take(10_000) == pytest.approx(9.99, abs=0.001)


def test_without_a_rate_nothing_waits() -> None:
    bucket = TokenBucket(None, ManualClock())

    assert bucket.take(1 << 49) == 0


def test_the_default_burst_is_a_tenth_of_a_second() -> None:
    assert TokenBucket(5_000, ManualClock()).burst_bytes == 500
    assert TokenBucket(3, ManualClock()).burst_bytes == 1


def test_a_sleeping_taker_notices_a_new_rate() -> None:
    clock = SteppingClock()
    bucket = TokenBucket(1_000, clock, burst_bytes=1)
    clock.when_asleep = lambda: bucket.set_rate(1_000_000)

    assert bucket.take(1_000_000) < 1.2

    bucket.set_rate(1)
    clock.when_asleep = lambda: bucket.set_rate(None)
    assert bucket.take(1_000_000) == pytest.approx(0.1)


def test_a_limit_set_on_an_unlimited_bucket_begins_with_nothing_saved() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(None, clock, burst_bytes=500)
    bucket.take(10_000)
    clock.advance(10)

    bucket.set_rate(1_000)

    assert bucket.take(500) == pytest.approx(0.5)


def test_takers_on_many_threads_share_one_rate() -> None:
    clock = ManualClock(start_ms=0)
    bucket = TokenBucket(1_000, clock, burst_bytes=1)

    threads = [
        threading.Thread(target=lambda: [bucket.take(10) for _ in range(100)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert clock.monotonic_s() >= 4 * 100 * 10 / 1_000 - 0.002


@pytest.mark.parametrize("rate", [0, -1, 1 << 60])
def test_a_rate_outside_its_limits_is_refused(rate: int) -> None:
    with pytest.raises(InvalidSetting, match="bytes_per_s"):
        TokenBucket(rate, ManualClock())
    bucket = TokenBucket(7, ManualClock())
    with pytest.raises(InvalidSetting, match="bytes_per_s"):
        bucket.set_rate(rate)
    assert bucket.bytes_per_s == 7


def test_taking_less_than_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="-1 bytes"):
        TokenBucket(None, ManualClock()).take(-1)
