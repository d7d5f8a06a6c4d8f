"""Whether all is there that a group must have on disk, looked at when it is opened.

Entries are in segments, in the write-ahead log, or in a snapshot's state. Nothing else has them, so
a part that is gone must not be taken for one that never was: the member would vote for a leader
that lacks what it has acknowledged itself.

Only the storage calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.raft.errors import EntriesLost, FilesLost

if TYPE_CHECKING:
    from lithify.raft.group_log import GroupLog
    from lithify.raft.live_state import LiveState
    from lithify.raft.manifest import End
    from lithify.raft.segments import GroupSegments
    from lithify.raft.snapshots import Stored
    from lithify.raft.wal_reading import Recovered

__all__ = ["check_end", "check_live"]


def check_end(
    group: str,
    directory: str,
    segments: GroupSegments,
    stored: Stored | None,
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
        # The write-ahead log says what comes behind.
        needed = min(needed, recovered.cut_index)
    if last < needed:
        what = f"segments and snapshot must reach to entry {needed}, but reach only to {last}"
        raise FilesLost(directory, what)


def _is_before(end: End, stored: Stored) -> bool:
    """Is a row of the manifest about a log whose place an installed snapshot has taken?"""
    place = stored.place
    return (place.wal_file, place.install_index) > (end.wal_file, end.install_index)


def check_live(log: GroupLog, state: LiveState) -> None:
    """Raise if something that the snapshot needs is not there."""
    table, segments, live = log.table, log.segments, state.live
    # Counted, because there may be millions; looked at one by one are those in memory.
    counted = sum(live.count_in(span.first, span.last + 1) for span in segments.spans)
    behind = segments.last + 1
    for index in live.floor(behind) if counted == live.rank(behind) else live:
        if table.get(index) is None and segments.find(index) is None:
            raise EntriesLost(log.group, index, "the snapshot needs it")
