"""The retained revisions of the metastore, in columns: time, place, changed keys. Pure.

Of each revision:

    number, time    both ascend
    place           index of the entry that has its values; the number itself until it is rewritten
    entry_bytes     of that command, so that a read knows beforehand what it costs
    otherwise       1 if the values are in the second branch of the transaction
    values          retained ones; while there are some, the place is live
    stop            where its changes end in the columns of all changes: key, and 1 for a value or 0
                    for a deletion

A revision without values at or below the floor is of no use: `forget` counts them, and removes all
of them when they are more than half.

Only the machine changes it, in its group's thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["RevisionColumns", "column"]

FORGOTTEN_MIN = 1024


class RevisionColumns:
    """See the module; columns are indexed by row."""

    def __init__(self) -> None:
        self.numbers, self.times, self.places = array("q"), array("q"), array("q")
        self.entry_bytes, self.values, self.stops = array("I"), array("I"), array("q")
        self.otherwise = bytearray()
        self.keys: list[bytes] = []
        """Of all changes."""
        self.has_value = bytearray()
        """Of all changes."""
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self.numbers)

    def append(
        self,
        number: int,
        time: int,
        entry_bytes: int,
        values: int,
        *,
        otherwise: bool,
    ) -> None:
        """Add a revision; its changes were added to `keys` and `has_value`."""
        self.numbers.append(number)
        self.times.append(time)
        self.places.append(number)
        self.entry_bytes.append(entry_bytes)
        self.values.append(values)
        self.stops.append(len(self.keys))
        self.otherwise.append(otherwise)

    def row(self, number: int) -> int:
        """The row of a retained revision, -1 if it is not retained."""
        row = bisect_left(self.numbers, number)
        return row if row < len(self.numbers) and self.numbers[row] == number else -1

    def row_above(self, number: int) -> int:
        """The row of the first revision above this one."""
        return bisect_right(self.numbers, number)

    def newest_at(self, time: int) -> int:
        """The newest retained revision that is not later than a time, 0 if there is none."""
        row = bisect_right(self.times, time)
        return self.numbers[row - 1] if row else 0

    def change_bounds(self, row: int) -> tuple[int, int]:
        """Where the changes of a row are in `keys` and `has_value`."""
        return self.stops[row - 1] if row else 0, self.stops[row]

    def changes(self, row: int) -> Iterator[tuple[bytes, int]]:
        """The changed keys of a row, and whether each got a value."""
        start, stop = self.change_bounds(row)
        return zip(self.keys[start:stop], self.has_value[start:stop], strict=True)

    def forget(self, count: int, through: int) -> None:
        """Count revisions that have lost their values, all at or below `through`."""
        self._forgotten += count
        if self._forgotten < FORGOTTEN_MIN or 2 * self._forgotten < len(self.numbers):
            return
        kept = (np.array(self.values) > 0) | (np.array(self.numbers) > through)
        counts = np.diff(np.array(self.stops), prepend=0)
        flags = np.repeat(kept, counts)
        self.keys = list(compress(self.keys, flags.tobytes()))
        self.has_value = bytearray(np.array(self.has_value)[flags].tobytes())
        self.stops = column("q", np.cumsum(counts[kept]))
        self.numbers = column("q", np.array(self.numbers)[kept])
        self.times = column("q", np.array(self.times)[kept])
        self.places = column("q", np.array(self.places)[kept])
        self.entry_bytes = column("I", np.array(self.entry_bytes)[kept])
        self.values = column("I", np.array(self.values)[kept])
        self.otherwise = bytearray(np.array(self.otherwise)[kept].tobytes())
        self._forgotten = 0


def column(kind: str, values: NDArray[Any]) -> array[int]:
    """A column of these values, which have the width of the kind."""
    made = array(kind)
    made.frombytes(values.tobytes())
    return made
