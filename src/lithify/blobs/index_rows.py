"""Rows: the index data of each record, as a value and as columns of a key index.

The columns are those of `log/key_index/key_index.py`; a blob store uses them as follows:

| column | |
|---|---|
| hash_high, hash_low | the id's hash, two little-endian numbers |
| position | of the record; the parts of a put are at the positions just below |
| slots | entries of the record: 1, and for a put its parts |
| slot | life version |
| length | bytes of all its frames in the segment |
| flags | kind |
| publish_ms | time of the operation |
| event_ms | expiry |
| group | offset of the record's frame in the segment file, after its parts |

When a record is copied to another segment, only the offset changes.

Pure. Called by the index and by the tasks of a run.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lithify.blobs.records import KIND_SHIFT, BlobRecordKind
from lithify.log.key_index.key_index import COLUMNS, KeyRows
from lithify.log.segments.frame import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from lithify.log.segments.scan import Frames

__all__ = [
    "IndexRow",
    "join_rows",
    "pack_rows",
    "row_at",
    "rows_of",
    "rows_of_frames",
    "split_hash",
    "unpack_row",
    "values_of",
]

_LIFE_VERSION_AT, _EXPIRY_AT, _HASH_AT, _SIZE_AT = 4, 8, 16, 40

_HASH = struct.Struct("<QQ")
_PACKED = (
    "hash_high",
    "flags",
    "position",
    "slots",
    "length",
    "group",
    "slot",
    "publish_ms",
    "event_ms",
)
"""The columns in the order of the fields of `IndexRow`, after the hash."""
_PACKED_COLUMNS = np.dtype([(name, COLUMNS[name]) for name in _PACKED])
_PACKED_ROW = struct.Struct("<QHqIIqiqq")
assert _PACKED_ROW.size == _PACKED_COLUMNS.itemsize
_KINDS = {kind.value: kind for kind in BlobRecordKind}
"""Faster than calling `BlobRecordKind`."""


class IndexRow(NamedTuple):
    """One record in one segment; a tuple, because every lookup creates some."""

    kind: BlobRecordKind
    position: int
    entries: int
    length: int
    offset: int
    life_version: int
    time_ms: int
    expiry_ms: int


def split_hash(id_hash: bytes) -> tuple[int, int]:
    """(high, low) as in the columns."""
    high, low = _HASH.unpack(id_hash)
    return high, low


def rows_of_frames(frames: Frames) -> KeyRows:
    """A row for each record that ends in these frames; parts have none."""
    kinds = frames.flags() >> KIND_SHIFT
    heads = frames.select(kinds != BlobRecordKind.PART)
    kinds = kinds[kinds != BlobRecordKind.PART]
    bodies = heads.offsets + HEADER_BYTES
    parts = heads.tags().astype(np.int64)
    sizes = np.zeros(len(heads), np.int64)
    split = np.flatnonzero(parts)
    sizes[split] = _numbers(heads, bodies[split] + _SIZE_AT, "<i8")
    part_bytes = np.where(parts > 0, sizes + HEADER_BYTES * parts, 0)
    columns = {
        "hash_high": _numbers(heads, bodies + _HASH_AT, "<u8"),
        "hash_low": _numbers(heads, bodies + _HASH_AT + 8, "<u8"),
        "position": heads.positions.copy(),
        "slot": _numbers(heads, bodies + _LIFE_VERSION_AT, "<i4"),
        "slots": parts + 1,
        "length": HEADER_BYTES + heads.lengths() + part_bytes,
        "flags": kinds,
        "publish_ms": heads.times(),
        "event_ms": _numbers(heads, bodies + _EXPIRY_AT, "<i8"),
        "group": heads.offsets + heads.base,
    }
    return KeyRows(**{name: columns[name].astype(kind) for name, kind in COLUMNS.items()})


def _numbers(frames: Frames, offsets: NDArray[np.int64], kind: str) -> NDArray[Any]:
    """The numbers at these offsets of the buffer."""
    width = np.dtype(kind).itemsize
    numbers: NDArray[Any] = frames.buffer[offsets[:, None] + np.arange(width)].view(kind)
    return numbers.reshape(-1)


def join_rows(pieces: Sequence[KeyRows]) -> KeyRows:
    """All rows, in this order."""
    none = {name: np.empty(0, kind) for name, kind in COLUMNS.items()}
    columns = {
        name: np.concatenate([none[name], *(getattr(piece, name) for piece in pieces)])
        for name in COLUMNS
    }
    return KeyRows(**columns)


def rows_of(rows: Iterable[tuple[bytes, IndexRow]]) -> KeyRows:
    """(hash, row) of each, as columns in the order of positions."""
    pairs = list(rows)
    hashes = np.frombuffer(b"".join([id_hash for id_hash, _ in pairs]), "<u8").reshape(-1, 2)
    values = np.array([row for _, row in pairs], np.int64).reshape(-1, len(IndexRow._fields))
    table = dict(zip(_PACKED, [hashes[:, 0], *values.T], strict=True)) | {"hash_low": hashes[:, 1]}
    order = np.argsort(table["position"], kind="stable")
    return KeyRows(**{name: table[name][order].astype(kind) for name, kind in COLUMNS.items()})


def row_at(rows: KeyRows, number: int) -> IndexRow:
    """One row; for a few rows this is faster than `values_of`."""
    return IndexRow(
        BlobRecordKind(rows.flags.item(number)),
        rows.position.item(number),
        rows.slots.item(number),
        rows.length.item(number),
        rows.group.item(number),
        rows.slot.item(number),
        rows.publish_ms.item(number),
        rows.event_ms.item(number),
    )


def pack_rows(rows: KeyRows, order: NDArray[np.int64]) -> bytes:
    """The rows in this order, all numbers of a row in sequence."""
    packed = np.empty(len(order), _PACKED_COLUMNS)
    for name in _PACKED:
        packed[name] = getattr(rows, name)[order]
    return packed.tobytes()


def unpack_row(packed: bytes, number: int) -> tuple[int, IndexRow]:
    """(upper half of the hash, row) of one row."""
    high, kind, *rest = _PACKED_ROW.unpack_from(packed, number * _PACKED_ROW.size)
    return high, IndexRow(_KINDS[kind], *rest)


def values_of(rows: KeyRows, chosen: NDArray[np.int64]) -> list[tuple[bytes, IndexRow]]:
    """(hash, row) of the rows at these numbers."""
    hashes = np.stack((rows.hash_high[chosen], rows.hash_low[chosen]), axis=1).astype("<u8")
    columns = (
        [each.tobytes() for each in hashes],
        rows.flags[chosen].tolist(),
        rows.position[chosen].tolist(),
        rows.slots[chosen].tolist(),
        rows.length[chosen].tolist(),
        rows.group[chosen].tolist(),
        rows.slot[chosen].tolist(),
        rows.publish_ms[chosen].tolist(),
        rows.event_ms[chosen].tolist(),
    )
    return [
        (id_hash, IndexRow(BlobRecordKind(kind), *rest))
        for id_hash, kind, *rest in zip(*columns, strict=True)
    ]
