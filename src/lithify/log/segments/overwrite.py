"""Frames of sealed segments, written over in place.

Sealed segments are immutable but for this: what must be gone from the disk becomes zeros, without
waiting for a rewrite. A frame keeps its place, length, position, time, tag and whatever of its body
stays; it gets `FLAG_ERASED` and a new CRC. So block index, footer and key index stay true, and
scans, verification and rewrites take it for what it is: an intact frame.

A write that a crash tears leaves a frame that is neither the old nor the new one. Hence:

1. `plan_erasure` makes the new header from the old frame, which must be intact, and says which
   bytes become zeros: an `Erasure`, everything that is needed to write the frame.
2. The caller makes the erasures durable in a file of its own.
3. `erase` writes them and fsyncs. Done twice, or over a torn attempt, it gives the same bytes.
4. After a crash the caller does step 3 again before anybody reads, for all that its file has.

Invariants: a segment's name is never given twice, so an erasure that is written late hits the file
it was made for or, if that is gone, nothing. The active segment is never written over.

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
    """A frame that is to be written over."""

    segment: str
    """The name of its file."""
    offset: int
    header: bytes
    """The new one, all 32 bytes."""
    zeros: tuple[tuple[int, int], ...]
    """The ranges of the body that become zeros, half-open."""

    @property
    def zero_bytes(self) -> int:
        """How many bytes become zeros."""
        return sum(stop - start for start, stop in self.zeros)


def plan_erasure(
    segment: str, offset: int, frame: Buffer, zeros: tuple[tuple[int, int], ...]
) -> Erasure:
    """How to write over the frame at `offset` of a segment; `frame` is intact and whole."""
    changed = bytearray(frame)
    _, length, position, stamp, tag, synced = HEADER.unpack_from(changed)
    HEADER.pack_into(changed, 0, 0, length, position, stamp | FLAG_ERASED, tag, synced)
    for start, stop in zeros:
        changed[HEADER_BYTES + start : HEADER_BYTES + stop] = bytes(stop - start)
    _CRC.pack_into(changed, 0, crc32c(memoryview(changed)[4:]))
    return Erasure(segment, offset, bytes(changed[:HEADER_BYTES]), zeros)


def erase(fs: FileSystem, directory: str, erasures: Iterable[Erasure]) -> None:
    """Write frames over; durable when it returns. Those of one segment must stand together."""
    for segment, those in groupby(erasures, lambda erasure: erasure.segment):
        path = f"{directory}/{segment}"
        if not fs.exists(path):
            continue  # A rewrite has left nothing of it.
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
