"""Keeps short what the next start of a node has to read of its Raft log.

A start loads the snapshot of the group, reads the whole write-ahead log and applies what follows
the snapshot. The log's files are large and a snapshot follows thousands of commands, so that
writing is cheap; many changes of the catalog may be in few commands. So a node that is quiet makes
both short if the files have more than `LONG_BYTES`, or the newest revision is more than
`LONG_COMMANDS` after the snapshot:

1. It takes a snapshot of the group.
2. If the files are long, it starts another one: the entries that are live go to segments, of which
   a start reads the ends only, and the old files are deleted.

A busy node does neither here: it would write its entries twice.

One event loop, that of the Raft node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.metastore.local_metastore import GROUP

if TYPE_CHECKING:
    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.metastore.state import MetastoreState
    from lithify.raft.group.group import Group

__all__ = ["LogShortening", "has_long_log"]

LONG_BYTES = 2 * 2**20
"""A start reads them in about 20 ms."""
LONG_COMMANDS = 1000
"""A start applies them in some 20 ms, and in 0.1 s if they are deletions of 32 keys each."""
QUIET_COMMANDS = 20
"""Between two steps: more than nodes need to keep their leases."""
ROLL = f"{GROUP}/start"


def has_long_log(metastore: LocalMetastore) -> bool:
    """Would a start of this member read or apply much?"""
    return _has_long_files(metastore) or (
        metastore.state.revision - metastore.snapshot_index > LONG_COMMANDS
    )


def _has_long_files(metastore: LocalMetastore) -> bool:
    return metastore.node.storage.wal.unrolled_bytes > LONG_BYTES


class LogShortening:
    """See the module."""

    def __init__(self, metastore: LocalMetastore) -> None:
        self._metastore = metastore
        self._group: Group[MetastoreState] | None = None
        self._applied = 0
        self._wanted: int | None = None
        """The index of the snapshot that it waits for."""
        self._is_rolling = False

    def step(self) -> bool:
        """Check and begin; called regularly, while this node is a member. Is it in progress?"""
        group, node = self._metastore.group, self._metastore.node
        wal = node.storage.wal
        if group is not self._group:
            self._group, self._wanted = group, None
        applied = group.applied_index
        is_quiet = applied - self._applied <= QUIET_COMMANDS
        self._applied = applied
        if self._is_rolling:
            self._is_rolling = wal.rolled_for(ROLL) is None
        elif self._wanted is not None:
            if self._metastore.snapshot_index >= self._wanted:
                self._wanted = None
                if _has_long_files(self._metastore):
                    self._is_rolling = True
                    wal.ask_roll(ROLL)
        elif is_quiet and has_long_log(self._metastore):
            self._wanted = applied
            if self._metastore.snapshot_index < applied:
                group.take_snapshot()
                node.mark(group)
        return self._is_rolling or self._wanted is not None
