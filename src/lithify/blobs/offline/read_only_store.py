"""Opens a blob store on disk for reading only, to verify or copy it.

1. The log is opened by `log/read_only_log.py`: pinned; nothing but the pin is written.
2. The index is that of an open store. If a key index is missing or damaged, its rows are read from
   the segment and stay in memory, about 400 bytes each: nothing is rebuilt on disk.

Another process may have the store open. What is read is the generation that was current at the
beginning. Called by `verify.py` and `copy_store.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.blobs.build_key_index import open_index, scan_rows
from lithify.blobs.errors import NotABlobStore
from lithify.blobs.index import BlobIndex, OpenedIndex, Recent
from lithify.blobs.log_writer import recent_of
from lithify.blobs.settings import BlobSettings, StoreShape
from lithify.blobs.store import KIND
from lithify.blobs.validity_tasks import read_part
from lithify.compaction.tasks.jobs import no_check
from lithify.errors import Corrupt, LithifyError, UnsupportedVersion
from lithify.log.key_index.key_index import BUCKETS, COLUMNS, KeyRows
from lithify.log.open_segments import read_dead_set
from lithify.log.read_only_log import find_manifest, open_readonly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.log.reader import Snapshot

__all__ = ["StoredBlobs", "check_is_store", "open_stored"]


@dataclass(frozen=True, slots=True)
class StoredBlobs:
    """See the module."""

    fs: FileSystem
    directory: str
    shape: StoreShape
    snapshot: Snapshot
    index: BlobIndex
    opened: OpenedIndex
    held: Mapping[str, Recent]
    """The rows of segments whose key index cannot be used, by the segment's name."""
    wrong: tuple[LithifyError, ...]
    """The errors of those indexes."""

    def live_rows(self, ref: SegmentRef) -> KeyRows:
        """The rows of a segment that are not in its dead set."""
        if not ref.sealed:
            return self.opened.recent.rows()
        if ref.name in self.held:
            return self.held[ref.name].rows()
        rows, dead = read_part(self.index.task(ref), 0, BUCKETS, every=True)
        return KeyRows(**{name: getattr(rows, name)[~dead] for name in COLUMNS})


@contextmanager
def open_stored(
    fs: FileSystem, directory: str, *, owner: str, clock: Clock, token: str
) -> Iterator[StoredBlobs]:
    """The store in a directory, pinned until the block ends; `NotABlobStore` if there is none."""
    check_is_store(fs, directory)
    with open_readonly(fs, directory, owner=owner, clock=clock, token=token) as snapshot:
        manifest = snapshot.manifest
        shape = StoreShape.from_state(manifest.state)
        assert shape is not None
        rows_max = BlobSettings().index_rows_max
        index = BlobIndex(fs, directory, manifest.log_id, rows_max, recent_of(snapshot))
        held: dict[str, Recent] = {}
        wrong: list[LithifyError] = []
        for segment in manifest.segments:
            if segment.sealed:
                try:
                    with open_index(index.task(segment)) as keys:
                        keys.read()
                except (Corrupt, UnsupportedVersion) as error:
                    wrong.append(error)
                    held[segment.name] = _rows_of(index, segment)
                    index.hold(segment, held[segment.name])
        opened = index.opened(snapshot)
        yield StoredBlobs(fs, directory, shape, snapshot, index, opened, held, tuple(wrong))


def check_is_store(fs: FileSystem, directory: str) -> None:
    """Raise `NotABlobStore` if the directory holds something else; reads the manifest only."""
    manifest = find_manifest(fs, directory)
    if manifest.kind != KIND or StoreShape.from_state(manifest.state) is None:
        raise NotABlobStore(
            f"{directory} holds no blob store, or one whose creation was not finished"
        )


def _rows_of(index: BlobIndex, segment: SegmentRef) -> Recent:
    task = index.task(segment)
    dead = None
    if segment.dead is not None:
        dead = read_dead_set(task.fs, task.directory, segment.dead).entries
    rows = Recent(segment.id)
    rows.add_rows(scan_rows(task, no_check), dead)
    return rows
