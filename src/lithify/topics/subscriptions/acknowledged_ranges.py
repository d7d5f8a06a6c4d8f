"""The acknowledged ranges above a cursor's mark-delete: half-open, ascending, never touching.

Each range counts the acknowledged entries that it covers; positions that do not exist do not count.

The ranges are stored in blocks of at most `BLOCK_MAX`, ascending; `_tops` has the last stop of each
block. An insertion shifts the ranges of one block, so its cost does not depend on the number of
ranges:

1. Binary search in `_tops` for the first block that may touch the new range, then in that block.
2. Merge the ranges that it touches into one, in the block of the first of them. Remove those of the
   following blocks; a range is removed once, however many insertions there are.
3. Split a full block in two; remove an empty one.

Pure. For `cursor.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["AckedRanges"]

BLOCK_MAX = 512


@dataclass(slots=True)
class _Block:
    """Adjacent ranges, in columns."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def delete(self, low: int, high: int) -> None:
        del self.starts[low:high], self.stops[low:high], self.counts[low:high]

    def split(self) -> _Block:
        """Move the upper half to a new block."""
        at = len(self.starts) // 2
        upper = _Block(self.starts[at:], self.stops[at:], self.counts[at:])
        self.delete(at, len(self.starts))
        return upper


class AckedRanges:
    """The acknowledged ranges of one cursor."""

    __slots__ = ("_blocks", "_tops", "entries")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._tops: list[int] = []
        self.entries = 0
        """Number of acknowledged entries in all ranges."""

    def __len__(self) -> int:
        return sum(len(block.starts) for block in self._blocks)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(start, stop, entries) of each range."""
        for block in self._blocks:
            yield from zip(block.starts, block.stops, block.counts, strict=True)

    def columns(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
        """Starts, stops and entries of all ranges; other threads can run between blocks."""
        # A stop may be 2^63, above int64.
        starts = [np.array(block.starts, np.uint64) for block in self._blocks]
        stops = [np.array(block.stops, np.uint64) for block in self._blocks]
        counts = [np.array(block.counts, np.int64) for block in self._blocks]
        return np.concatenate(starts), np.concatenate(stops), np.concatenate(counts)

    def copy(self) -> AckedRanges:
        """A deep copy."""
        copied = AckedRanges()
        copied._blocks = [_Block(b.starts[:], b.stops[:], b.counts[:]) for b in self._blocks]
        copied._tops = self._tops[:]
        copied.entries = self.entries
        return copied

    def end_of(self, position: int) -> int:
        """The stop of the range that contains this position, or the position if none does."""
        number = bisect_right(self._tops, position)
        if number < len(self._blocks):
            block = self._blocks[number]
            at = bisect_right(block.starts, position) - 1
            if at >= 0 and block.stops[at] > position:
                return block.stops[at]
        return position

    def add(self, start: int, stop: int, entries: int) -> None:
        """Add a range that has `entries` acknowledged entries; does nothing if it is covered."""
        number = bisect_left(self._tops, start)
        if number == len(self._blocks):
            self._append(start, stop, entries)
            return
        block = self._blocks[number]
        low = bisect_left(block.stops, start)
        if block.starts[low] <= start and stop <= block.stops[low]:
            return
        high = bisect_right(block.starts, stop, low)
        count = sum(block.counts[low:high]) + entries
        if low < high:
            start, stop = min(start, block.starts[low]), max(stop, block.stops[high - 1])
        if high == len(block.starts):
            stop, more = self._take_following(number + 1, stop)
            count += more
        block.starts[low:high] = [start]
        block.stops[low:high] = [stop]
        block.counts[low:high] = [count]
        self.entries += entries
        if len(block.starts) > BLOCK_MAX:
            upper = block.split()
            self._blocks.insert(number + 1, upper)
            self._tops.insert(number + 1, upper.stops[-1])
        self._tops[number] = block.stops[-1]

    def _append(self, start: int, stop: int, entries: int) -> None:
        """Add a range after all others."""
        if not self._blocks or len(self._blocks[-1].starts) >= BLOCK_MAX:
            self._blocks.append(_Block())
            self._tops.append(stop)
        block = self._blocks[-1]
        block.starts.append(start)
        block.stops.append(stop)
        block.counts.append(entries)
        self._tops[-1] = stop
        self.entries += entries

    def _take_following(self, number: int, stop: int) -> tuple[int, int]:
        """Remove ranges that start at or below `stop`, from a block on: (last stop, entries)."""
        last, entries = number, 0
        while last < len(self._blocks) and self._blocks[last].starts[0] <= stop:
            block = self._blocks[last]
            high = bisect_right(block.starts, stop)
            stop = max(stop, block.stops[high - 1])
            entries += sum(block.counts[:high])
            block.delete(0, high)
            if block.starts:
                break
            last += 1
        del self._blocks[number:last], self._tops[number:last]
        return stop, entries

    @property
    def end(self) -> int:
        """The stop of the last range, 0 if there is none."""
        return self._tops[-1] if self._tops else 0

    def below(self, end: int) -> AckedRanges:
        """The part of the ranges below a position."""
        kept = AckedRanges()
        for start, stop, entries in self:
            if start >= end:
                break
            cut = min(stop, end)
            kept.add(start, cut, min(entries, cut - start))
        return kept

    def swallow(self, position: int) -> int:
        """Remove all ranges that start at or below `position`; returns the next hole."""
        position, entries = self._take_following(0, position)
        self.entries -= entries
        return position
