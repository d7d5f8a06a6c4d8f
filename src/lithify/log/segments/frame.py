"""The frame: one entry as stored in a segment.

    offset  size  field     little-endian
         0     4  crc       CRC-32C of bytes 4 … 32+length
         4     4  length    bytes of the body, 0 … 2^30
         8     8  position  0 … 2^63-1
        16     8  stamp     time_ms << 16 | flags   (47 bits of time last until the year 6429; the
                            highest bit stays zero, so that it is a signed number as well)
        24     4  tag       defined by the store: topics store the number of messages of a batch
        28     4  synced    bytes of this segment that its writer knew to be durable
        32  length  body

Frames follow each other without padding; the next begins at offset + 32 + length. The header has a
fixed layout, so compiled code can step from frame to frame (`frame_kernels.py`). An all-zero header
is never valid: its CRC would not be zero.

`synced` distinguishes a torn tail from damage. A frame is written after an fsync that covered the
first `synced` bytes of the file. If bytes below that offset are bad, an acknowledged entry is
damaged and the log reports it. If no intact frame covers the bad bytes with its `synced`, a crash
tore them before they were acknowledged as durable, and they are truncated (`log/recovery.py`).
Frames copied by a rewrite keep the value; in a sealed segment it has no meaning.

Flags: the low byte is the log's (`FLAG_TOMBSTONE`, `FLAG_ERASED`), the high byte the store's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lithify.checksum import crc32c
from lithify.errors import DamagedFrame, EntryTooLarge, InvalidInput, PositionOutOfRange
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from lithify.checksum import Buffer

__all__ = [
    "BODY_BYTES_MAX",
    "FLAGS_MAX",
    "FLAG_ERASED",
    "FLAG_TOMBSTONE",
    "HEADER",
    "HEADER_BYTES",
    "TAG_MAX",
    "TIME_MS_MAX",
    "LogEntry",
    "NewEntry",
    "check_fields",
    "checked_body",
    "decode_frame",
    "encode_header",
    "is_erased",
]

HEADER = struct.Struct("<IIQQII")
HEADER_BYTES = 32
assert HEADER.size == HEADER_BYTES

_TAIL = struct.Struct("<IQQII")
_CRC = struct.Struct("<I")

BODY_BYTES_MAX = 2**30
TIME_MS_MAX = 2**47 - 1
FLAGS_MAX = 2**16 - 1
TAG_MAX = 2**32 - 1

FLAG_TOMBSTONE = 0x0001
"""The entry deletes its key."""

FLAG_ERASED = 0x0002
"""The frame was overwritten: parts of its body are zeros (`overwrite.py`)."""

_FLAGS_AT = 16


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry read from a log."""

    position: int
    time_ms: int
    body: bytes
    flags: int = 0
    tag: int = 0
    live: int | None = None
    """Mask of live slots, bit s for slot s; None: all stored slots are live."""

    @property
    def frame_bytes(self) -> int:
        """Size of its frame."""
        return HEADER_BYTES + len(self.body)


class NewEntry(NamedTuple):
    """An entry to be appended; the log assigns its position."""

    body: Buffer
    time_ms: int
    flags: int = 0
    tag: int = 0
    more: Buffer = b""
    """The rest of the body, so that two buffers need not be joined."""

    @property
    def frame_bytes(self) -> int:
        """Size of its frame."""
        return HEADER_BYTES + len(self.body) + len(self.more)


def check_fields(
    length: int, position: int, time_ms: int, flags: int, tag: int, body_bytes_max: int
) -> None:
    """Raise if a value does not fit into a frame."""
    if length > body_bytes_max:
        raise EntryTooLarge(length, body_bytes_max)
    if not 0 <= position <= POSITION_MAX:
        raise PositionOutOfRange(position, f"0 … {POSITION_MAX}")
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise InvalidInput(f"time {time_ms} ms is out of range, must be 0 … {TIME_MS_MAX}")
    if not 0 <= flags <= FLAGS_MAX:
        raise InvalidInput(f"flags {flags} are out of range, must be 0 … {FLAGS_MAX}")
    if not 0 <= tag <= TAG_MAX:
        raise InvalidInput(f"tag {tag} is out of range, must be 0 … {TAG_MAX}")


def encode_header(
    body: Buffer,
    position: int,
    time_ms: int,
    flags: int,
    tag: int,
    synced: int,
    more: Buffer = b"",
) -> bytes:
    """The 32-byte header of the frame whose body is `body` followed by `more`."""
    length = len(body) + len(more)
    tail = _TAIL.pack(length, position, time_ms << 16 | flags, tag, synced)
    crc = crc32c(body, crc32c(tail))
    return _CRC.pack(crc32c(more, crc) if more else crc) + tail


def decode_frame(data: Buffer, offset: int, path: str) -> LogEntry:
    """The entry whose frame begins at `offset` of `data`, its CRC checked."""
    position, stamp, tag, body = _checked(data, offset, path)
    return LogEntry(position, stamp >> 16, bytes(body), stamp & FLAGS_MAX, tag)


def checked_body(data: Buffer, offset: int, position: int, path: str) -> memoryview:
    """The body of the frame at `offset`, in place, after a check of its CRC and position."""
    found, _, _, body = _checked(data, offset, path)
    if found != position:
        raise DamagedFrame(path, offset, f"is position {found}, not {position}")
    return body


def is_erased(data: Buffer, offset: int) -> bool:
    """Was the frame at `offset`, already checked, overwritten?"""
    return bool(data[offset + _FLAGS_AT] & FLAG_ERASED)


def _checked(data: Buffer, offset: int, path: str) -> tuple[int, int, int, memoryview]:
    """(position, stamp, tag, body in place)."""
    view = memoryview(data)[offset:]
    if len(view) < HEADER_BYTES:
        raise DamagedFrame(path, offset, f"{len(view)} bytes left, a header has {HEADER_BYTES}")
    crc, length, position, stamp, tag, _ = HEADER.unpack_from(view)
    end = HEADER_BYTES + length
    if length > BODY_BYTES_MAX or end > len(view):
        raise DamagedFrame(path, offset, f"length {length} reaches past the end")
    if crc32c(view[4:end]) != crc:
        raise DamagedFrame(path, offset, "CRC-32C does not match")
    return position, stamp, tag, view[HEADER_BYTES:end]
