"""Reads the frames of the puts to erase, in batches.

1. A put's frame comes first, then its parts, ascending. The position of a part is computed: all but
   the last have 64 KiB.
2. A frame that is already erased is skipped. Any other is read whole and its CRC checked; a damaged
   one is counted and left.
3. A batch ends after a number of bytes or frames, also within a put; the next batch continues
   there. `after` is the last put whose parts are all processed: an interrupted put is processed
   again.

Called by `erase.py`, by one thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from lithify.blobs.records import PART_BYTES, BlobRecordKind, decode_put, erasable
from lithify.errors import DamagedFrame, MissingFile, ReadFailed
from lithify.log.file_names import MANIFEST
from lithify.log.segments.frame import HEADER, HEADER_BYTES, decode_frame, is_erased
from lithify.log.segments.overwrite import plan_erasure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.blobs.index_rows import IndexRow
    from lithify.fs import File, FileSystem
    from lithify.log.segments.overwrite import Erasure

__all__ = ["ErasureBatch", "PutFrames"]


@dataclass(frozen=True, slots=True)
class ErasureBatch:
    """Frames to overwrite together."""

    erasures: tuple[Erasure, ...]
    bytes_read: int
    blobs: int
    """Puts that this batch completes and that were not fully erased before."""
    damaged: int
    damage: DamagedFrame | None
    """The first one."""


class PutFrames:
    """See the module."""

    def __init__(
        self, fs: FileSystem, directory: str, puts: Sequence[tuple[str, IndexRow]], after: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._steps = self._walk(puts)
        self.after = after
        self.ended = False

    def take(self, bytes_max: int, frames_max: int) -> ErasureBatch:
        """The next batch; `ended` says whether it is the last."""
        erasures: list[Erasure] = []
        size = blobs = damaged = 0
        damage: DamagedFrame | None = None
        while size < bytes_max and len(erasures) < frames_max:
            step = next(self._steps, None)
            if step is None:
                self.ended = True
                break
            read_bytes, found = step
            size += read_bytes
            if isinstance(found, DamagedFrame):
                damaged += 1
                damage = damage or found
            elif isinstance(found, bool):
                blobs += found
            elif found is not None:
                erasures.append(found)
        return ErasureBatch(tuple(erasures), size, blobs, damaged, damage)

    def _walk(
        self, puts: Sequence[tuple[str, IndexRow]]
    ) -> Iterator[tuple[int, Erasure | DamagedFrame | bool | None]]:
        """(bytes read, frame found); after each put, whether it had anything to erase."""
        for name, those in groupby(puts, itemgetter(0)):
            with self._open(name) as file:
                for _, row in those:
                    changed = False
                    for read_bytes, found in _frames_of(file, name, row):
                        changed = changed or (found is not None)
                        yield read_bytes, found
                    self.after = row.position
                    yield 0, changed

    def _open(self, name: str) -> File:
        path = f"{self._directory}/{name}"
        try:
            return self._fs.open_read(path)
        except FileNotFoundError:
            raise MissingFile(path, f"{self._directory}/{MANIFEST}") from None


def _frames_of(
    file: File, name: str, row: IndexRow
) -> Iterator[tuple[int, Erasure | DamagedFrame | None]]:
    """The frame of the put, then those of its parts."""
    data = _read_put(file, row)
    try:
        entry = decode_frame(data, 0, file.path)
        erased = is_erased(data, 0)
        put, _ = decode_put(entry.body, file.path, 0, erased=erased)
    except DamagedFrame as damage:
        # The put locates its parts; without it they cannot be found.
        yield len(data), DamagedFrame(file.path, row.offset, damage.what)
        return
    yield len(data), None if erased else _erasure(name, row.offset, data, BlobRecordKind.PUT)
    first = row.offset - put.size - HEADER_BYTES * put.parts
    for number in range(put.parts):
        offset = first + number * (HEADER_BYTES + PART_BYTES)
        size = HEADER_BYTES + min(PART_BYTES, put.size - number * PART_BYTES)
        header = _pread(file, HEADER_BYTES, offset)
        if len(header) == HEADER_BYTES and is_erased(header, 0):
            # Only the header counts as read: otherwise a large put would never end if each step
            # were the last one of its process.
            yield HEADER_BYTES, None
            continue
        data = _pread(file, size, offset)
        try:
            decode_frame(data, 0, file.path)
            yield size, _erasure(name, offset, data, BlobRecordKind.PART)
        except DamagedFrame as damage:
            yield size, DamagedFrame(file.path, offset, damage.what)


def _erasure(name: str, offset: int, frame: bytes, kind: BlobRecordKind) -> Erasure:
    body = memoryview(frame)[HEADER_BYTES:]
    return plan_erasure(name, offset, frame, erasable(kind, body))


def _read_put(file: File, row: IndexRow) -> bytes:
    if row.entries == 1:
        return _pread(file, row.length, row.offset)
    header = _pread(file, HEADER_BYTES, row.offset)
    size = HEADER.unpack(header)[1] if len(header) == HEADER_BYTES else 0
    return _pread(file, min(HEADER_BYTES + size, row.length), row.offset)


def _pread(file: File, length: int, offset: int) -> bytes:
    try:
        return file.pread(length, offset)
    except OSError as error:
        raise ReadFailed(file.path, offset, error) from error
