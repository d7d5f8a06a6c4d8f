"""The limits of one run: bytes per second, memory, scratch disk.

A `Budget` holds the limits. An `Allowance` enforces them: a run, and each of its tasks, calls it
before each transfer; threads may share it. Parallel tasks get a share of the budget each
(`Budget.share`), so that their sum stays within it on any machine.

`token_bucket.py` enforces a rate, `pace_by_latency.py` lowers the rates while readers are slow,
`free_disk_space.py` refuses a run whose output cannot fit, `one_run_per_disk.py` allows one run per
disk.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from lithify.compaction.limits.token_bucket import BYTES_MAX, TokenBucket
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.clock import Clock

__all__ = ["RATE_BYTES_PER_S_MIN", "Allowance", "Budget"]

START_S = 0.001
"""What a task may transfer at once when it starts, in seconds of its rate. That is less than the
start of a task takes, but spares small tasks a sleep, which takes longer than what they transfer.
"""

FOLLOW_S = 0.2
"""Interval at which a changing rate is read: well within the window of the pacer."""

RATE_BYTES_PER_S_MIN = 1 << 10
"""Below 1 KiB/s a single 64 MiB segment would take 18 hours: that is a mistake, not a limit."""

MEMORY_BYTES_MIN = 1 << 20
"""Below 1 MiB there is no room for one write buffer."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one run. A rate of `None` is unlimited; scratch of `None` is the whole disk."""

    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    memory_bytes: int = 256 << 20
    scratch_bytes: int | None = None
    delete_bytes_per_s: int | None = 16 << 30
    """Rate for deleting retired files: freeing many extents at once stalls other writers."""

    def __post_init__(self) -> None:
        rate_min = RATE_BYTES_PER_S_MIN
        check_range("delete_bytes_per_s", self.delete_bytes_per_s, rate_min, BYTES_MAX)
        check_range("read_bytes_per_s", self.read_bytes_per_s, rate_min, BYTES_MAX)
        check_range("write_bytes_per_s", self.write_bytes_per_s, rate_min, BYTES_MAX)
        check_range("memory_bytes", self.memory_bytes, MEMORY_BYTES_MIN, BYTES_MAX)
        check_range("scratch_bytes", self.scratch_bytes, 0, BYTES_MAX)

    def share(self, tasks: int) -> Budget:
        """The budget of one of `tasks` parallel tasks: rates and memory are divided.

        No limit is divided below the least valid value.
        """
        return replace(self, **self._shared(tasks))

    def _shared(self, tasks: int) -> dict[str, Any]:
        count = max(1, tasks)

        def part(rate: int | None) -> int | None:
            return None if rate is None else max(RATE_BYTES_PER_S_MIN, rate // count)

        return {
            "read_bytes_per_s": part(self.read_bytes_per_s),
            "write_bytes_per_s": part(self.write_bytes_per_s),
            "memory_bytes": max(MEMORY_BYTES_MIN, self.memory_bytes // count),
        }

    @property
    def changes(self) -> bool:
        """Can the rate for reading and writing change during the run?"""
        return False

    def bytes_per_s_now(self) -> int | None:
        """The current rate; None if it is unknown."""
        return None


class Allowance:
    """Enforces the budget of one run or task: its threads call here before they read or write.

    `reads` and `writes` are its buckets; `set_rate` on them works during the run. They start almost
    empty: a run has thousands of tasks, and a burst for each would defeat the limit. If the rate of
    the budget can change (`pace_by_latency.py`), it is read a few times a second.
    `stop` is called wherever `check` is and may raise.
    """

    def __init__(
        self, budget: Budget, clock: Clock, stop: Callable[[], None] = lambda: None
    ) -> None:
        self.budget = budget
        self.reads = _bucket(budget.read_bytes_per_s, clock)
        self.writes = _bucket(budget.write_bytes_per_s, clock)
        self._stop = stop
        self._clock = clock
        self._follow_s = clock.monotonic_s() if budget.changes else inf
        self._follow()
        self._lock = threading.Lock()
        self._bytes_read = 0
        self._bytes_written = 0
        self._waited_s = 0.0

    @property
    def bytes_read(self) -> int:
        """Bytes admitted for reading."""
        return self._bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes admitted for writing."""
        return self._bytes_written

    @property
    def waited_s(self) -> float:
        """Seconds slept for the rates, summed over all threads."""
        return self._waited_s

    def check(self) -> None:
        """Raise if the run was asked to stop."""
        self._stop()
        self._follow()

    def _follow(self) -> None:
        """Apply the current rate of the budget."""
        now_s = self._clock.monotonic_s()
        if now_s < self._follow_s:
            return
        self._follow_s = now_s + FOLLOW_S
        rate = self.budget.bytes_per_s_now()
        if rate is not None:
            self.reads.set_rate(min(rate, self.budget.read_bytes_per_s or rate))
            self.writes.set_rate(min(rate, self.budget.write_bytes_per_s or rate))

    def read(self, size_bytes: int) -> None:
        """Wait until `size_bytes` may be read."""
        self.check()
        waited_s = self.reads.take(size_bytes, self.check)
        with self._lock:
            self._bytes_read += size_bytes
            self._waited_s += waited_s

    def write(self, size_bytes: int) -> None:
        """Wait until `size_bytes` may be written."""
        self.check()
        waited_s = self.writes.take(size_bytes, self.check)
        with self._lock:
            self._bytes_written += size_bytes
            self._waited_s += waited_s


def _bucket(bytes_per_s: int | None, clock: Clock) -> TokenBucket:
    return TokenBucket(bytes_per_s, clock, saved_bytes=int((bytes_per_s or 0) * START_S))
