"""Which consumer of a key_shared subscription has which slots (see `hashing.py`).

Dealt out (auto-split), as Pulsar's brokers do: the first consumer has all. One that joins takes the
lower half of the longest stretch; one that leaves gives its stretch to the next above it, or to the
one below if there is none above. So only the slots of two consumers change hands at a time.

Sticky: each consumer says which ranges it wants; they must not overlap, and slots that nobody
asked for have no consumer.

Either way it is one row of stretches: ends (exclusive), ascending, with an owner each. Of stretches
that are dealt out a heap finds the longest one, so that a join costs O(log n). Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.errors import InvalidInput
from lithify.topics.hashing import HASH_SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Slots"]

RANGES_MAX = 5_000
"""Of all consumers of a subscription: each that joins or leaves has them laid out anew, in 2 ms."""

T = TypeVar("T")


class Slots(Generic[T]):
    """The slots of one subscription; owners are compared by identity."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: list[T | None] = []
        self._ranges: list[tuple[int, int, T]] = []
        self._members = 0
        self._start_of: dict[T, int] = {}
        """Dealt out: where the stretch of each owner begins."""
        self._longest: list[tuple[int, int]] = []
        """A heap of (-size, start); one that is no stretch any more is dropped at the top."""

    def owner(self, slot: int) -> T | None:
        """Who has a slot."""
        at = bisect_right(self._ends, slot)
        return self._owners[at] if at < len(self._owners) else None

    def stretches(self, owner: T) -> list[tuple[int, int]]:
        """What it has: half-open ranges, ascending."""
        starts = [0, *self._ends]
        rows = zip(starts, self._ends, self._owners, strict=False)
        return [(start, end) for start, end, whose in rows if whose is owner]

    def add(self, owner: T, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Let a consumer in, with the ranges (both ends inclusive) it asks for if it is sticky."""
        if self._members and bool(self._ranges) is not bool(ranges):
            raise InvalidInput("all consumers must be sticky or none of them")
        if len(self._ranges) + len(ranges) > RANGES_MAX:
            count = len(self._ranges)
            raise InvalidInput(
                f"{len(ranges)} hash ranges more than {count} are above the limit {RANGES_MAX}"
            )
        for low, high in ranges:
            if not 0 <= low <= high < HASH_SLOTS:
                raise InvalidInput(f"hash range {low}…{high} is not within 0…{HASH_SLOTS - 1}")
        rows = [*self._ranges, *((low, high + 1, owner) for low, high in ranges)]
        rows.sort(key=lambda row: row[0])
        for (_, end, _), (start, stop, _) in pairwise(rows):
            if start < end:
                raise InvalidInput(f"hash range {start}…{stop - 1} overlaps one that is taken")
        if ranges:
            self._ranges = rows
            self._lay_out()
        else:
            self._deal(owner)
        self._members += 1

    def remove(self, owner: T) -> None:
        """A consumer left."""
        self._members -= 1
        if self._ranges:
            self._ranges = [row for row in self._ranges if row[2] is not owner]
            self._lay_out()
            return
        start = self._start_of.pop(owner)
        at = bisect_right(self._ends, start)
        last = at == len(self._owners) - 1
        del self._owners[at]
        del self._ends[at - 1 if last and at else at]
        if not self._owners:
            self._longest.clear()
            return
        # One that grows downwards begins where this one did.
        grown = self._owners[at - last]
        assert grown is not None
        if not last:
            self._start_of[grown] = start
        self._note(self._start_of[grown], self._ends[at - last])

    def _deal(self, owner: T) -> None:
        if not self._owners:
            self._ends, self._owners = [HASH_SLOTS], [owner]
            self._start_of[owner] = 0
            self._note(0, HASH_SLOTS)
            return
        at, start, size = self._find_longest()
        if size < 2:
            raise InvalidInput(f"more than {HASH_SLOTS} consumers")
        middle, before = start + size // 2, self._owners[at]
        assert before is not None
        self._ends.insert(at, middle)
        self._owners.insert(at, owner)
        self._start_of |= {owner: start, before: middle}
        self._note(start, middle)
        self._note(middle, start + size)

    def _note(self, start: int, end: int) -> None:
        heappush(self._longest, (start - end, start))

    def _find_longest(self) -> tuple[int, int, int]:
        """(number, start, size) of the longest stretch, the lowest of equals."""
        while True:
            negative, start = self._longest[0]
            at = bisect_right(self._ends, start)
            begins = self._ends[at - 1] if at else 0
            if begins == start and start - self._ends[at] == negative:
                return at, start, -negative
            heappop(self._longest)

    def _lay_out(self) -> None:
        self._ends, self._owners = [], []
        at = 0
        for start, end, owner in self._ranges:
            if start > at:
                self._ends.append(start)
                self._owners.append(None)
            self._ends.append(end)
            self._owners.append(owner)
            at = end
