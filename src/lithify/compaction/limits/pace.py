"""How fast a run may copy while others use the log: slower when they wait longer.

The rate rises by addition and falls by division, as that of a sender on a shared line:

1. Once in a window of half a second the p95 latency of the log's users in it is looked at.
2. Above the limit, the rate is halved. Otherwise it rises by a 32nd of the maximum; where nobody
   waited there is nobody to disturb. It stays between minimum and maximum.
3. The limit is `p95_ms_max`, or `p95_rise_max` times what the p95 was before the run if that is
   less; but 1 ms is never too long.

The tasks of a run may be in other processes, on other machines. All they share is the log's
directory, so the rate stands there in a file that they look at a few times a second:

    rate (8 bytes, little-endian)   its CRC-32C (4)      PACE.tmp

It is replaced in place and never made durable. A task that finds it missing or torn keeps its rate;
the next open removes what a crash leaves. Where all tasks are threads of one process, a value in
memory is enough (`HeldRate`).

`next_rate` and `limit_ms` are pure. A log has a `Pacing`. It makes a `Pacer` for each run, which
belongs to the process that runs it; a `PacedBudget` goes to the tasks.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from lithify.checksum import crc32c
from lithify.compaction.limits.budget import BYTES_MAX, RATE_BYTES_PER_S_MIN, Budget
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
    """Between which rates, and when it falls."""

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
    """The p95 above which the rate falls, where it was `before_ms` before the run."""
    if before_ms is None:
        return settings.p95_ms_max
    return min(settings.p95_ms_max, max(QUIET_MS, settings.p95_rise_max * before_ms))


def next_rate(settings: PaceSettings, rate: int, p95_ms: float | None, limit_ms: float) -> int:
    """The rate of the next window, after one with this p95; None: nobody waited."""
    if p95_ms is not None and p95_ms > limit_ms:
        return max(settings.bytes_per_s_min, rate // 2)
    return min(settings.bytes_per_s_max, rate + max(1, settings.bytes_per_s_max // STEPS))


class Rate(Protocol):
    """The rate of a run as its tasks see it."""

    def share(self, tasks: int) -> Rate:
        """The part of one of so many tasks."""

    def write(self, bytes_per_s: int) -> None:
        """Set the rate of the run."""

    def read(self) -> int | None:
        """One task's part; None if there is no rate."""

    def remove(self) -> None:
        """The run is over."""


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
    """The rate of a run as its tasks see it: each of `tasks` has a part of it."""

    fs: FileSystem
    path: str
    tasks: int = 1

    def share(self, tasks: int) -> SharedRate:
        """See `Rate`."""
        return replace(self, tasks=self.tasks * max(1, tasks))

    def write(self, bytes_per_s: int) -> None:
        """Tell the tasks; on a disk that is full they go on as they are."""
        data = bytes_per_s.to_bytes(8, "little")
        with suppress(OSError), self.fs.open_append(self.path) as file:
            file.truncate(0)
            file.write(_FILE.pack(bytes_per_s, crc32c(data)))

    def read(self) -> int | None:
        """One task's part; None if nobody says."""
        try:
            data = read_file(self.fs, self.path)
        except OSError:
            return None
        if len(data) != _FILE.size or crc32c(data[:8]) != _FILE.unpack(data)[1]:
            return None
        return max(1, int(_FILE.unpack(data)[0]) // self.tasks)

    def remove(self) -> None:
        """The run is over."""
        with suppress(OSError):
            self.fs.remove(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedBudget(Budget):
    """A budget whose rates follow a shared one, below its own."""

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


def with_pace(budget: Budget, rate: Rate) -> PacedBudget:
    """The budget, following a rate."""
    return PacedBudget(
        read_bytes_per_s=budget.read_bytes_per_s,
        write_bytes_per_s=budget.write_bytes_per_s,
        memory_bytes=budget.memory_bytes,
        scratch_bytes=budget.scratch_bytes,
        delete_bytes_per_s=budget.delete_bytes_per_s,
        rate=rate,
    )


class Pacer:
    """Looks at the latencies and tells the tasks; for one run. `look` is called by one thread."""

    def __init__(
        self,
        settings: PaceSettings,
        latencies: Latencies,
        rate: Rate,
        clock: Clock,
        before: tuple[int, ...] = (),
    ) -> None:
        """`before` are the counts at the beginning of the time that this run is compared with."""
        self._settings = settings
        self._latencies = latencies
        self._rate = rate
        self._clock = clock
        self._limit_ms = limit_ms(settings, latencies.p95_ms(before))
        self._counts = latencies.counts()
        self._next_s = clock.monotonic_s() + WINDOW_S
        self.bytes_per_s = settings.bytes_per_s_max
        rate.write(self.bytes_per_s)

    def adjust_rate(self) -> None:
        """To be called often; does something once a window."""
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
        """The run is over."""
        self._rate.remove()


class Pacing:
    """How the runs of one log keep pace with the latencies of its users."""

    def __init__(self, latencies: Latencies, rate: Rate, clock: Clock) -> None:
        """`latencies` may be those of several logs that share a disk."""
        self.latencies = latencies
        self.rate = rate
        self._clock = clock
        self._before: tuple[int, ...] = ()
        self._pacer: Pacer | None = None

    def look(self) -> None:
        """To be called several times a second while a run goes on."""
        if self._pacer is not None:
            self._pacer.adjust_rate()

    def budget(self, budget: Budget) -> PacedBudget:
        """A run's budget, below its own rates and the one of this pace."""
        return with_pace(budget, self.rate)

    @contextmanager
    def run(self, settings: PaceSettings) -> Iterator[None]:
        """A run goes on."""
        pacer = Pacer(settings, self.latencies, self.rate, self._clock, self._before)
        self._pacer = pacer
        try:
            yield
        finally:
            self._pacer = None
            pacer.close()
            # Latencies from now on until the next run are what that one is compared with.
            self._before = self.latencies.counts()
