"""Events of a log on their way to whoever listens: noted under its locks, told when those are free.

    with telling, lock:            # in this order, so that the lock is released first
        telling.put(event)

A sink may take its time, a log file on a full disk for instance. Told under a lock, an event would
keep everybody who needs that lock waiting with it. So:

1. `put` notes an event. It is called under the lock that orders what the events are about.
2. When the block ends, whoever finds nobody telling tells all that was noted, in that order. Who
   finds somebody telling goes on: that one tells these as well, before it ends.

So a sink that blocks stops the thread that it was called in, and no other. What is noted meanwhile
waits, at most `WAITING_MAX` of it: if the sink never comes back the oldest are lost.

A sink may use the log. Any thread. For the log.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.events import Event, EventSink

__all__ = ["WAITING_MAX", "DeferredEvents"]

WAITING_MAX = 10_000


class DeferredEvents:
    """Between the places where something happens and one sink."""

    __slots__ = ("_busy", "_sink", "_waiting")

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)
        self._busy = threading.Lock()

    def put(self, event: Event) -> None:
        """Note what has happened."""
        self._waiting.append(event)

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        # Looked at again after each release: somebody may have noted something and gone on because
        # this one seemed to be telling.
        while self._waiting and self._busy.acquire(blocking=False):
            try:
                while self._waiting:
                    self._sink(self._waiting.popleft())
            finally:
                self._busy.release()
