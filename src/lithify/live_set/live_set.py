"""The live set: an immutable set of positions, the result of a store's rule for compaction.

Members are stored as ascending ranges that neither touch nor overlap, in two arrays: `starts`
(int64) and `extras`, the members of each range after its first, in the narrowest unsigned type that
holds the largest of them. A scattered position takes 8 + 1 bytes, so ten million take 90 MB; a
range takes the same for any length.

1. Lookup: binary search in `starts`, then one comparison with `extras`.
2. Rank and count: the number of earlier members is stored for every 1024th range, so at most 1023
   extras are added up after the binary search.
3. Union, difference, intersection: position space is cut into windows of at most 2^16 ranges per
   side, and each window is swept (`ranges.py`). The cost depends on the number of ranges, not on
   the number of positions; temporary memory depends on the window.
4. Bytes: `format.py`.

Invariants: ranges ascend, do not touch, and lie within 0 … 2^63-1; `extras` has the narrowest type;
the arrays are read-only. So equal sets have equal arrays and equal bytes.

Pure: no files, no clock. Any module may use it, from any thread; a builder belongs to one thread.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import InvalidInput, PositionOutOfRange
from lithify.live_set import format as live_set_format
from lithify.live_set.ranges import (
    DIFFERENCE,
    INTERSECTION,
    UNION,
    RangeAssembler,
    merged_ranges,
    run_ranges,
    sweep,
)
from lithify.positions import NO_POSITION, POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.live_set.ranges import Integers, Positions, Unsigned

__all__ = ["LiveSet", "LiveSetBuilder"]

_END = POSITION_MAX + 1
_RANK_RANGES = 1024
# A sweep needs about 40 bytes of temporary memory for each of the 4 * 2^16 edges of a window: 10
# MB.
_WINDOW_RANGES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LiveSet:
    """A set of positions. `LiveSet()` is empty; the `from_` methods create the others.

    Compiled code may read the arrays. A caller that passes arrays to the constructor guarantees the
    invariants and must not use them afterwards. Any integer may be looked up: outside 0 … 2^63-1 it
    is not a member, and a half-open range that ends before it starts is empty.
    """

    starts: Positions = field(default_factory=lambda: np.empty(0, np.int64))
    extras: Unsigned = field(default_factory=lambda: np.empty(0, np.uint8))
    _before: Positions = field(init=False)
    _count: int = field(init=False)

    def __post_init__(self) -> None:
        blocks = -(-self.extras.size // _RANK_RANGES)
        before = np.zeros(blocks, np.int64)
        count = 0
        if blocks:
            earlier, latest = np.split(self.extras, [(blocks - 1) * _RANK_RANGES])
            sums = earlier.reshape(-1, _RANK_RANGES).sum(axis=1, dtype=np.int64)
            np.cumsum(sums + _RANK_RANGES, out=before[1:])
            # Python integers: the set of all positions has one more than int64 can hold.
            count = int(before[-1]) + int(latest.sum(dtype=np.int64)) + latest.size
        self.starts.flags.writeable = False
        self.extras.flags.writeable = False
        object.__setattr__(self, "_before", before)
        object.__setattr__(self, "_count", count)

    @classmethod
    def empty(cls) -> LiveSet:
        """No positions."""
        return cls()

    @classmethod
    def from_iterable(cls, positions: Iterable[int]) -> LiveSet:
        """The set of these positions, in any order, with duplicates."""
        values = array("q", (_checked(position) for position in positions))
        return cls.from_array(np.frombuffer(values, np.int64))

    @classmethod
    def from_array(cls, positions: Integers) -> LiveSet:
        """The set of these positions, in any order; ascending ones are not sorted."""
        _check_array("positions", positions, POSITION_MAX)
        if not np.all(positions[:-1] <= positions[1:]):
            positions = np.sort(positions)
        assembler = RangeAssembler()
        for at in range(0, positions.size, _WINDOW_RANGES):
            piece = positions[at : at + _WINDOW_RANGES].astype(np.int64, copy=False)
            assembler.add(*run_ranges(piece))
        return cls(*assembler.finish())

    @classmethod
    def from_range(cls, start: int, stop: int) -> LiveSet:
        """All positions of the half-open range."""
        builder = LiveSetBuilder()
        builder.append_range(start, stop)
        return builder.build()

    @classmethod
    def from_ranges(cls, starts: Integers, stops: Integers) -> LiveSet:
        """All positions of the half-open ranges, in any order; they may overlap or be empty."""
        _check_array("starts", starts, _END)
        _check_array("stops", stops, _END)
        if starts.size != stops.size:
            raise InvalidInput(f"{starts.size} starts but {stops.size} stops")
        # Unsigned, because a stop may be just above int64.
        low, high = starts.astype(np.uint64), stops.astype(np.uint64)
        backward = low > high
        if backward.any():
            at = int(backward.argmax())
            raise InvalidInput(f"range {at} stops at {high[at]}, before its start {low[at]}")
        filled = low < high
        low, high = low[filled], high[filled] - np.uint64(1)
        assembler = RangeAssembler()
        assembler.add(*merged_ranges(low.view(np.int64), high.view(np.int64)))
        return cls(*assembler.finish())

    @classmethod
    def from_bytes(cls, data: Buffer, path: str = "<memory>") -> LiveSet:
        """Parse the bytes of `to_bytes`; `path` is only named in errors."""
        return cls(*live_set_format.decode(data, path))

    def to_bytes(self) -> bytes:
        """The bytes of the set in the newest format."""
        blocks = self._pieces(0, POSITION_MAX, live_set_format.BLOCK_RANGES)
        return live_set_format.encode(self.starts.size, self._count, blocks)

    def __len__(self) -> int:
        # len() cannot return 2^63; count_in() can count the set of every position.
        return self._count

    def __bool__(self) -> bool:
        return self.starts.size > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiveSet):
            return NotImplemented
        same_starts = np.array_equal(self.starts, other.starts)
        return same_starts and np.array_equal(self.extras, other.extras)

    def __hash__(self) -> int:
        crcs = (crc32c(values.view(np.uint8).data) for values in (self.starts, self.extras))
        return hash((self._count, *crcs))

    def __repr__(self) -> str:
        span = f", {self.first}…{self.last}" if self else ""
        return f"LiveSet({self.starts.size} ranges, {self._count} positions{span})"

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the arrays."""
        return self.starts.nbytes + self.extras.nbytes + self._before.nbytes

    @property
    def first(self) -> int | None:
        """The lowest member."""
        return int(self.starts[0]) if self else None

    @property
    def last(self) -> int | None:
        """The highest member."""
        return self._last_of(-1) if self else None

    def __contains__(self, position: object) -> bool:
        if not isinstance(position, int | np.integer):
            return False
        return self.overlaps(int(position), int(position) + 1)

    def contains_many(self, positions: Integers) -> NDArray[np.bool_]:
        """Whether each of the positions is a member. Fastest if they ascend."""
        _check_integers("positions", positions)
        if not self:
            return np.zeros(positions.shape, np.bool_)
        asked = positions.astype(np.int64, copy=False)
        index = np.searchsorted(self.starts, asked, side="right") - 1
        # A position before every range has index -1 and a negative distance, huge as unsigned.
        distance = (asked - self.starts[index]).view(np.uint64)
        return distance <= self.extras[index]

    def is_subset(self, other: LiveSet) -> bool:
        """Whether every member is a member of the other set."""
        if not self or not other:
            return not self
        # Ranges do not touch each other, so each of ours must be inside one of theirs.
        index = np.searchsorted(other.starts, self.starts, side="right") - 1
        lasts = self.starts + self.extras.astype(np.int64)
        their_lasts = other.starts + other.extras.astype(np.int64)
        return bool(((other.starts[index] <= self.starts) & (lasts <= their_lasts[index])).all())

    def overlaps(self, start: int, stop: int) -> bool:
        """Whether any member is in the half-open range."""
        low, high = self._bounds(start, stop - 1)
        return low < high

    def count_in(self, start: int, stop: int) -> int:
        """The number of members in the half-open range."""
        return max(0, self.rank(stop) - self.rank(start))

    def rank(self, position: int) -> int:
        """The number of members below `position`."""
        index = self._ranges_from(position - 1) - 1
        if index < 0:
            return 0
        block, rest = divmod(index, _RANK_RANGES)
        passed = int(self.extras[index - rest : index].sum(dtype=np.int64)) + rest
        reached = min(position - int(self.starts[index]), int(self.extras[index]) + 1)
        return int(self._before[block]) + passed + reached

    def select(self, index: int) -> int:
        """The member that has `index` members below it."""
        if not 0 <= index < self._count:
            raise InvalidInput(f"member {index} does not exist, the set has {self._count}")
        block = int(np.searchsorted(self._before, index, side="right")) - 1
        low = block * _RANK_RANGES
        extras = self.extras[low : low + _RANK_RANGES].astype(np.int64)
        below = np.zeros(extras.size, np.int64)
        np.cumsum(extras[:-1] + 1, out=below[1:])
        below += self._before[block]
        place = int(np.searchsorted(below, index, side="right")) - 1
        return int(self.starts[low + place]) + index - int(below[place])

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.ranges():
            yield from range(start, stop)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The half-open ranges, ascending; no two touch."""
        for starts, lasts in self._pieces(0, POSITION_MAX, _WINDOW_RANGES):
            for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
                yield start, last + 1

    def range_arrays(self) -> tuple[Positions, Positions]:
        """(starts, stops) of all ranges, half-open; for compiled code."""
        return self.starts, self.starts + self.extras.astype(np.int64) + 1

    def chunks(self, size: int) -> Iterator[Positions]:
        """The members, ascending, in arrays of `size`; the last one has the remaining ones."""
        if size < 1:
            raise InvalidInput(f"chunk size {size} is below 1")
        for index in range(0, self._count, size):
            stop = min(index + size, self._count)
            starts, lasts = self._window(self.select(index), self.select(stop - 1))
            lengths = lasts - starts + 1
            passed = np.cumsum(lengths) - lengths
            yield np.repeat(starts - passed, lengths) + np.arange(stop - index)

    def floor(self, position: int) -> LiveSet:
        """The members at or above `position`."""
        return self.slice(position, _END)

    def limit(self, position: int) -> LiveSet:
        """The members at or below `position`."""
        return self.slice(0, position + 1)

    def slice(self, start: int, stop: int) -> LiveSet:
        """The members in the half-open range."""
        assembler = RangeAssembler()
        for piece in self._pieces(start, stop - 1, _WINDOW_RANGES):
            assembler.add(*piece)
        return LiveSet(*assembler.finish())

    def union(self, other: LiveSet) -> LiveSet:
        """Members of either."""
        return self._combine(other, UNION)

    def difference(self, other: LiveSet) -> LiveSet:
        """Members of this set that are not in the other."""
        return self._combine(other, DIFFERENCE)

    def intersection(self, other: LiveSet) -> LiveSet:
        """Members of both."""
        return self._combine(other, INTERSECTION)

    __or__ = union
    __sub__ = difference
    __and__ = intersection

    def _combine(self, other: LiveSet, keeps: NDArray[np.bool_]) -> LiveSet:
        every = np.s_[_WINDOW_RANGES::_WINDOW_RANGES]
        cuts = np.union1d(self.starts[every], other.starts[every]).tolist()
        assembler = RangeAssembler()
        for start, stop in zip([0, *cuts], [*cuts, _END], strict=True):
            left, right = self._window(start, stop - 1), other._window(start, stop - 1)
            assembler.add(*sweep(left, right, keeps))
        return LiveSet(*assembler.finish())

    def _pieces(self, first: int, last: int, size: int) -> Iterator[tuple[Positions, Positions]]:
        """Starts and lasts of the ranges, cut to first … last, `size` ranges at a time."""
        low, high = self._bounds(first, last)
        for at in range(low, high, size):
            yield self._cut(at, min(at + size, high), first, last)

    def _window(self, first: int, last: int) -> tuple[Positions, Positions]:
        """Starts and lasts of all ranges, cut to first … last."""
        return self._cut(*self._bounds(first, last), first, last)

    def _cut(self, low: int, high: int, first: int, last: int) -> tuple[Positions, Positions]:
        starts = self.starts[low:high]
        lasts = starts + self.extras[low:high].astype(np.int64)
        # Members lie within position space, so bounds outside of it have no effect.
        return np.maximum(starts, max(first, 0)), np.minimum(lasts, min(last, POSITION_MAX))

    def _bounds(self, first: int, last: int) -> tuple[int, int]:
        """The half-open range of indexes of the ranges with members in first … last."""
        if first > last:
            return 0, 0
        low = self._ranges_from(first - 1)
        if low and self._last_of(low - 1) >= first:
            low -= 1
        return low, self._ranges_from(last)

    def _ranges_from(self, position: int) -> int:
        """The number of ranges that start at or below `position`."""
        key = np.int64(max(NO_POSITION, min(position, POSITION_MAX)))
        return int(np.searchsorted(self.starts, key, side="right"))

    def _last_of(self, index: int) -> int:
        return int(self.starts[index]) + int(self.extras[index])


class LiveSetBuilder:
    """Builds a live set of ascending positions, added one or a range at a time."""

    __slots__ = ("_assembler", "_first", "_last", "_lasts", "_starts")

    def __init__(self) -> None:
        self._assembler = RangeAssembler()
        self._starts = array("q")
        self._lasts = array("q")
        # The range that may still grow. This one is empty, and position 0 would extend it.
        self._first = 0
        self._last = NO_POSITION

    def append(self, position: int) -> None:
        """Add a position above all previous ones."""
        if position == self._last + 1 <= POSITION_MAX:
            self._last = position
        else:
            self.append_range(_checked(position), position + 1)

    def append_range(self, start: int, stop: int) -> None:
        """Add the half-open range, above all previous positions."""
        _check_range(start, stop)
        if start == stop:
            return
        if start <= self._last:
            raise InvalidInput(f"position {start} appended after {self._last}, must be above it")
        if start > self._last + 1:
            self._close_range()
            self._first = start
        self._last = stop - 1

    def build(self) -> LiveSet:
        """The set of all added positions; the builder is empty afterwards."""
        self._close_range()
        self._flush()
        full, self._assembler = self._assembler, RangeAssembler()
        self._first, self._last = 0, NO_POSITION
        return LiveSet(*full.finish())

    def _close_range(self) -> None:
        if self._first <= self._last:
            self._starts.append(self._first)
            self._lasts.append(self._last)
        if len(self._starts) >= _WINDOW_RANGES:
            self._flush()

    def _flush(self) -> None:
        pending = (np.frombuffer(values, np.int64) for values in (self._starts, self._lasts))
        self._assembler.add(*pending)
        self._starts, self._lasts = array("q"), array("q")


def _checked(position: int) -> int:
    if not 0 <= position <= POSITION_MAX:
        raise PositionOutOfRange(position, "0 <= position < 2^63")
    return position


def _check_range(start: int, stop: int) -> None:
    if start > stop:
        raise InvalidInput(f"range stops at {stop}, before its start {start}")
    if start < 0 or stop > _END:
        raise PositionOutOfRange(start if start < 0 else stop - 1, "0 <= position < 2^63")


def _check_integers(name: str, values: Integers) -> None:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InvalidInput(f"{name} are {values.ndim}-dimensional {values.dtype}, not integers")


def _check_array(name: str, values: Integers, highest: int) -> None:
    _check_integers(name, values)
    if values.size:
        for value in (int(values.min()), int(values.max())):
            if not 0 <= value <= highest:
                raise PositionOutOfRange(value, f"0 <= value in {name} <= {highest}")
