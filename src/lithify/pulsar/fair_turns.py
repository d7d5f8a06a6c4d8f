"""Turns of the connections at the Pulsar port, shared by source.

A *turn* is what a session does for its client at a stretch, about 2 ms (`session.TURN_COST`). The
event loop runs whatever is ready, and a hundred connections may be: so turns are counted here.

1. A turn runs at once as long as no other one waits and the turns since the last round took less
   than `ROUND_S` together. Otherwise it waits.
2. In the next iteration of the loop a *round* begins. It takes one turn of each source in rotation,
   until there are none or they took `ROUND_S`; then the loop does everything else that is ready,
   and the next round follows.

So an iteration of the loop spends `ROUND_S` and one turn on all connections, however many there
are, and a source waits for one turn of each other source, however many connections those have. The
source of a session is the name in its token, or its address as long as there is none.

The time that is counted may be of several iterations: that ends a round early, and costs one more
iteration for `ROUND_S` of work.

Owned by the broker; of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Rounds"]

ROUND_S = 0.003


class Rounds:
    """The turns of all connections."""

    def __init__(self, time_s: Callable[[], float] = time.perf_counter) -> None:
        self._time_s = time_s
        self._spent_s = 0.0
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """By source, in the order in which they have their turns."""
        self._scheduled = False
        """Is there to be a round in the next iteration?"""

    @property
    def is_open(self) -> bool:
        """May a turn run at once?"""
        return not self._waiting and self._spent_s < ROUND_S

    def run(self, turn: Callable[[], None]) -> None:
        """Run a turn now; only if `is_open` says so."""
        begun_s = self._time_s()
        try:
            turn()
        finally:
            self._spent_s += self._time_s() - begun_s

    def enqueue(self, source: str, turn: Callable[[], None]) -> None:
        """Run a turn in a later iteration of the loop."""
        self._waiting.setdefault(source, deque()).append(turn)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        # Turns that these enqueue are of this round, if there is time left.
        self._spent_s = 0.0
        try:
            while self._waiting and self._spent_s < ROUND_S:
                source = next(iter(self._waiting))
                turns = self._waiting.pop(source)
                turn = turns.popleft()
                if turns:
                    self._waiting[source] = turns
                self.run(turn)
        finally:
            self._scheduled = False
            self._schedule()
