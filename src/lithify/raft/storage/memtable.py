"""Entries of one group that are not in segments yet.

An entry is here from the moment it is queued in the write-ahead log, durable or not, until the
segment writer has put it into a segment. Indexes ascend without a gap, except for the live entries
before a snapshot, which `append_sparse` adds.

    append(entries)            contiguous; an existing index cuts off everything from it on
    append_sparse(entry, p)    p must be the last index: so gaps in the sparse sequence are found

The group's thread writes. The segment writer's thread reads at the same time: single lookups of
entries that only the group's thread removes.
"""

from __future__ import annotations

from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, cast

import numpy as np

from lithify.raft.errors import GapInLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.raft.entry import Entry
    from lithify.raft.storage.index_runs import IndexRuns
    from lithify.raft.storage.live_state import LiveState

__all__ = ["MemTable"]

_INDEX = attrgetter("index")
_PAYLOAD = attrgetter("payload")


class MemTable:
    """See the module."""

    def __init__(self, group: str, entries: dict[int, Entry] | None = None) -> None:
        self._group = group
        self._entries = entries if entries is not None else {}
        self._bytes = _payload_bytes(self._entries.values())
        self.last = next(reversed(self._entries), None)
        """The highest index; stays when entries go to segments."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return self._bytes

    @property
    def first(self) -> int | None:
        """The lowest index in it."""
        return next(iter(self._entries), None)

    def get(self, index: int) -> Entry | None:
        """The entry, if it is here."""
        return self._entries.get(index)

    def get_run(self, start: int, stop: int) -> list[Entry]:
        """The entries in [start, stop), if all of them are here; otherwise none."""
        found = list(map(self._entries.get, range(start, stop)))
        return [] if None in found else cast("list[Entry]", found)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add consecutive entries; those that they overwrite are removed."""
        first = entries[0].index
        if self.last is not None:
            if first > self.last + 1:
                raise GapInLog(self._group, self.last + 1, first)
            if first <= self.last:
                self.cut(first)
        indexes = list(map(_INDEX, entries))
        expected = range(first, first + len(entries))
        if indexes != list(expected):
            pairs = zip(expected, indexes, strict=True)
            raise GapInLog(self._group, *next(pair for pair in pairs if pair[0] != pair[1]))
        self._entries.update(zip(indexes, entries, strict=True))
        self._bytes += _payload_bytes(entries)
        self.last = indexes[-1]

    def append_sparse(self, entry: Entry, previous: int) -> None:
        """Add the entry that comes after `previous` in a sequence with gaps."""
        if (self.last is not None and previous != self.last) or entry.index <= previous:
            raise GapInLog(self._group, (self.last or 0) + 1, entry.index)
        self._entries[entry.index] = entry
        self._bytes += len(entry.payload)
        self.last = entry.index

    def cut(self, index: int) -> None:
        """Remove the entries from this index on."""
        entries = self._entries
        while entries and next(reversed(entries)) >= index:
            self._bytes -= len(entries.popitem()[1].payload)
        # Entries below may be in segments already.
        self.last = index - 1

    def drop_dead(self, state: LiveState) -> None:
        """Remove entries that a snapshot has made unnecessary."""
        first = self.first
        if first is None or first > state.snapshot_index:
            return
        # Ascending, so this stops at the snapshot.
        below = takewhile(state.snapshot_index.__ge__, self._entries)
        indexes = np.fromiter(below, dtype=np.int64)
        self._remove(indexes[~state.live.contains_many(indexes)].tolist())

    def flushed(self, indexes: IndexRuns) -> None:
        """Remove entries that are in segments, unless they were overwritten since."""
        for first, last, term in indexes:
            found = (self._entries.get(index) for index in range(first, last + 1))
            self._remove([e.index for e in found if e is not None and e.term == term])

    def _remove(self, indexes: list[int]) -> None:
        self._bytes -= _payload_bytes(list(map(self._entries.pop, indexes)))


def _payload_bytes(entries: Iterable[Entry]) -> int:
    return sum(map(len, map(_PAYLOAD, entries)))
