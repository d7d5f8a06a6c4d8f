"""The live indexes of a growing log, kept so that reading all of them is cheap. Pure.

A machine that leaves values in the log adds each command's index and removes dead ones:

1. Indexes are added in ascending order, as the log grows, to one array.
2. Removed indexes are only noted in a second array.
3. When the set is read, or when more indexes are noted than left, the noted ones are sorted and
   removed from the first array in one pass.

A million scattered indexes take 8 MB here and 9 MB in the set. Reading costs one copy of the array,
and sorting what died since the last read.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from lithify.live_set import LiveSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LiveIndexes"]

SPARSE_MIN = 16
"""Width of the range per live index, from which on sorting is faster than marking."""
NOTED_MAX = 65536
"""Half a megabyte of noted indexes, however few are left."""


class LiveIndexes:
    """See the module."""

    def __init__(self, indexes: NDArray[np.int64] | None = None) -> None:
        """Of these distinct indexes, in any order."""
        self._indexes = array("q")
        if indexes is not None:
            self._indexes.frombytes(_ascending(indexes.astype(np.int64, copy=False)).tobytes())
        self._dead = array("q")

    def __len__(self) -> int:
        return len(self._indexes) - len(self._dead)

    def add(self, index: int) -> None:
        """Add an index above all that were added before."""
        self._indexes.append(index)

    def remove(self, index: int) -> None:
        """Remove an index that is in the set."""
        self._dead.append(index)
        if len(self._dead) > NOTED_MAX and 2 * len(self._dead) > len(self._indexes):
            self._settle()

    def live_set(self) -> LiveSet:
        """All of them."""
        self._settle()
        # A copy: later additions must not move the memory that the set refers to.
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
    # All are different, so one mark per index is enough: a fifth of the time of sorting.
    marks = np.zeros(last - first + 1, np.bool_)
    marks[indexes - first] = True
    return np.flatnonzero(marks) + first
