"""A naive replay of a blob store's log: record by record, as each is in its frame.

It shares nothing with the index but the format of a record: no columns, no arrays, no filters. So
`verify.py` can check the index against it.

1. Read the frames of a segment in order. Parts are remembered until a put follows them.
2. Check each record: its kind against the frame's flags, the hash against the id. Of a put, check
   the number, positions and sizes of its parts and the CRC of its content. Of an erased put, check
   that content, CRC and metadata are zeros.
3. Return the record with the row that an index should have for it.

Pure, except for reading its input. Called by `verify.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.blobs.index_rows import IndexRow
from lithify.blobs.records import (
    KIND_SHIFT,
    BlobRecordKind,
    decode_put,
    erasable,
    hash_id,
    parts_of,
)
from lithify.checksum import crc32c
from lithify.errors import DamagedFrame, InvalidInput
from lithify.log.segments.frame import FLAG_ERASED, HEADER_BYTES
from lithify.log.segments.frame_kernels import crc32c_join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.log.segments.frame import LogEntry
    from lithify.log.segments.scan import Frames

__all__ = ["Replayed", "SegmentReplay"]

_COMMON = struct.Struct("<BBHIq16s")


@dataclass(frozen=True, slots=True)
class Replayed:
    """One record."""

    blob_id: str
    id_hash: bytes
    row: IndexRow
    erased: bool
    size: int
    """Bytes of the content of a put."""


@dataclass(frozen=True, slots=True)
class _Part:
    position: int
    size: int
    crc: int
    erased: bool


@dataclass(slots=True)
class SegmentReplay:
    """One segment; `problem` is called with an offset and what is wrong there."""

    path: str
    log_id: bytes
    problem: Callable[[int, str], None]
    lost_parts: int = 0
    """Parts without a put: a write failed."""
    _parts: list[_Part] = field(default_factory=list)

    def records(self, frames: Frames) -> Iterator[Replayed]:
        """The records that end in these frames, which come in order."""
        offsets = (frames.offsets + frames.base).tolist()
        for entry, offset in zip(frames.entries(), offsets, strict=True):
            if entry.flags >> KIND_SHIFT == BlobRecordKind.PART:
                self._see_part(entry, offset)
                continue
            try:
                record = self._record(entry, offset)
            except (DamagedFrame, InvalidInput, UnicodeDecodeError, ValueError) as error:
                self.problem(offset, f"is not a record: {error}")
            else:
                yield record
            self.end()

    def end(self) -> None:
        """Count the parts that no put has used."""
        self.lost_parts += len(self._parts)
        self._parts.clear()

    def _see_part(self, entry: LogEntry, offset: int) -> None:
        erased = bool(entry.flags & FLAG_ERASED)
        if erased and entry.body.strip(b"\0"):
            self.problem(offset, "part is marked as erased, but is not all zeros")
        self._parts.append(_Part(entry.position, len(entry.body), crc32c(entry.body), erased))

    def _record(self, entry: LogEntry, offset: int) -> Replayed:
        body, erased = entry.body, bool(entry.flags & FLAG_ERASED)
        if len(body) < _COMMON.size:
            raise DamagedFrame(self.path, offset, f"{len(body)} bytes are too few for a record")
        _, number, id_bytes, life_version, expiry_ms, id_hash = _COMMON.unpack_from(body)
        kind, parts, size = BlobRecordKind(entry.flags >> KIND_SHIFT), 0, 0
        if number != kind:
            self.problem(offset, f"is a {kind.name.lower()} by its flags and {number} by its body")
        if kind is BlobRecordKind.PUT:
            put, _ = decode_put(body, self.path, offset, erased=erased)
            blob_id, parts, size = put.blob_id, parts_of(put.size), put.size
            self._check_put(entry, offset, put.content_crc, size)
        else:
            blob_id = body[_COMMON.size : _COMMON.size + id_bytes].decode()
        if hash_id(blob_id, self.log_id) != id_hash:
            self.problem(offset, f"blob {blob_id!r}: the hash is not that of the id")
        length = HEADER_BYTES * (parts + 1) + len(body) + (size if parts else 0)
        row = IndexRow(
            kind, entry.position, parts + 1, length, offset, life_version, entry.time_ms, expiry_ms
        )
        return Replayed(blob_id, id_hash, row, erased, size)

    def _check_put(self, entry: LogEntry, offset: int, content_crc: int, size: int) -> None:
        count, erased = parts_of(size), bool(entry.flags & FLAG_ERASED)
        if entry.tag != count:
            self.problem(offset, f"put says it has {entry.tag} parts, its size requires {count}")
        first = max(0, len(self._parts) - count)
        used = self._parts[first:]
        del self._parts[first:]
        wanted = list(range(entry.position - count, entry.position))
        part_bytes = sum(part.size for part in used)
        if [part.position for part in used] != wanted or part_bytes != (size if count else 0):
            self.problem(offset, f"put of {count} parts does not follow them")
            return
        if erased:
            zeros = erasable(BlobRecordKind.PUT, entry.body)
            if any(entry.body[start:stop].strip(b"\0") for start, stop in zeros):
                self.problem(offset, "put is marked as erased, but is not all zeros")
            return
        if any(part.erased for part in used):
            self.problem(offset, "put is not erased, but its parts are")
            return
        crc = 0 if count else crc32c(entry.body[len(entry.body) - size :])
        for part in used:
            crc = int(crc32c_join(crc, part.crc, part.size))
        if crc != content_crc:
            self.problem(offset, f"content has CRC-32C {crc:08x}, put says {content_crc:08x}")
