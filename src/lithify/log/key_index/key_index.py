"""The key index: a columnar side file of a sealed segment.

For every message that counts it has the hash of the key, the position, the times and the flags, so
that compaction finds the newest message of each key without reading a payload. The store defines
what the key of a message is and which messages count; this module defines the file.

The upper 8 bits of the hash are a row's **bucket**. Rows are sorted by bucket, then by position and
slot, and a table has the first row of each bucket. So a task can read one range of buckets from the
index of every segment, and all rows of a key are in the same bucket everywhere.

    header (160 bytes)  little-endian
         0     8  magic        "LITHKEYS"
         8     2  version      2
        10     2  stored       bit n is set if column n is in the file
        12     2  order        time by which rows were reduced: 0 publish, 1 event
        14     2  zero
        16     8  rows
        24     8  segment_id
        32    12  log_id       both as in the segment's header
        44     4  segment_crc  the CRC-32C at the end of its footer: identifies the segment
        48     8  messages     of the segment, including those without a row
        56     8  markers      included in messages
        64     8  opaque       included in messages
        72    80  values       8 for each column: the value of all rows if it is not stored, else 0
       152     4  zero
       156     4  crc          CRC-32C of bytes 0 … 156
    buckets             257 × 8 bytes: the first row of each bucket, then the number of rows;
                        then the CRC-32C of the table (4 bytes)
    directory           a CRC-32C (4 bytes) for each of the 256 buckets of each stored column,
                        column by column, then one of the directory: 4 × 256 × stored + 4 bytes
    columns             the stored ones, one after the other, rows × width bytes each
        hash_high  8    hash_low  8    position  8    slot  4    slots  4    length  4
        flags  2        publish_ms  8  event_ms  8    group  8

`slot` is the index of a message in its batch as the producer sent it, -1 outside a batch; `slots`
is the number of slots in its entry, including placeholders. `length` is the message's share of the
segment in bytes: its frame, or its part of the frame of its batch. The store defines `group`.

Each bucket of each column has its own CRC, so that a part can be read and verified without the
rest. A column with a single value is stored as 8 bytes in the header; in most topics half of the
columns are.

The file is written without an fsync, because it can be rebuilt from its segment. A file that is
missing, damaged, truncated or of another segment is rebuilt; it is never treated as empty.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, ReadFailed, UnsupportedVersion
from lithify.log.key_index.key_index_kernels import bucket_crcs, bucket_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.fs import File, FileSystem
    from lithify.log.segments.segment_file import SegmentFooter

__all__ = [
    "BUCKETS",
    "COLUMNS",
    "KEY_INDEX_VERSION",
    "ORDER_EVENT",
    "ORDER_PUBLISH",
    "IndexFacts",
    "KeyIndex",
    "KeyRows",
    "encode",
    "segment_crc_of",
    "write_key_index",
]

KEY_INDEX_VERSION = 2
BUCKETS = 256
ORDER_PUBLISH, ORDER_EVENT = 0, 1
COLUMNS: dict[str, np.dtype[Any]] = {
    "hash_high": np.dtype("<u8"),
    "hash_low": np.dtype("<u8"),
    "position": np.dtype("<i8"),
    "slot": np.dtype("<i4"),
    "slots": np.dtype("<u4"),
    "length": np.dtype("<u4"),
    "flags": np.dtype("<u2"),
    "publish_ms": np.dtype("<i8"),
    "event_ms": np.dtype("<i8"),
    "group": np.dtype("<u8"),
}

_MAGIC = b"LITHKEYS"
_HEADER = struct.Struct("<8s4HQQ12sIQQQ80sI")
_CRC = struct.Struct("<I")
_HEADER_BYTES = 160
_BUCKETS_BYTES = 8 * (BUCKETS + 1)
_DIRECTORY_AT = _HEADER_BYTES + _BUCKETS_BYTES + 4
_HEAD_BYTES_MAX = _DIRECTORY_AT + 4 * BUCKETS * len(COLUMNS) + 4
assert _HEADER.size + _CRC.size == _HEADER_BYTES


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Counts of a segment as a whole."""

    order: int
    messages: int
    """All messages, including markers and those without a row after the reduction; an entry that
    cannot be decoded counts as one."""
    markers: int = 0
    opaque: int = 0


class KeyRows:
    """Rows as one array per column. Columns that were not requested are missing."""

    __slots__ = tuple(COLUMNS)
    hash_high: NDArray[np.uint64]
    hash_low: NDArray[np.uint64]
    position: NDArray[np.int64]
    slot: NDArray[np.int32]
    slots: NDArray[np.uint32]
    length: NDArray[np.uint32]
    flags: NDArray[np.uint16]
    publish_ms: NDArray[np.int64]
    event_ms: NDArray[np.int64]
    group: NDArray[np.uint64]

    def __init__(self, **columns: NDArray[Any]) -> None:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise InvalidInput(f"key index columns have different lengths: {sorted(lengths)}")
        for name, column in columns.items():
            setattr(self, name, column)

    def __len__(self) -> int:
        return next(len(getattr(self, name)) for name in COLUMNS if hasattr(self, name))


def segment_crc_of(footer: SegmentFooter) -> int:
    """The CRC that identifies a segment among those with its number."""
    return int.from_bytes(footer.to_bytes()[-4:], "little")


def encode(
    rows: KeyRows,
    keep: NDArray[np.bool_],
    facts: IndexFacts,
    segment_id: int,
    log_id: bytes,
    segment_crc: int,
) -> list[Buffer]:
    """Encode the rows to keep as a file, in pieces.

    Within a bucket, rows must be ordered by position and slot; buckets may be mixed.
    """
    order, starts = bucket_order(rows.hash_high, keep)
    stored, values, crcs, columns = 0, [], [], []
    for number, (name, kind) in enumerate(COLUMNS.items()):
        column = getattr(rows, name).astype(kind, copy=False)
        # Reordering a column costs far more than the check that all its values are equal.
        if len(order) == 0 or not _is_same(column):
            column = column[order]
        if _is_same(column):
            values.append(column[:1].astype("<u8").tobytes().ljust(8, b"\0"))
            continue
        values.append(bytes(8))
        data = column.view(np.uint8)
        stored |= 1 << number
        crcs.append(bucket_crcs(data, starts, kind.itemsize).astype("<u4").tobytes())
        columns.append(data.data)
    head = _HEADER.pack(
        _MAGIC,
        KEY_INDEX_VERSION,
        stored,
        facts.order,
        0,
        len(order),
        segment_id,
        log_id,
        segment_crc,
        facts.messages,
        facts.markers,
        facts.opaque,
        b"".join(values),
        0,
    )
    tables = (head, starts.astype("<i8").tobytes(), b"".join(crcs))
    return [*(table + _CRC.pack(crc32c(table)) for table in tables), *columns]


def _is_same(column: NDArray[Any]) -> bool:
    """Do all rows have the same value?"""
    return not len(column) or bool(column[0] == column[-1] and (column == column[0]).all())


def write_key_index(fs: FileSystem, path: str, pieces: Sequence[Buffer], attempt: str) -> None:
    """Write an index and rename it into place; `attempt` separates concurrent writers.

    A crash leaves a `.tmp`, which the next run or open removes, or an index that may be truncated,
    which its size and CRCs reveal, and which is then rebuilt.
    """
    temporary = f"{path}.{attempt}.tmp"
    try:
        _put(fs, path, pieces, temporary)
    except FileNotFoundError:
        # The cleanup of a run deleted it as a leftover of a killed process.
        _put(fs, path, pieces, temporary)


def _put(fs: FileSystem, path: str, pieces: Sequence[Buffer], temporary: str) -> None:
    try:
        with fs.open_append(temporary) as file:
            file.truncate(0)
            file.writev(pieces)
        fs.rename(temporary, path)
    except OSError:
        # On a full disk, free the space of the partial file.
        if fs.exists(temporary):
            fs.remove(temporary)
        raise


class KeyIndex:
    """An open key index, read by ranges of buckets. A context manager that closes its file."""

    __slots__ = ("_columns", "_crcs", "_file", "_values", "facts", "rows", "starts")

    def __init__(self, file: File, segment_id: int, log_id: bytes, segment_crc: int) -> None:
        """Check header, tables and size; raises if this is not the whole index of that segment."""
        self._file = file
        head = file.pread(_HEAD_BYTES_MAX, 0)
        if len(head) < _DIRECTORY_AT or head[:8] != _MAGIC:
            raise DamagedFile(file.path, 0, f"begins with {head[:8]!r}, not as a key index")
        version = int.from_bytes(head[8:10], "little")
        if version != KEY_INDEX_VERSION:
            raise UnsupportedVersion(file.path, version, KEY_INDEX_VERSION)
        fields = _HEADER.unpack(self._checked(head, 0, _HEADER.size))
        _, _, stored, order, _, self.rows, *found, messages, markers, opaque, values, _ = fields
        if tuple(found) != (segment_id, log_id, segment_crc):
            raise DamagedFile(file.path, 24, "key index of another segment")
        self.facts = IndexFacts(order, messages, markers, opaque)
        table = self._checked(head, _HEADER_BYTES, _BUCKETS_BYTES)
        # Copied, because compiled loops accept writable arrays only.
        self.starts: NDArray[np.int64] = np.frombuffer(table, "<i8").copy()
        directory_bytes = 4 * BUCKETS * stored.bit_count()
        directory = self._checked(head, _DIRECTORY_AT, directory_bytes)
        self._crcs = np.frombuffer(directory, "<u4").reshape(-1, BUCKETS)
        self._values = np.frombuffer(values, "<u8")
        self._columns: dict[str, tuple[int, int]] = {}
        at = _DIRECTORY_AT + directory_bytes + 4
        for number, (name, kind) in enumerate(COLUMNS.items()):
            if stored >> number & 1:
                self._columns[name] = len(self._columns), at
                at += self.rows * kind.itemsize
        if file.size() != at:
            raise DamagedFile(file.path, 16, f"has {file.size()} bytes, not {at}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _checked(self, data: bytes, at: int, size: int) -> bytes:
        part, crc = data[at : at + size], data[at + size : at + size + 4]
        if len(crc) < 4 or crc32c(part) != _CRC.unpack(crc)[0]:
            raise DamagedFile(self._file.path, at, "key index table: CRC-32C does not match")
        return part

    def read(
        self,
        first: int = 0,
        stop: int = BUCKETS,
        columns: Iterable[str] = tuple(COLUMNS),
        before_read: Callable[[int], None] = lambda _: None,
    ) -> KeyRows:
        """Read columns of the buckets `first` to `stop` (exclusive), verifying every CRC.

        `before_read` is called with the number of bytes before each read of the file.
        """
        return KeyRows(**{name: self._read(name, first, stop, before_read) for name in columns})

    def _read(
        self, name: str, first: int, stop: int, before_read: Callable[[int], None]
    ) -> NDArray[Any]:
        kind = COLUMNS[name]
        begin, end = int(self.starts[first]), int(self.starts[stop])
        if name not in self._columns:
            value = self._values[list(COLUMNS).index(name)].astype(kind)
            return np.full(end - begin, value) if value else np.zeros(end - begin, kind)
        row, column_at = self._columns[name]
        column = np.empty(end - begin, kind)
        data = column.view(np.uint8)
        at = column_at + begin * kind.itemsize
        before_read(len(data))
        try:
            self._file.readinto(data.data, at)
        except OSError as error:
            raise ReadFailed(self._file.path, at, error) from error
        crcs = bucket_crcs(data, self.starts[first : stop + 1], kind.itemsize)
        wrong = np.flatnonzero(crcs != self._crcs[row, first:stop])
        if len(wrong):
            bucket = first + int(wrong[0])
            offset = column_at + int(self.starts[bucket]) * kind.itemsize
            raise DamagedFile(
                self._file.path, offset, f"bucket {bucket} of {name}: CRC-32C does not match"
            )
        return column
