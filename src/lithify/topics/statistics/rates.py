"""Growth rates of counters over the last minute, or since the topic was opened if that is less.

1. `sample` stores the counters with the time, at most once per `NOTE_SECONDS`.
2. It removes samples older than a minute, except the newest of them.
3. A rate is the growth of a counter since the oldest sample, divided by the elapsed time.

With regular samples the window is one minute plus at most `NOTE_SECONDS`. Pure: the time is a
parameter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Counters = Mapping[object, tuple[int, int]]

__all__ = ["Rates", "RatesByOwner"]

NOTE_SECONDS = 5.0
WINDOW_SECONDS = 60.0
SECONDS_MIN = 1.0
"""Least elapsed time of a rate: growth within less than a second predicts little."""


class Rates:
    """The rates of some monotonic counters."""

    def __init__(self, now_s: float, counters: Sequence[int]) -> None:
        self._samples = deque([(now_s, tuple(counters))])

    def sample(self, now_s: float, counters: Sequence[int]) -> None:
        """Store a sample of the counters, if one is due."""
        samples = self._samples
        if now_s - samples[-1][0] < NOTE_SECONDS:
            return
        samples.append((now_s, tuple(counters)))
        while now_s - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()

    def per_second(self, now_s: float, counters: Sequence[int]) -> list[float]:
        """The rate of each counter."""
        then_s, before = self._samples[0]
        seconds = max(now_s - then_s, SECONDS_MIN)
        return [(now - old) / seconds for now, old in zip(counters, before, strict=True)]


class RatesByOwner:
    """The rates of two counters per owner. Owners come and go; a new owner starts at 0."""

    def __init__(self, now_s: float) -> None:
        self._samples: deque[tuple[float, Counters]] = deque([(now_s, {})])

    def is_due(self, now_s: float) -> bool:
        """Is a sample due?"""
        return now_s - self._samples[-1][0] >= NOTE_SECONDS

    def sample(self, now_s: float, counters: Counters) -> None:
        """Store a sample of the counters, if one is due."""
        samples = self._samples
        if not self.is_due(now_s):
            return
        samples.append((now_s, counters))
        while now_s - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()

    def per_second(
        self, now_s: float, owner: object, counters: tuple[int, int]
    ) -> tuple[float, float]:
        """The rates of an owner since the oldest sample that has it, else since the newest."""
        since = (note for note in self._samples if owner in note[1])
        then_s, before = next(since, self._samples[-1])
        seconds = max(now_s - then_s, SECONDS_MIN)
        old = before.get(owner, (0, 0))
        return (counters[0] - old[0]) / seconds, (counters[1] - old[1]) / seconds
