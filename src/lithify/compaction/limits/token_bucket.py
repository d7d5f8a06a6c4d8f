"""A rate limit for many threads: the token bucket.

It has two counters, bytes requested and bytes earned:

1. A caller adds its bytes to the requested sum. The new sum is its ticket.
2. Time adds `bytes_per_s` to the earned sum, which is never more than `burst_bytes` ahead of the
   requested sum: a pause saves no more than that.
3. The caller may pass when the earned sum reaches its ticket. It sleeps until then, and checks
   every tenth of a second for a new rate or a cancelled run.

So callers pass in order of arrival, none starves, and a request larger than the burst waits in
proportion. Over any window at most `bytes_per_s * window + burst_bytes` pass; where one request is
larger than the burst, its size replaces the burst.

Called by `Allowance` (`budget.py`), and by a compactor that deletes retired files.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.clock import Clock

__all__ = ["BYTES_MAX", "SLEEP_S_MIN", "TokenBucket"]

SLEEP_S_MAX = 0.1
"""Interval at which a sleeping caller checks for cancellation: bounds the time to stop."""

SLEEP_S_MIN = 0.0001
"""Minimum sleep: a shorter one might not advance the clock, and the loop would never end."""

BYTES_MAX = 1 << 50
"""1 PiB: more than one machine reads in a second, or has as memory or scratch disk."""


class TokenBucket:
    """A rate limit; a rate of `None` is no limit. Thread-safe."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Clock,
        burst_bytes: int | None = None,
        saved_bytes: int | None = None,
    ) -> None:
        """`saved_bytes` may pass immediately; the default is the burst."""
        check_range("bytes_per_s", bytes_per_s, 1, BYTES_MAX)
        check_range("burst_bytes", burst_bytes, 1, BYTES_MAX)
        check_range("saved_bytes", saved_bytes, 0, BYTES_MAX)
        self._clock = clock
        self._lock = threading.Lock()
        self._burst_setting = burst_bytes
        self._rate = bytes_per_s
        self._requested_bytes = 0
        self._earned_bytes = float(self.burst_bytes if saved_bytes is None else saved_bytes)
        self._earned_at_s = clock.monotonic_s()

    @property
    def bytes_per_s(self) -> int | None:
        """The rate, `None` if there is no limit."""
        return self._rate

    @property
    def burst_bytes(self) -> int:
        """Bytes that may pass at once after a pause: as set, or a tenth of a second's bytes."""
        if self._burst_setting is not None:
            return self._burst_setting
        return max(1, (self._rate or 0) // 10)

    def set_rate(self, bytes_per_s: int | None) -> None:
        """Change the rate, also for waiting callers.

        Saved and owed bytes are kept. A bucket that had no limit starts empty.
        """
        check_range("bytes_per_s", bytes_per_s, 1, BYTES_MAX)
        with self._lock:
            self._earn()
            self._rate = bytes_per_s
            self._earn()

    def take(self, size_bytes: int, check: Callable[[], None] | None = None) -> float:
        """Sleep until `size_bytes` may pass; return the seconds slept.

        `check` is called before each sleep and cancels it by raising; the bytes stay requested.
        """
        if size_bytes < 0:
            raise InvalidInput(f"cannot take {size_bytes} bytes, must be 0 or more")
        with self._lock:
            self._earn()
            self._requested_bytes += size_bytes
            ticket = self._requested_bytes
        waited_s = 0.0
        while (missing_s := self._missing_s(ticket)) > 0:
            if check is not None:
                check()
            sleep_s = min(max(missing_s, SLEEP_S_MIN), SLEEP_S_MAX)
            self._clock.sleep(sleep_s)
            waited_s += sleep_s
        return waited_s

    def _missing_s(self, ticket: int) -> float:
        """Seconds until `ticket` is earned at the current rate."""
        with self._lock:
            self._earn()
            if self._rate is None:
                return 0.0
            return (ticket - self._earned_bytes) / self._rate

    def _earn(self) -> None:
        """Add the bytes earned since the last call, up to the burst."""
        now_s = self._clock.monotonic_s()
        if self._rate is None:
            self._earned_bytes = float(self._requested_bytes)
        else:
            self._earned_bytes = min(
                self._earned_bytes + (now_s - self._earned_at_s) * self._rate,
                float(self._requested_bytes + self.burst_bytes),
            )
        self._earned_at_s = now_s
