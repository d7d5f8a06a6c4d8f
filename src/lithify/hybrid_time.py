"""Hybrid timestamps: wall-clock milliseconds and a counter in one integer. Pure but for the clock.

    63            16 15          0
    | milliseconds  | counter    |

So timestamps order like integers, and 65,536 of them fit into a millisecond. The least one is 1;
0 means that there is none.

`HybridClock` returns ascending timestamps that are never below one that it has observed, even if
the wall clock jumps back. Any thread may call it.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.clock import Clock

__all__ = [
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "HybridClock",
    "add_ms",
    "ceil_ms",
    "describe",
    "milliseconds",
    "timestamp",
]

COUNTER_BITS = 16
MIN_TIMESTAMP = 1
MAX_TIMESTAMP = 2**63 - 1


def timestamp(ms: int, counter: int = 0) -> int:
    """The timestamp of a millisecond and a counter."""
    return ms << COUNTER_BITS | counter


def milliseconds(time: int) -> int:
    """The milliseconds of a timestamp since 1970, rounded down."""
    return time >> COUNTER_BITS


def add_ms(time: int, ms: int) -> int:
    """The timestamp `ms` later; at least the least one, at most the greatest."""
    return min(max(time + (ms << COUNTER_BITS), MIN_TIMESTAMP), MAX_TIMESTAMP)


def ceil_ms(time: int) -> int:
    """The first timestamp of a whole millisecond that is not below this one."""
    return -(-time >> COUNTER_BITS) << COUNTER_BITS


def describe(time: int) -> str:
    """For people: the UTC time in ISO 8601, then the counter if it is not 0."""
    ms, counter = milliseconds(time), time & (1 << COUNTER_BITS) - 1
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time)
    text = f"{when:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
    return f"{text}+{counter}" if counter else text


class HybridClock:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = MIN_TIMESTAMP - 1
        self._lock = threading.Lock()

    def now(self) -> int:
        """A timestamp above all that were returned or observed before."""
        with self._lock:
            self._last = max(self._last + 1, timestamp(self._clock.now_ms()))
            return self._last

    def observe(self, time: int) -> None:
        """Return only timestamps above this one from here on."""
        with self._lock:
            self._last = max(self._last, time)
