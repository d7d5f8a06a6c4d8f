"""Content on its way out: one record's frames, read in pieces, every CRC checked.

    with store.get("some id") as blob:
        for piece in blob: ...

1. The put's frame is read at the offset that the index gave. Small content stands in it: that was
   the one read.
2. Otherwise the parts stand before it, all of 64 KiB but the last, so that the place of each is
   known. Those that the range touches are read, 1 MiB at a time.
3. Each frame must have its CRC and the position that it is expected to have.

A blob that is open pins its generation: whatever is compacted meanwhile, its bytes stay. `close`,
the end of the `with` block or of the content lets go. Called by the store; a `Blob` is used by one
thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lithify.blobs.errors import RangeNotSatisfiable
from lithify.blobs.records import PART_BYTES, decode_put, part_bytes
from lithify.blobs.spool import PIECE_BYTES
from lithify.errors import DamagedFrame, ReadFailed
from lithify.log.frame import HEADER, HEADER_BYTES, Entry, decode_frame

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from contextlib import ExitStack

    from lithify.blobs.records import PutRecord
    from lithify.blobs.rows import Row
    from lithify.fs import File

__all__ = ["Blob", "BlobInfo", "Head", "read_head"]

HEAD_BYTES_USUAL = 4096
"""What is read of a put whose content is in parts; more only if its texts are that long."""

_PART_FRAME_BYTES = HEADER_BYTES + PART_BYTES


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A blob without its content."""

    put: PutRecord
    """As it was put; `expiry_ms` and `life_version` may have changed since."""
    position: int
    expiry_ms: int
    """2^63-1: never."""
    life_version: int
    deleted: bool
    changed_ms: int
    """When its newest record was written."""

    @property
    def blob_id(self) -> str:
        """Its id."""
        return self.put.blob_id

    @property
    def size(self) -> int:
        """Bytes of its content."""
        return self.put.size


@dataclass(frozen=True, slots=True)
class Head:
    """A put as it stands in a segment."""

    put: PutRecord
    content: memoryview
    """Empty where it is in parts."""
    parts_at: int
    """Offset of the first part, or of the put."""


def read_head(file: File, row: Row) -> Head:
    """The put at its place, checked."""
    size = row.length if row.entries == 1 else HEAD_BYTES_USUAL
    data = _pread(file, size, row.offset)
    if len(data) >= HEADER_BYTES and row.entries > 1:
        frame_bytes = HEADER_BYTES + HEADER.unpack_from(data)[1]
        if frame_bytes > len(data) and frame_bytes < row.length:
            data = _pread(file, frame_bytes, row.offset)
    entry = _checked(data, 0, row.offset, row.position, file.path)
    put, at = decode_put(entry.body, file.path, row.offset)
    return Head(put, memoryview(entry.body)[at:], row.offset - part_bytes(put.size))


class Blob:
    """An open blob, or a range of it; an iterator over its bytes."""

    def __init__(
        self,
        info: BlobInfo,
        head: Head,
        file: File,
        held: ExitStack,
        span: tuple[int, int | None] | None,
    ) -> None:
        """`held` is closed when nothing more is to be read."""
        self.info = info
        self._head = head
        self._file = file
        self._held = held
        start, stop = span or (0, None)
        self.start = start
        self.stop = info.size if stop is None else min(stop, info.size)
        # The whole of an empty content is a range; nothing else is empty.
        if span is not None and not 0 <= self.start < self.stop:
            held.close()
            raise RangeNotSatisfiable(start, info.size if stop is None else stop, info.size)
        self._pieces = self._read()

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def read(self) -> bytes:
        """All that is left of it."""
        return b"".join(self._pieces)

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        self._pieces.close()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> Generator[bytes, None, None]:
        put = self.info.put
        with self._held:
            if not put.parts:
                if self.stop > self.start:
                    yield bytes(self._head.content[self.start : self.stop])
                return
            per_piece = PIECE_BYTES // PART_BYTES
            last = (self.stop - 1) // PART_BYTES
            for first in range(self.start // PART_BYTES, last + 1, per_piece):
                yield self._parts(first, min(first + per_piece, last + 1))

    def _parts(self, first: int, stop: int) -> bytes:
        """What the range has of the parts from `first` up to `stop`."""
        put = self.info.put
        at = self._head.parts_at + first * _PART_FRAME_BYTES
        end = min(stop * PART_BYTES, put.size)
        data = _pread(self._file, end - first * PART_BYTES + HEADER_BYTES * (stop - first), at)
        bodies = []
        for number in range(first, stop):
            offset = (number - first) * _PART_FRAME_BYTES
            position = self.info.position - put.parts + number
            body = _checked(data, offset, at + offset, position, self._file.path).body
            begin = max(0, self.start - number * PART_BYTES)
            bodies.append(body[begin : self.stop - number * PART_BYTES])
        return b"".join(bodies)


def _pread(file: File, length: int, offset: int) -> bytes:
    try:
        return file.pread(length, offset)
    except OSError as error:
        raise ReadFailed(file.path, offset, error) from error


def _checked(data: bytes, at: int, offset: int, position: int, path: str) -> Entry:
    """The frame at `at` of what was read, which stands at `offset` of the file."""
    try:
        entry = decode_frame(data, at, path)
    except DamagedFrame as error:
        raise DamagedFrame(path, offset, error.what) from error
    if entry.position != position:
        raise DamagedFrame(path, offset, f"is position {entry.position}, not {position}")
    return entry
