"""`python -m tests.cli.raft_server JSON`: a node as `lithify raft serve` runs it, with small files.

So that within seconds files of the write-ahead log are full, snapshots taken and segments merged.
"""

from __future__ import annotations

import asyncio
import json
import sys

from lithify.cli.raft.serve import _serve
from lithify.node.log_lines.stderr_log import configure_log_lines
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.group.settings import GroupSettings
from lithify.raft.net.client_operations import parse_address
from lithify.raft.node.settings import RaftNodeSettings
from lithify.raft.storage.segment_file import SegmentLimits
from lithify.raft.storage.storage import StorageSettings


def main() -> None:
    given = json.loads(sys.argv[1])
    configure_log_lines("info")
    settings = RaftNodeSettings(
        given["node"],
        given["data"],
        parse_address(given["listen"]),
        given["peers"],
        join=given["join"],
        tick_ms=50,
        group=GroupSettings(
            snapshot_entries=300, compaction=GroupCompactionSettings(after_drops=2)
        ),
        storage=StorageSettings(
            wal_bytes_max=2**18, segments=SegmentLimits(entries_max=500, frame_bytes_max=2**16)
        ),
    )
    asyncio.run(_serve(settings))


if __name__ == "__main__":
    main()
