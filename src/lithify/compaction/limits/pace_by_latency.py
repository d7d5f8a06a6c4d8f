"""The copy rate of a run, reduced while latencies of the log's users are high.

The rate follows additive increase, multiplicative decrease, as in TCP:

1. In each window of half a second the p95 latency of the log's users is read.
2. Above the limit, the rate is halved. Otherwise it rises by a 32nd of the maximum, also in a
   window without operations. It stays between minimum and maximum.
3. The limit is `p95_ms_max`, or `p95_rise_max` times the p95 before the run if that is less; a
   latency up to 1 ms is always acceptable.

The tasks of a run may be in other processes, on other machines. All they share is the log's
directory, so a file there has the rate, and they read it a few times a second:

    rate (8 bytes, little-endian)   its CRC-32C (4)      PACE.tmp

A run starts at the maximum, which its tasks know: the file is created when the rate falls. It is
overwritten in place and never made durable. A task that finds it missing or torn keeps its rate;
the next open removes a file left by a crash. Where all tasks are threads of one process, a
value in memory is enough (`HeldRate`).

`next_rate` and `limit_ms` are pure. A log has a `Pacing`. It creates a `Pacer` for each run, used
by the process of the run; the tasks use a `PacedBudget`.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from lithify.checksum import crc32c
from lithify.compaction.limits.budget import RATE_BYTES_PER_S_MIN, Budget
from lithify.compaction.limits.token_bucket import BYTES_MAX
from lithify.errors import InvalidSetting
from lithify.fs.atomic import read_file
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.clock import Clock
    from lithify.compaction.limits.latencies import Latencies
    from lithify.fs import FileSystem

__all__ = [
    "HeldRate",
    "PaceSettings",
    "PacedBudget",
    "Pacer",
    "Pacing",
    "Rate",
    "SharedRate",
    "limit_ms",
    "next_rate",
    "with_pace",
]

WINDOW_S = 0.5
STEPS = 32
QUIET_MS = 1.0

_FILE = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """Bounds of the rate, and the latencies that reduce it."""

    bytes_per_s_min: int = 4 << 20
    bytes_per_s_max: int = 2 << 30
    p95_ms_max: float = 20.0
    p95_rise_max: float = 2.0

    def __post_init__(self) -> None:
        check_range("bytes_per_s_max", self.bytes_per_s_max, RATE_BYTES_PER_S_MIN, BYTES_MAX)
        check_range("bytes_per_s_min", self.bytes_per_s_min, RATE_BYTES_PER_S_MIN, BYTES_MAX)
        if self.bytes_per_s_min > self.bytes_per_s_max:
            limit = f"at most bytes_per_s_max, which is {self.bytes_per_s_max}"
            raise InvalidSetting("bytes_per_s_min", self.bytes_per_s_min, limit)
        check_range("p95_ms_max", self.p95_ms_max, QUIET_MS, 1e6)
        check_range("p95_rise_max", self.p95_rise_max, 1, 1e6)


def limit_ms(settings: PaceSettings, before_ms: float | None) -> float:
    """The p95 above which the rate falls; `before_ms` is the p95 before the run."""
    if before_ms is None:
        return settings.p95_ms_max
    return min(settings.p95_ms_max, max(QUIET_MS, settings.p95_rise_max * before_ms))


def next_rate(settings: PaceSettings, rate: int, p95_ms: float | None, limit_ms: float) -> int:
    """The rate of the next window; `p95_ms` is None if no latency was measured in this one."""
    if p95_ms is not None and p95_ms > limit_ms:
        return max(settings.bytes_per_s_min, rate // 2)
    return min(settings.bytes_per_s_max, rate + max(1, settings.bytes_per_s_max // STEPS))


class Rate(Protocol):
    """The current rate of a run, shared with its tasks."""

    def share(self, tasks: int) -> Rate:
        """The share of one of `tasks` parallel tasks."""

    def write(self, bytes_per_s: int) -> None:
        """Set the rate of the run."""

    def read(self) -> int | None:
        """The rate of one task; None if there is none."""

    def remove(self) -> None:
        """Remove the rate at the end of the run."""


@dataclass(frozen=True, slots=True)
class HeldRate:
    """A rate for tasks that are threads of this process."""

    tasks: int = 1
    _held: list[int] = field(default_factory=list)

    def share(self, tasks: int) -> HeldRate:
        """See `Rate`."""
        return replace(self, tasks=self.tasks * max(1, tasks))

    def write(self, bytes_per_s: int) -> None:
        """See `Rate`."""
        self._held[:] = [bytes_per_s]

    def read(self) -> int | None:
        """See `Rate`."""
        held = tuple(self._held)
        return max(1, held[0] // self.tasks) if held else None

    def remove(self) -> None:
        """See `Rate`."""
        self._held.clear()


@dataclass(frozen=True, slots=True)
class SharedRate:
    """A rate in a file of the log's directory; each of `tasks` tasks gets an equal share."""

    fs: FileSystem
    path: str
    tasks: int = 1

    def share(self, tasks: int) -> SharedRate:
        """See `Rate`."""
        return replace(self, tasks=self.tasks * max(1, tasks))

    def write(self, bytes_per_s: int) -> None:
        """Publish the rate to the tasks; if the disk is full they keep the old one."""
        data = bytes_per_s.to_bytes(8, "little")
        with suppress(OSError), self.fs.open_append(self.path) as file:
            file.truncate(0)
            file.write(_FILE.pack(bytes_per_s, crc32c(data)))

    def read(self) -> int | None:
        """The rate of one task; None if there is no valid file."""
        try:
            data = read_file(self.fs, self.path)
        except OSError:
            return None
        if len(data) != _FILE.size or crc32c(data[:8]) != _FILE.unpack(data)[1]:
            return None
        return max(1, int(_FILE.unpack(data)[0]) // self.tasks)

    def remove(self) -> None:
        """Remove the file at the end of the run."""
        with suppress(OSError):
            self.fs.remove(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedBudget(Budget):
    """A budget whose rates follow a shared one, up to its own limits."""

    rate: Rate

    def share(self, tasks: int) -> PacedBudget:
        """See `Budget`."""
        return replace(self, **self._shared(tasks), rate=self.rate.share(tasks))

    @property
    def changes(self) -> bool:
        """See `Budget`."""
        return True

    def bytes_per_s_now(self) -> int | None:
        """See `Budget`."""
        return self.rate.read()


def with_pace(budget: Budget, rate: Rate, bytes_per_s_max: int) -> PacedBudget:
    """The budget with rates that follow `rate`, from the maximum on."""
    return PacedBudget(
        read_bytes_per_s=min(budget.read_bytes_per_s or bytes_per_s_max, bytes_per_s_max),
        write_bytes_per_s=min(budget.write_bytes_per_s or bytes_per_s_max, bytes_per_s_max),
        memory_bytes=budget.memory_bytes,
        scratch_bytes=budget.scratch_bytes,
        delete_bytes_per_s=budget.delete_bytes_per_s,
        rate=rate,
    )


class Pacer:
    """Adjusts the rate of one run to the latencies. `adjust_rate` is called by one thread."""

    def __init__(
        self,
        settings: PaceSettings,
        latencies: Latencies,
        rate: Rate,
        clock: Clock,
        before: tuple[int, ...] = (),
    ) -> None:
        """`before` are the counts at the start of the period that this run is compared with."""
        self._settings = settings
        self._latencies = latencies
        self._rate = rate
        self._clock = clock
        self._limit_ms = limit_ms(settings, latencies.p95_ms(before))
        self._counts = latencies.counts()
        self._next_s = clock.monotonic_s() + WINDOW_S
        self.bytes_per_s = settings.bytes_per_s_max

    def adjust_rate(self) -> None:
        """Adjust the rate once per window; call this often."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + WINDOW_S
        p95_ms = self._latencies.p95_ms(self._counts)
        self._counts = self._latencies.counts()
        rate = next_rate(self._settings, self.bytes_per_s, p95_ms, self._limit_ms)
        if rate != self.bytes_per_s:
            self.bytes_per_s = rate
            self._rate.write(rate)

    def close(self) -> None:
        """Remove the rate at the end of the run."""
        self._rate.remove()


class Pacing:
    """Adapts the runs of one log to the latencies of its users."""

    def __init__(self, latencies: Latencies, rate: Rate, clock: Clock) -> None:
        """`latencies` may be those of several logs that share a disk."""
        self.latencies = latencies
        self.rate = rate
        self._clock = clock
        self._before: tuple[int, ...] = ()
        self._pacer: Pacer | None = None

    def adjust_rate(self) -> None:
        """Adjust the rate of the current run; call this several times a second during a run."""
        if self._pacer is not None:
            self._pacer.adjust_rate()

    @contextmanager
    def run(self, settings: PaceSettings, budget: Budget) -> Iterator[PacedBudget]:
        """Adjust the rate until the block ends; yields the budget, limited by it."""
        pacer = Pacer(settings, self.latencies, self.rate, self._clock, self._before)
        self._pacer = pacer
        try:
            yield with_pace(budget, self.rate, settings.bytes_per_s_max)
        finally:
            self._pacer = None
            pacer.close()
            # The next run is compared with the latencies from now until it begins.
            self._before = self.latencies.counts()
