"""Overwrites frames of sealed segments in place, to erase deleted content.

Sealed segments are immutable with this exception: content that must disappear from the disk is
replaced by zeros without waiting for a rewrite. The frame keeps its offset, length, position, time,
tag and the rest of its body; it gets `FLAG_ERASED` and a new CRC. So block index, footer and key
index stay valid, and scans, verification and rewrites treat it as an intact frame.

A write torn by a crash leaves a frame that is neither the old nor the new one. Therefore:

1. `plan_erasure` builds the new header from the old frame, which must be intact, and the ranges
   that become zeros: an `Erasure`, everything that is needed to write the frame.
2. The caller makes the erasures durable in a file of its own.
3. `erase` writes them and fsyncs. It is idempotent, also over a torn attempt.
4. After a crash the caller repeats step 3 before any read, for all erasures in its file.

Invariants: the name of a segment is never reused, so a late erasure is written to the right file
or, if that is deleted, nowhere. The active segment is never overwritten.

Called by a store that erases.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from lithify.checksum import crc32c
from lithify.errors import WriteFailed
from lithify.log.segments.frame import FLAG_ERASED, HEADER, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.checksum import Buffer
    from lithify.fs import FileSystem

__all__ = ["Erasure", "erase", "plan_erasure"]

_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Erasure:
    """The overwrite of one frame."""

    segment: str
    """File name of the segment."""
    offset: int
    header: bytes
    """The new header, all 32 bytes."""
    zeros: tuple[tuple[int, int], ...]
    """Half-open ranges of the body that become zeros."""

    @property
    def zero_bytes(self) -> int:
        """Number of bytes that become zeros."""
        return sum(stop - start for start, stop in self.zeros)


def plan_erasure(
    segment: str, offset: int, frame: Buffer, zeros: tuple[tuple[int, int], ...]
) -> Erasure:
    """Plan the overwrite of the frame at `offset` of a segment; `frame` is intact and whole."""
    changed = bytearray(frame)
    _, length, position, stamp, tag, synced = HEADER.unpack_from(changed)
    HEADER.pack_into(changed, 0, 0, length, position, stamp | FLAG_ERASED, tag, synced)
    for start, stop in zeros:
        changed[HEADER_BYTES + start : HEADER_BYTES + stop] = bytes(stop - start)
    _CRC.pack_into(changed, 0, crc32c(memoryview(changed)[4:]))
    return Erasure(segment, offset, bytes(changed[:HEADER_BYTES]), zeros)


def erase(fs: FileSystem, directory: str, erasures: Iterable[Erasure]) -> None:
    """Overwrite frames; durable on return. Erasures of one segment must be adjacent."""
    for segment, those in groupby(erasures, lambda erasure: erasure.segment):
        path = f"{directory}/{segment}"
        if not fs.exists(path):
            continue  # A rewrite has removed the segment.
        try:
            with fs.open_append(path) as file:
                for erasure in those:
                    body = erasure.offset + HEADER_BYTES
                    file.overwrite(erasure.header, erasure.offset)
                    for start, stop in erasure.zeros:
                        file.overwrite(bytes(stop - start), body + start)
                file.fdatasync()
        except OSError as error:
            raise WriteFailed(path, error) from error
