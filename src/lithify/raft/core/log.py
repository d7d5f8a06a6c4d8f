"""A member's log as the core sees it: the stored part, and the tail that is not durable.

    1 ........ snapshot | stored, durable ........ stable | tail: handed out | tail: new
                first_index                       handed ------------------^          ^ last_index

1. New entries are added to the tail. `next_append` hands them out; they stay in the tail until the
   storage has acknowledged them (`acknowledge`), so that all reads above `stable` are served from
   memory.
2. Each append in progress has a **claim**: the last index that it will make durable. When entries
   are overwritten, all claims are cut to what is left. A late acknowledgement then does not cover
   entries that replaced old ones.
3. `committed` never decreases. Entries are handed out to be applied (`next_apply`) up to the lower
   of `committed` and `stable`: no entry is applied that this member could lose.

Invariant: applied <= applying <= min(committed, stable), stable <= handed <= last_index.

Only the engine and the roles call it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from lithify.raft.core.errors import Compacted
from lithify.raft.core.values import SnapshotMeta, entry_bytes, fit
from lithify.raft.errors import EntryUnreadable

if TYPE_CHECKING:
    from lithify.raft.core.storage import LogView
    from lithify.raft.entry import Entry

__all__ = ["RaftLog"]


class RaftLog:
    """See the module."""

    def __init__(self, storage: LogView) -> None:
        self._storage = storage
        self._tail: list[Entry] = []
        self._claims: deque[list[int]] = deque()
        """[number of the append, last index that it makes durable]"""
        self._applies: deque[tuple[int, int]] = deque()
        """(last index, bytes) of what is being applied"""
        self._snapshot: SnapshotMeta | None = None
        """A snapshot that replaces the stored log, until that is acknowledged."""
        self._snapshot_number: int | None = None
        self.stable = self.handed = storage.last_index()
        base = storage.snapshot().index
        self.committed = max(base, min(storage.hard_state().commit, self.stable))
        self.applying = self.applied = base

    @property
    def first_index(self) -> int:
        """The first index whose entry is available."""
        return self.snapshot.index + 1

    @property
    def snapshot(self) -> SnapshotMeta:
        """The newest snapshot, including one that is being installed."""
        return self._snapshot or self._storage.snapshot()

    @property
    def installing(self) -> bool:
        """Whether a snapshot is about to replace the log."""
        return self._snapshot is not None

    @property
    def last_index(self) -> int:
        """The last index, durable or not."""
        return self.stable + len(self._tail)

    @property
    def last_term(self) -> int:
        """The term at the last index."""
        return self._tail[-1].term if self._tail else self.term(self.stable)

    def term(self, index: int) -> int:
        """The term at an index from the snapshot's to the last; `Compacted` below."""
        if index > self.stable:
            return self._tail[index - self.stable - 1].term
        if self._snapshot is not None:
            if index == self._snapshot.index:
                return self._snapshot.term
            raise Compacted(index, self._snapshot.index)
        return self._storage.term(index)

    def matches(self, index: int, term: int) -> bool:
        """Whether the entry at `index` has this term. Below the snapshot it is not known: False."""
        if not self.first_index - 1 <= index <= self.last_index:
            return False
        return self.term(index) == term

    def last_up_to_term(self, index: int, term: int) -> int:
        """The last index at or below `index` whose term is not above `term`.

        Terms never decrease along a log, so this is a binary search. If even the snapshot's term is
        above, it is the snapshot's index: no earlier index is known.
        """
        low = self.first_index - 1
        if index <= low:
            return index
        found = bisect_right(range(low, index + 1), term, key=self.term)
        return low + max(found - 1, 0)

    def entries(self, first: int, end: int, bytes_max: int) -> list[Entry]:
        """Entries from `first` to below `end`, up to `bytes_max`, but at least one."""
        stable = self.stable
        if first > stable:
            return fit(self._tail[first - stable - 1 : end - stable - 1], bytes_max)
        if first < self.first_index:
            raise Compacted(first, self.first_index - 1)
        stored_end = min(end, stable + 1)
        found = self._storage.entries(first, stored_end, bytes_max)
        room = bytes_max - entry_bytes(found)
        if end > stored_end and first + len(found) == stored_end and room > 0:
            more = fit(self._tail[: end - stored_end], room)
            if entry_bytes(more[:1]) <= room:
                found = found + more
        return found

    def append(self, entries: list[Entry]) -> None:
        """Append entries. They follow the last index; see `cut`."""
        self._tail += entries

    def cut(self, last_index: int) -> None:
        """Remove all entries above `last_index`, which is not below the committed one."""
        kept = max(last_index - self.stable, 0)
        del self._tail[kept:]
        self.stable = min(self.stable, last_index)
        self.handed = min(self.handed, last_index)
        for claim in self._claims:
            claim[1] = min(claim[1], last_index)

    def restore(self, snapshot: SnapshotMeta) -> None:
        """Replace everything by a snapshot above the committed index."""
        self._snapshot, self._snapshot_number = snapshot, None
        self._tail.clear()
        self._applies.clear()
        for claim in self._claims:
            claim[1] = 0
        self.stable = self.handed = self.committed = snapshot.index

    @property
    def has_next_append(self) -> bool:
        """Whether there is data that was not handed out to be stored."""
        new_snapshot = self._snapshot is not None and self._snapshot_number is None
        return new_snapshot or self.handed < self.stable + len(self._tail)

    def next_append(self, number: int) -> tuple[list[Entry], SnapshotMeta | None]:
        """Hand out new entries, under the number of an append."""
        entries = self._tail[self.handed - self.stable :]
        snapshot = None
        if self._snapshot is not None and self._snapshot_number is None:
            snapshot, self._snapshot_number = self._snapshot, number
        self.handed = self.last_index
        self._claims.append([number, self.handed])
        return entries, snapshot

    def acknowledge(self, number: int) -> None:
        """The appends up to `number` are durable."""
        stable = self.stable
        while self._claims and self._claims[0][0] <= number:
            stable = max(stable, self._claims.popleft()[1])
        del self._tail[: stable - self.stable]
        self.stable = stable
        if self._snapshot_number is not None and self._snapshot_number <= number:
            assert self._snapshot is not None
            self.applying = self.applied = self._snapshot.index
            self._snapshot = self._snapshot_number = None

    def commit_to(self, index: int) -> bool:
        """Mark entries up to `index` as committed; returns whether that is an advance."""
        if index <= self.committed:
            return False
        assert index <= self.last_index
        self.committed = index
        return True

    def can_apply(self, bytes_max: int) -> bool:
        """Whether there are entries to apply, and room for them."""
        if self._snapshot is not None or self.applying >= min(self.committed, self.stable):
            return False
        return sum(size for _, size in self._applies) < bytes_max

    def next_apply(self, bytes_max: int) -> list[Entry]:
        """Hand out entries to apply."""
        end = min(self.committed, self.stable) + 1
        try:
            entries = self.entries(self.applying + 1, end, bytes_max)
        except EntryUnreadable:
            # It is being repaired; applying continues after that.
            return []
        self.applying = entries[-1].index
        self._applies.append((self.applying, entry_bytes(entries)))
        return entries

    def confirm_applied(self, index: int) -> None:
        """Entries up to `index` are applied."""
        while self._applies and self._applies[0][0] <= index:
            self._applies.popleft()
        self.applied = max(self.applied, min(index, self.applying))
