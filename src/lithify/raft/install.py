"""A snapshot on its way to a member, with the live entries that it needs from the log.

    install = storage.begin_install("orders", head, applied)
    install.add(entries)             # live ones above what the member has applied, ascending
    install.piece(data)              # then the state
    install.written(event)           # from the write-ahead log, until `is_durable`
    install.check(live)              # all that the state needs has come
    job = storage.install_job(install, live)     # the snapshot takes the place of the whole log:
    storage.installed(install, live, job())      # on disk, by the worker; then in memory

Nothing of it touches the group's own log before the last step: entries that the member has
acknowledged may be part of a majority, and must not go before the snapshot that has them is there.
So the live entries stand in a mem table of their own, and in the write-ahead log under a name of
their own. Each carries the index before it, so that a gap in the sequence is found.

The last step, and what a crash leaves after each part of it:

1. The write-ahead log is rolled. (The old log.)
2. The snapshot is finished, and says with its place which files came before it. (The snapshot; the
   live entries are found in the write-ahead log under their name, the group's older ones are passed
   over, and so are those in segments behind what was applied.)
3. The live entries are written to a segment. (The same, or with the segment.)

Parts 2 and 3 are the worker's, and can be done again if the disk refuses one of them: the state is
durable since it was loaded, and whatever else is written is written anew.

While an install is under way no file of the write-ahead log is removed. One that is given up, or
that a crash ends, leaves the log as it was.

The group's thread calls, but for `pieces`, `check` and `finish`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.errors import EntriesLost
from lithify.raft.memtable import MemTable
from lithify.raft.names import install_name
from lithify.raft.written import Indexes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.liveset import LiveSet
    from lithify.raft.entry import Entry
    from lithify.raft.snapshot_file import Head
    from lithify.raft.snapshots import Accepting, Place, Stored
    from lithify.raft.wal import Wal, Written

__all__ = ["Install"]


class Install:
    """See the module; `RaftStorage.begin_install` makes one."""

    def __init__(self, group: str, wal: Wal, accepting: Accepting, applied: int) -> None:
        self.group = group
        self.applied = applied
        """What the member has applied: live entries up to there are in its log already."""
        self.name = install_name(group, accepting.head.meta.index)
        self.table = MemTable(group)
        self.indexes = Indexes()
        self._wal = wal
        self._accepting = accepting
        self._last = applied
        self._durable = applied

    @property
    def head(self) -> Head:
        """What the snapshot is of."""
        return self._accepting.head

    def add(self, entries: Sequence[Entry]) -> None:
        """Live entries, behind those that came before them."""
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
        """A piece of the state."""
        self._accepting.write(data)

    def written(self, event: Written) -> None:
        """Some of the entries are durable."""
        self._durable = max(self._durable, event.last)

    @property
    def is_durable(self) -> bool:
        """Are all entries that came so far?"""
        return self._durable >= self._last

    def pieces(self) -> Iterator[bytes]:
        """The state, when all of it is there."""
        return self._accepting.pieces()

    def check(self, live: LiveSet) -> None:
        """Raise if a live entry that the member cannot have is missing."""
        for index in live.floor(self.applied + 1):
            if self.table.get(index) is None:
                raise EntriesLost(self.group, index, "the snapshot needs it and it was not sent")

    def finish(self, live: LiveSet, place: Place) -> Stored:
        """Part 2 of the last step."""
        return self._accepting.finish(live, place)

    def abort(self) -> None:
        """Leave nothing but what the write-ahead log drops by itself."""
        self._accepting.abort()

    def leave(self) -> None:
        """Let go of the file; somebody else removes it."""
        self._accepting.close()
