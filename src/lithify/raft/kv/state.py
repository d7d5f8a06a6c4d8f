"""The state of the key-value machine: rows, live indexes, watchers; and its snapshot format.

A snapshot is pieces:

    first     4  watchers   8  index of the last deletion
              of each watcher: 8 last revision sent, 2 and 2 lengths, prefix, name
    others    rows in columns, so that a million are read without a loop over them: `rows.py`

Only the machine (`machine.py`) changes a state.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from lithify.raft.kv.live_indexes import LiveIndexes
from lithify.raft.kv.rows import ROW, KvRows, RowTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["KvState", "Watcher", "load_state", "save_state"]

_PLACE = struct.Struct("<Q")
"""The first field of a row."""
_ADDED_MAX, _ADDED_SHARE = 1024, 64
"""Up to this number of new keys, or this share of all keys, each scan inserts the new keys: 3 ms
for a million keys. Above it all keys are sorted: 0.1 s of the thread that all groups share."""
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
    ordered: list[bytes] | None = field(default_factory=list)
    """The keys in order, as of an earlier scan, some deleted since; None if no scan has seen the
    loaded keys."""
    added: set[bytes] = field(default_factory=set)
    """Keys that were added since."""

    def set(self, key: bytes, place: int, revision: int, digest: bytes) -> None:
        """Set the place of a key's value; all earlier places are lower."""
        rows = self.rows
        before = rows.changed.get(key) or rows.strike(key)
        if before is None:
            self.added.add(key)
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
        self.added.discard(key)
        self.deleted = index
        return int(revision)

    def keys(self, prefix: bytes, after: bytes) -> Iterator[bytes]:
        """The keys with a prefix that are above another key, ascending."""
        rows, ordered = self.rows, self._order()
        low = max(prefix, after)
        at = bisect_left(ordered, low)
        for new in sorted(key for key in self.added if key >= low and key.startswith(prefix)):
            stop = bisect_left(ordered, new, at)
            for key in islice(ordered, at, stop):
                if key in rows and (key > after or not after):
                    yield key
            if new > after or not after:
                yield new
            # A key that was deleted and added again is in both.
            at = stop + (ordered[stop : stop + 1] == [new])
        for key in islice(ordered, at, None):
            if not key.startswith(prefix):
                return
            if key in rows and (key > after or not after):
                yield key

    def _order(self) -> list[bytes]:
        """Most keys in order, and some deleted ones; a bounded number of keys is in `added`."""
        rows, ordered, added = self.rows, self.ordered, self.added
        if ordered is None or len(ordered) > 2 * len(rows):
            self.ordered, self.added = sorted(rows.keys()), set()
        elif len(added) > max(_ADDED_MAX, len(ordered) // _ADDED_SHARE):
            kept = [key for key in ordered if key not in added]
            # Two sorted runs: merging them is one pass.
            self.ordered, self.added = sorted([*kept, *sorted(added)]), set()
        assert self.ordered is not None
        return self.ordered


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
    return KvState(KvRows(table), LiveIndexes(table.places()), watchers, deleted, None)


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
