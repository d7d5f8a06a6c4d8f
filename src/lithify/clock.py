"""Time as a parameter.

There are two clocks. The wall clock tells the time: people and other machines set it, so it may
jump in either direction. The monotonic one measures durations. A time in a message, a token or a
setting is always compared with the wall clock; a duration is measured with the monotonic clock,
never as a difference of two wall times.

No module of Lithify reads the wall clock or sleeps directly: it receives a `Clock`. `SystemClock`
is the real one. `ManualClock` moves only when a test moves it, so no test has to wait.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """The time interface."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970; may jump."""

    def monotonic_s(self) -> float:
        """Seconds that only grow; for durations."""

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until `advance`, `jump` or `sleep` moves it."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_s = start_ms / 1000
        self._wall_ahead_s = 0.0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970."""
        return round((self._now_s + self._wall_ahead_s) * 1000)

    def monotonic_s(self) -> float:
        """Seconds that only grow."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Move the clock; returns at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock by `seconds`, which must not be negative."""
        assert seconds >= 0
        with self._lock:
            self._now_s += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or, with a negative number, back; no time passes."""
        with self._lock:
            self._wall_ahead_s += seconds
