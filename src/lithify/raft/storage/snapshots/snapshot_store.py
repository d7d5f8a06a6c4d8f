"""The snapshots and checkpoints of one group on disk.

    snapshots/TERM_INDEX/snapshot    the state, see `snapshot_file.py`
    snapshots/TERM_INDEX/live        the live indexes, a live set of `liveset/format.py`
    snapshots/TERM_INDEX/place       one checked line of JSON, see `SnapshotPlace`

A snapshot comes to be in these steps; a crash at any of them leaves the one before it in place:

1. A directory `TERM_INDEX.tmp` is made; state, live indexes and place are written into it and
   fsynced, the live indexes also when there are none.
2. The directory is synced and renamed to its own name, and the directory above it synced. From here
   on the snapshot counts, with its live indexes.
3. Older snapshots are removed.

So a snapshot without live indexes cannot come about by a crash. If they are missing or damaged all
the same, they are made again from the state, by the machine; they are never taken as none. A
snapshot whose state is damaged is passed over for an older one if there is one; else it is an
error.

Checkpoints are the same under `checkpoints/`. They cut nothing off. The newest one at or below an
index can be promoted: its directory is renamed into `snapshots/`, durable by steps 2 and 3.

A snapshot that is being received is written the same way (`accept`): it counts when it is finished.

Who calls makes sure that the entries a snapshot needs are durable before it is written.
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
from lithify.liveset import LiveSet
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
    """Where a snapshot stands among the member's own files."""

    cut_number: int = 0
    cut_index: int = 0
    """Of segments up to this number nothing behind this index counts. What overwrote the rest may
    be dead by now and in no segment; or a snapshot was installed that does not know it."""
    wal_file: int = 0
    """Files of the write-ahead log up to this number were written before a snapshot was installed:
    what counts of the group's entries in them is in segments."""
    install_index: int = 0
    """Of the last snapshot that was installed. Its live entries may still be in no other place than
    the write-ahead log, under the name that they came by."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot or checkpoint that is on disk."""

    directory: str
    head: Head
    place: SnapshotPlace

    @property
    def index(self) -> int:
        """Where it ends."""
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
        """It has its name, which may not be durable yet."""
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
        """Let it count, with the indexes that it needs.

        If the disk refuses one that has been read back by `pieces`, this can be called again: all
        that is written here is written anew.
        """
        if self._stored is None:
            self._stored = self._name(live, place)
        self._fs.sync_dir(self._parent)
        return self._stored

    def _name(self, live: LiveSet, place: SnapshotPlace) -> StoredSnapshot:
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
                # The same was written before; it may be what the log depends on.
                stored = checked(self._fs, self._final)
            except Corrupt:
                remove_tree(self._fs, self._final)
            else:
                remove_tree(self._fs, self._directory)
                return stored
        self._fs.rename(self._directory, self._final)
        return StoredSnapshot(self._final, self.head, place)

    def pieces(self) -> Iterator[bytes]:
        """What was written so far, as it will be read; the end is written first."""
        self._writer.finish()
        return read_pieces(self._file, read_head(self._file)[1])

    def abort(self) -> None:
        """Leave nothing."""
        self.close()
        with suppress(WriteFailed):
            # It does not count, and goes with the next one of its name or the next start.
            remove_tree(self._fs, self._directory)

    def close(self) -> None:
        """Let go of the file."""
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
        """Write a snapshot or checkpoint; it counts when this returns."""
        accepting = self.accept(head, checkpoint=checkpoint)
        try:
            for piece in pieces:
                accepting.write(piece)
            return accepting.finish(live, place)
        except Exception:
            accepting.abort()
            raise

    def accept(self, head: Head, *, checkpoint: bool = False) -> IncomingSnapshot:
        """Begin to write one whose pieces come one after the other."""
        parent = self._checkpoints if checkpoint else self._snapshots
        return IncomingSnapshot(self._fs, parent, head)

    def newest(self) -> StoredSnapshot | None:
        """The newest snapshot that is whole; raises if there are only damaged ones."""
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
        """The checkpoints that are whole, newest first."""
        found = []
        for path in self._paths(self._checkpoints):
            try:
                found.append(checked(self._fs, path))
            except Corrupt:
                # It only makes something shorter that can be done without it.
                remove_tree(self._fs, path)
        return found

    def promote(self, index: int) -> StoredSnapshot | None:
        """Make the newest checkpoint at or below an index a snapshot; None if there is none."""
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
        """The live indexes of a snapshot; made again from its state if they cannot be read."""
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
        """The state of a snapshot, piece by piece, checked."""
        try:
            file = self._fs.open_read(f"{stored.directory}/{SNAPSHOT}")
        except FileNotFoundError:
            raise MissingFile(f"{stored.directory}/{SNAPSHOT}", stored.directory) from None
        with file:
            yield from read_pieces(file, read_head(file)[1])

    def remove_older(self, stored: StoredSnapshot) -> None:
        """Remove the snapshots and checkpoints that a snapshot has made unnecessary."""
        for parent in (self._snapshots, self._checkpoints):
            for path in self._paths(parent):
                found = parse_snapshot(path.rpartition("/")[2])
                if path != stored.directory and found is not None and found[1] <= stored.index:
                    remove_tree(self._fs, path)

    def remove_checkpoint(self, stored: StoredSnapshot) -> None:
        """Remove one checkpoint."""
        remove_tree(self._fs, stored.directory)

    def _paths(self, parent: str) -> list[str]:
        """Of all that are there, newest first: by index, then by term."""
        found = [(parse_snapshot(name), name) for name in self._fs.list(parent)]
        known = [(key[1], key[0], name) for key, name in found if key is not None]
        return [f"{parent}/{name}" for _, _, name in sorted(known, reverse=True)]


def checked(fs: FileSystem, path: str) -> StoredSnapshot:
    """A snapshot whose every byte was read."""
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
