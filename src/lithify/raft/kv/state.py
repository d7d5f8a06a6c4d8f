"""The state of the key-value machine: rows, live indexes, watchers; and its snapshot format.

A snapshot is pieces:

    first     4  watchers   8  index of the last deletion
              of each watcher: 8 last revision sent, 2 and 2 lengths, prefix, name
    others    rows in columns, so that a million are read without a loop over them: `rows.py`

Only the machine (`machine.py`) changes a state.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from lithify.raft.kv.rows import ROW, KvRows, RowTable
from lithify.raft.live_indexes import LiveIndexes
from lithify.raft.ordered_key_set import OrderedKeys, prefix_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["KvState", "Watcher", "load_state", "save_state"]

_PLACE = struct.Struct("<Q")
"""The first field of a row."""
_FIRST = struct.Struct("<IQ")
_WATCHER = struct.Struct("<QHH")


@dataclass(slots=True)
class Watcher:
    """A client that gets the changes of keys."""

    prefix: bytes
    last: int
    """The revision of the last event sent to it."""


@dataclass(slots=True)
class KvState:
    """Keys and where their values are."""

    rows: KvRows = field(default_factory=KvRows)
    live: LiveIndexes = field(default_factory=LiveIndexes)
    watchers: dict[bytes, Watcher] = field(default_factory=dict)
    deleted: int = 0
    """The index of the last deletion."""
    ordered: OrderedKeys = field(default_factory=lambda: OrderedKeys([]))

    def set(self, key: bytes, place: int, revision: int, digest: bytes) -> None:
        """Set the place of a key's value; all earlier places are lower."""
        rows = self.rows
        before = rows.changed.get(key) or rows.strike(key)
        if before is None:
            self.ordered.add(key)
        else:
            self.live.remove(_PLACE.unpack_from(before)[0])
        rows.changed[key] = ROW.pack(place, revision, digest)
        self.live.add(place)

    def remove(self, key: bytes, index: int) -> int:
        """Delete a key; returns its revision, 0 if it is absent."""
        row = self.rows.pop(key)
        if row is None:
            return 0
        place, revision, _ = ROW.unpack(row)
        self.live.remove(place)
        self.ordered.discard(key)
        self.deleted = index
        return int(revision)

    def keys(self, prefix: bytes, after: bytes) -> Iterator[bytes]:
        """The keys with a prefix that are above another key, ascending."""
        start = max(prefix, after + b"\0" if after else b"")
        return self.ordered.range(start, prefix_end(prefix), self.rows)


def save_state(state: KvState) -> Iterable[bytes]:
    """A state in pieces, as of this moment."""
    first = _FIRST.pack(len(state.watchers), state.deleted) + b"".join(
        _WATCHER.pack(each.last, len(each.prefix), len(name)) + each.prefix + name
        for name, each in state.watchers.items()
    )
    return chain((first,), state.rows.pieces())


def load_state(pieces: Iterable[bytes]) -> KvState:
    """The state that was saved."""
    rest = iter(pieces)
    watchers, deleted = _load_watchers(next(rest))
    table = RowTable(rest)
    return KvState(KvRows(table), LiveIndexes(table.places()), watchers, deleted, OrderedKeys(None))


def _load_watchers(piece: bytes) -> tuple[dict[bytes, Watcher], int]:
    count, deleted = _FIRST.unpack_from(piece)
    watchers: dict[bytes, Watcher] = {}
    at = _FIRST.size
    for _ in range(count):
        last, prefix_bytes, name_bytes = _WATCHER.unpack_from(piece, at)
        at += _WATCHER.size
        prefix = piece[at : at + prefix_bytes]
        at += prefix_bytes
        watchers[piece[at : at + name_bytes]] = Watcher(prefix, last)
        at += name_bytes
    return watchers, deleted
