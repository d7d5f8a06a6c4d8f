"""The key index: a columnar side file of a sealed segment.

For every entry that counts it holds the hash of its key, where it is, and its flags and time, so
that compaction finds the newest entry of each key without touching a payload. What the key of an
entry is, and which entries of a segment count, is the store's business; this is the file.

Rows are sorted by hash. The upper 8 bits of the hash are the row's **bucket**, and a table says
where each bucket begins: one task can read one range of buckets out of the index of every segment,
and all rows of a key are in the same bucket everywhere.

    header (64 bytes)   little-endian
         0     8  magic        "LITHKEYS"
         8     2  version      1
        10     2  columns      7
        12     4  zero
        16     8  rows
        24     8  segment_id
        32    12  log_id       both as in the segment's header
        44     4  segment_crc  CRC-32C of the segment's footer: whose index this is
        48    12  zero
        60     4  crc          CRC-32C of bytes 0 … 60
    directory           a CRC-32C (4 bytes) for each of the 256 buckets of each column, column by
                        column, then one of all these together: 4 × 256 × 7 + 4 bytes
    buckets             257 × 8 bytes: the number of the first row of each bucket, then the number
                        of rows; then its CRC-32C (4 bytes)
    columns, one after the other, rows × width bytes each
        hash_high  8    hash_low  8    position  8    offset  8
        length  4       flags  2       time_ms  8

`offset` and `length` are those of the frame in the segment, header included. Each bucket of each
column has a CRC of its own, so that a part can be read and trusted without the rest.

It can always be made again from its segment. One that is missing, damaged or about another segment
is made again; it is never taken for empty.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import Corrupt, DamagedFile, InvalidInput, UnsupportedVersion
from lithify.fs import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lithify.fs import File, FileSystem

__all__ = [
    "BUCKETS",
    "COLUMNS",
    "KEY_INDEX_VERSION",
    "KeyIndex",
    "KeyRows",
    "encode",
    "load_or_build",
]

KEY_INDEX_VERSION = 1
BUCKETS = 256
COLUMNS: dict[str, np.dtype[Any]] = {
    "hash_high": np.dtype("<u8"),
    "hash_low": np.dtype("<u8"),
    "position": np.dtype("<i8"),
    "offset": np.dtype("<i8"),
    "length": np.dtype("<u4"),
    "flags": np.dtype("<u2"),
    "time_ms": np.dtype("<i8"),
}

_MAGIC = b"LITHKEYS"
_HEADER = struct.Struct("<8sHHIQQ12sI12s")
_CRC = struct.Struct("<I")
_HEADER_BYTES = 64
_CRCS_BYTES = 4 * BUCKETS * len(COLUMNS)
_BUCKETS_BYTES = 8 * (BUCKETS + 1)
_ROWS_AT = _HEADER_BYTES + _CRCS_BYTES + 4 + _BUCKETS_BYTES + 4
assert _HEADER.size + _CRC.size == _HEADER_BYTES


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Some rows, as one array a column, sorted by (hash_high, hash_low, position)."""

    hash_high: NDArray[np.uint64]
    hash_low: NDArray[np.uint64]
    position: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.uint32]
    flags: NDArray[np.uint16]
    time_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.position)

    def sorted(self) -> KeyRows:
        """In the order of the file."""
        order = np.lexsort((self.position, self.hash_low, self.hash_high))
        return KeyRows(*(getattr(self, column)[order] for column in COLUMNS))


def encode(rows: KeyRows, segment_id: int, log_id: bytes, segment_crc: int) -> bytes:
    """The file for rows in any order."""
    lengths = {len(getattr(rows, column)) for column in COLUMNS}
    if len(lengths) != 1:
        raise InvalidInput(f"key index columns have different lengths: {sorted(lengths)}")
    rows = rows.sorted()
    starts = np.searchsorted(rows.hash_high >> np.uint64(56), np.arange(BUCKETS + 1))
    columns = [
        np.ascontiguousarray(getattr(rows, column), dtype=kind) for column, kind in COLUMNS.items()
    ]
    crcs = np.array(
        [
            crc32c(column[starts[bucket] : starts[bucket + 1]].tobytes())
            for column in columns
            for bucket in range(BUCKETS)
        ],
        dtype="<u4",
    ).tobytes()
    table = starts.astype("<i8").tobytes()
    head = _HEADER.pack(
        _MAGIC,
        KEY_INDEX_VERSION,
        len(COLUMNS),
        0,
        len(rows),
        segment_id,
        log_id,
        segment_crc,
        bytes(12),
    )
    parts = [head, _CRC.pack(crc32c(head)), crcs, _CRC.pack(crc32c(crcs))]
    parts += [table, _CRC.pack(crc32c(table))]
    return b"".join([*parts, *(column.tobytes() for column in columns)])


class KeyIndex:
    """An open key index; rows are read by range of buckets."""

    def __init__(self, file: File, segment_id: int, log_id: bytes, segment_crc: int) -> None:
        """Check header and tables; raises `Corrupt` if it is not that segment's whole index."""
        self._file = file
        head = file.pread(_ROWS_AT, 0)
        if len(head) < _ROWS_AT or head[:8] != _MAGIC:
            raise DamagedFile(file.path, 0, f"begins with {head[:8]!r}, not as a key index")
        if crc32c(head[: _HEADER.size]) != _CRC.unpack_from(head, _HEADER.size)[0]:
            raise DamagedFile(file.path, 0, "key index header: CRC-32C does not match")
        _, version, _, _, rows, found_id, found_log, found_crc, _ = _HEADER.unpack_from(head)
        if version != KEY_INDEX_VERSION:
            raise UnsupportedVersion(file.path, version, KEY_INDEX_VERSION)
        if (found_id, found_log, found_crc) != (segment_id, log_id, segment_crc):
            raise DamagedFile(file.path, 24, "key index of another segment")
        at = _HEADER_BYTES
        self._crcs = np.frombuffer(self._checked(head, at, _CRCS_BYTES), "<u4")
        at += _CRCS_BYTES + 4
        self._starts = np.frombuffer(self._checked(head, at, _BUCKETS_BYTES), "<i8")
        self.rows = rows
        expected = _ROWS_AT + rows * sum(kind.itemsize for kind in COLUMNS.values())
        if file.size() != expected:
            raise DamagedFile(file.path, 16, f"has {file.size()} bytes, not {expected}")

    def _checked(self, data: bytes, at: int, size: int) -> bytes:
        part = data[at : at + size]
        if crc32c(part) != _CRC.unpack_from(data, at + size)[0]:
            raise DamagedFile(self._file.path, at, "key index table: CRC-32C does not match")
        return part

    def read(self, first: int = 0, stop: int = BUCKETS) -> KeyRows:
        """The rows of the buckets from `first` up to `stop`, every CRC checked."""
        begin, end = int(self._starts[first]), int(self._starts[stop])
        columns = []
        column_at = _ROWS_AT
        for number, kind in enumerate(COLUMNS.values()):
            at = column_at + begin * kind.itemsize
            data = self._file.pread((end - begin) * kind.itemsize, at)
            view = memoryview(data)
            for bucket in range(first, stop):
                low = (int(self._starts[bucket]) - begin) * kind.itemsize
                high = (int(self._starts[bucket + 1]) - begin) * kind.itemsize
                if crc32c(view[low:high]) != self._crcs[number * BUCKETS + bucket]:
                    raise DamagedFile(
                        self._file.path, at + low, f"bucket {bucket}: CRC-32C does not match"
                    )
            columns.append(np.frombuffer(data, kind))
            column_at += self.rows * kind.itemsize
        return KeyRows(*columns)


def load_or_build(
    fs: FileSystem,
    path: str,
    segment_id: int,
    log_id: bytes,
    segment_crc: int,
    build: Callable[[], KeyRows],
) -> tuple[KeyIndex, File]:
    """Open the index, all of it checked; make it anew if it is missing or damaged.

    The caller closes the file. `build` reads the segment, which is the truth.
    """
    if fs.exists(path):
        file = fs.open_read(path)
        try:
            index = KeyIndex(file, segment_id, log_id, segment_crc)
            index.read()
        except (Corrupt, UnsupportedVersion):
            file.close()
        else:
            return index, file
    write_atomic(fs, path, encode(build(), segment_id, log_id, segment_crc))
    file = fs.open_read(path)
    return KeyIndex(file, segment_id, log_id, segment_crc), file
