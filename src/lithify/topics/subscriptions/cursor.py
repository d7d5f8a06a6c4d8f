"""The cursor: the acknowledgements of one subscription.

Everything at or below `mark_delete` is acknowledged. Above it there are

- **ranges**: half-open, ascending, never touching each other nor mark-delete
  (`acknowledged_ranges.py`). A range also covers positions that do not exist, so each has a count
  of the entries in it that were acknowledged;
- **batches**: partly acknowledged entries, each with the bitset of the messages that remain.

An acknowledgement has these effects:

1. At or below mark-delete, or within a range: none.
2. At mark-delete + 1: mark-delete moves up, and over the range that starts there.
3. Anywhere else: binary search; the ranges that it touches are merged with it, or it becomes a new
   range.
4. Of a batch: the remaining bits are intersected with those that remained before. When no bit of a
   deliverable message is left, the whole entry is acknowledged.

Each step costs O(log n) for n ranges and partly acknowledged batches, in any order: consumers
choose what they acknowledge, and must not be able to block the event loop. Memory grows with the
number of ranges and of partly acknowledged batches.

Mark-delete moves only over acknowledged positions, but not every position exists: ledgers end, and
compaction leaves gaps. `fill` and `take_gaps` move the cursor over those.

The bytes, version 1, little-endian:

    offset  size  field
         0     4  magic        "LCUR"
         4     2  version      1
         6     2  zero
         8     8  mark_delete  signed; -1 is before every position
        16     4  n            bytes of the ranges
        20     4  gaps         number of ranges that cover positions that do not exist
        24     4  batches      number of partly acknowledged batches
        28     n  ranges       as a live set (`live_set/format.py`); empty if there are none
         …     …  gaps         index of the range (4), entries acknowledged in it (8)
         …     …  batches      position (8), length (4), the remaining bits in `length` bytes
       end     4  crc          CRC-32C of everything before it

Equal cursors have equal bytes.

Pure: no files, clocks or threads. One thread at a time; owned by the cursor store of a topic.
"""

from __future__ import annotations

import struct
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, PositionOutOfRange, UnsupportedVersion
from lithify.live_set import LiveSet
from lithify.positions import NO_POSITION, POSITION_MAX
from lithify.topics.messages.entry_flags import BATCH_MESSAGES_MAX
from lithify.topics.subscriptions.acknowledged_ranges import AckedRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.checksum import Buffer

__all__ = [
    "Cursor",
    "bits_from_words",
    "check_batch",
    "check_gap",
    "check_position",
    "words_from_bits",
]

_STALE_MAX = 1000
_VERSION = 1
_MAGIC = b"LCUR"
_HEADER = struct.Struct("<4sHHqIII")
_GAP = struct.Struct("<IQ")
_BATCH = struct.Struct("<QI")
_CRC = struct.Struct("<I")


def check_position(position: int, lowest: int = 0) -> None:
    """Raise `PositionOutOfRange` unless `position` is valid and at or above `lowest`."""
    if not lowest <= position <= POSITION_MAX:
        raise PositionOutOfRange(position, f"{lowest} … {POSITION_MAX}")


def check_gap(start: int, stop: int) -> None:
    """Raise `InvalidInput` unless this is a half-open range of positions."""
    if not 0 <= start <= stop <= POSITION_MAX + 1:
        raise InvalidInput(f"range {start} … {stop} must ascend from 0 or higher to 2^63 or lower")


def check_batch(remaining: int, size: int, masked: int) -> None:
    """Raise `InvalidInput` unless both are bitsets over a batch of `size` messages."""
    if not 1 <= size <= BATCH_MESSAGES_MAX:
        raise InvalidInput(f"batch of {size} messages, must be 1 … {BATCH_MESSAGES_MAX}")
    # A negative number shifted right is never 0, so this refuses those as well.
    if remaining >> size or masked >> size:
        raise InvalidInput(
            f"remaining {remaining:#x} or masked {masked:#x} is outside a batch of {size} messages"
        )


def bits_from_words(words: Sequence[int]) -> int:
    """Decode an `ack_set`: int64 words, the lowest bits first."""
    try:
        return int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")
    except struct.error as error:
        raise InvalidInput(f"ack set of {len(words)} words: {error}") from error


def words_from_bits(bits: int, size: int) -> list[int]:
    """Encode a bitset over a batch of `size` messages as an `ack_set`."""
    check_batch(bits, size, 0)
    count = -(-size // 64)
    return list(struct.unpack(f"<{count}q", bits.to_bytes(count * 8, "little")))


class Cursor:
    """The acknowledgements of one subscription; positions are packed (ledger, entry)."""

    __slots__ = ("_batches", "_mark_delete", "_order", "_ranges")

    def __init__(self, mark_delete: int) -> None:
        check_position(mark_delete, NO_POSITION)
        self._mark_delete = mark_delete
        self._ranges = AckedRanges()
        self._batches: dict[int, int] = {}
        # A heap of the keys of `_batches`, so that a move of mark-delete examines only those it
        # passes. It also has stale keys, which are dropped when they come to the top.
        self._order: list[int] = []

    @property
    def mark_delete(self) -> int:
        """The position at and below which everything is acknowledged."""
        return self._mark_delete

    @property
    def acked_entries(self) -> int:
        """Number of wholly acknowledged entries above mark-delete, without filled positions."""
        return self._ranges.entries

    def copy(self) -> Cursor:
        """An independent copy."""
        copied = Cursor(self._mark_delete)
        copied._ranges = self._ranges.copy()
        copied._batches = dict(self._batches)
        copied._order = list(self._order)
        return copied

    # --- acknowledging ----------------------------------------------------------------------

    def ack(self, position: int) -> None:
        """Acknowledge one entry."""
        check_position(position)
        if position <= self._mark_delete:
            return
        self._batches.pop(position, None)
        if position == self._mark_delete + 1:
            self._mark_delete = self._ranges.swallow(position + 1) - 1
        else:
            self._ranges.add(position, position + 1, 1)

    def ack_cumulative(self, position: int) -> None:
        """Acknowledge an entry and all before it; -1 is before every entry."""
        check_position(position, NO_POSITION)
        if position > self._mark_delete:
            self._forget_batches_below(position + 1)
            self._mark_delete = self._ranges.swallow(position + 1) - 1

    def ack_batch(self, position: int, remaining: int, size: int, masked: int = 0) -> None:
        """Acknowledge the messages of a batch of `size` that are not in `remaining`.

        `masked` has the messages that were never delivered, because compaction removed them. No
        client acknowledges them, so the entry is acknowledged when only they remain. They are not
        recorded: a consumer that reads the log instead of the compacted view receives them.
        """
        check_position(position)
        check_batch(remaining, size, masked)
        if self.is_acked(position):
            return
        untouched = (1 << size) - 1
        remaining &= self._batches.get(position, untouched)
        if not remaining & ~masked:
            self.ack(position)
        elif remaining != untouched:
            self._keep_batch(position, remaining)

    def reset(self, position: int) -> None:
        """Move to `position`: all before it is acknowledged, and nothing else."""
        check_position(position)
        self._mark_delete = position - 1
        self._ranges = AckedRanges()
        self._batches.clear()
        self._order.clear()

    def cut(self, end: int) -> bool:
        """Discard acknowledgements at or above `end`; returns whether there were any."""
        if self._mark_delete >= end:
            self.reset(end)
            return True
        if self._ranges.end <= end and max(self._batches, default=NO_POSITION) < end:
            return False
        self._ranges = self._ranges.below(end)
        self._batches = {each: bits for each, bits in self._batches.items() if each < end}
        self._order = list(self._batches)
        heapify(self._order)
        return True

    # --- positions that do not exist --------------------------------------------------------

    def fill(self, start: int, stop: int) -> None:
        """Move over a half-open range in which no entry exists or will ever exist."""
        check_gap(start, stop)
        start = max(start, self._mark_delete + 1)
        if start >= stop:
            return
        if start == self._mark_delete + 1:
            self._forget_batches_below(stop)
            self._mark_delete = self._ranges.swallow(stop) - 1
            return
        for position in [each for each in self._batches if start <= each < stop]:
            del self._batches[position]
        self._ranges.add(start, stop, 0)

    def take_gaps(self, following: Callable[[int], int]) -> None:
        """Move mark-delete over positions that do not exist, up to one that exists or may exist.

        `following(p)` returns the first position at or above `p` that an entry has or a future one
        may get. Call this after an acknowledgement, after a ledger was closed or removed, and after
        recovery. It looks up only the position after mark-delete, which is never acknowledged, so a
        call that finds an entry there costs one lookup. The moves follow from the log and need not
        be recorded.
        """
        while (exists_at := following(self._mark_delete + 1)) > self._mark_delete + 1:
            self.fill(self._mark_delete + 1, exists_at)
            if self._mark_delete + 1 == exists_at:
                return

    def _keep_batch(self, position: int, remaining: int) -> None:
        if position not in self._batches:
            if len(self._order) > 2 * len(self._batches) + _STALE_MAX:
                self._order = list(self._batches)
                heapify(self._order)
            heappush(self._order, position)
        self._batches[position] = remaining

    def _forget_batches_below(self, stop: int) -> None:
        while self._order and self._order[0] < stop:
            self._batches.pop(heappop(self._order), None)

    # --- lookup -----------------------------------------------------------------------------

    def is_acked(self, position: int) -> bool:
        """Is the whole entry acknowledged, or known not to exist?"""
        return position <= self._mark_delete or self._ranges.end_of(position) != position

    def remaining_of(self, position: int) -> int | None:
        """The remaining messages of a partly acknowledged batch; None for all other entries."""
        return self._batches.get(position)

    def first_unacked_from(self, position: int) -> int:
        """The first position at or above this one that is not wholly acknowledged."""
        return self._ranges.end_of(max(position, self._mark_delete + 1))

    def acked_ranges(self) -> Iterator[tuple[int, int]]:
        """The half-open ranges above mark-delete, ascending; no two touch."""
        return ((start, stop) for start, stop, _ in self._ranges)

    @property
    def acked_range_count(self) -> int:
        """The number of ranges above mark-delete."""
        return len(self._ranges)

    # --- bytes ------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Encode the cursor in the newest format."""
        ranges, gaps = b"", list[bytes]()
        if len(self._ranges):
            starts, stops, entries = self._ranges.columns()
            ranges = LiveSet.from_ranges(starts, stops).to_bytes()
            partial = np.flatnonzero(entries.view(np.uint64) != stops - starts)
            gaps = [
                _GAP.pack(index, count)
                for index, count in zip(partial.tolist(), entries[partial].tolist(), strict=True)
            ]
        counts = len(ranges), len(gaps), len(self._batches)
        parts = [_HEADER.pack(_MAGIC, _VERSION, 0, self._mark_delete, *counts), ranges, *gaps]
        for position in sorted(self._batches):
            bits = self._batches[position]
            length = -(-bits.bit_length() // 8)
            parts += [_BATCH.pack(position, length), bits.to_bytes(length, "little")]
        data = b"".join(parts)
        return data + _CRC.pack(crc32c(data))

    @classmethod
    def from_bytes(cls, data: Buffer, path: str = "<memory>") -> Cursor:
        """Decode a cursor; `path` is only used in errors."""
        end = len(data) - _CRC.size
        if end < _HEADER.size:
            raise DamagedFile(path, len(data), "ends inside the header of a cursor")
        magic, version, zero, mark_delete, size, gaps, batches = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise DamagedFile(path, 0, f"begins with {magic!r}, a cursor with {_MAGIC!r}")
        body = memoryview(data)[:end]
        (stored,) = _CRC.unpack_from(data, end)
        computed = crc32c(body)
        if stored != computed:
            raise DamagedFile(path, end, f"CRC of cursor is {computed:08x}, stored {stored:08x}")
        if version != _VERSION:
            raise UnsupportedVersion(path, version, _VERSION)
        gaps_at = _HEADER.size + size
        if zero or gaps_at > end:
            raise DamagedFile(path, 6, f"cursor: zero is {zero}, ranges end at byte {gaps_at}")
        ranges = LiveSet.from_bytes(body[_HEADER.size : gaps_at], path) if size else LiveSet()
        try:
            cursor = cls(mark_delete)
            cursor._take_ranges(list(ranges.ranges()), _read_gaps(body, gaps_at, gaps))
            cursor._take_batches(body, gaps_at + gaps * _GAP.size, batches)
        except (InvalidInput, struct.error) as error:
            raise DamagedFile(path, _HEADER.size, f"cursor: {error}") from error
        return cursor

    def _take_ranges(self, ranges: list[tuple[int, int]], gaps: dict[int, int]) -> None:
        if ranges and ranges[0][0] <= self._mark_delete + 1:
            raise InvalidInput(f"range {ranges[0]} touches mark-delete {self._mark_delete}")
        if gaps and max(gaps) >= len(ranges):
            raise InvalidInput(f"gap in range {max(gaps)}, there are {len(ranges)}")
        for index, (start, stop) in enumerate(ranges):
            entries = gaps.get(index, stop - start)
            if entries > stop - start:
                raise InvalidInput(f"{entries} entries in the range {start} … {stop}")
            self._ranges.add(start, stop, entries)

    def _take_batches(self, body: memoryview, at: int, count: int) -> None:
        for _ in range(count):
            position, length = _BATCH.unpack_from(body, at)
            bits = bytes(body[at + _BATCH.size : at + _BATCH.size + length])
            at += _BATCH.size + length
            remaining = int.from_bytes(bits, "little")
            check_position(position)
            if self.is_acked(position) or position in self._batches or not remaining:
                raise InvalidInput(f"batch at {position} with {remaining:#x} remaining")
            self._keep_batch(position, remaining)
        if at != len(body):
            raise InvalidInput(f"{count} batches end at byte {at}, the cursor at {len(body)}")


def _read_gaps(body: memoryview, at: int, count: int) -> dict[int, int]:
    """Acknowledged entries by range index, for the ranges that cover missing positions."""
    stop = at + count * _GAP.size
    if stop > len(body):
        raise InvalidInput(f"{count} gaps end at byte {stop}, the cursor at {len(body)}")
    return dict(_GAP.iter_unpack(body[at:stop]))
