"""The segment file: header, frames, and when sealed a block index and a footer.

    header (64 bytes)   little-endian
         0     8  magic           "LITHSEG" and a zero byte
         8     2  version         1
        10     2  zero
        12     4  zero
        16     8  segment_id
        24     8  first_position  no frame has a lower one
        32     8  created_ms
        40     8  kind            ASCII, padded with zeros: the kind of log ("topic", "blob", …)
        48    12  log_id          random, the same in every segment of a log
        60     4  crc             CRC-32C of bytes 0 … 60
    frames              see `frame.py`
    block index         rows of 24 bytes, see `block_index.py`                      (sealed only)
    footer (80 bytes)                                                          (sealed only)
         0     8  magic           "LITHFOOT"
         8     8  entries
        16     8  first_position  of the first frame; -1 when there is none
        24     8  last_position   of the last frame; -1 when there is none
        32     8  time_min        over all frames; 0 when there is none
        40     8  time_max
        48     8  frames_end      where frames end and the block index begins
        56     4  rows            of the block index
        60     4  rows_crc        CRC-32C of the block index
        64     8  segment_id      the header's
        72     4  zero
        76     4  crc             CRC-32C of bytes 0 … 76

A sealed segment ends with its footer, and its size is exactly frames_end + 24 × rows + 80. After
its footer is durable it never changes, except in frames that are erased (`overwrite.py`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, NotASegment, UnsupportedVersion
from lithify.log.segments.block_index import ROW_BYTES, BlockIndex
from lithify.log.segments.frame import encode_header
from lithify.positions import NO_POSITION

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.fs import File, FileSystem
    from lithify.log.segments.frame import NewEntry
    from lithify.log.segments.frame_batch import EncodedFrames

__all__ = [
    "FOOTER_BYTES",
    "FORMAT_VERSION",
    "SEGMENT_HEADER_BYTES",
    "SegmentFooter",
    "SegmentHeader",
    "SegmentWriter",
    "WriterMark",
    "has_footer",
    "read_blocks",
    "read_footer",
    "read_header",
]

FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 64
FOOTER_BYTES = 80

_MAGIC = b"LITHSEG\0"
_FOOTER_MAGIC = b"LITHFOOT"
_HEADER = struct.Struct("<8sHHIQqQ8s12s")
_FOOTER = struct.Struct("<8sQqqQQQIIQI")
_CRC = struct.Struct("<I")
assert _HEADER.size + _CRC.size == SEGMENT_HEADER_BYTES
assert _FOOTER.size + _CRC.size == FOOTER_BYTES


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What is known of a segment from its creation on."""

    segment_id: int
    first_position: int
    created_ms: int
    kind: str
    log_id: bytes

    def to_bytes(self) -> bytes:
        """Encode as the first 64 bytes of the file."""
        if not (self.kind.isascii() and 1 <= len(self.kind) <= 8):
            raise InvalidInput(f"log kind {self.kind!r} must have 1 to 8 ASCII characters")
        data = _HEADER.pack(
            _MAGIC,
            FORMAT_VERSION,
            0,
            0,
            self.segment_id,
            self.first_position,
            self.created_ms,
            self.kind.encode("ascii").ljust(8, b"\0"),
            self.log_id,
        )
        return data + _CRC.pack(crc32c(data))


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """Counts and ranges of the contents of a sealed segment."""

    segment_id: int
    entries: int
    first_position: int
    last_position: int
    time_min: int
    time_max: int
    frames_end: int
    rows: int
    rows_crc: int

    @property
    def file_bytes(self) -> int:
        """The exact size of the file."""
        return self.frames_end + self.rows * ROW_BYTES + FOOTER_BYTES

    @property
    def frame_bytes(self) -> int:
        """Total size of the frames."""
        return self.frames_end - SEGMENT_HEADER_BYTES

    def to_bytes(self) -> bytes:
        """Encode as the last 80 bytes of the file."""
        data = _FOOTER.pack(
            _FOOTER_MAGIC,
            self.entries,
            self.first_position,
            self.last_position,
            self.time_min,
            self.time_max,
            self.frames_end,
            self.rows,
            self.rows_crc,
            self.segment_id,
            0,
        )
        return data + _CRC.pack(crc32c(data))


def read_header(file: File) -> SegmentHeader:
    """Read and check the header of an open segment."""
    data = file.pread(SEGMENT_HEADER_BYTES, 0)
    if len(data) < SEGMENT_HEADER_BYTES or data[:8] != _MAGIC:
        raise NotASegment(file.path, 0, f"begins with {data[:8]!r}, a segment with {_MAGIC!r}")
    body, (crc,) = data[: _HEADER.size], _CRC.unpack_from(data, _HEADER.size)
    if crc32c(body) != crc:
        raise DamagedFile(file.path, 0, "segment header: CRC-32C does not match")
    _, version, _, _, segment_id, first, created, kind, log_id = _HEADER.unpack(body)
    if version != FORMAT_VERSION:
        raise UnsupportedVersion(file.path, version, FORMAT_VERSION)
    return SegmentHeader(segment_id, first, created, kind.rstrip(b"\0").decode("ascii"), log_id)


def has_footer(file: File) -> bool:
    """Does the file end with a footer, intact or damaged?"""
    data = file.pread(FOOTER_BYTES, max(0, file.size() - FOOTER_BYTES))
    return len(data) == FOOTER_BYTES and data[:8] == _FOOTER_MAGIC


def read_footer(file: File) -> SegmentFooter:
    """Read and check the footer of an open sealed segment."""
    size = file.size()
    at = max(0, size - FOOTER_BYTES)
    data = file.pread(FOOTER_BYTES, at)
    if len(data) < FOOTER_BYTES or data[:8] != _FOOTER_MAGIC:
        raise DamagedFile(file.path, at, "sealed segment without a footer")
    if crc32c(data[: _FOOTER.size]) != _CRC.unpack_from(data, _FOOTER.size)[0]:
        raise DamagedFile(file.path, at, "segment footer: CRC-32C does not match")
    _, entries, first, last, time_min, time_max, end, rows, rows_crc, segment_id, _ = (
        _FOOTER.unpack_from(data)
    )
    footer = SegmentFooter(
        segment_id, entries, first, last, time_min, time_max, end, rows, rows_crc
    )
    if footer.file_bytes != size:
        raise DamagedFile(
            file.path, at, f"footer counts {footer.file_bytes} bytes, file has {size}"
        )
    return footer


def read_blocks(file: File, footer: SegmentFooter) -> BlockIndex:
    """Read and check the block index of an open sealed segment."""
    data = file.pread(footer.rows * ROW_BYTES, footer.frames_end)
    if crc32c(data) != footer.rows_crc:
        raise DamagedFile(file.path, footer.frames_end, "block index: CRC-32C does not match")
    return BlockIndex.from_bytes(data, footer.time_max)


@dataclass(frozen=True, slots=True)
class WriterMark:
    """A state of a `SegmentWriter`, for `rewind`."""

    end: int
    entries: int
    first_position: int
    last_position: int
    time_min: int
    time_max: int
    blocks: tuple[int, int, int]


class SegmentWriter:
    """Appends frames to a segment and counts them; one thread at a time."""

    __slots__ = (
        "blocks",
        "end",
        "entries",
        "file",
        "first_position",
        "header",
        "last_position",
        "time_max",
        "time_min",
    )

    def __init__(self, file: File, header: SegmentHeader) -> None:
        self.file = file
        self.header = header
        self.blocks = BlockIndex()
        self.end = SEGMENT_HEADER_BYTES
        self.entries = 0
        self.first_position = NO_POSITION
        self.last_position = NO_POSITION
        self.time_min = 0
        self.time_max = 0

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        path: str,
        header: SegmentHeader,
        *,
        exclusive: bool = False,
        uncached: bool = False,
    ) -> SegmentWriter:
        """Create the file. A leftover of the same name is overwritten, or refused."""
        data = header.to_bytes()
        file = fs.open_append(path, exclusive=exclusive, uncached=uncached)
        try:
            file.truncate(0)
            file.write(data)
        except BaseException:
            file.close()
            raise
        return cls(file, header)

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.file.path

    def append(self, entries: Sequence[NewEntry], position: int, synced: int) -> None:
        """Write entries in one call, the first at `position`; `synced` goes into their headers."""
        buffers: list[Buffer] = []
        for place, (body, time_ms, flags, tag, more) in enumerate(entries, position):
            header = encode_header(body, place, time_ms, flags, tag, synced, more)
            buffers += (header, body, more) if more else (header, body)
        self.file.writev(buffers)
        for place, entry in enumerate(entries, position):
            self.blocks.add(place, self.end, entry.time_ms)
            self._count(1, place, place, entry.time_ms, entry.time_ms)
            self.end += entry.frame_bytes

    def append_many(
        self,
        frames: Buffer,
        positions: NDArray[np.int64],
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
    ) -> None:
        """Write encoded frames; `offsets` are relative to `frames`."""
        self.file.write(frames)
        self.count_frames(positions, offsets + self.end, times)
        self.end += len(frames)

    def append_piece(self, piece: EncodedFrames) -> None:
        """Write encoded frames from one buffer or several."""
        if len(piece.buffers) == 1:
            self.file.write(piece.buffers[0])
        else:
            self.file.writev(piece.buffers)
        self.count_frames(piece.positions, piece.offsets + self.end, piece.times)
        self.end += piece.size

    def count_frames(
        self, positions: NDArray[np.int64], offsets: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        """Count frames that are already in the file, at these offsets."""
        self.blocks.add_many(positions, offsets, times)
        if len(positions):
            self._count(
                len(positions),
                int(positions[0]),
                int(positions[-1]),
                int(times.min()),
                int(times.max()),
            )

    def _count(self, entries: int, first: int, last: int, time_min: int, time_max: int) -> None:
        if not self.entries:
            self.first_position, self.time_min = first, time_min
        self.entries += entries
        self.last_position = last
        self.time_min = min(self.time_min, time_min)
        self.time_max = max(self.time_max, time_max)

    def mark(self) -> WriterMark:
        """The current state, for `rewind`."""
        return WriterMark(
            self.end,
            self.entries,
            self.first_position,
            self.last_position,
            self.time_min,
            self.time_max,
            self.blocks.mark(),
        )

    def rewind(self, mark: WriterMark) -> None:
        """Undo the counts since a mark; the caller truncates the file.

        The block index is replaced, not cut, because readers may be searching it.
        """
        self.end = mark.end
        self.entries = mark.entries
        self.first_position = mark.first_position
        self.last_position = mark.last_position
        self.time_min = mark.time_min
        self.time_max = mark.time_max
        self.blocks = self.blocks.cut(mark.blocks)

    def footer(self) -> tuple[bytes, SegmentFooter]:
        """The block index and footer for the current contents."""
        rows = self.blocks.to_bytes()
        footer = SegmentFooter(
            self.header.segment_id,
            self.entries,
            self.first_position,
            self.last_position,
            self.time_min,
            self.time_max,
            self.end,
            len(self.blocks),
            crc32c(rows),
        )
        return rows, footer

    def seal(self) -> SegmentFooter:
        """Write block index and footer and make the whole file durable.

        A crash before the fsync leaves a torn footer, which the next open truncates, or an intact
        one, which it accepts.
        """
        rows, footer = self.footer()
        self.file.writev([rows, footer.to_bytes()])
        self.file.fsync()
        return footer
