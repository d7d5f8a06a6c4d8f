"""Entries of a subscription that were read but not delivered: positions only, by slot.

A slot's positions stand in a heap, so that adding one and finding the lowest cost O(log n) however
many wait. One that is taken away is forgotten in `_slot_of`, which is the truth, and dropped from
its heap when it comes to the top. Slots are grouped by the consumer that has them, so that nobody
looks at the slots of one that takes nothing.

Pure; owned by a subscription.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Undelivered"]


class Undelivered:
    """Positions that wait for a consumer."""

    def __init__(self, owner_of: Callable[[int], object]) -> None:
        """`owner_of` tells a slot's group; call `regroup` when its answers have changed."""
        self._owner_of = owner_of
        self._slot_of: dict[int, int] = {}
        self._heaps: dict[int, list[int]] = {}
        self._groups: dict[object, dict[int, None]] | None = {}
        """None until it is asked for after slots have changed hands."""

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, position: int) -> bool:
        return position in self._slot_of

    def add(self, position: int, slot: int) -> None:
        """Let an entry wait; nothing if it does already."""
        if position in self._slot_of:
            return
        self._slot_of[position] = slot
        heap = self._heaps.get(slot)
        if heap is None:
            heap = self._heaps[slot] = []
            if self._groups is not None:
                self._groups.setdefault(self._owner_of(slot), {})[slot] = None
        heappush(heap, position)

    def discard(self, position: int) -> None:
        """It was delivered, acknowledged or is gone; nothing if it does not wait."""
        slot = self._slot_of.pop(position, None)
        if slot is not None:
            self.lowest(slot)

    def discard_up_to(self, position: int) -> None:
        """The same for all up to a position."""
        for each in [p for p in self._slot_of if p <= position]:
            self.discard(each)

    def clear(self) -> None:
        """Nothing waits."""
        self._slot_of.clear()
        self._heaps.clear()
        self._groups = {}

    def slot_of(self, position: int) -> int | None:
        """The slot in which an entry waits, None if it does not wait."""
        return self._slot_of.get(position)

    def slots_of(self, owner: object) -> Iterable[int]:
        """The slots of a consumer in which something waits."""
        if self._groups is None:
            self._groups = {}
            for slot in self._heaps:
                self._groups.setdefault(self._owner_of(slot), {})[slot] = None
        return list(self._groups.get(owner, ()))

    def lowest(self, slot: int) -> int | None:
        """The lowest position that waits in a slot."""
        heap = self._heaps.get(slot)
        if heap is None:
            return None
        while heap and self._slot_of.get(heap[0]) != slot:
            heappop(heap)
        if heap:
            return heap[0]
        del self._heaps[slot]
        if self._groups is not None:
            owner = self._owner_of(slot)
            group = self._groups[owner]
            del group[slot]
            if not group:
                del self._groups[owner]
        return None

    def first(self, slot: int, limit: int) -> list[int]:
        """The lowest positions that wait in a slot, ascending, `limit` at most."""
        heap = self._heaps.get(slot, [])
        found: list[int] = []
        while heap and len(found) < limit:
            position = heappop(heap)
            # One that went and came back is in the heap twice.
            if self._slot_of.get(position) == slot and found[-1:] != [position]:
                found.append(position)
        for position in found:
            heappush(heap, position)
        self.lowest(slot)
        return found

    def regroup(self) -> None:
        """Slots have changed hands."""
        self._groups = None
