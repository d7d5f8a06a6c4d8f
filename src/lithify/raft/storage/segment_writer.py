"""Moves entries from mem tables to segments when a file of the write-ahead log is full.

For each group of the full file, `flush`:

1. Reads once what the group's snapshot needs. It writes everything above the snapshot, and the live
   indexes at or below it.
2. Skips an entry that is not in the mem table, or is there with another term: it was overwritten
   and never committed, and the newer entry is in a later file. If an entry is missing that must be
   there, `EntriesLost` is raised and nothing is deleted.
3. Appends entries to the group's newest segment. It starts a new one when that is full, when an
   entry in it was overwritten, when it is damaged, or when nothing in it is live: the newest
   segment is never compacted, so a dead one would stay forever.
4. Writes block index and footer, and syncs the file and the directory.

When all groups are done, each takes its segments in and removes the entries from its mem table, and
then the file is deleted. A crash before that leaves the file, and the next start flushes its
entries again: then entries may be in two segments, of which the newer wins.

When the disk refuses in the middle, the retry for the group first deletes segments that the group
does not know, and reports the newest known one again, which may have grown.

One thread flushes. It reads mem tables, which belong to other threads, by single lookups.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import Corrupt
from lithify.raft.errors import EntriesLost
from lithify.raft.storage.file_names import segment_name
from lithify.raft.storage.segment_file import SegmentAppender, SegmentLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.raft.entry import Entry
    from lithify.raft.storage.group_segments import GroupSegments
    from lithify.raft.storage.index_runs import IndexRuns
    from lithify.raft.storage.live_state import LiveState, LiveStates
    from lithify.raft.storage.memtable import MemTable

__all__ = ["Flushed", "RaftSegmentWriter"]

STALE_BYTES_MIN = 1024


@dataclass(frozen=True, slots=True)
class Flushed:
    """The entries of one file that were written for a group."""

    group: str
    number: int
    """Of the file of the write-ahead log."""
    indexes: IndexRuns
    refs: tuple[SegmentRef, ...]
    """New segments, and the one that has grown, in order."""


class RaftSegmentWriter:
    """See the module."""

    def __init__(self, fs: FileSystem, limits: SegmentLimits | None = None) -> None:
        self._fs = fs
        self._limits = limits or SegmentLimits()
        self._torn: set[str] = set()
        """Directories with an unfinished flush."""

    def flush(
        self,
        group: str,
        directory: str,
        number: int,
        indexes: IndexRuns,
        table: MemTable,
        states: LiveStates,
        segments: GroupSegments,
    ) -> Flushed:
        """Write a group's entries of one file."""
        newest, grows = segments.last_number, segments.grows
        state = states[group]
        entries = list(chosen(group, indexes, table, states))
        refs: list[SegmentRef] = []
        at = 0
        torn = directory in self._torn
        self._torn.add(directory)
        if torn:
            self._remove_begun(directory, newest)
        appender = None
        if grows and (entries or torn):
            appender = self._reopen(directory, newest, segments)
        try:
            if appender is not None and _is_over(appender, state):
                refs.append(appender.close())
                appender = None
            while at < len(entries):
                first = entries[at].index
                if appender is None or appender.is_full or first <= appender.last:
                    if appender is not None:
                        refs.append(appender.close())
                    newest += 1
                    appender = SegmentAppender.create(
                        self._fs, directory, group, newest, first, self._limits
                    )
                at += appender.append(entries[at:])
            if appender is not None:
                refs.append(appender.close())
        except BaseException:
            if appender is not None:
                appender.abandon()
            raise
        if refs:
            self._fs.sync_dir(directory)
        self._torn.discard(directory)
        return Flushed(group, number, indexes, tuple(ref for ref in refs if ref.entries))

    def _reopen(
        self, directory: str, newest: int, segments: GroupSegments
    ) -> SegmentAppender | None:
        """The newest segment; None if it is damaged or empty, so that a new one must be started."""
        try:
            return SegmentAppender.reopen(self._fs, directory, newest, self._limits)
        except Corrupt as error:
            damage: Exception = error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            damage = error
        segments.damages.found(segment_name(newest), damage)
        return None

    def _remove_begun(self, directory: str, newest: int) -> None:
        """Delete segments above the newest known one: they are of a refused flush."""
        number = newest + 1
        while self._fs.exists(path := f"{directory}/{segment_name(number)}"):
            self._fs.remove(path)
            number += 1


def _is_over(appender: SegmentAppender, state: LiveState) -> bool:
    """Must the next entry go into a new segment?"""
    stale = appender.last < state.smallest and appender.frame_bytes > STALE_BYTES_MIN
    return stale or appender.is_full


def chosen(group: str, indexes: IndexRuns, table: MemTable, states: LiveStates) -> Iterator[Entry]:
    """The entries of a mem table that must go to a segment; steps 1 and 2."""
    state = states[group]
    for first, last, term in indexes:
        for index in state.needed(first, last):
            entry = table.get(index)
            if entry is not None and entry.term == term:
                yield entry
            elif entry is None and index <= (table.last or 0) and states[group].needs(index):
                # Overwriting leaves no hole, and no newer snapshot has made it unnecessary.
                raise EntriesLost(group, index, "only the write-ahead log has it")
