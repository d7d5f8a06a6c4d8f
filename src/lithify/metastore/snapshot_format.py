"""The bytes of a snapshot of the metastore's state, version 1. Pure.

The first piece, little-endian:

    0     4  version          1
    4     4  zero
    8  8 × 10  revision, time, floor, purged, purged floor; then how many leases, keys, rows,
               revisions, changes follow
    …        of each lease: 8 id, 8 time to live in milliseconds, 8 generation

All others together are columns, one after the other, cut into pieces of `PIECE_BYTES`. So a million
revisions are read without a loop over them.

    lengths of the keys, 2 each; all keys
    numbers of rows of the keys, 4 each; all rows, as in `key_histories.py`
    of the revisions: number 8, time 8, place 8, bytes of the entry 4, values 4, changes 4,
                      otherwise 1
    of the changes: the number of its key 4, has it a value 1

A key may have no rows: then a change below the floor names it, and it does not exist.

`save_state` copies the columns in the group's thread; the pieces are made in another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from lithify.metastore.key_histories import ROW_COLUMNS, KeyHistories
from lithify.metastore.revisions import RevisionColumns, column
from lithify.metastore.state import MetastoreState, StoredLease
from lithify.metastore.state_columns import FIRST, LEASE, STATE_VERSION, read_columns
from lithify.raft.live_indexes import LiveIndexes
from lithify.raft.storage.snapshots.snapshot_file import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from lithify.metastore.state_columns import StateColumns

__all__ = ["load_state", "save_state"]


def save_state(state: MetastoreState) -> Iterable[bytes]:
    """A state in pieces, as of this moment."""
    keys, columns = state.keys, state.revisions
    numbers = state.revision, state.time, state.floor, state.purged, state.purged_floor
    leases = [(each, found.ttl_ms, found.generation) for each, found in state.leases.items()]
    histories = keys.rows.values()
    copied = _Copied(
        (*numbers, len(leases)),
        b"".join(LEASE.pack(*each) for each in leases),
        list(keys.rows),
        np.fromiter(map(len, histories), np.uint32, len(histories)),
        b"".join(histories),
        np.array(columns.stops, np.int64),
        [
            columns.numbers.tobytes(),
            columns.times.tobytes(),
            columns.places.tobytes(),
            columns.entry_bytes.tobytes(),
            columns.values.tobytes(),
        ],
        bytes(columns.otherwise),
        columns.keys.copy(),
        bytes(columns.has_value),
    )
    return _pieces(copied)


@dataclass(frozen=True, slots=True)
class _Copied:
    """What another thread makes the pieces of."""

    numbers: tuple[int, ...]
    leases: bytes
    keys: list[bytes]
    history_bytes: NDArray[np.uint32]
    histories: bytes
    stops: NDArray[np.int64]
    columns: list[bytes]
    otherwise: bytes
    changed_keys: list[bytes]
    has_value: bytes


def _pieces(copied: _Copied) -> Iterator[bytes]:
    keys = list(dict.fromkeys(chain(copied.keys, copied.changed_keys)))
    row_counts = np.zeros(len(keys), np.uint32)
    row_counts[: len(copied.keys)] = copied.history_bytes // ROW_COLUMNS.itemsize
    rows = len(copied.histories) // ROW_COLUMNS.itemsize
    counts = len(keys), rows, len(copied.stops), len(copied.changed_keys)
    yield FIRST.pack(STATE_VERSION, 0, *copied.numbers, *counts) + copied.leases
    number_of = dict(zip(keys, range(len(keys)), strict=True))
    key_numbers = map(number_of.__getitem__, copied.changed_keys)
    yield from _cut(
        (
            np.fromiter(map(len, keys), np.uint16, len(keys)).tobytes(),
            b"".join(keys),
            row_counts.tobytes(),
            copied.histories,
            *copied.columns,
            np.diff(copied.stops, prepend=0).astype(np.uint32).tobytes(),
            copied.otherwise,
            np.fromiter(key_numbers, np.uint32, len(copied.changed_keys)).tobytes(),
            copied.has_value,
        )
    )


def _cut(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        for at in range(0, len(part), PIECE_BYTES):
            yield part[at : at + PIECE_BYTES]


def load_state(pieces: Iterable[bytes]) -> MetastoreState:
    """The state that was saved."""
    saved = read_columns(pieces)
    state = MetastoreState(
        revision=saved.revision,
        time=saved.time,
        floor=saved.floor,
        purged=saved.purged,
        purged_floor=saved.purged_floor,
    )
    joined, bounds = saved.keys.tobytes(), saved.key_stops.tolist()
    keys = list(map(joined.__getitem__, map(slice, [0, *bounds[:-1]], bounds)))
    existing = saved.existing
    counts = saved.row_counts[:existing].astype(np.int64)
    state.keys = KeyHistories.load(keys[:existing], counts, saved.rows)
    state.revisions = _load_revisions(saved, keys)
    state.live = LiveIndexes(saved.places[saved.values > 0])
    leases = saved.leases
    state.set_leases({each: StoredLease(ttl, generation) for each, ttl, generation in leases})
    return state


def _load_revisions(saved: StateColumns, keys: list[bytes]) -> RevisionColumns:
    loaded = RevisionColumns()
    loaded.numbers = column("q", saved.numbers)
    loaded.times = column("q", saved.times)
    loaded.places = column("q", saved.places)
    loaded.entry_bytes = column("I", saved.entry_bytes)
    loaded.values = column("I", saved.values)
    loaded.stops = column("q", saved.change_stops)
    loaded.otherwise = bytearray(saved.otherwise.tobytes())
    loaded.keys = list(map(keys.__getitem__, saved.changed.tolist()))
    loaded.has_value = bytearray(saved.has_value.tobytes())
    return loaded
