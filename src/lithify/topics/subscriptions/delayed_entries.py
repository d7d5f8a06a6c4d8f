"""Delayed delivery: entries of a shared subscription that are not due yet.

An entry whose producer asked for a later delivery is stored by due time, as a position only. When
it is due, the subscription reads it again. With `DELAYED_MAX` of them the subscription reads no
further. Other types of subscriptions deliver such entries at once.

Pure; owned by a subscription.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.log.segments.frame import LogEntry

__all__ = ["DelayedEntries"]

DELAYED_MAX = 100_000


class DelayedEntries:
    """The delayed entries of one subscription."""

    def __init__(self, due_ms_of: Callable[[LogEntry], int]) -> None:
        self._due_ms_of = due_ms_of
        self._heap: list[tuple[int, int]] = []

    @property
    def is_full(self) -> bool:
        """Are there `DELAYED_MAX` entries?"""
        return len(self._heap) >= DELAYED_MAX

    @property
    def due_ms(self) -> int | None:
        """Due time of the next entry, None if there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, entry: LogEntry, now_ms: int) -> bool:
        """Store an entry that is not due, and return True; False if it is due."""
        due_ms = self._due_ms_of(entry)
        if due_ms <= now_ms:
            return False
        heappush(self._heap, (due_ms, entry.position))
        return True

    def take_due(self, now_ms: int) -> Iterator[int]:
        """Remove the entries that are due; yields their positions."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heappop(self._heap)[1]

    def clear(self) -> None:
        """Remove all entries."""
        self._heap.clear()
