"""Phase 4: scattered live indexes are written again at the head of the log.

A live set of many lone indexes costs memory, and keeps old segments with little in them. Its
members can be moved: the leader proposes, for one live index after the other, the command that the
machine gives for it (`Machine.rewrite_command`). Such a command is an ordinary one. The machine
applies it as a compare-and-swap on the index: if the old index is still what counts, the new one
takes its place, else nothing happens. So a key that is overwritten meanwhile keeps its newer value,
and the old index becomes dead and goes with the next snapshot, whatever crashes come before it.

`plan_rewrites` chooses: the lowest indexes that stand in runs shorter than `RUN_MIN`. Indexes that
were moved stand in one long run, so they are not moved again.

`Rewriter` paces it for one group:

    rewriter.begin(state.live)              # by call, or by itself when `is_scattered`
    rewriter.tick()                         # the group's tick: what may be moved in it
    for index in rewriter.take(): ...       # read, ask the machine, propose
    rewriter.moved(payload_bytes)           # one was proposed, so large
    rewriter.settled()                      # one was answered, or there was nothing to propose
    rewriter.stop()                         # this member does not lead any more

Pure; the group's thread calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.liveset import LiveSet
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RUN_MIN", "RewriteSettings", "Rewriter", "plan_rewrites", "scatter"]

RUN_MIN = 64
"""A run of so many indexes costs 9 bytes of memory, an eighth of a byte each: good enough."""


@dataclass(frozen=True, slots=True)
class RewriteSettings:
    """When live indexes are moved, and how fast. Replication makes each cost a write a member."""

    scatter_max: float | None = None
    """Runs for each live index above which moving begins by itself; None: only by call."""
    live_min: int = 100_000
    """A live set with fewer indexes is no burden, however scattered."""
    entries_per_tick: int = 64
    bytes_per_tick: int = 2**20
    in_flight_max: int = 256

    def __post_init__(self) -> None:
        check_range("scatter_max", self.scatter_max, 0, 1)
        check_range("live_min", self.live_min, 0, 2**62)
        for name in ("entries_per_tick", "bytes_per_tick", "in_flight_max"):
            check_range(name, getattr(self, name), 1, 2**40)


def scatter(live: LiveSet) -> float:
    """Runs for each index: 1 if no two are neighbours, near 0 if they stand in long runs."""
    return len(live.starts) / len(live) if live else 0.0


def plan_rewrites(live: LiveSet, limit: int) -> LiveSet:
    """The lowest live indexes in short runs, at most so many."""
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
        """Is it time to begin without being asked?"""
        settings = self._settings
        if settings.scatter_max is None or len(live) < max(1, settings.live_min):
            return False
        return scatter(live) > settings.scatter_max

    def begin(self, live: LiveSet, limit: int | None = None) -> None:
        """Move what is scattered of a live set, or so many of it; goes on if it is under way."""
        if not self.is_active:
            self._left = iter(plan_rewrites(live, len(live) if limit is None else limit))
            self.is_active = True

    def stop(self) -> None:
        """Move nothing more; what is under way may come to its end."""
        self._left = iter(())
        self.is_active = False
        self._in_flight = 0

    def tick(self) -> None:
        """Another tick: so much may be moved in it. What was not used is not saved."""
        self._entries = self._settings.entries_per_tick
        # What one large command took too much is paid back by the ticks that follow.
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
        """An index that was taken is done with, whether it was moved or not."""
        self._in_flight = max(0, self._in_flight - 1)
