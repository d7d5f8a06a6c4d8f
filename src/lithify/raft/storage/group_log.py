"""The log of one group: read and written by its consensus core, machine and snapshots.

Two sections:

    normal       the entries above the newest snapshot, without a gap
    compacting   the live indexes at or below it; the other entries there are deleted

Writes: `append` puts entries into the mem table, where they can be read at once, and queues them in
the write-ahead log; `mark_durable` takes its events. `written_index` is the last durable index. An
entry at an existing index truncates everything from that index on; durability starts there again.

Reads: mem table first, then segments. `entries` reads a range of the normal section, `read` any
indexes of both. `plan` finds where they are, so that another thread can read them later.

Called in the group's thread; `read` in any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.raft.core.values import entry_bytes, fit
from lithify.raft.errors import EntriesLost, EntryDeleted, EntryUnreadable
from lithify.raft.storage.snapshots.snapshot_store import SnapshotPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.raft.entry import Entry
    from lithify.raft.storage.group_segments import GroupSegments
    from lithify.raft.storage.live_state import LiveState, LiveStates
    from lithify.raft.storage.memtable import MemTable
    from lithify.raft.storage.segment_writer import Flushed
    from lithify.raft.storage.snapshots.snapshot_store import StoredSnapshot
    from lithify.raft.storage.wal.wal import Resend, Wal, Written

__all__ = ["GroupLog", "ReadPlan"]


READ_FIRST = 16
READ_MAX = 256
"""Entries that are read at a time."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Entries that were in memory, and the segments that have the others."""

    group: str
    indexes: tuple[int, ...]
    entries: dict[int, Entry]
    segments: GroupSegments

    @property
    def is_in_memory(self) -> bool:
        """Can it be read without a file?"""
        return len(self.entries) == len(self.indexes)

    @property
    def payload_bytes(self) -> int:
        """The size of the entries that were in memory."""
        return sum(len(entry.payload) for entry in self.entries.values())

    def run(self) -> list[Entry]:
        """The entries in the order of the plan; `EntryDeleted` names one that was deleted."""
        missing = [index for index in self.indexes if index not in self.entries]
        found = self.entries | self.segments.read(missing)
        for index in missing:
            if index not in found:
                raise EntryDeleted(self.group, index)
        return [found[index] for index in self.indexes]


class GroupLog:
    """See the module."""

    def __init__(
        self,
        group: str,
        wal: Wal,
        table: MemTable,
        segments: GroupSegments,
        states: LiveStates,
        stored: StoredSnapshot | None,
    ) -> None:
        """The log as it was recovered; the group's row in `states` belongs to its snapshot."""
        self.group = group
        self.table = table
        self.segments = segments
        self._wal = wal
        self._states = states
        self._snapshot_term = 0 if stored is None else stored.head.meta.term
        self._place = SnapshotPlace() if stored is None else stored.place
        self.last_index = self._find_last()
        table.last = self.last_index
        self.last_term = self._term_of(self.last_index)
        self.written_index = self.last_index
        self._superseded: list[str] = []
        self.is_proved = False
        """Is everything proved that was durable when `ask_proof` was called?"""
        self._cuts: dict[int, int] = {}
        """By file of the write-ahead log: the lowest index that an entry in it follows."""

    def _find_last(self) -> int:
        """The end of the normal section; raises if it does not start right above the snapshot."""
        first, last = self.table.first, self.table.last
        below = max(self.segments.last, self.snapshot_index)
        if first is None or last is None or last <= self.snapshot_index:
            return below
        if first > below + 1:
            raise EntriesLost(self.group, below + 1, "the log has a gap")
        return last

    # --- reads ------------------------------------------------------------------------------

    @property
    def state(self) -> LiveState:
        """The newest snapshot's index and live indexes."""
        return self._states[self.group]

    @property
    def snapshot_index(self) -> int:
        """The index of the newest snapshot, 0 if there is none."""
        return self.state.snapshot_index

    @property
    def first_index(self) -> int:
        """The first index of the normal section."""
        return self.snapshot_index + 1

    def term(self, index: int) -> int | None:
        """The term of an entry of the normal section or of the snapshot; None for all others."""
        if index == self.last_index:
            return self.last_term
        if not self.snapshot_index <= index <= self.last_index:
            return None
        return self._term_of(index)

    def _term_of(self, index: int) -> int:
        if index == self.snapshot_index:
            return self._snapshot_term
        entry = self.table.get(index)
        if entry is not None:
            return entry.term
        try:
            return self.read([index])[0].term
        except EntryUnreadable:
            term = self.segments.term_between(index)
            if term is None:
                raise
            return term

    def entries(self, start: int, stop: int, bytes_max: int) -> list[Entry]:
        """Entries of the normal section in [start, stop), at least one if there is one."""
        found: list[Entry] = []
        room = bytes_max
        high, step = start, READ_FIRST
        while high < stop:
            # Few at first: if they are large, no more fit.
            low, high, step = high, min(stop, high + step), min(2 * step, READ_MAX)
            try:
                some = self.table.get_run(low, high) or self.read(range(low, high))
            except EntryUnreadable as error:
                # Return those before it. A caller that needs the entry asks for it first.
                if error.index == start:
                    raise
                return found + (self.entries(low, error.index, room) if error.index > low else [])
            size = entry_bytes(some)
            if size > room:
                fitting = fit(some, room)
                return found if found and entry_bytes(fitting) > room else found + fitting
            found += some
            room -= size
        return found

    def read(self, indexes: Sequence[int]) -> list[Entry]:
        """The entries at these ascending indexes; `EntryDeleted` names one that was deleted."""
        return self.plan(indexes).run()

    def plan(self, indexes: Iterable[int]) -> ReadPlan:
        """Where the entries at these indexes are."""
        wanted = tuple(indexes)
        get = self.table.get
        entries = {index: entry for index in wanted if (entry := get(index)) is not None}
        return ReadPlan(self.group, wanted, entries, self.segments)

    # --- writing ----------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Write consecutive entries; those that they overwrite are deleted."""
        previous = entries[0].index - 1
        self.table.append(entries)
        self._wal.append(self.group, entries, previous)
        self.last_index, self.last_term = entries[-1].index, entries[-1].term
        self.written_index = min(self.written_index, previous)

    def mark_durable(self, event: Written) -> None:
        """Some entries are durable, and so is the cut before them."""
        self._cuts[event.file] = min(event.previous, self._cuts.get(event.file, event.previous))
        self._limit(event.previous)
        last = min(event.last, self.last_index)
        while last >= event.first and self.term(last) != event.term:
            # Overwritten since: the newer write has its own event.
            last -= 1
        if last >= event.first:
            self.written_index = max(self.written_index, last)

    def ask_proof(self) -> None:
        """Ask the write-ahead log for a proof of all entries; it sets `is_proved`."""
        self.is_proved = False
        self._wal.ask_proof(self.group)

    def resend(self, event: Resend) -> None:
        """The write-ahead log lacks entries: queue them again."""
        entries = self.entries(event.index, self.last_index + 1, 2**62)
        if entries:
            self._wal.append(self.group, entries, event.index - 1)

    def flushed(self, flushed: Flushed) -> list[str]:
        """Entries went to segments; returns the names of segments that can be deleted."""
        self._superseded += self.segments.add(flushed.refs)
        # Some may have been overwritten in a later file while they were written.
        self._cuts = {f: index for f, index in self._cuts.items() if f > flushed.number}
        for index in self._cuts.values():
            self._limit(index)
        self.table.flushed(flushed.indexes)
        superseded, self._superseded = self._superseded, []
        return superseded

    def _limit(self, index: int) -> None:
        if index < self.segments.last:
            self._superseded += self.segments.limit(index)

    # --- snapshots --------------------------------------------------------------------------

    def place(self) -> SnapshotPlace:
        """The place of a snapshot written now among the member's files."""
        number, index = self.segments.cut()
        return replace(self._place, cut_number=number, cut_index=index)

    def snapshot(self, state: LiveState, term: int) -> None:
        """A snapshot is durable: delete what it does not need."""
        last_term = self.last_term
        self._snapshot_term = term
        self._states[self.group] = state
        self.table.drop_dead(state)
        if self.last_index <= state.snapshot_index:
            self.last_index, last_term = state.snapshot_index, term
        self.last_term = last_term
        self.written_index = max(self.written_index, state.snapshot_index)

    def install(self, state: LiveState, stored: StoredSnapshot) -> None:
        """A snapshot of another member has replaced the whole log."""
        index = state.snapshot_index
        self._states[self.group] = state
        self._snapshot_term = stored.head.meta.term
        self._place = stored.place
        self._superseded += self.segments.limit(stored.place.cut_index)
        # A segment that is cut is never appended to.
        self.segments.last_number += 1
        self._cuts.clear()
        self.table.cut(0)
        self.table.last = index
        self.last_index = self.written_index = index
        self.last_term = self._snapshot_term
