"""Assigns the slots of a key_shared subscription to its consumers (see `key_shared_hash.py`).

Auto-split, as in Pulsar's brokers: the first consumer owns all slots. A new consumer receives the
lower half of the longest range; the range of a consumer that leaves goes to the next range above,
or to the one below if there is none above. So each change affects the slots of two consumers.

Sticky: each consumer requests ranges, which must not overlap; slots that no consumer requested have
no owner.

In both modes there are ascending ranges with one owner each; sticky ones leave gaps. A heap finds
the longest range to split, so that a join and a leave cost O(log n) per range. Pure.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.errors import InvalidInput
from lithify.topics.subscriptions.key_shared_hash import HASH_SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RANGES_MAX", "KeySharedSlots"]

RANGES_MAX = 5_000
"""Maximum number of sticky ranges of all consumers of a subscription."""

T = TypeVar("T")


class KeySharedSlots(Generic[T]):
    """The slots of one subscription; owners are compared by identity."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, tuple[int, T]] = {}
        """Ranges by start: the end, exclusive, and the owner."""
        self._starts_of: dict[T, list[int]] = {}
        self._sticky = False
        self._longest: list[tuple[int, int]] = []
        """Auto-split: a heap of (-size, start), which includes stale ranges."""

    def owner(self, slot: int) -> T | None:
        """The owner of a slot."""
        at = bisect_right(self._starts, slot)
        if not at:
            return None
        end, owner = self._ranges[self._starts[at - 1]]
        return owner if slot < end else None

    def stretches(self, owner: T) -> list[tuple[int, int]]:
        """The ranges of an owner: half-open, ascending."""
        return sorted((start, self._ranges[start][0]) for start in self._starts_of.get(owner, ()))

    def add(self, owner: T, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Add a consumer; a sticky one requests ranges, both ends inclusive."""
        if self._starts_of and self._sticky is not bool(ranges):
            raise InvalidInput("all consumers must be sticky or none of them")
        if ranges:
            self._check(ranges)
            for low, high in ranges:
                self._insert(low, high + 1, owner)
        else:
            self._split_for(owner)
        self._sticky = bool(ranges)

    def remove(self, owner: T) -> None:
        """Remove a consumer."""
        for start in self._starts_of.pop(owner):
            at = bisect_right(self._starts, start) - 1
            end, _ = self._ranges.pop(start)
            del self._starts[at]
            if not self._sticky and self._starts:
                self._grow(at, start, end)

    # --- sticky -----------------------------------------------------------------------------

    def _check(self, ranges: Sequence[tuple[int, int]]) -> None:
        count = len(self._starts) if self._sticky else 0
        if count + len(ranges) > RANGES_MAX:
            raise InvalidInput(
                f"{len(ranges)} hash ranges more than {count} are above the limit {RANGES_MAX}"
            )
        for low, high in ranges:
            if not 0 <= low <= high < HASH_SLOTS:
                raise InvalidInput(f"hash range {low}…{high} is not within 0…{HASH_SLOTS - 1}")
            # The last range that starts at or before its end.
            at = bisect_right(self._starts, high)
            if at and self._ranges[self._starts[at - 1]][0] > low:
                raise InvalidInput(f"hash range {low}…{high} overlaps one that is taken")
        for (_, before), (low, high) in pairwise(sorted(ranges)):
            if low <= before:
                raise InvalidInput(f"hash range {low}…{high} overlaps one that is taken")

    def _insert(self, start: int, end: int, owner: T) -> None:
        insort(self._starts, start)
        self._ranges[start] = end, owner
        self._starts_of.setdefault(owner, []).append(start)

    # --- auto-split -------------------------------------------------------------------------

    def _split_for(self, owner: T) -> None:
        if not self._starts:
            self._longest = []
            self._insert(0, HASH_SLOTS, owner)
            self._push(0, HASH_SLOTS)
            return
        start, end = self._find_longest()
        if end - start < 2:
            raise InvalidInput(f"more than {HASH_SLOTS} consumers")
        middle = start + (end - start) // 2
        _, previous = self._ranges[start]
        self._starts_of[previous] = []
        self._insert(middle, end, previous)
        self._ranges[start] = middle, owner
        self._starts_of[owner] = [start]
        self._push(start, middle)
        self._push(middle, end)

    def _grow(self, at: int, start: int, end: int) -> None:
        """Merge a range without owner into the next one above, or into the last one."""
        if at < len(self._starts):
            end, owner = self._ranges.pop(self._starts[at])
            self._starts[at] = start
            self._starts_of[owner] = [start]
        else:
            start = self._starts[-1]
            _, owner = self._ranges[start]
        self._ranges[start] = end, owner
        self._push(start, end)

    def _push(self, start: int, end: int) -> None:
        heappush(self._longest, (start - end, start))
        if len(self._longest) > 4 * len(self._starts) + 64:
            self._longest = [(start - end, start) for start, (end, _) in self._ranges.items()]
            heapify(self._longest)

    def _find_longest(self) -> tuple[int, int]:
        """(start, end) of the longest range; of equals, the lowest."""
        while True:
            negative, start = self._longest[0]
            end, _ = self._ranges.get(start, (start, None))
            if start - end == negative:
                return start, end
            heappop(self._longest)
