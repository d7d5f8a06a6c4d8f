"""Positions of entries that a subscription has read and not delivered, by key slot.

Each slot has a heap of positions, so that insertion and the lookup of the lowest cost O(log n). A
removal deletes the position from `_slot_of`, which is authoritative; its heap drops it when it
comes to the top. Slots are grouped by the consumer that owns them, so that the slots of a consumer
that is not ready are not examined.

Pure; owned by a subscription.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Undelivered"]


class Undelivered:
    """The undelivered positions of one subscription."""

    def __init__(self, owner_of: Callable[[int], object]) -> None:
        """`owner_of` returns the owner of a slot; call `regroup` after its results change."""
        self._owner_of = owner_of
        self._slot_of: dict[int, int] = {}
        self._heaps: dict[int, list[int]] = {}
        self._groups: dict[object, dict[int, None]] | None = {}
        """Slots by owner; None after `regroup`, until the next lookup rebuilds it."""

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, position: int) -> bool:
        return position in self._slot_of

    def add(self, position: int, slot: int) -> None:
        """Add an entry; does nothing if it is present."""
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
        """Remove an entry that was delivered or acknowledged or does not exist, if present."""
        slot = self._slot_of.pop(position, None)
        if slot is not None:
            self.lowest(slot)

    def discard_up_to(self, position: int) -> None:
        """Remove all entries up to a position."""
        for each in [p for p in self._slot_of if p <= position]:
            self.discard(each)

    def clear(self) -> None:
        """Remove all entries."""
        self._slot_of.clear()
        self._heaps.clear()
        self._groups = {}

    def slot_of(self, position: int) -> int | None:
        """The slot of an entry, None if it is not present."""
        return self._slot_of.get(position)

    def slots_of(self, owner: object) -> Iterable[int]:
        """The slots of a consumer that have entries."""
        if self._groups is None:
            self._groups = {}
            for slot in self._heaps:
                self._groups.setdefault(self._owner_of(slot), {})[slot] = None
        return list(self._groups.get(owner, ()))

    def lowest(self, slot: int) -> int | None:
        """The lowest position in a slot, None if it has none."""
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
        """The lowest positions in a slot, ascending, `limit` at most."""
        heap = self._heaps.get(slot, [])
        positions: list[int] = []
        while heap and len(positions) < limit:
            position = heappop(heap)
            # An entry that was removed and added again is in the heap twice.
            if self._slot_of.get(position) == slot and positions[-1:] != [position]:
                positions.append(position)
        for position in positions:
            heappush(heap, position)
        self.lowest(slot)
        return positions

    def regroup(self) -> None:
        """The owners of slots have changed."""
        self._groups = None
