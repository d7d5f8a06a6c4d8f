"""The state of a member as JSON: its role and indexes, and its size on disk.

    segment_bytes    frames in all segments, live or dead
    live_bytes       the live part of it: counted above the snapshot, estimated below it by the
                     share of live entries in each segment
    snapshot_bytes   the files of the newest snapshot; `snapshot_time_ms` is when it was written
    table_bytes      entries in memory, which are on disk only in the write-ahead log

The write-ahead log belongs to the node, not to a group: `wal_overview`.

Called in the group's thread; checks the size of a few files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.raft.storage.file_names import LIVE, PLACE, SNAPSHOT, parse_wal

if TYPE_CHECKING:
    from lithify.fs import FileSystem
    from lithify.raft.core.raft_core import Status
    from lithify.raft.storage.group_log import GroupLog
    from lithify.raft.storage.storage import GroupStorage

__all__ = ["disk_overview", "place_overview", "wal_overview"]


def place_overview(status: Status) -> dict[str, Any]:
    """The role and indexes of a member; on the leader, also the progress of the others."""
    return {
        "role": str(status.role),
        "term": status.term,
        "leader": status.leader,
        "members": str(status.config),
        "last_index": status.last_index,
        "durable_index": status.stable,
        "commit_index": status.commit,
        "peers": status.progress,
        "asleep": status.asleep,
    }


def disk_overview(fs: FileSystem, own: GroupStorage) -> dict[str, Any]:
    """The size of a group's files, and how much of it is live."""
    log, spans = own.log, own.log.segments.spans
    return {
        "snapshot_index": log.snapshot_index,
        **_snapshot_files(fs, own),
        "live_entries": len(log.state.live),
        "live_ranges": int(log.state.live.starts.size),
        "live_bytes": _live_bytes(log),
        "segments": len(spans),
        "segment_bytes": sum(span.ref.frame_bytes for span in spans),
        "table_entries": len(log.table),
        "table_bytes": log.table.payload_bytes,
    }


def _live_bytes(log: GroupLog) -> int:
    live, snapshot_index = log.state.live, log.snapshot_index
    total = 0
    for span in log.segments.spans:
        ref = span.ref
        below = min(span.last, snapshot_index) + 1
        above = max(span.last - max(span.first - 1, snapshot_index), 0)
        needed = live.count_in(span.first, below) + above if below > span.first else above
        total += ref.frame_bytes * needed // max(ref.entries, 1)
    return total


def _snapshot_files(fs: FileSystem, own: GroupStorage) -> dict[str, int]:
    stored = own.stored
    if stored is None:
        return {"snapshot_bytes": 0, "snapshot_time_ms": 0}
    try:
        stats = [fs.stat(f"{stored.directory}/{name}") for name in (SNAPSHOT, LIVE, PLACE)]
    except OSError:
        # It is being deleted, because there is a newer one.
        return {"snapshot_bytes": 0, "snapshot_time_ms": 0}
    return {
        "snapshot_bytes": sum(stat.size for stat in stats),
        "snapshot_time_ms": max(stat.mtime_ms for stat in stats),
    }


def wal_overview(fs: FileSystem, directory: str) -> dict[str, int]:
    """The size of a node's write-ahead log."""
    names = [name for name in fs.list(directory) if parse_wal(name) is not None]
    sizes = [fs.stat(f"{directory}/{name}").size for name in names]
    return {"wal_files": len(sizes), "wal_bytes": sum(sizes)}
