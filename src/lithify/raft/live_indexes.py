"""The live indexes of a growing log, kept so that asking for all of them is cheap. Pure.

A machine that leaves values in the log adds each command's index and removes those that died:

1. Indexes are added ascending, as the log grows, into one array.
2. Those removed are noted and nothing is searched for.
3. Asked for the set, or when more are noted than are left, the noted ones are sorted and taken out
   of the array in one pass.

A million scattered indexes take 8 MB here and 9 MB in the set. Asking costs one copy of the array,
and the sorting of what died since the last time.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from lithify.liveset import LiveSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LiveIndexes"]

SPARSE_MIN = 16
"""Indexes for each live one in their range, from which on sorting is faster than marking."""
NOTED_MAX = 65536
"""Half a megabyte that may be noted, however few are left."""


class LiveIndexes:
    """See the module."""

    def __init__(self, indexes: NDArray[np.int64] | None = None) -> None:
        """Of these indexes, in any order, no two of them the same."""
        self._indexes = array("q")
        if indexes is not None:
            self._indexes.frombytes(_ascending(indexes.astype(np.int64, copy=False)).tobytes())
        self._dead = array("q")

    def __len__(self) -> int:
        return len(self._indexes) - len(self._dead)

    def add(self, index: int) -> None:
        """One above all that were added before."""
        self._indexes.append(index)

    def remove(self, index: int) -> None:
        """One that was added and not removed."""
        self._dead.append(index)
        if len(self._dead) > NOTED_MAX and 2 * len(self._dead) > len(self._indexes):
            self._settle()

    def live_set(self) -> LiveSet:
        """All of them."""
        self._settle()
        # A copy: what is added later must not move the memory that the set looks at.
        return LiveSet.from_array(np.array(self._indexes, np.int64))

    def _settle(self) -> None:
        if not self._dead:
            return
        indexes = np.array(self._indexes, np.int64)
        dead = np.sort(np.array(self._dead, np.int64))
        kept = np.ones(indexes.size, np.bool_)
        kept[np.searchsorted(indexes, dead)] = False
        self._indexes, self._dead = array("q"), array("q")
        self._indexes.frombytes(indexes[kept].tobytes())


def _ascending(indexes: NDArray[np.int64]) -> NDArray[np.int64]:
    if not indexes.size:
        return indexes
    first, last = int(indexes.min()), int(indexes.max())
    if last - first >= SPARSE_MIN * indexes.size:
        return np.sort(indexes)
    # All are different, so a mark for each says it all: a fifth of the time of sorting.
    marks = np.zeros(last - first + 1, np.bool_)
    marks[indexes - first] = True
    return np.flatnonzero(marks) + first
