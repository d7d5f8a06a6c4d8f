"""The block index of a segment: one row per 64 KiB of frames.

A row means: the frame at `offset` has `position`, and no frame before it has a time above
`time_max_before`. To find a position, take the last row at or below it and scan at most one block.
To find a time, take the last row with an earlier `time_max_before`. Rows are written behind the
frames when a segment is sealed, and are in memory for the active one: 256 MiB have at most 4,096
rows of 24 bytes, 96 KiB.

    offset  size  field            little-endian
         0     8  position
         8     8  offset
        16     8  time_max_before

One thread adds rows while others search: rows are only appended, and a search uses only the rows
that existed when it began.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "ROW_BYTES", "BlockIndex"]

BLOCK_BYTES = 64 * 1024
ROW_BYTES = 24


class BlockIndex:
    """Rows of (position, offset, time_max_before), ascending in all three."""

    __slots__ = ("_next", "_offsets", "_positions", "_time_max", "_times")

    def __init__(self) -> None:
        self._positions = array("q")
        self._offsets = array("q")
        self._times = array("q")
        self._time_max = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, position: int, offset: int, time_ms: int) -> None:
        """Account for the frame written at `offset`."""
        if offset >= self._next:
            self._append(position, offset, self._time_max)
        self._time_max = max(self._time_max, time_ms)

    def add_many(
        self, positions: NDArray[np.int64], offsets: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        """Account for several frames, in order."""
        if not len(offsets):
            return
        running = np.maximum.accumulate(times)
        while (at := int(offsets.searchsorted(self._next))) < len(offsets):
            before = max(self._time_max, int(running[at - 1])) if at else self._time_max
            self._append(int(positions[at]), int(offsets[at]), before)
        self._time_max = max(self._time_max, int(running[-1]))

    def _append(self, position: int, offset: int, before: int) -> None:
        self._positions.append(position)
        self._offsets.append(offset)
        # Appended last, because `len` counts these: a searching thread sees whole rows only.
        self._times.append(before)
        self._next = offset + BLOCK_BYTES

    def mark(self) -> tuple[int, int, int]:
        """The current state, for `cut`."""
        return len(self), self._next, self._time_max

    def cut(self, mark: tuple[int, int, int]) -> BlockIndex:
        """A new index with the rows up to a mark."""
        rows, following, time_max = mark
        index = BlockIndex()
        index._positions = self._positions[:rows]
        index._offsets = self._offsets[:rows]
        index._times = self._times[:rows]
        index._next, index._time_max = following, time_max
        return index

    def find_position(self, position: int) -> int:
        """The row to start at to find `position` or the first one above it."""
        return max(0, bisect_right(self._positions, position, hi=len(self)) - 1)

    def find_time(self, time_ms: int) -> int:
        """The row to start at to find the first frame at or after `time_ms`."""
        return max(0, bisect_left(self._times, time_ms, hi=len(self)) - 1)

    def row(self, number: int) -> tuple[int, int]:
        """(position, offset) of a row."""
        return self._positions[number], self._offsets[number]

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(positions, offsets) of all rows, copied."""
        rows = len(self)
        return np.array(self._positions[:rows]), np.array(self._offsets[:rows])

    def to_bytes(self) -> bytes:
        """Encode as in a sealed segment."""
        rows = np.empty((len(self), 3), dtype="<i8")
        rows[:, 0] = np.frombuffer(self._positions, dtype=np.int64)
        rows[:, 1] = np.frombuffer(self._offsets, dtype=np.int64)
        rows[:, 2] = np.frombuffer(self._times, dtype=np.int64)
        return rows.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, time_max: int = 0) -> BlockIndex:
        """Decode rows whose CRC the caller has checked.

        To add more rows, `time_max` must be the latest time of all frames.
        """
        rows = np.frombuffer(data, dtype="<i8").reshape(-1, 3)
        index = cls()
        index._positions.frombytes(np.ascontiguousarray(rows[:, 0]).tobytes())
        index._offsets.frombytes(np.ascontiguousarray(rows[:, 1]).tobytes())
        index._times.frombytes(np.ascontiguousarray(rows[:, 2]).tobytes())
        index._next = index._offsets[-1] + BLOCK_BYTES if len(rows) else 0
        index._time_max = time_max
        return index
