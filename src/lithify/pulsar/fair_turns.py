"""Fair scheduling of the connections at the Pulsar port, by source.

A *turn* is the work of a session without interruption, about 2 ms (`session.TURN_COST`). An event
loop runs every ready callback, and hundreds of connections may be ready, so turns are scheduled
here.

1. A turn runs at once if no other turn waits and the turns since the last round took less than
   `ROUND_S` together. Otherwise it waits.
2. A *round* begins in the next iteration of the loop. It runs one turn per source in rotation until
   no turn waits or they took `ROUND_S`. The loop then runs all other ready callbacks, and the next
   round follows.

So an iteration of the loop spends `ROUND_S` and one turn on all connections, independent of their
number. A source waits for one turn of each other source, independent of the number of its
connections. The source of a session is the name in its token, otherwise its address.

A round also begins after turns that took `ROUND_S` if none waits, so a source that is alone never
waits. The measured time may span several iterations, which ends a round early.

Owned by the broker. Not thread-safe: used in the event loop.
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
    """Schedules the turns of all connections."""

    def __init__(self, time_s: Callable[[], float] = time.perf_counter) -> None:
        self._time_s = time_s
        self._spent_s = 0.0
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """Waiting turns by source, in rotation order."""
        self._scheduled = False
        """Does the next iteration run a round?"""

    @property
    def is_open(self) -> bool:
        """May a turn run at once?"""
        return not self._waiting and self._spent_s < ROUND_S

    def run(self, turn: Callable[[], None]) -> None:
        """Run a turn now; requires `is_open`."""
        begun_s = self._time_s()
        try:
            turn()
        finally:
            self._spent_s += self._time_s() - begun_s
            self._schedule()

    def enqueue(self, source: str, turn: Callable[[], None]) -> None:
        """Queue a turn for a later round."""
        self._waiting.setdefault(source, deque()).append(turn)
        self._schedule()

    def _schedule(self) -> None:
        # Without a waiting turn, the round only lets the next turn run at once.
        if (self._waiting or self._spent_s >= ROUND_S) and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        # Turns that are enqueued during the round are part of it, if time is left.
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
