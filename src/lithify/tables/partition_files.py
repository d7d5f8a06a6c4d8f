"""The files of a partition on a node, for readers in other processes that read many rows.

    files = await partition_files(store, revision)
    PartitionFiles.from_json(files.to_json())

The newest snapshot has at least the revision, and all entries that it needs are in segments. If
that is not so, the group is asked for a snapshot, and the write-ahead log is rolled: both cost
about what a later compaction saves. Both happen once, however many readers there are.

Files of a snapshot or segment may be deleted later. Then a reader asks again.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from lithify.errors import InvalidInput
from lithify.log.manifest import SegmentRef
from lithify.raft.storage.file_names import SNAPSHOT
from lithify.raft.storage.group_segments import IndexSpan
from lithify.tables.errors import PartitionUnavailable

if TYPE_CHECKING:
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["PartitionFiles", "partition_files"]

WRITTEN_S = 120.0
"""How long a snapshot, and the segments of a file of the write-ahead log, may take."""
LOOK_S = 0.02

_requests = count()


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """See the module."""

    directory: str
    """The directory of the group."""
    snapshot: str
    """The file of the snapshot."""
    index: int
    """The index of the snapshot."""
    spans: tuple[IndexSpan, ...]
    """The segments, and the indexes of each that count."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "directory": self.directory,
            "snapshot": self.snapshot,
            "index": self.index,
            "segments": [[*each.ref.to_row(), each.first, each.last] for each in self.spans],
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> PartitionFiles:
        """The opposite of `to_json`."""
        try:
            spans = tuple(
                IndexSpan(SegmentRef.from_row(each[:-2]), int(each[-2]), int(each[-1]))
                for each in row["segments"]
            )
            return cls(str(row["directory"]), str(row["snapshot"]), int(row["index"]), spans)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"the files of a partition: {error!r}") from error


async def partition_files(store: LocalMetastore, revision: int) -> PartitionFiles:
    """The files with a revision, on this node; `GroupAbsent` without a member here."""
    await store.node.listeners.wait_applied(store.name, revision)
    try:
        async with asyncio.timeout(WRITTEN_S):
            await _snapshot(store, revision)
            await _flush(store)
    except TimeoutError:
        why = f"its files were not written within {WRITTEN_S:.0f} s"
        raise PartitionUnavailable(store.name, why) from None
    own = store.node.storage.groups[store.group.name]
    assert own.stored is not None
    # For a process with another working directory.
    directory, snapshot = map(os.path.abspath, (own.directory, own.stored.directory))
    path = f"{snapshot}/{SNAPSHOT}"
    return PartitionFiles(directory, path, own.stored.index, own.log.segments.spans)


async def _snapshot(store: LocalMetastore, revision: int) -> None:
    if store.snapshot_index >= revision:
        return
    store.group.take_snapshot()
    store.node.mark(store.group)
    while store.snapshot_index < revision:
        await asyncio.sleep(LOOK_S)


async def _flush(store: LocalMetastore) -> None:
    """Return when all live entries of the newest snapshot are in segments."""
    storage = store.node.storage
    log = storage.groups[store.group.name].log
    if (log.state.live.last or 0) <= log.segments.last:
        return
    name = f"{store.name}/scan {next(_requests)}"
    storage.wal.ask_roll(name)
    rolled: int | None = None
    while rolled is None or storage.settled_number < rolled:
        if rolled is None:
            rolled = storage.wal.rolled_for(name)
        await asyncio.sleep(LOOK_S)
