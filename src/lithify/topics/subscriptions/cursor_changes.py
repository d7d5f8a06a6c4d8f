"""The changes of a cursor as values, and their bytes in the log of the cursor store.

    change       kind  body, little-endian
    Acked           3  position (8)
    AckedUpTo       4  position (8, signed; -1 is before every position)
    AckedBatch      5  position (8), size (4), remaining bits, then masked bits unless there are
                       none; each in as many bytes as hold `size` bits
    Reset           6  position (8)
    Filled          7  start (8), stop (8)

The kind is not in the body but in the flags of the entry's frame, where 1 and 2 belong to the
subscription itself (`cursor_store.py`).

The constructor of a change refuses values that `apply` would refuse, so every change in the log can
be replayed.

Pure. Created by the caller of `Topic.acknowledge`, written and replayed by the cursor store.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from lithify.errors import InvalidInput
from lithify.positions import NO_POSITION
from lithify.topics.subscriptions.cursor import check_batch, check_gap, check_position

if TYPE_CHECKING:
    from lithify.topics.subscriptions.cursor import Cursor

__all__ = [
    "Acked",
    "AckedBatch",
    "AckedUpTo",
    "CursorChange",
    "Filled",
    "Reset",
    "change_from_bytes",
]

_POSITION = struct.Struct("<q")
_BATCH = struct.Struct("<qI")
_GAP = struct.Struct("<QQ")


class CursorChange(Protocol):
    """A change of a cursor."""

    kind: ClassVar[int]

    def apply(self, cursor: Cursor) -> None:
        """Apply the change; idempotent."""

    def to_bytes(self) -> bytes:
        """The body of its record."""


@dataclass(frozen=True, slots=True)
class Acked:
    """One entry was acknowledged."""

    kind: ClassVar[int] = 3
    position: int

    def __post_init__(self) -> None:
        check_position(self.position)

    def apply(self, cursor: Cursor) -> None:
        """Acknowledge the entry."""
        cursor.ack(self.position)

    def to_bytes(self) -> bytes:
        """The body of its record."""
        return _POSITION.pack(self.position)


@dataclass(frozen=True, slots=True)
class AckedUpTo:
    """An entry and all before it were acknowledged."""

    kind: ClassVar[int] = 4
    position: int

    def __post_init__(self) -> None:
        check_position(self.position, NO_POSITION)

    def apply(self, cursor: Cursor) -> None:
        """Acknowledge the entry and all before it."""
        cursor.ack_cumulative(self.position)

    def to_bytes(self) -> bytes:
        """The body of its record."""
        return _POSITION.pack(self.position)


@dataclass(frozen=True, slots=True)
class AckedBatch:
    """Messages of a batch were acknowledged; see `Cursor.ack_batch`.

    A cumulative acknowledgement is `AckedUpTo` the previous position, then this.
    """

    kind: ClassVar[int] = 5
    position: int
    remaining: int
    size: int
    masked: int = 0

    def __post_init__(self) -> None:
        check_position(self.position)
        check_batch(self.remaining, self.size, self.masked)

    def apply(self, cursor: Cursor) -> None:
        """Acknowledge all messages that do not remain."""
        cursor.ack_batch(self.position, self.remaining, self.size, self.masked)

    def to_bytes(self) -> bytes:
        """The body of its record."""
        length = -(-self.size // 8)
        masked = self.masked.to_bytes(length, "little") if self.masked else b""
        head = _BATCH.pack(self.position, self.size)
        return head + self.remaining.to_bytes(length, "little") + masked


@dataclass(frozen=True, slots=True)
class Reset:
    """A seek moved the subscription to a position."""

    kind: ClassVar[int] = 6
    position: int

    def __post_init__(self) -> None:
        check_position(self.position)

    def apply(self, cursor: Cursor) -> None:
        """Move mark-delete before the position, and discard everything above it."""
        cursor.reset(self.position)

    def to_bytes(self) -> bytes:
        """The body of its record."""
        return _POSITION.pack(self.position)


@dataclass(frozen=True, slots=True)
class Filled:
    """The positions of a half-open range do not exist."""

    kind: ClassVar[int] = 7
    start: int
    stop: int

    def __post_init__(self) -> None:
        check_gap(self.start, self.stop)

    def apply(self, cursor: Cursor) -> None:
        """Move the cursor over the range."""
        cursor.fill(self.start, self.stop)

    def to_bytes(self) -> bytes:
        """The body of its record."""
        return _GAP.pack(self.start, self.stop)


_AT_POSITION: dict[int, type[Acked | AckedUpTo | Reset]] = {
    change.kind: change for change in (Acked, AckedUpTo, Reset)
}


def change_from_bytes(kind: int, body: bytes) -> CursorChange:
    """Decode a change from its kind and body; raises `InvalidInput` if they are invalid."""
    try:
        if kind in _AT_POSITION:
            return _AT_POSITION[kind](*_POSITION.unpack(body))
        if kind == Filled.kind:
            return Filled(*_GAP.unpack(body))
        if kind == AckedBatch.kind:
            return _batch_from_bytes(body)
    except struct.error as error:
        raise InvalidInput(f"change of kind {kind}: {error}") from error
    raise InvalidInput(f"change of unknown kind {kind}")


def _batch_from_bytes(body: bytes) -> AckedBatch:
    position, size = _BATCH.unpack_from(body)
    middle = _BATCH.size + -(-size // 8)
    if len(body) not in (middle, 2 * middle - _BATCH.size):
        raise InvalidInput(f"batch of {size} messages in {len(body)} bytes")
    remaining = int.from_bytes(body[_BATCH.size : middle], "little")
    return AckedBatch(position, remaining, size, int.from_bytes(body[middle:], "little"))
