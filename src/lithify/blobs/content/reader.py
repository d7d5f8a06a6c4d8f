"""Reads the content of one record's frames in pieces, every CRC checked.

    with store.get("some id") as blob:
        for piece in blob: ...

1. Read the put's frame at the offset that the index gave. It contains small content: that was the
   only read.
2. Otherwise the parts are before it, all of 64 KiB except the last, so their offsets are known.
   Those that the range touches are read, 1 MiB at a time.
3. Check the CRC and the position of each frame. A flag marks a frame that was erased since the blob
   was opened: `BlobDeleted`, never zeros.

A blob with parts pins its generation while it is open, so that a compaction keeps its bytes.
`close`, the end of the `with` block or the end of the content releases the pin. A smaller blob is
in memory and pins nothing. Called by the store; one thread at a time uses a `Blob`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from lithify.blobs.content.spool import PIECE_BYTES
from lithify.blobs.errors import BlobDeleted, RangeNotSatisfiable
from lithify.blobs.records import PART_BYTES, decode_put, part_bytes
from lithify.errors import DamagedFrame, ReadFailed
from lithify.log.segments import frame_kernels
from lithify.log.segments.frame import HEADER, HEADER_BYTES, checked_body, is_erased

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from numpy.typing import NDArray

    from lithify.blobs.index_rows import IndexRow
    from lithify.blobs.records import PutRecord
    from lithify.checksum import Buffer
    from lithify.errors import LithifyError
    from lithify.fs import File

__all__ = ["Blob", "BlobInfo", "PutHead", "read_head"]

HEAD_BYTES_USUAL = 4096
"""Bytes to read for a put whose content is in parts; longer texts need a second read."""

_PART_FRAME_BYTES = HEADER_BYTES + PART_BYTES


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A blob without its content."""

    put: PutRecord
    """As it was written; `expiry_ms` and `life_version` may have changed since."""
    position: int
    expiry_ms: int
    """2^63-1: never."""
    life_version: int
    deleted: bool
    changed_ms: int
    """The time of its newest record."""

    @property
    def blob_id(self) -> str:
        """The id of the blob."""
        return self.put.blob_id

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self.put.size


@dataclass(frozen=True, slots=True)
class PutHead:
    """A put as read from a segment."""

    put: PutRecord
    content: memoryview
    """Empty if the content is in parts."""
    parts_at: int
    """Offset of the first part, or of the put."""


def read_head(file: File, row: IndexRow) -> PutHead:
    """Read and check the put of a row; raises `BlobDeleted` if it is erased."""
    size = row.length if row.entries == 1 else HEAD_BYTES_USUAL
    data = _pread(file, size, row.offset)
    if len(data) >= HEADER_BYTES and row.entries > 1:
        frame_bytes = HEADER_BYTES + HEADER.unpack_from(data)[1]
        if frame_bytes > len(data) and frame_bytes < row.length:
            data = _pread(file, frame_bytes, row.offset)
    body = _checked(data, 0, row.offset, row.position, file.path)
    if is_erased(data, 0):
        put, _ = decode_put(body, file.path, row.offset, erased=True)
        raise BlobDeleted(put.blob_id)
    put, at = decode_put(body, file.path, row.offset)
    return PutHead(put, body[at:], row.offset - part_bytes(put.size))


class Blob:
    """An open blob, or a range of it; an iterator over its bytes."""

    def __init__(
        self,
        info: BlobInfo,
        head: PutHead,
        file: File,
        release: Callable[[], None],
        explain: Callable[[DamagedFrame, str], LithifyError],
        span: tuple[int, int | None] | None,
    ) -> None:
        """`release` is called once, when the file is no longer needed.

        `explain` returns the error to raise for a bad frame, which may be one that is being erased.
        """
        self.info = info
        self._head = head
        self._file = file
        self._release_pin: Callable[[], None] | None = release
        self._explain = explain
        start, stop = span or (0, None)
        self.start = start
        self.stop = info.size if stop is None else min(stop, info.size)
        # The whole of an empty content is a valid range; no other empty range is.
        if span is not None and not 0 <= self.start < self.stop:
            raise RangeNotSatisfiable(start, info.size if stop is None else stop, info.size)
        if not info.put.parts:
            self._release()
        self._pieces = self._read()

    @property
    def blob_id(self) -> str:
        """The id of the blob."""
        return self.info.blob_id

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def read(self) -> bytes:
        """The rest of the content."""
        return b"".join(self._pieces)

    def close(self) -> None:
        """Release the pin and the file. Idempotent."""
        self._pieces.close()
        self._release()

    def _release(self) -> None:
        release, self._release_pin = self._release_pin, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> Generator[bytes, None, None]:
        if not self.info.put.parts:
            if self.stop > self.start:
                yield bytes(self._head.content[self.start : self.stop])
            return
        try:
            per_piece = PIECE_BYTES // PART_BYTES
            last = (self.stop - 1) // PART_BYTES
            for first in range(self.start // PART_BYTES, last + 1, per_piece):
                yield self._parts(first, min(first + per_piece, last + 1))
        finally:
            self._release()

    def _parts(self, first: int, stop: int) -> bytes:
        """The bytes of the range in the parts from `first` up to `stop`."""
        put = self.info.put
        at = self._head.parts_at + first * _PART_FRAME_BYTES
        end = min(stop * PART_BYTES, put.size)
        size = end - first * PART_BYTES + HEADER_BYTES * (stop - first)
        data = np.empty(size, np.uint8)
        data = data[: _fill(self._file, data.data, at)]
        position = self.info.position - put.parts + first
        intact = _are_parts(data, position, stop - first)
        bodies = []
        for number in range(first, stop):
            offset = (number - first) * _PART_FRAME_BYTES
            body = data.data[offset + HEADER_BYTES : offset + _PART_FRAME_BYTES]
            if not intact:
                body = self._checked_part(data.data, offset, at, position + number - first)
            if is_erased(data.data, offset):
                raise BlobDeleted(self.info.blob_id)
            begin = max(0, self.start - number * PART_BYTES)
            bodies.append(body[begin : self.stop - number * PART_BYTES])
        return b"".join(bodies)

    def _checked_part(self, data: memoryview, offset: int, at: int, position: int) -> memoryview:
        """The body of one part of those read at `at`."""
        try:
            return _checked(data, offset, at + offset, position, self._file.path)
        except DamagedFrame as damage:
            raise self._explain(damage, self.info.blob_id) from damage


def _are_parts(data: NDArray[np.uint8], position: int, count: int) -> bool:
    """Whether these bytes are `count` intact parts in sequence, the first at this position.

    One call checks them all. Releasing the interpreter lock for each part, and waiting for it while
    other threads want it, would take longer than the check.
    """
    offsets, positions = np.empty(count, np.int64), np.empty(count, np.int64)
    found, end, _ = frame_kernels.scan(data, 0, len(data), position - 1, offsets, positions)
    return bool(
        (found, end) == (count, len(data))
        # Positions ascend, so none is missing if the last one is right.
        and positions[-1] == position + count - 1
        and offsets[-1] == (count - 1) * _PART_FRAME_BYTES
    )


def _fill(file: File, buffer: memoryview, offset: int) -> int:
    """Read as much as there is; returns the number of bytes."""
    try:
        return file.readinto(buffer, offset)
    except OSError as error:
        raise ReadFailed(file.path, offset, error) from error


def _pread(file: File, length: int, offset: int) -> bytes:
    try:
        return file.pread(length, offset)
    except OSError as error:
        raise ReadFailed(file.path, offset, error) from error


def _checked(data: Buffer, at: int, offset: int, position: int, path: str) -> memoryview:
    """The body of the frame at `at` of the data; `offset` is its offset in the file."""
    try:
        return checked_body(data, at, position, path)
    except DamagedFrame as error:
        raise DamagedFrame(path, offset, error.what) from error
