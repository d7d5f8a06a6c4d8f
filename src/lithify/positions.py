"""Positions: identify the entries of a log.

A position is an integer from 0 to `POSITION_MAX`. Within a log positions only ascend and none is
used twice; an entry keeps its position when compaction moves it to another segment.

The store chooses a `PositionRule`, which assigns positions:

- `DENSE` counts 0, 1, 2, …: a segment continues where the one before it ended.
- `PACKED` puts the segment's number into the upper 31 bits and the entry's number within the
  segment into the lower 32, so that (ledger, entry) and position are the same.

A writer may assign each position itself (raft uses the index); the rule assigns only missing ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "DENSE",
    "NO_POSITION",
    "PACKED",
    "PACKED_ENTRY_BITS",
    "POSITION_MAX",
    "DensePositions",
    "PackedPositions",
    "PositionRule",
    "pack",
    "unpack",
]

POSITION_MAX = 2**63 - 1
"""Signed 64-bit arithmetic works on every position (numpy int64, Java long)."""

NO_POSITION = -1
"""Lower than every position: the last position of an empty log."""

PACKED_ENTRY_BITS = 32


class PositionRule(Protocol):
    """Assigns the range of positions of each segment."""

    def first(self, segment_id: int, after: int) -> int:
        """The first position of a new segment, given the last one used before it."""

    def last(self, segment_id: int) -> int:
        """The highest position that the segment may hold."""

    def show(self, position: int) -> str:
        """The position as text for people."""


@dataclass(frozen=True, slots=True)
class DensePositions:
    """Every position is one above the last."""

    def first(self, segment_id: int, after: int) -> int:  # noqa: ARG002  (the protocol's name)
        """One after the last."""
        return after + 1

    def last(self, segment_id: int) -> int:  # noqa: ARG002  (the protocol's name)
        """There is no limit per segment."""
        return POSITION_MAX

    def show(self, position: int) -> str:
        """The number."""
        return str(position)


@dataclass(frozen=True, slots=True)
class PackedPositions:
    """(segment, entry) in one integer."""

    def first(self, segment_id: int, after: int) -> int:
        """Entry 0 of the segment."""
        position = pack(segment_id, 0)
        assert position > after
        return position

    def last(self, segment_id: int) -> int:
        """The entry with all lower bits set."""
        return pack(segment_id + 1, 0) - 1

    def show(self, position: int) -> str:
        """Such as `3:17`, or `3:end` for the last possible entry of the segment."""
        segment, entry = unpack(position)
        if position == NO_POSITION:
            return "nothing"
        return f"{segment}:end" if position == self.last(segment) else f"{segment}:{entry}"


DENSE = DensePositions()
PACKED = PackedPositions()


def pack(segment_id: int, entry: int) -> int:
    """The position of entry number `entry` of a segment."""
    return segment_id << PACKED_ENTRY_BITS | entry


def unpack(position: int) -> tuple[int, int]:
    """(segment, entry) of a packed position."""
    return position >> PACKED_ENTRY_BITS, position & (2**PACKED_ENTRY_BITS - 1)
