"""The rows of a key-value state by key: those of a snapshot as columns, later ones in a dict.

1. A loaded state keeps the columns of the snapshot (`RowTable`): rows, keys, and a hash table of
   the keys' numbers, filled by a compiled loop. There is no object per key, so a million keys load
   in a fraction of the time of filling a dict, and take a quarter of the memory.
2. A key that is written or deleted is marked as struck in the table; a written one goes into
   `changed`. So a key that changes often costs the same as in a dict.
3. `pieces` returns all rows of this moment, for a thread that reads them while commands are
   applied. The columns never change; the dict and the marks are copied.

A piece, also in snapshots:

    4  rows, n    32 n  rows    2 n  lengths of keys    keys

Only the machine changes it, in its group's thread.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from lithify.raft.kv.kernels import fill_slots, find_key
from lithify.raft.storage.snapshots.snapshot_file import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["ROW", "KvRows", "RowTable"]

ROW = struct.Struct("<QQ16s")
"""Place, revision and digest; see `machine.py`."""

_COUNT = struct.Struct("<I")
_PIECE_ROWS = 16_384
"""Maximum of rows in a piece: 560 KB, and the keys, which are at most about `PIECE_BYTES`."""
_SECRET = hash(b"a row of a key") & 2**63 - 1
"""Python's own secret, random for each process."""


class RowTable:
    """Immutable columns of rows and keys."""

    def __init__(self, pieces: Iterable[bytes] = ()) -> None:
        rows, lengths, keys = [np.empty(0, np.uint8)], [np.empty(0, np.uint16)], [b""]
        for piece in pieces:
            (count,) = _COUNT.unpack_from(piece)
            end = _COUNT.size + ROW.size * count
            rows.append(np.frombuffer(piece, np.uint8, ROW.size * count, _COUNT.size))
            lengths.append(np.frombuffer(piece, np.uint16, count, end))
            keys.append(piece[end + 2 * count :])
        self.rows: NDArray[np.uint8] = np.concatenate(rows).reshape(-1, ROW.size)
        self.keys = np.frombuffer(bytearray().join(keys), np.uint8)
        self.starts = np.zeros(len(self.rows) + 1, np.int64)
        np.cumsum(np.concatenate(lengths), out=self.starts[1:])
        self._slots = np.full(2 << len(self.rows).bit_length(), -1, np.int32)
        if len(self.rows):
            fill_slots(self.keys, self.starts, self._slots, _SECRET)
            # The first lookup loads compiled code; no client should wait for that.
            self.find(b"")

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, key: bytes) -> int:
        """The number of a key's row, -1 if there is none; the table must not be empty."""
        return int(find_key(self.keys, self.starts, self._slots, _SECRET, key))

    def row(self, number: int) -> bytes:
        """The row with this number."""
        row: bytes = self.rows[number].tobytes()
        return row

    def places(self) -> NDArray[np.int64]:
        """The places of all rows."""
        return self.rows[:, :8].copy().view(np.int64).reshape(-1)

    def keys_of(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """The keys of these rows."""
        keys, starts = self.keys.tobytes(), self.starts.tolist()
        return [keys[starts[number] : starts[number + 1]] for number in numbers.tolist()]

    def pieces(self, numbers: NDArray[np.int64]) -> Iterator[bytes]:
        """The rows of these ascending numbers, in pieces."""
        lengths = np.diff(self.starts)
        for start in range(0, len(numbers), _PIECE_ROWS):
            some = numbers[start : start + _PIECE_ROWS]
            for part in _parts(lengths[some]):
                chosen = some[part]
                sizes = lengths[chosen]
                # For every byte of every chosen key: its offset.
                shifts = self.starts[chosen] - np.cumsum(sizes) + sizes
                places = np.repeat(shifts, sizes) + np.arange(int(sizes.sum()))
                head, sizes = _COUNT.pack(len(chosen)), sizes.astype(np.uint16)
                yield b"".join((head, self.rows[chosen].data, sizes.data, self.keys[places].data))


class KvRows:
    """See the module."""

    def __init__(self, table: RowTable | None = None) -> None:
        self.changed: dict[bytes, bytes] = {}
        """Overrides the table: look here first, then `strike`."""
        self._table = table or RowTable()
        self._struck = np.zeros(len(self._table), np.bool_)
        self._kept = len(self._table)

    def __len__(self) -> int:
        return self._kept + len(self.changed)

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def __getitem__(self, key: bytes) -> bytes:
        row = self.get(key)
        if row is None:
            raise KeyError(key)
        return row

    def get(self, key: bytes) -> bytes | None:
        """The row of a key."""
        row = self.changed.get(key)
        if row is None and self._kept:
            number = self._table.find(key)
            if number >= 0 and not self._struck[number]:
                return self._table.row(number)
        return row

    def strike(self, key: bytes) -> bytes | None:
        """Remove a key from the table; returns its row, if there was one."""
        if not self._kept:
            return None
        number = self._table.find(key)
        if number < 0 or self._struck[number]:
            return None
        self._struck[number] = True
        self._kept -= 1
        return self._table.row(number)

    def pop(self, key: bytes) -> bytes | None:
        """Remove a key; returns its row, if there was one."""
        return self.changed.pop(key, None) or self.strike(key)

    def keys(self) -> list[bytes]:
        """All keys, unordered."""
        return [*self._table.keys_of(np.flatnonzero(~self._struck)), *self.changed]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and rows."""
        return ((key, self[key]) for key in self.keys())

    def pieces(self) -> Iterator[bytes]:
        """All rows of this moment; they are copied when this is called."""
        return _pieces(self._table, self._struck.copy(), self.changed.copy())


def _pieces(
    table: RowTable, struck: NDArray[np.bool_], changed: dict[bytes, bytes]
) -> Iterator[bytes]:
    yield from table.pieces(np.flatnonzero(~struck))
    all_keys, all_rows = iter(changed.keys()), iter(changed.values())
    while keys := list(islice(all_keys, _PIECE_ROWS)):
        rows = list(islice(all_rows, len(keys)))
        lengths = np.fromiter(map(len, keys), np.uint16, len(keys))
        for part in _parts(lengths):
            head = _COUNT.pack(len(keys[part]))
            yield b"".join((head, *rows[part], lengths[part].data, *keys[part]))


def _parts(lengths: NDArray[np.integer]) -> Iterator[slice]:
    """Slices of rows that make pieces of about one size, whatever the lengths of the keys."""
    fitting = len(lengths) * PIECE_BYTES // max(1, int(lengths.sum(dtype=np.int64)))
    count = max(1, min(len(lengths), fitting))
    for at in range(0, len(lengths), count):
        yield slice(at, at + count)
