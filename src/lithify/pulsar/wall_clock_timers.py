"""Timers by the wall clock, in an event loop.

Messages and tokens have times of the wall clock, which may jump. The timers of an event loop use
the monotonic clock. So one loop timer checks the wall clock when the next alarm is due, and at
least every `LOOK_S`: a jump forward is noticed within that time, and after a jump backward the
alarm keeps waiting. An owner has one alarm; setting it again replaces it.

Not thread-safe. Owned by the broker.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING

from lithify.logger import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from lithify.clock import Clock

__all__ = ["LOOK_S", "Alarms"]

LOOK_S = 1.0
CALLS_MAX = 100
"""Alarms that are called per iteration of the loop."""
STALE_MAX = 1000
"""Replaced and cancelled alarms that may stay in the heap until they are due."""

log = get_logger("lithify.pulsar")


class Alarms:
    """The alarms of one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._heap: list[tuple[int, int, Hashable]] = []
        self._set: dict[Hashable, tuple[int, int, Callable[[], None]]] = {}
        """(number, time, callback) per owner; a heap row with another number is stale."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._set)

    def set(self, owner: Hashable, due_ms: int, call: Callable[[], None]) -> None:
        """Schedule `call` in the running loop; a time in the past is due at once."""
        known = self._set.get(owner)
        if known is not None and known[1] == due_ms:
            self._set[owner] = known[0], due_ms, call
            return
        number = next(self._numbers)
        self._set[owner] = number, due_ms, call
        heapq.heappush(self._heap, (due_ms, number, owner))
        if len(self._heap) > 2 * len(self._set) + STALE_MAX:
            self._heap = [row for row in self._heap if self._is_set(row)]
            heapq.heapify(self._heap)
        if self._heap[0][1] == number:
            self._start_timer()

    def cancel(self, owner: Hashable) -> None:
        """Cancel the alarm of `owner`, if it has one."""
        self._set.pop(owner, None)
        if not self._set:
            self._heap.clear()
            self._stop_timer()

    def _is_set(self, row: tuple[int, int, Hashable]) -> bool:
        known = self._set.get(row[2])
        return known is not None and known[0] == row[1]

    def _call_due(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        calls = 0
        while self._heap and self._heap[0][0] <= now_ms and calls < CALLS_MAX:
            row = heapq.heappop(self._heap)
            if self._is_set(row):
                calls += 1
                _, _, call = self._set.pop(row[2])
                try:
                    call()
                except Exception:
                    # A failed callback must not stop later alarms.
                    log.exception("an alarm failed", owner=repr(row[2]))
        self._start_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        if self._heap:
            left_s = max(0, self._heap[0][0] - self._clock.now_ms()) / 1000
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(left_s, LOOK_S), self._call_due)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
