"""Which consumer of a key_shared subscription has which slots (see `key_shared_hash.py`).

Dealt out (auto-split), as Pulsar's brokers do: the first consumer has all. One that joins takes the
lower half of the longest stretch; one that leaves gives its stretch to the next above it, or to the
one below if there is none above. So only the slots of two consumers change hands at a time.

Sticky: each consumer says which ranges it wants; they must not overlap, and slots that nobody
asked for have no consumer.

Either way there are stretches, ascending, with an owner each; sticky ones leave gaps. A heap finds
the longest one to be dealt out, so that a join and a leave cost O(log n) for each stretch. Pure.
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
"""Of all consumers of a subscription."""

T = TypeVar("T")


class KeySharedSlots(Generic[T]):
    """The slots of one subscription; owners are compared by identity."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stretches: dict[int, tuple[int, T]] = {}
        """By start: the end, exclusive, and the owner."""
        self._starts_of: dict[T, list[int]] = {}
        self._sticky = False
        self._longest: list[tuple[int, int]] = []
        """Dealt out: a heap of (-size, start), with stretches that are no more among them."""

    def owner(self, slot: int) -> T | None:
        """Who has a slot."""
        at = bisect_right(self._starts, slot)
        if not at:
            return None
        end, owner = self._stretches[self._starts[at - 1]]
        return owner if slot < end else None

    def stretches(self, owner: T) -> list[tuple[int, int]]:
        """What it has: half-open ranges, ascending."""
        return sorted(
            (start, self._stretches[start][0]) for start in self._starts_of.get(owner, ())
        )

    def add(self, owner: T, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Let a consumer in, with the ranges (both ends inclusive) it asks for if it is sticky."""
        if self._starts_of and self._sticky is not bool(ranges):
            raise InvalidInput("all consumers must be sticky or none of them")
        if ranges:
            self._check(ranges)
            for low, high in ranges:
                self._insert(low, high + 1, owner)
        else:
            self._deal(owner)
        self._sticky = bool(ranges)

    def remove(self, owner: T) -> None:
        """A consumer left."""
        for start in self._starts_of.pop(owner):
            at = bisect_right(self._starts, start) - 1
            end, _ = self._stretches.pop(start)
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
            # The stretch that begins last of those that begin before its end.
            at = bisect_right(self._starts, high)
            if at and self._stretches[self._starts[at - 1]][0] > low:
                raise InvalidInput(f"hash range {low}…{high} overlaps one that is taken")
        for (_, before), (low, high) in pairwise(sorted(ranges)):
            if low <= before:
                raise InvalidInput(f"hash range {low}…{high} overlaps one that is taken")

    def _insert(self, start: int, end: int, owner: T) -> None:
        insort(self._starts, start)
        self._stretches[start] = end, owner
        self._starts_of.setdefault(owner, []).append(start)

    # --- dealt out --------------------------------------------------------------------------

    def _deal(self, owner: T) -> None:
        if not self._starts:
            self._longest = []
            self._insert(0, HASH_SLOTS, owner)
            self._note(0, HASH_SLOTS)
            return
        start, end = self._find_longest()
        if end - start < 2:
            raise InvalidInput(f"more than {HASH_SLOTS} consumers")
        middle = start + (end - start) // 2
        _, before = self._stretches[start]
        self._starts_of[before] = []
        self._insert(middle, end, before)
        self._stretches[start] = middle, owner
        self._starts_of[owner] = [start]
        self._note(start, middle)
        self._note(middle, end)

    def _grow(self, at: int, start: int, end: int) -> None:
        """Give a stretch that nobody has to the next one above, or to the last one."""
        if at < len(self._starts):
            end, owner = self._stretches.pop(self._starts[at])
            self._starts[at] = start
            self._starts_of[owner] = [start]
        else:
            start = self._starts[-1]
            _, owner = self._stretches[start]
        self._stretches[start] = end, owner
        self._note(start, end)

    def _note(self, start: int, end: int) -> None:
        heappush(self._longest, (start - end, start))
        if len(self._longest) > 4 * len(self._starts) + 64:
            self._longest = [(start - end, start) for start, (end, _) in self._stretches.items()]
            heapify(self._longest)

    def _find_longest(self) -> tuple[int, int]:
        """(start, end) of the longest stretch, the lowest of equals."""
        while True:
            negative, start = self._longest[0]
            end, _ = self._stretches.get(start, (start, None))
            if start - end == negative:
                return start, end
            heappop(self._longest)
