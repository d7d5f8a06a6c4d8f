"""A snapshot that a member receives, with the live entries that it needs from the log.

    install = storage.begin_install("orders", head, applied)
    install.add(entries)             # live ones above what the member has applied, ascending
    install.piece(data)              # then the state
    install.mark_durable(event)      # from the write-ahead log, until `is_durable`
    install.check(live)              # all that the state needs has arrived
    job = storage.install_job(install, live)     # the snapshot replaces the whole log:
    storage.installed(install, live, job())      # on disk, by the worker; then in memory

The group's own log is not changed before the last step: entries that the member has acknowledged
may be part of a majority, and must not be deleted before the snapshot that covers them is durable.
So the live entries are in their own mem table, and in the write-ahead log under their own name.
Each carries the index before it, so that a gap in the sequence is found.

The last step, and what a crash leaves after each part of it:

1. The write-ahead log is rolled. (The old log.)
2. The snapshot is finished; its place says which files came before it. (The snapshot; the live
   entries are found in the write-ahead log under their name. The group's older entries are ignored,
   and so are those in segments after what was applied.)
3. The live entries are written to a segment. (The same, or with the segment.)

Parts 2 and 3 run in the worker, and can be repeated if the disk refuses one of them: the state is
durable since it was loaded, and everything else is written again.

While an install is in progress no file of the write-ahead log is deleted. An install that is
aborted, or that a crash ends, leaves the log as it was.

Called in the group's thread, except `pieces`, `check` and `finish`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.errors import EntriesLost
from lithify.raft.storage.file_names import install_name
from lithify.raft.storage.index_runs import IndexRuns
from lithify.raft.storage.memtable import MemTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.live_set import LiveSet
    from lithify.raft.entry import Entry
    from lithify.raft.storage.snapshots.snapshot_file import Head
    from lithify.raft.storage.snapshots.snapshot_store import (
        IncomingSnapshot,
        SnapshotPlace,
        StoredSnapshot,
    )
    from lithify.raft.storage.wal.wal import Wal, Written

__all__ = ["Install"]


class Install:
    """See the module; `RaftStorage.begin_install` makes one."""

    def __init__(self, group: str, wal: Wal, accepting: IncomingSnapshot, applied: int) -> None:
        self.group = group
        self.applied = applied
        """What the member has applied: its log has the live entries up to this index."""
        self.name = install_name(group, accepting.head.meta.index)
        self.table = MemTable(group)
        self.indexes = IndexRuns()
        self._wal = wal
        self._accepting = accepting
        self._last = applied
        self._durable = applied

    @property
    def head(self) -> Head:
        """The head of the snapshot."""
        return self._accepting.head

    def add(self, entries: Sequence[Entry]) -> None:
        """Add live entries, after those that came before."""
        wanted = [entry for entry in entries if entry.index > self._last]
        if not wanted:
            return
        previous = self._last
        for entry in wanted:
            self.table.append_sparse(entry, self._last)
            self.indexes.add(entry.index, entry.index, entry.term, entry.index - 1)
            self._last = entry.index
        self._wal.append(self.name, wanted, previous)

    def piece(self, data: bytes) -> None:
        """Add a piece of the state."""
        self._accepting.write(data)

    def mark_durable(self, event: Written) -> None:
        """Some of the entries are durable."""
        self._durable = max(self._durable, event.last)

    @property
    def is_durable(self) -> bool:
        """Are all entries that have arrived durable?"""
        return self._durable >= self._last

    def pieces(self) -> Iterator[bytes]:
        """The state, when it is complete."""
        return self._accepting.pieces()

    def check(self, live: LiveSet) -> None:
        """Raise if a live entry that the member cannot have is missing."""
        for index in live.floor(self.applied + 1):
            if self.table.get(index) is None:
                raise EntriesLost(self.group, index, "the snapshot needs it and it was not sent")

    def finish(self, live: LiveSet, place: SnapshotPlace) -> StoredSnapshot:
        """Part 2 of the last step."""
        return self._accepting.finish(live, place)

    def abort(self) -> None:
        """Delete the state; the write-ahead log drops the entries by itself."""
        self._accepting.abort()

    def leave(self) -> None:
        """Close the file; the caller deletes it."""
        self._accepting.close()
