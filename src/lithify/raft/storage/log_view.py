"""A group's stored log as its consensus core reads it: a `LogView` over `GroupStorage`.

The log has live entries at or below the snapshot, which the core must not read: reading one raises
`Compacted`. Only the group creates and reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.core.errors import Compacted
from lithify.raft.core.values import SnapshotMeta

if TYPE_CHECKING:
    from lithify.raft.core.configuration import Config
    from lithify.raft.core.values import HardState
    from lithify.raft.entry import Entry
    from lithify.raft.storage.storage import GroupStorage

__all__ = ["StoredLog"]


class StoredLog:
    """See the module."""

    def __init__(self, storage: GroupStorage, members: Config) -> None:
        """`members` are the first members, for a group without a snapshot."""
        self._storage = storage
        self._log = storage.log
        self._first = SnapshotMeta(0, 0, members)

    def hard_state(self) -> HardState:
        """The recovered state."""
        return self._storage.hard_state

    def snapshot(self) -> SnapshotMeta:
        """The newest snapshot, or the empty one."""
        stored = self._storage.stored
        return self._first if stored is None else stored.head.meta

    def last_index(self) -> int:
        """The last index of the log."""
        return self._log.last_index

    def term(self, index: int) -> int:
        """The term of an entry; `Compacted` below the snapshot."""
        found = self._log.term(index)
        if found is None:
            raise Compacted(index, self._log.snapshot_index)
        return found

    def entries(self, first: int, end: int, bytes_max: int) -> list[Entry]:
        """Entries above the snapshot, in [first, end)."""
        if first <= self._log.snapshot_index:
            raise Compacted(first, self._log.snapshot_index)
        return self._log.entries(first, end, bytes_max)
