"""The dead set of a segment: its dead entries, and its partly live entries.

A batch is one entry with many messages in numbered **slots**, and some of them may be dead. Such an
entry is kept, with a mask of its live slots: bit s of the mask is slot s, numbered as the producer
sent them, even after a rewrite has removed some.

    file         a live set with the positions that are wholly dead (`live_set/format.py`),
                 followed by the parts, if there are any:
       0     4   magic      "LPRT"
       4     2   version    1
       6     2   zero
       8     8   entries    n, the number of partly live entries
      16     8   words      w, the number of mask words
      24    8n   positions  ascending, i64
       …    4n   slots      number of slots the mask of each entry covers, u32; higher ones are dead
       …    8w   masks      u64 words, ceil(slots / 64) per entry
       …     8   size       total bytes of the parts
     end     4   crc        CRC-32C of the parts before it

`size` is at the end, so that a reader finds the parts from there. The manifest's `DeadRef` counts
the parts, and so says whether there are any.

Invariants: no entry is both dead and partly live; no mask is empty (that entry would be dead).
Values are immutable and can be pickled. Pure: bytes in, arrays out; `log/reader.py` reads the
files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, UnsupportedVersion
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set_kernels import dead_messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PARTS_VERSION", "DeadSet", "Parts"]

PARTS_VERSION = 1

_MAGIC = b"LPRT"
_HEADER = struct.Struct("<4sHHQQ")
_END = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_WORD_SHIFT = 6
_WORD_MASK = 63


def _starts_of(slots: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The first word of each mask, and the end of the last one."""
    starts = np.zeros(len(slots) + 1, np.int64)
    np.cumsum((slots.astype(np.int64) + _WORD_MASK) >> _WORD_SHIFT, out=starts[1:])
    return starts


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The partly live entries of a segment, each with its mask."""

    positions: NDArray[np.int64]
    """Ascending."""
    slots: NDArray[np.uint32]
    """Number of slots that the mask of each entry covers; slots above are dead."""
    starts: NDArray[np.int64]
    """Index in `words` of the first word of each mask, then the end of the last one."""
    words: NDArray[np.uint64]

    @classmethod
    def empty(cls) -> Parts:
        """The value for a segment without partly live entries."""
        none = np.empty(0, np.int64)
        return cls(none, none.astype(np.uint32), np.zeros(1, np.int64), none.astype(np.uint64))

    @classmethod
    def of(
        cls,
        positions: NDArray[np.int64],
        live: NDArray[np.int32],
        slots: NDArray[np.uint32],
    ) -> Parts:
        """Build from live messages, ascending by position and slot, without duplicates.

        `live` is the slot of each message, `slots` the number of slots its entry's mask covers.
        """
        if not len(positions):
            return cls.empty()
        outside = np.flatnonzero((live < 0) | (live >= slots))
        if len(outside):
            at = int(outside[0])
            what = f"slot {live[at]} of the entry at {positions[at]}"
            raise InvalidInput(f"{what} cannot be live, its mask covers {slots[at]} slots")
        opens = np.diff(positions, prepend=-1) != 0
        begins = np.flatnonzero(opens)
        counts = slots[begins].astype(np.uint32)
        starts = _starts_of(counts)
        slot = live.astype(np.int64)
        word = starts[np.cumsum(opens) - 1] + (slot >> _WORD_SHIFT)
        bits = np.uint64(1) << (slot & _WORD_MASK).astype(np.uint64)
        firsts = np.flatnonzero(np.diff(word, prepend=-1))
        words = np.zeros(int(starts[-1]), np.uint64)
        words[word[firsts]] = np.bitwise_or.reduceat(bits, firsts)
        return cls(positions[begins].astype(np.int64), counts, starts, words)

    def __len__(self) -> int:
        return len(self.positions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parts):
            return NotImplemented
        return (
            np.array_equal(self.positions, other.positions)
            and np.array_equal(self.slots, other.slots)
            and np.array_equal(self.words, other.words)
        )

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def mask(self, index: int) -> int:
        """The live slots of the entry at `index`; bit s is slot s."""
        words = self.words[self.starts[index] : self.starts[index + 1]]
        return int.from_bytes(words.astype("<u8", copy=False).tobytes(), "little")

    def find(self, position: int) -> int | None:
        """The live slots of the entry at a position; None if it is not partly live."""
        index = int(np.searchsorted(self.positions, position))
        if index == len(self) or self.positions[index] != position:
            return None
        return self.mask(index)

    def masks(self, positions: NDArray[np.int64]) -> list[int | None]:
        """`find` for each position."""
        index, found = self._places(positions)
        masks: list[int | None] = [None] * len(positions)
        for at in np.flatnonzero(found).tolist():
            masks[at] = self.mask(int(index[at]))
        return masks

    def dead_slots(
        self, positions: NDArray[np.int64], slots: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Whether each message is a dead slot of a partly live entry."""
        index, found = self._places(positions)
        dead = np.zeros(len(positions), np.bool_)
        dead[found] = slots[found] >= self.slots[index[found]]
        asked = np.flatnonzero(found & ~dead)
        slot = slots[asked].astype(np.int64)
        words = self.words[self.starts[index[asked]] + (slot >> _WORD_SHIFT)]
        dead[asked] = words >> (slot & _WORD_MASK).astype(np.uint64) & np.uint64(1) == 0
        return dead

    def names(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each position is a partly live entry."""
        return self._places(positions)[1]

    def _places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(index, whether it is present) of each position."""
        if not len(self):
            return np.zeros(len(positions), np.int64), np.zeros(len(positions), np.bool_)
        index = np.minimum(np.searchsorted(self.positions, positions), len(self) - 1)
        return index, self.positions[index] == positions

    def slice(self, start: int, stop: int) -> Parts:
        """The entries with positions in the half-open range."""
        low, high = np.searchsorted(self.positions, np.array([start, max(start, stop)])).tolist()
        starts = self.starts[low : high + 1]
        words = self.words[starts[0] : starts[-1]]
        return Parts(self.positions[low:high], self.slots[low:high], starts - starts[0], words)

    def take(self, indexes: NDArray[np.int64]) -> Parts:
        """The entries at ascending `indexes`."""
        counts = self.slots[indexes]
        starts = _starts_of(counts)
        sizes = np.diff(starts)
        places = np.repeat(self.starts[indexes] - starts[:-1], sizes) + np.arange(starts[-1])
        return Parts(self.positions[indexes], counts, starts, self.words[places])

    def narrows(self, earlier: Parts) -> bool:
        """Is each entry of `earlier` in here too, without live slots that were dead there?"""
        index, found = self._places(earlier.positions)
        if not found.all():
            return False
        now = self.take(index)
        sizes, known = np.diff(now.starts), np.diff(earlier.starts)
        # The masks of one entry may differ in length: compare the words both have; none is zero.
        word = np.arange(len(now.words)) - np.repeat(now.starts[:-1], sizes)
        covered = word < np.repeat(known, sizes)
        places = np.repeat(earlier.starts[:-1], sizes) + word
        before = np.zeros_like(now.words)
        before[covered] = earlier.words[places[covered]]
        return not (now.words & ~before).any()

    def to_bytes(self) -> bytes:
        """Encode in the newest format."""
        data = b"".join(
            (
                _HEADER.pack(_MAGIC, PARTS_VERSION, 0, len(self), len(self.words)),
                self.positions.astype("<i8", copy=False).tobytes(),
                self.slots.astype("<u4", copy=False).tobytes(),
                self.words.astype("<u8", copy=False).tobytes(),
            )
        )
        data += (len(data) + _END.size).to_bytes(8, "little")
        return data + _CRC.pack(crc32c(data))

    @classmethod
    def from_bytes(cls, data: bytes, path: str = "<memory>") -> Parts:
        """Decode what `to_bytes` wrote; `path` is used in errors only."""
        if len(data) < _HEADER.size + _END.size:
            raise DamagedFile(path, 0, f"has {len(data)} bytes of parts, too few")
        magic, version, zero, entries, words = _HEADER.unpack_from(data)
        size, crc = _END.unpack_from(data, len(data) - _END.size)
        if magic != _MAGIC:
            raise DamagedFile(path, 0, f"has {magic!r} where parts begin with {_MAGIC!r}")
        if crc32c(memoryview(data)[: -_CRC.size]) != crc:
            raise DamagedFile(path, 0, "parts: CRC-32C does not match")
        if version != PARTS_VERSION:
            raise UnsupportedVersion(path, version, PARTS_VERSION)
        expected = _HEADER.size + 12 * entries + 8 * words + _END.size
        if zero or not size == len(data) == expected:
            raise DamagedFile(path, 0, f"parts have {len(data)} bytes, {expected} expected")
        at = _HEADER.size
        positions = np.frombuffer(data, "<i8", entries, at).astype(np.int64)
        slots = np.frombuffer(data, "<u4", entries, at + 8 * entries).astype(np.uint32)
        masks = np.frombuffer(data, "<u8", words, at + 12 * entries).astype(np.uint64)
        starts = _starts_of(slots)
        if starts[-1] != words or (np.diff(positions) <= 0).any():
            raise DamagedFile(path, at, "parts do not ascend, or their masks do not fit")
        return cls(positions, slots, starts, masks)


@dataclass(frozen=True, slots=True)
class DeadSet:
    """The dead entries and the partly live entries of a segment."""

    entries: LiveSet
    """Positions that are wholly dead."""
    parts: Parts = field(default_factory=Parts.empty)

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        parts = self.parts
        columns = (parts.positions, parts.slots, parts.starts, parts.words)
        return self.entries.nbytes + sum(column.nbytes for column in columns)

    def messages(self, positions: NDArray[np.int64], slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each message is dead, alone or with its entry; slot -1: not in a batch."""
        starts, stops = self.entries.range_arrays()
        parts = self.parts
        dead: NDArray[np.bool_] = dead_messages(
            positions, slots, starts, stops, parts.positions, parts.slots, parts.starts, parts.words
        )
        return dead

    def widens(self, earlier: DeadSet) -> bool:
        """Is everything that is dead in `earlier` also dead in here?"""
        if not earlier.entries.is_subset(self.entries):
            return False
        left = ~self.entries.contains_many(earlier.parts.positions)
        return self.parts.narrows(earlier.parts.take(np.flatnonzero(left)))

    def to_bytes(self) -> bytes:
        """Encode as a file."""
        data = self.entries.to_bytes()
        return data + self.parts.to_bytes() if len(self.parts) else data

    @classmethod
    def from_bytes(cls, data: bytes, parts: int, path: str = "<memory>") -> DeadSet:
        """Decode a file with `parts` partly live entries; `path` is used in errors only."""
        if not parts:
            return cls(LiveSet.from_bytes(data, path))
        size = int.from_bytes(data[-_END.size : -_CRC.size], "little")
        found = Parts.from_bytes(data[-size:] if 0 < size <= len(data) else b"", path)
        if len(found) != parts:
            raise DamagedFile(path, 0, f"has {len(found)} partly live entries, not {parts}")
        return cls(LiveSet.from_bytes(data[:-size], path), found)
