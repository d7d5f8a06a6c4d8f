"""Moves scattered live entries: they are written again at the head of the log.

A live set of many isolated indexes costs memory, and keeps old segments with little in them. Its
entries can be moved: the leader proposes, for one live index after the other, the command that the
machine returns for it (`Machine.rewrite_command`). It is an ordinary command. The machine applies
it as a compare-and-swap on the index: if the old index is still live, the new one replaces it;
otherwise nothing happens. So a key that is overwritten meanwhile keeps its newer value. The old
index becomes dead and is deleted after the next snapshot, whatever crashes come before.

`plan_rewrites` chooses the lowest indexes in runs shorter than `RUN_MIN`. Moved entries form one
long run, so they are not moved again.

`Rewriter` paces it for one group:

    rewriter.begin(state.live)              # by call, or when `is_scattered`
    rewriter.tick()                         # the group's tick: refills the budget
    for index in rewriter.take(): ...       # read, ask the machine, propose
    rewriter.moved(payload_bytes)           # a command of this size was proposed
    rewriter.settled()                      # one was answered, or there was nothing to propose
    rewriter.stop()                         # this member stopped leading

Pure; called in the group's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.live_set import LiveSet
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RUN_MIN", "RewriteSettings", "Rewriter", "plan_rewrites", "scatter"]

RUN_MIN = 64
"""A run of this number of indexes costs 9 bytes of memory, an eighth of a byte each."""


@dataclass(frozen=True, slots=True)
class RewriteSettings:
    """When and how fast live entries are moved. Each costs one write per member."""

    scatter_max: float | None = None
    """Runs per live index above which moving starts by itself; None: only by call."""
    live_min: int = 100_000
    """A live set with fewer indexes is never scattered enough."""
    entries_per_tick: int = 64
    bytes_per_tick: int = 2**20
    in_flight_max: int = 256

    def __post_init__(self) -> None:
        check_range("scatter_max", self.scatter_max, 0, 1)
        check_range("live_min", self.live_min, 0, 2**62)
        for name in ("entries_per_tick", "bytes_per_tick", "in_flight_max"):
            check_range(name, getattr(self, name), 1, 2**40)


def scatter(live: LiveSet) -> float:
    """Runs per index: 1 if no two are neighbours, near 0 in long runs."""
    return len(live.starts) / len(live) if live else 0.0


def plan_rewrites(live: LiveSet, limit: int) -> LiveSet:
    """The lowest live indexes in short runs, up to a limit."""
    starts, stops = live.range_arrays()
    short = np.flatnonzero(stops - starts < RUN_MIN)
    reached = np.cumsum(stops[short] - starts[short])
    short = short[: int(np.searchsorted(reached, limit)) + 1]
    chosen = LiveSet.from_ranges(starts[short], stops[short])
    if len(chosen) > limit:
        chosen = chosen.slice(0, chosen.select(limit))
    return chosen


class Rewriter:
    """See the module."""

    def __init__(self, settings: RewriteSettings | None = None) -> None:
        self._settings = settings or RewriteSettings()
        self._left: Iterator[int] = iter(())
        self._entries = self._bytes = 0
        self._in_flight = 0
        self.is_active = False

    def is_scattered(self, live: LiveSet) -> bool:
        """Should moving start by itself?"""
        settings = self._settings
        if settings.scatter_max is None or len(live) < max(1, settings.live_min):
            return False
        return scatter(live) > settings.scatter_max

    def begin(self, live: LiveSet, limit: int | None = None) -> None:
        """Start to move scattered entries, up to a limit; no effect while in progress."""
        if not self.is_active:
            self._left = iter(plan_rewrites(live, len(live) if limit is None else limit))
            self.is_active = True

    def stop(self) -> None:
        """Stop; commands in flight may complete."""
        self._left = iter(())
        self.is_active = False
        self._in_flight = 0

    def tick(self) -> None:
        """Refill the budget; an unused rest expires."""
        self._entries = self._settings.entries_per_tick
        # The next ticks pay for a command that exceeded the budget.
        self._bytes = min(0, self._bytes) + self._settings.bytes_per_tick

    def take(self) -> Iterator[int]:
        """The indexes to move now, one at a time; each must be settled."""
        while self._entries > 0 and self._bytes > 0:
            if self._in_flight >= self._settings.in_flight_max:
                return
            index = next(self._left, None)
            if index is None:
                self.is_active = False
                return
            self._entries -= 1
            self._in_flight += 1
            yield index

    def moved(self, payload_bytes: int) -> None:
        """The command for an index was proposed."""
        self._bytes -= payload_bytes

    def settled(self) -> None:
        """An index from `take` is done, whether it was moved or not."""
        self._in_flight = max(0, self._in_flight - 1)
