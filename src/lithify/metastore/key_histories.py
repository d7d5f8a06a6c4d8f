"""The keys of the metastore with their retained revisions. Pure.

A key has a row of 36 bytes for each retained revision that changed it, ascending:

    0     8  revision
    8     8  lease, 0 for none
   16     4  bytes of the value; 2^32 - 1 for a tombstone
   20    16  digest of the value; zeros for a tombstone

All rows of a key are in one `bytearray`: it appends and drops rows in front in constant time, is
searched by bisection, and has no object per row. `newest` has the keys that have a value, with the
revision that set it.

Rows are dropped oldest first. A key without rows does not exist.

Only the machine changes it, in its group's thread.
"""

from __future__ import annotations

import struct
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lithify.raft.ordered_key_set import OrderedKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["ROW", "ROW_COLUMNS", "TOMBSTONE", "KeyHistories", "KeyRow"]

ROW = struct.Struct("<QQI16s")
ROW_COLUMNS = np.dtype(
    [("revision", "<i8"), ("lease", "<i8"), ("value_bytes", "<u4"), ("digest", "V16")]
)
TOMBSTONE = 2**32 - 1
_ROW_BYTES = ROW.size
_REVISION = struct.Struct("<Q")
_NO_DIGEST = bytes(16)
_pack = ROW.pack


class KeyRow(NamedTuple):
    """A revision of a key."""

    revision: int
    lease: int
    value_bytes: int
    digest: bytes

    @property
    def is_tombstone(self) -> bool:
        """Has the key no value at this revision?"""
        return self.value_bytes == TOMBSTONE


class KeyHistories:
    """See the module."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytearray] = {}
        self.newest: dict[bytes, int] = {}
        """The keys that have a value, and the revision that set it."""
        self.row_count = 0
        self._ordered = OrderedKeys([])

    @classmethod
    def load(
        cls, keys: list[bytes], counts: NDArray[np.int64], rows: NDArray[np.void]
    ) -> KeyHistories:
        """Of saved keys, the number of rows of each, and all rows."""
        loaded = cls()
        loaded.row_count, loaded._ordered = len(rows), OrderedKeys(None)
        data, ends = memoryview(rows.tobytes()), np.cumsum(counts)
        stops = (ends * _ROW_BYTES).tolist()
        parts = map(data.__getitem__, map(slice, [0, *stops[:-1]], stops))
        loaded.rows = dict(zip(keys, map(bytearray, parts), strict=True))
        if keys:
            last = rows[ends - 1]
            has_value = (last["value_bytes"] != TOMBSTONE).tolist()
            revisions = compress(last["revision"].tolist(), has_value)
            loaded.newest = dict(zip(compress(keys, has_value), revisions, strict=True))
        return loaded

    def leases(self) -> dict[bytes, int]:
        """The keys that have a value with a lease."""
        return {key: lease for key in self.newest if (lease := self.last(key).lease)}

    def put(self, key: bytes, revision: int, lease: int, value_bytes: int, digest: bytes) -> None:
        """The key has a value from this revision on."""
        row = _pack(revision, lease, value_bytes, digest)
        history = self.rows.get(key)
        if history is None:
            self.rows[key] = bytearray(row)
            self._ordered.add(key)
        else:
            history += row
        self.newest[key] = revision
        self.row_count += 1

    def delete(self, key: bytes, revision: int) -> None:
        """The key, which has a value, is deleted by this revision."""
        self.rows[key] += _pack(revision, 0, TOMBSTONE, _NO_DIGEST)
        del self.newest[key]
        self.row_count += 1

    def last(self, key: bytes) -> KeyRow:
        """The last row of a key that has rows."""
        history = self.rows[key]
        return KeyRow._make(ROW.unpack_from(history, len(history) - _ROW_BYTES))

    def at(self, key: bytes, revision: int) -> KeyRow | None:
        """The value of a key at a revision."""
        history = self.rows.get(key)
        if history is None:
            return None
        count = _rows_through(history, revision)
        if not count:
            return None
        row = KeyRow._make(ROW.unpack_from(history, (count - 1) * _ROW_BYTES))
        return None if row.is_tombstone else row

    def before(self, key: bytes, revision: int) -> KeyRow | None:
        """The last row of a key below a revision."""
        history = self.rows.get(key)
        count = 0 if history is None else _rows_through(history, revision - 1)
        if history is None or not count:
            return None
        return KeyRow._make(ROW.unpack_from(history, (count - 1) * _ROW_BYTES))

    def following(self, key: bytes, revision: int) -> tuple[KeyRow, int] | None:
        """The row of exactly this revision, and the key's next revision, 0 if there is none."""
        history = self.rows.get(key)
        count = 0 if history is None else _rows_through(history, revision)
        if history is None or not count:
            return None
        row = KeyRow._make(ROW.unpack_from(history, (count - 1) * _ROW_BYTES))
        if row.revision != revision:
            return None
        at = count * _ROW_BYTES
        return row, _REVISION.unpack_from(history, at)[0] if at < len(history) else 0

    def drop_through(self, key: bytes, revision: int) -> list[KeyRow]:
        """Remove the rows of a key up to a revision, and return them."""
        history = self.rows.get(key)
        dropped: list[KeyRow] = []
        while history and _REVISION.unpack_from(history)[0] <= revision:
            dropped.append(KeyRow._make(ROW.unpack_from(history)))
            del history[:_ROW_BYTES]
        self.row_count -= len(dropped)
        if dropped and not history:
            del self.rows[key]
            self._ordered.discard(key)
        return dropped

    def range(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The keys of a range that have rows, ascending; do not change them meanwhile."""
        return self._ordered.range(start, end, self.rows)

    def present(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The keys of a range that have a value."""
        newest = self.newest
        return (key for key in self.range(start, end) if key in newest)


def _rows_through(history: bytearray, revision: int) -> int:
    """The number of rows up to a revision."""
    low, high = 0, len(history) // _ROW_BYTES
    # Most reads are at or near the newest revision.
    if high and _REVISION.unpack_from(history, (high - 1) * _ROW_BYTES)[0] <= revision:
        return high
    while low < high:
        middle = (low + high) // 2
        if _REVISION.unpack_from(history, middle * _ROW_BYTES)[0] <= revision:
            low = middle + 1
        else:
            high = middle
    return low
