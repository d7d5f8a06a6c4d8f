"""Redelivery: how often entries were redelivered, and those that are to be queued again.

A consumer that leaves, or requests redelivery, may hold tens of thousands of entries. They are
released and queued in steps of `RETURNED_PER_STEP`; until its step an entry counts as held,
and its slot as taken. The count of an entry rises with each request and is sent with the entry.

Pure; owned by a subscription.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.topics.subscriptions.consumer import Consumer

__all__ = ["Redeliveries"]

RETURNED_PER_STEP = 1_000
"""Entries queued for redelivery per step, after a consumer left or requested redelivery."""


class Redeliveries:
    """The redeliveries of one subscription."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._returning: deque[tuple[Consumer, list[int]]] = deque()
        """Held entries that will be queued for redelivery."""

    @property
    def unfinished(self) -> bool:
        """Are entries still to be queued?"""
        return bool(self._returning)

    def count(self, position: int) -> int:
        """How often redelivery of an entry was requested."""
        return self._counts.get(position, 0)

    def request(self, positions: Iterable[int]) -> None:
        """Count a request for redelivery of these entries."""
        counts = self._counts
        counts.update({position: counts.get(position, 0) + 1 for position in positions})

    def add(self, consumer: Consumer, positions: list[int]) -> None:
        """Queue entries that a consumer holds, in this order."""
        self._returning.append((consumer, positions[::-1]))

    def take_step(self) -> Iterator[tuple[Consumer, int]]:
        """Remove the entries of one step; yields consumer and position."""
        for _ in range(RETURNED_PER_STEP):
            while self._returning and not self._returning[0][1]:
                self._returning.popleft()
            if not self._returning:
                return
            consumer, positions = self._returning[0]
            yield consumer, positions.pop()

    def forget(self, position: int) -> None:
        """Forget the count of an entry."""
        self._counts.pop(position, None)

    def forget_up_to(self, position: int) -> None:
        """Forget the counts of all entries up to a position."""
        for each in [p for p in self._counts if p <= position]:
            del self._counts[each]

    def clear(self) -> None:
        """Remove all entries and counts."""
        self._counts.clear()
        self._returning.clear()
