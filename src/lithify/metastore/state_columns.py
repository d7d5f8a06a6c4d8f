"""A saved state as columns, for programs that read many rows of it at once. Pure.

`load_state` (`snapshot_format.py`) makes the machine's state of them; a reader of a snapshot file
uses them as they are, without an object per key. The bytes are described there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lithify.errors import ProtocolError
from lithify.metastore.key_histories import ROW_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["FIRST", "LEASE", "STATE_VERSION", "StateColumns", "read_columns"]

STATE_VERSION = 1
FIRST = struct.Struct("<II10Q")
LEASE = struct.Struct("<QQQ")


@dataclass(frozen=True, slots=True)
class StateColumns:
    """See the module. Keys without rows come last."""

    revision: int
    time: int
    floor: int
    purged: int
    purged_floor: int
    leases: tuple[tuple[int, int, int], ...]
    keys: NDArray[np.uint8]
    """The bytes of all keys."""
    key_stops: NDArray[np.int64]
    """Where each key ends in them."""
    row_counts: NDArray[np.uint32]
    """The number of rows of each key."""
    rows: NDArray[np.void]
    """The rows of all keys (`key_histories.py`)."""
    numbers: NDArray[np.int64]
    """Of each revision: its number, time, place, and so on."""
    times: NDArray[np.int64]
    places: NDArray[np.int64]
    entry_bytes: NDArray[np.uint32]
    values: NDArray[np.uint32]
    change_stops: NDArray[np.int64]
    """Where its changes end."""
    otherwise: NDArray[np.uint8]
    changed: NDArray[np.uint32]
    """Of each change: the number of its key."""
    has_value: NDArray[np.uint8]

    @property
    def existing(self) -> int:
        """The number of keys that have rows."""
        return int(np.count_nonzero(self.row_counts))


class _Reader:
    """Reads columns of saved bytes, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, kind: Any, count: int) -> NDArray[Any]:
        found = np.frombuffer(self._data, kind, count, self._at)
        self._at += found.nbytes
        return found


def read_columns(pieces: Iterable[bytes]) -> StateColumns:
    """The columns of a saved state."""
    rest = iter(pieces)
    first = next(rest)
    version, zero, *numbers = FIRST.unpack_from(first)
    if version != STATE_VERSION or zero:
        raise ProtocolError(f"a state of version {version}, this program reads {STATE_VERSION}")
    revision, time, floor, purged, purged_floor, lease_count, *counts = numbers
    key_count, row_count, revision_count, change_count = counts
    data = _Reader(b"".join(rest))
    take = data.take
    key_stops = np.cumsum(take("<u2", key_count), dtype=np.int64)
    # In the order of the file.
    return StateColumns(
        *(revision, time, floor, purged, purged_floor),
        tuple(LEASE.iter_unpack(first[FIRST.size :][: LEASE.size * lease_count])),
        take(np.uint8, int(key_stops[-1]) if key_count else 0),
        key_stops,
        take("<u4", key_count),
        take(ROW_COLUMNS, row_count),
        take("<i8", revision_count),
        take("<i8", revision_count),
        take("<i8", revision_count),
        take("<u4", revision_count),
        take("<u4", revision_count),
        np.cumsum(take("<u4", revision_count), dtype=np.int64),
        take(np.uint8, revision_count),
        take("<u4", change_count),
        take(np.uint8, change_count),
    )
