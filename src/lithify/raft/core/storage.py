"""The log interface that the core needs, and an implementation in memory.

The core reads the contiguous part above the snapshot and the term at the snapshot itself, nothing
else: entries at or below the snapshot may be present or not, live or dead. It never writes: writes
are handed out in `Ready`, and read after they are acknowledged. Entries that were acknowledged and
not overwritten since are readable, unless a snapshot has passed them.

`MemoryStorage` is for tests and stories. A write is durable when `write` returns; the caller
decides what a crash leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lithify.raft.core.errors import Compacted
from lithify.raft.core.values import HardState, SnapshotMeta, fit

if TYPE_CHECKING:
    from lithify.raft.core.configuration import Config
    from lithify.raft.core.ready import StorageAppend
    from lithify.raft.entry import Entry

__all__ = ["LogView", "MemoryStorage"]


class LogView(Protocol):
    """The durable log, as the core reads it."""

    def hard_state(self) -> HardState:
        """As last written; read once, at the start."""

    def snapshot(self) -> SnapshotMeta:
        """The newest; with index 0 and the first members if there is none. Called often."""

    def last_index(self) -> int:
        """Of the contiguous part; that of the snapshot if the part is empty."""

    def term(self, index: int) -> int:
        """For the snapshot's index up to the last; below it, `Compacted`."""

    def entries(self, first: int, end: int, bytes_max: int) -> list[Entry]:
        """Entries from `first` to below `end`, up to about `bytes_max`, but at least one."""


class MemoryStorage:
    """A log in a list."""

    def __init__(self, config: Config) -> None:
        self._state = HardState()
        self._snapshot = SnapshotMeta(0, 0, config)
        self._entries: list[Entry] = []

    def hard_state(self) -> HardState:
        """See `LogView`, as for all reads here."""
        return self._state

    def snapshot(self) -> SnapshotMeta:
        """The newest snapshot."""
        return self._snapshot

    def last_index(self) -> int:
        """The last index."""
        return self._snapshot.index + len(self._entries)

    def term(self, index: int) -> int:
        """The term at an index."""
        if index == self._snapshot.index:
            return self._snapshot.term
        return self._entries[self._offset(index)].term

    def entries(self, first: int, end: int, bytes_max: int) -> list[Entry]:
        """Entries from `first` to below `end`."""
        return fit(self._entries[self._offset(first) : self._offset(end)], bytes_max)

    def write(self, append: StorageAppend) -> None:
        """Apply a storage append."""
        if append.snapshot is not None:
            self._snapshot, self._entries = append.snapshot, []
        if append.entries:
            del self._entries[self._offset(append.entries[0].index) :]
            self._entries += append.entries
        if append.hard_state is not None:
            self._state = append.hard_state

    def compact(self, snapshot: SnapshotMeta) -> None:
        """Replace the entries up to a snapshot of the own state by it."""
        del self._entries[: self._offset(snapshot.index + 1)]
        self._snapshot = snapshot

    def _offset(self, index: int) -> int:
        if index <= self._snapshot.index:
            raise Compacted(index, self._snapshot.index)
        return index - self._snapshot.index - 1
