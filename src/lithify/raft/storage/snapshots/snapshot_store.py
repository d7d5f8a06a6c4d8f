"""The snapshots and checkpoints of one group on disk.

    snapshots/TERM_INDEX/snapshot    the state, see `snapshot_file.py`
    snapshots/TERM_INDEX/live        the live indexes, a live set of `live_set/format.py`
    snapshots/TERM_INDEX/place       one checked line of JSON, see `SnapshotPlace`

A snapshot is written in these steps; after a crash before the rename the previous one is valid:

1. A directory `TERM_INDEX.tmp` is created; state, live indexes and place are written into it and
   fsynced. The file of live indexes is written even if it is empty.
2. The directory is synced and renamed to its final name, and its parent is synced. From here on the
   snapshot is valid, with its live indexes.
3. Older snapshots are deleted.

So a crash cannot leave a snapshot without live indexes. If they are missing or damaged, the machine
rebuilds them from the state; they are never taken as empty. If the state of a snapshot is damaged,
the next older snapshot is used; without one it is an error.

Checkpoints are stored in the same way below `checkpoints/`. They truncate nothing. The newest one
at or below an index can be promoted: its directory is renamed into `snapshots/`, and both parents
are synced.

A snapshot that is being received is written in the same way (`accept`): it is valid when finished.

The caller must make the entries that a snapshot needs durable before it writes the snapshot, and
prove those that are only in the write-ahead log (`Wal.ask_proof`).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lithify.errors import Corrupt, DamagedFile, MissingFile, WriteFailed
from lithify.fs import read_file
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.fs.remove_tree import remove_tree
from lithify.live_set import LiveSet
from lithify.raft.storage.file_names import (
    CHECKPOINTS,
    LIVE,
    PLACE,
    SNAPSHOT,
    SNAPSHOTS,
    parse_snapshot,
    snapshot_name,
)
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.snapshots.snapshot_file import SnapshotWriter, read_head, read_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lithify.fs import FileSystem
    from lithify.raft.storage.snapshots.snapshot_file import Head

__all__ = ["IncomingSnapshot", "SnapshotPlace", "Snapshots", "StoredSnapshot"]

_TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """The position of a snapshot relative to the member's segments and write-ahead log."""

    cut_number: int = 0
    cut_index: int = 0
    """In segments up to `cut_number` no index above `cut_index` counts. The entries that overwrote
    them may be dead and in no segment; or an installed snapshot replaced them."""
    wal_file: int = 0
    """Files of the write-ahead log up to this number were written before a snapshot was installed:
    the group's entries in them that count are in segments."""
    install_index: int = 0
    """Index of the last installed snapshot. Its live entries may be only in the write-ahead log,
    under the name of the install."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot or checkpoint on disk."""

    directory: str
    head: Head
    place: SnapshotPlace

    @property
    def index(self) -> int:
        """The last index it includes."""
        return self.head.meta.index


class IncomingSnapshot:
    """A snapshot that is being written."""

    def __init__(self, fs: FileSystem, parent: str, head: Head) -> None:
        self._fs = fs
        self._parent = parent
        self.head = head
        self._final = f"{parent}/{snapshot_name(head.meta.term, head.meta.index)}"
        self._directory = self._final + _TEMPORARY
        self._stored: StoredSnapshot | None = None
        """Set after the rename, which may not be durable yet."""
        remove_tree(fs, self._directory)
        fs.mkdir(self._directory)
        self._file = fs.open_append(f"{self._directory}/{SNAPSHOT}")
        try:
            self._writer = SnapshotWriter(self._file, head)
        except BaseException:
            self.abort()
            raise

    def write(self, piece: bytes) -> None:
        """Add a piece of the state."""
        self._writer.write(piece)

    def finish(self, live: LiveSet, place: SnapshotPlace) -> StoredSnapshot:
        """Make the snapshot valid, with the live indexes it needs.

        After `pieces` this may be called again if a write failed: it writes all its files again.
        """
        if self._stored is None:
            self._stored = self._write_and_rename(live, place)
        self._fs.sync_dir(self._parent)
        return self._stored

    def _write_and_rename(self, live: LiveSet, place: SnapshotPlace) -> StoredSnapshot:
        LiveState(self.head.meta.index, live)
        with self._file:
            self._writer.finish()
        line = encode_line(json.dumps(asdict(place), sort_keys=True))
        for name, data in ((LIVE, live.to_bytes()), (PLACE, line)):
            with self._fs.open_append(f"{self._directory}/{name}") as file:
                file.truncate(0)
                file.write(data)
                file.fsync()
        self._fs.sync_dir(self._directory)
        if self._fs.exists(self._final):
            try:
                # The same snapshot was written before, and the log may depend on it.
                stored = checked(self._fs, self._final)
            except Corrupt:
                remove_tree(self._fs, self._final)
            else:
                remove_tree(self._fs, self._directory)
                return stored
        self._fs.rename(self._directory, self._final)
        return StoredSnapshot(self._final, self.head, place)

    def pieces(self) -> Iterator[bytes]:
        """The state, read back from the file. Writes the end of the file first."""
        self._writer.finish()
        return read_pieces(self._file, read_head(self._file)[1])

    def abort(self) -> None:
        """Delete all that was written."""
        self.close()
        with suppress(WriteFailed):
            # The directory is deleted by the next write of this snapshot, or at the next start.
            remove_tree(self._fs, self._directory)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Snapshots:
    """See the module."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._snapshots = f"{directory}/{SNAPSHOTS}"
        self._checkpoints = f"{directory}/{CHECKPOINTS}"
        for parent in (self._snapshots, self._checkpoints):
            fs.mkdir(parent)
            for name in fs.list(parent):
                if name.endswith(_TEMPORARY):
                    remove_tree(fs, f"{parent}/{name}")

    def write(
        self,
        head: Head,
        pieces: Iterable[bytes],
        live: LiveSet,
        place: SnapshotPlace,
        *,
        checkpoint: bool = False,
    ) -> StoredSnapshot:
        """Write a snapshot or checkpoint; it is valid when this returns."""
        incoming = self.accept(head, checkpoint=checkpoint)
        try:
            for piece in pieces:
                incoming.write(piece)
            return incoming.finish(live, place)
        except Exception:
            incoming.abort()
            raise

    def accept(self, head: Head, *, checkpoint: bool = False) -> IncomingSnapshot:
        """Begin a snapshot or checkpoint whose pieces are written one by one."""
        parent = self._checkpoints if checkpoint else self._snapshots
        return IncomingSnapshot(self._fs, parent, head)

    def newest(self) -> StoredSnapshot | None:
        """The newest intact snapshot; raises if all are damaged."""
        damage: Corrupt | None = None
        for path in self._paths(self._snapshots):
            try:
                return checked(self._fs, path)
            except Corrupt as error:
                damage = damage or error
        if damage is not None:
            raise damage
        return None

    def checkpoints(self) -> list[StoredSnapshot]:
        """The intact checkpoints, newest first; deletes damaged ones."""
        intact = []
        for path in self._paths(self._checkpoints):
            try:
                intact.append(checked(self._fs, path))
            except Corrupt:
                # No promise depends on a checkpoint.
                remove_tree(self._fs, path)
        return intact

    def promote(self, index: int) -> StoredSnapshot | None:
        """Turn the newest checkpoint at or below an index into a snapshot; None without one."""
        for stored in self.checkpoints():
            if stored.index <= index:
                name = stored.directory.rpartition("/")[2]
                target = f"{self._snapshots}/{name}"
                if self._fs.exists(target):
                    return StoredSnapshot(target, stored.head, stored.place)
                self._fs.rename(stored.directory, target)
                self._fs.sync_dir(self._snapshots)
                self._fs.sync_dir(self._checkpoints)
                return StoredSnapshot(target, stored.head, stored.place)
        return None

    def live(
        self, stored: StoredSnapshot, rebuild: Callable[[Iterable[bytes]], LiveSet]
    ) -> LiveSet:
        """The live indexes of a snapshot; rebuilt from its state if they cannot be read."""
        path = f"{stored.directory}/{LIVE}"
        try:
            live = LiveSet.from_bytes(read_file(self._fs, path), path)
            LiveState(stored.index, live)
            return live
        except (Corrupt, FileNotFoundError, ValueError):
            live = rebuild(self.pieces(stored))
            LiveState(stored.index, live)
        temporary = path + _TEMPORARY
        with self._fs.open_append(temporary) as file:
            file.truncate(0)
            file.write(live.to_bytes())
            file.fsync()
        self._fs.rename(temporary, path)
        self._fs.sync_dir(stored.directory)
        return live

    def pieces(self, stored: StoredSnapshot) -> Iterator[bytes]:
        """The pieces of a snapshot's state, with their CRCs checked."""
        try:
            file = self._fs.open_read(f"{stored.directory}/{SNAPSHOT}")
        except FileNotFoundError:
            raise MissingFile(f"{stored.directory}/{SNAPSHOT}", stored.directory) from None
        with file:
            yield from read_pieces(file, read_head(file)[1])

    def remove_older(self, stored: StoredSnapshot) -> None:
        """Delete the snapshots and checkpoints up to the index of a snapshot, except this one."""
        for parent in (self._snapshots, self._checkpoints):
            for path in self._paths(parent):
                key = parse_snapshot(path.rpartition("/")[2])
                if path != stored.directory and key is not None and key[1] <= stored.index:
                    remove_tree(self._fs, path)

    def remove_checkpoint(self, stored: StoredSnapshot) -> None:
        """Delete a checkpoint."""
        remove_tree(self._fs, stored.directory)

    def _paths(self, parent: str) -> list[str]:
        """The directories in a parent, newest first: by index, then by term."""
        names = [(parse_snapshot(name), name) for name in self._fs.list(parent)]
        keyed = [(key[1], key[0], name) for key, name in names if key is not None]
        return [f"{parent}/{name}" for _, _, name in sorted(keyed, reverse=True)]


def checked(fs: FileSystem, path: str) -> StoredSnapshot:
    """Open a snapshot after reading all of its state; raises `Corrupt` if a byte is wrong."""
    try:
        file = fs.open_read(f"{path}/{SNAPSHOT}")
    except FileNotFoundError:
        raise MissingFile(f"{path}/{SNAPSHOT}", path) from None
    with file:
        head, at = read_head(file)
        for _ in read_pieces(file, at):
            pass
    lines, _ = read_lines(fs, f"{path}/{PLACE}")
    if len(lines) != 1:
        raise DamagedFile(f"{path}/{PLACE}", 0, f"has {len(lines)} whole lines, not 1")
    return StoredSnapshot(path, head, SnapshotPlace(**json.loads(lines[0][1])))
