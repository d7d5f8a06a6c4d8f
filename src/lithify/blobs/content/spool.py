"""Buffers an incoming content: reads it from a stream, counts it, and keeps it for the append.

A record does not span segments, so the size of a content must be known before its first byte is
appended. No other append may come in between, so a slow sender must not block the store.

1. Up to 1 MiB stays in memory.
2. A larger content goes to a file in the store's directory whose name is removed at once: the file
   disappears when it is closed, also after a crash.

Memory: 1 MiB per put, for any size. Called by the store.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from lithify.blobs.errors import BlobTooLarge
from lithify.blobs.records import PART_BYTES
from lithify.checksum import crc32c
from lithify.errors import InvalidInput, ReadFailed, WriteFailed
from lithify.fs.atomic import TEMPORARY_SUFFIX
from lithify.log.segments.frame_batch import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.checksum import Buffer
    from lithify.fs import File, FileSystem

__all__ = ["PIECE_BYTES", "ByteStream", "Content", "Spool"]

PIECE_BYTES = 16 * PART_BYTES
"""Bytes read, held and appended at a time."""


class ByteStream(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


Content = bytes | bytearray | memoryview | ByteStream


class Spool:
    """One content, read to its end; leaving the `with` block releases it."""

    __slots__ = ("_file", "_held", "crc", "size")

    def __init__(
        self,
        content: Content,
        limit_bytes: int,
        fs: FileSystem,
        directory: str,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._file: File | None = None
        self._held: Buffer = b""
        self.size = 0
        self.crc = 0
        if isinstance(content, bytes | bytearray | memoryview):
            self._held = memoryview(content).cast("B")
            self._count(self._held, limit_bytes)
            return
        path = f"{directory}/put-{random_bytes(8).hex()}{TEMPORARY_SUFFIX}"
        try:
            for piece in _pieces(content):
                self._count(piece, limit_bytes)
                if self._file is None and self.size <= PIECE_BYTES:
                    self._held = piece
                    continue
                if self._file is None:
                    self._file = _open_nameless(fs, path)
                    self._file.write(self._held)
                    self._held = b""
                self._file.write(piece)
        except OSError as error:
            self.close()
            raise WriteFailed(path, error) from error
        except BaseException:
            self.close()
            raise

    def _count(self, piece: Buffer, limit_bytes: int) -> None:
        self.size += len(piece)
        self.crc = crc32c(piece, self.crc)
        if self.size > limit_bytes:
            raise BlobTooLarge(self.size, limit_bytes)

    def whole(self) -> Buffer:
        """The content, if it is small enough for one record."""
        assert self.size <= PART_BYTES
        return self._held

    def pieces(self) -> Iterator[list[Buffer] | Slices]:
        """The content in parts, grouped by piece; each group is valid until the next call."""
        if self._file is not None:
            yield from _slices_of(self._file, self.size)
            return
        for at in range(0, self.size, PIECE_BYTES):
            piece = memoryview(self._held)[at : at + PIECE_BYTES]
            yield [piece[i : i + PART_BYTES] for i in range(0, len(piece), PART_BYTES)]

    def close(self) -> None:
        """Release the content."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _pieces(content: ByteStream) -> Iterator[bytes]:
    """Pieces of `PIECE_BYTES`, the last one shorter, for any size of the reads."""
    ended = False
    while not ended:
        held: list[bytes] = []
        size = 0
        while size < PIECE_BYTES and not ended:
            data = content.read(PIECE_BYTES - size)
            if not isinstance(data, bytes):
                raise InvalidInput(
                    f"read of a content returned {type(data).__name__}, must be bytes"
                )
            ended = not data
            held.append(data)
            size += len(data)
        if size:
            yield b"".join(held)


def _slices_of(file: File, size: int) -> Iterator[Slices]:
    """The parts in a file, piece by piece, in one buffer: other writers wait for this."""
    buffer = np.empty(min(size, PIECE_BYTES), np.uint8)
    for at in range(0, size, PIECE_BYTES):
        piece = buffer[: size - at]
        try:
            filled = file.readinto(piece.data, at)
        except OSError as error:
            raise ReadFailed(file.path, at, error) from error
        if filled < len(piece):
            raise ReadFailed(file.path, at, OSError(errno.EIO, f"only {filled} bytes are there"))
        starts = np.arange(0, len(piece), PART_BYTES)
        stops = np.minimum(starts + PART_BYTES, len(piece))
        yield Slices(piece, starts, stops, np.full(len(starts), -1))


def _open_nameless(fs: FileSystem, path: str) -> File:
    file = fs.open_append(path, exclusive=True)
    # Cleaning up leftovers may have removed it first.
    with suppress(FileNotFoundError):
        fs.remove(path)
    return file
