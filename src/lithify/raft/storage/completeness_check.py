"""Checks that a group's files are complete, when the group is opened.

Entries are in segments, in the write-ahead log, or in a snapshot's state, and nowhere else. A
missing part must not be mistaken for one that never existed: the member would vote for a leader
that lacks entries which the member itself has acknowledged.

Only the storage calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.errors import EntriesLost, FilesLost

if TYPE_CHECKING:
    from lithify.raft.storage.group_log import GroupLog
    from lithify.raft.storage.group_segments import GroupSegments
    from lithify.raft.storage.live_state import LiveState
    from lithify.raft.storage.manifest import End
    from lithify.raft.storage.snapshots.snapshot_store import StoredSnapshot
    from lithify.raft.storage.wal.recovery import Recovered

__all__ = ["check_end", "check_live"]


def check_end(
    group: str,
    directory: str,
    segments: GroupSegments,
    stored: StoredSnapshot | None,
    recovered: Recovered,
    end: End | None,
) -> None:
    """Raise if segments do not follow the snapshot, or do not reach as far as the manifest says."""
    last = 0 if stored is None else stored.index
    for span in segments.spans:
        if span.first > last + 1 and span.last > last:
            raise EntriesLost(group, last + 1, f"no file of {directory} has it")
        last = max(last, span.last)
    if end is None or (stored is not None and _is_before(end, stored)):
        return
    needed = end.last_index
    if recovered.cut_index is not None:
        # The write-ahead log defines what follows.
        needed = min(needed, recovered.cut_index)
    if last < needed:
        what = f"segments and snapshot must reach to entry {needed}, but reach only to {last}"
        raise FilesLost(directory, what)


def _is_before(end: End, stored: StoredSnapshot) -> bool:
    """Is a row of the manifest about a log that an installed snapshot has replaced?"""
    place = stored.place
    return (place.wal_file, place.install_index) > (end.wal_file, end.install_index)


def check_live(log: GroupLog, state: LiveState) -> None:
    """Raise if an entry that the snapshot needs is missing."""
    table, segments, live = log.table, log.segments, state.live
    # Counted, because there may be millions. Only those in memory are checked one by one.
    counted = sum(live.count_in(span.first, span.last + 1) for span in segments.spans)
    behind = segments.last + 1
    for index in live.floor(behind) if counted == live.rank(behind) else live:
        if table.get(index) is None and segments.find(index) is None:
            raise EntriesLost(log.group, index, "the snapshot needs it")
