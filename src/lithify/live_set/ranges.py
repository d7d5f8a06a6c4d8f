"""Arrays of ranges: the arithmetic of the live set.

A list of ranges is two int64 arrays, `starts` and `lasts` (the last member, not the stop, so that
the highest position needs no 65th bit). It is *canonical* if the ranges ascend and neither touch
nor overlap. For storage, `lasts` becomes `extras`: the members of each range after its first, in
the narrowest unsigned type that holds the largest of them.

`RangeAssembler` collects canonical pieces in ascending order:

1. If a piece touches or overlaps the last range so far, the two ranges become one.
2. The rest is copied to the end of two arrays that grow by an eighth in place (the allocator remaps
   large arrays instead of copying them), so that there is never a second copy.
3. `extras` changes to a wider type when a range first needs it.

`sweep` combines two canonical lists:

1. One stable sort merges the edges of both (each start and each stop).
2. A running sum over +1, -1 (left) and +2, -2 (right) tells at each edge which lists contain it.
3. A table with four rows decides what to keep; a range starts or stops where the decision changes.

Pure functions over arrays; only the live set and its format call them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DIFFERENCE",
    "INTERSECTION",
    "UNION",
    "Integers",
    "Positions",
    "RangeAssembler",
    "Unsigned",
    "merged_ranges",
    "narrowed",
    "run_ranges",
    "sweep",
]

Positions: TypeAlias = NDArray[np.int64]
Unsigned: TypeAlias = NDArray[np.unsignedinteger[Any]]
Integers: TypeAlias = NDArray[np.integer[Any]]

# Indexed by 1 * in-left + 2 * in-right.
UNION = np.array([False, True, True, True])
DIFFERENCE = np.array([False, True, False, False])
INTERSECTION = np.array([False, False, False, True])

_NOTHING_YET = -2
"""A last member that touches no position."""


class RangeAssembler:
    """Collects canonical pieces in ascending order; see the module."""

    __slots__ = ("_extras", "_size", "_starts", "last")

    def __init__(self) -> None:
        self._starts: Positions = np.empty(0, np.int64)
        self._extras: Unsigned = np.empty(0, np.uint8)
        self._size = 0
        self.last = _NOTHING_YET

    def add(self, starts: Positions, lasts: Positions) -> None:
        """Append a piece; it must not begin below the last member so far."""
        if not starts.size:
            return
        if int(starts[0]) <= self.last + 1:
            self._size -= 1
            starts = starts.copy()
            starts[0] = self._starts[self._size]
        extras = narrowed(lasts - starts)
        if extras.itemsize > self._extras.itemsize:
            self._extras = self._extras.astype(extras.dtype)
        size = self._size + starts.size
        if size > self._starts.size:
            self._resize(size + size // 8)
        self._starts[self._size : size] = starts
        self._extras[self._size : size] = extras
        self._size = size
        self.last = int(lasts[-1])

    def finish(self) -> tuple[Positions, Unsigned]:
        """Return all starts and extras; the assembler must not be used afterwards."""
        self._resize(self._size)
        return self._starts, self._extras

    def _resize(self, size: int) -> None:
        # No view of the arrays outlives a statement, so moving them is safe.
        self._starts.resize(size, refcheck=False)
        self._extras.resize(size, refcheck=False)


def narrowed(values: Positions) -> Unsigned:
    """The values, none negative, in the narrowest unsigned type that holds them all."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def run_ranges(positions: Positions) -> tuple[Positions, Positions]:
    """The canonical ranges of positions that ascend or repeat."""
    opens = np.ones(positions.size + 1, np.bool_)
    np.greater(np.diff(positions), 1, out=opens[1:-1])
    return positions[opens[:-1]], positions[opens[1:]]


def merged_ranges(starts: Positions, lasts: Positions) -> tuple[Positions, Positions]:
    """The canonical ranges of arbitrary ranges, none of them empty."""
    if not np.all(starts[:-1] <= starts[1:]):
        order = np.argsort(starts, kind="stable")
        starts, lasts = starts[order], lasts[order]
    reach = np.maximum.accumulate(lasts)
    opens = np.ones(starts.size + 1, np.bool_)
    np.greater(starts[1:] - 1, reach[:-1], out=opens[1:-1])
    return starts[opens[:-1]], reach[opens[1:]]


def sweep(
    left: tuple[Positions, Positions],
    right: tuple[Positions, Positions],
    keeps: NDArray[np.bool_],
) -> tuple[Positions, Positions]:
    """The canonical ranges of the positions that `keeps` selects from two canonical lists."""
    bound = 2 * left[0].size
    edges = np.empty(bound + 2 * right[0].size, np.uint64)
    steps = np.empty(edges.size, np.int8)
    for (starts, lasts), side, weight in (
        (left, slice(0, bound), 1),
        (right, slice(bound, None), 2),
    ):
        edges[side][0::2] = starts
        # Stops are unsigned: the highest possible one is just above int64.
        edges[side][1::2] = lasts.view(np.uint64) + np.uint64(1)
        steps[side][0::2] = weight
        steps[side][1::2] = -weight
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    kept = keeps[np.cumsum(steps[order], dtype=np.int8)]
    # If both lists have an edge at the same position, only the state after both counts.
    final = np.append(edges[1:] != edges[:-1], True)[: edges.size]
    edges, kept = edges[final], kept[final]
    edges = edges[np.diff(kept, prepend=False)]
    return edges[0::2].view(np.int64), (edges[1::2] - np.uint64(1)).view(np.int64)
