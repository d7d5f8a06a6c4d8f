"""Queues events raised under the log's locks and delivers them after unlock.

    with events, lock:             # in this order, so that the lock is released first
        events.put(event)

A sink may block, for example on a log file on a full disk. If it were called under a lock, every
thread that needs the lock would wait for it. Therefore:

1. `put` queues an event. It is called under the lock that orders the state changes it reports.
2. At the end of the block one thread at a time delivers all queued events, in order. A thread that
   finds a delivery in progress returns: the delivering thread also takes its events.

A sink that blocks stops only the thread that delivers. Events raised meanwhile are queued, at most
`WAITING_MAX`: after that the oldest are dropped.

A sink may call the log. Any thread may use this.
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
    """A queue of events in front of one sink."""

    __slots__ = ("_busy", "_sink", "_waiting")

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._waiting: deque[Event] = deque(maxlen=WAITING_MAX)
        self._busy = threading.Lock()

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._waiting.append(event)

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        # Checked again after each release: another thread may have queued an event and returned
        # because the delivery still seemed to be in progress.
        while self._waiting and self._busy.acquire(blocking=False):
            try:
                while self._waiting:
                    self._sink(self._waiting.popleft())
            finally:
                self._busy.release()
