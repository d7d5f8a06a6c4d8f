"""How fast counters grow: over the last minute, or since the topic was opened if that is less.

1. Now and then the counters are noted with the time, at most once every `NOTE_SECONDS`.
2. Notes older than a minute are forgotten, but for the newest of them.
3. A rate is what a counter has grown by since the oldest note, divided by the time since then.

So it looks back a minute and at most `NOTE_SECONDS` more, as long as somebody notes. Pure: the time
is a parameter.
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
"""What happened in less than a second counts as of a whole one: it says little about the next."""


class Rates:
    """Of some counters, which only grow."""

    def __init__(self, now_s: float, counters: Sequence[int]) -> None:
        self._notes = deque([(now_s, tuple(counters))])

    def sample(self, now_s: float, counters: Sequence[int]) -> None:
        """Remember what the counters are, if it is time to."""
        notes = self._notes
        if now_s - notes[-1][0] < NOTE_SECONDS:
            return
        notes.append((now_s, tuple(counters)))
        while now_s - notes[1][0] >= WINDOW_SECONDS:
            notes.popleft()

    def per_second(self, now_s: float, counters: Sequence[int]) -> list[float]:
        """How fast each grows."""
        then_s, before = self._notes[0]
        seconds = max(now_s - then_s, SECONDS_MIN)
        return [(now - old) / seconds for now, old in zip(counters, before, strict=True)]


class RatesByOwner:
    """Of two counters of each of many, who come and go; what one counted before it came is 0."""

    def __init__(self, now_s: float) -> None:
        self._notes: deque[tuple[float, Counters]] = deque([(now_s, {})])

    def is_due(self, now_s: float) -> bool:
        """Is it time to note the counters?"""
        return now_s - self._notes[-1][0] >= NOTE_SECONDS

    def sample(self, now_s: float, counters: Counters) -> None:
        """Remember what the counters are, if it is time to."""
        notes = self._notes
        if not self.is_due(now_s):
            return
        notes.append((now_s, counters))
        while now_s - notes[1][0] >= WINDOW_SECONDS:
            notes.popleft()

    def per_second(
        self, now_s: float, owner: object, counters: tuple[int, int]
    ) -> tuple[float, float]:
        """How fast those of an owner grow, since the oldest note that has it, or the newest."""
        since = (note for note in self._notes if owner in note[1])
        then_s, before = next(since, self._notes[-1])
        seconds = max(now_s - then_s, SECONDS_MIN)
        old = before.get(owner, (0, 0))
        return (counters[0] - old[0]) / seconds, (counters[1] - old[1]) / seconds
