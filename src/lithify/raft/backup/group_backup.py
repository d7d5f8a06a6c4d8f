"""A backup: the state and live entries of one group at one index, as files.

    DIR/BACKUP                      one checked line of JSON, written last:
                                    {"version": 1, "group": "default", "index": 4711, "term": 3,
                                     "members": "voters n1 n2 n3", "entries": 120,
                                     "files": {"snapshot": [bytes, CRC-32C], …}}
    DIR/snapshot                    the state (`raft/storage/snapshots/snapshot_file.py`)
    DIR/live                        the live indexes (`live_set/format.py`)
    DIR/0000000000000001.segment    the live entries, in as many segments as they need

A backup is written under a temporary name and renamed when all of it is durable. So a directory
under the final name is complete, unless bytes have changed since: `verify_backup` reads every byte.

Any thread may call.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, MissingFile, ReadFailed, UnsupportedVersion
from lithify.exit_codes import CONFLICT
from lithify.fs import read_file
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.fs.remove_tree import remove_tree
from lithify.live_set import LiveSet
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, read_footer
from lithify.raft.errors import NoSuchDirectory
from lithify.raft.storage.file_names import LIVE, SNAPSHOT, parse_segment, segment_name
from lithify.raft.storage.segment_file import SegmentAppender, SegmentLimits, entries_of
from lithify.raft.storage.snapshots.snapshot_file import SnapshotWriter, read_head, read_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.fs import FileSystem
    from lithify.raft.entry import Entry
    from lithify.raft.storage.group_log import GroupLog
    from lithify.raft.storage.snapshots.snapshot_file import Head

__all__ = [
    "BACKUP",
    "Backup",
    "DirectoryExists",
    "Saved",
    "check_new",
    "is_backup_file",
    "live_entries",
    "open_backup",
    "read_backup",
    "verify_backup",
    "write_backup",
]

BACKUP = "BACKUP"
VERSION = 1
READ_ENTRIES = 256
PIECE_BYTES = 2**20
_LIMITS = SegmentLimits(65536, 64_000_000)


class DirectoryExists(InvalidInput):
    """The directory to be created exists."""

    exit_code = CONFLICT


@dataclass(frozen=True, slots=True)
class Saved:
    """A group at one index: its state, and the entries that the state needs."""

    group: str
    head: Head
    live: LiveSet
    pieces: Iterable[bytes]
    entries: Iterable[list[Entry]]
    """Those at the live indexes, ascending."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The manifest of a backup."""

    directory: str
    group: str
    index: int
    term: int
    members: str
    entries: int
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(bytes, CRC-32C) of each file."""

    @property
    def size_bytes(self) -> int:
        """The size of all files except the manifest."""
        return sum(size for size, _ in self.files.values())


def is_backup_file(name: str) -> bool:
    """Can a file of a backup have this name?"""
    return name in (SNAPSHOT, LIVE) or parse_segment(name) is not None


def check_new(fs: FileSystem, directory: str) -> None:
    """Raise unless the directory can be created."""
    if fs.exists(directory):
        raise DirectoryExists(f"{directory} exists already, must be a new directory")


def live_entries(log: GroupLog, live: LiveSet) -> Iterator[list[Entry]]:
    """The entries of a log at its live indexes, in batches."""
    for indexes in live.chunks(READ_ENTRIES):
        yield log.read(indexes.tolist())


def write_backup(fs: FileSystem, directory: str, saved: Saved) -> Backup:
    """Write a backup; it is complete and durable when this returns."""
    check_new(fs, directory)
    temporary = f"{directory}.tmp"
    remove_tree(fs, temporary)
    fs.mkdir(temporary)
    with fs.open_append(f"{temporary}/{SNAPSHOT}") as file:
        writer = SnapshotWriter(file, saved.head)
        for piece in saved.pieces:
            writer.write(piece)
        writer.finish()
    with fs.open_append(f"{temporary}/{LIVE}") as file:
        file.write(saved.live.to_bytes())
        file.fsync()
    entries = _write_entries(fs, temporary, saved)
    if entries != len(saved.live):
        raise InvalidInput(f"group {saved.group}: {entries} of {len(saved.live)} live entries read")
    files = {name: _measure(fs, f"{temporary}/{name}") for name in sorted(fs.list(temporary))}
    meta = saved.head.meta
    backup = Backup(directory, saved.group, meta.index, meta.term, str(meta.config), entries, files)
    with fs.open_append(f"{temporary}/{BACKUP}") as file:
        file.write(encode_line(_to_json(backup)))
        file.fsync()
    fs.sync_dir(temporary)
    # A crash until the last sync leaves the temporary directory or the complete backup.
    fs.rename(temporary, directory)
    fs.sync_dir(directory.rpartition("/")[0] or ".")
    return backup


def _to_json(backup: Backup) -> str:
    value = {
        "version": VERSION,
        "group": backup.group,
        "index": backup.index,
        "term": backup.term,
        "members": backup.members,
        "entries": backup.entries,
        "files": backup.files,
    }
    return json.dumps(value, sort_keys=True)


def _write_entries(fs: FileSystem, directory: str, saved: Saved) -> int:
    number = written = 0
    appender: SegmentAppender | None = None
    try:
        for entries in saved.entries:
            at = 0
            while at < len(entries):
                if appender is None or appender.is_full:
                    if appender is not None:
                        appender.close()
                    number += 1
                    appender = SegmentAppender.create(
                        fs, directory, saved.group, number, entries[at].index, _LIMITS
                    )
                at += appender.append(entries[at:])
            written += at
        if appender is not None:
            appender.close()
    except BaseException:
        if appender is not None:
            appender.abandon()
        raise
    return written


def _measure(fs: FileSystem, path: str) -> tuple[int, int]:
    size = crc = 0
    with fs.open_read(path) as file:
        while piece := file.pread(PIECE_BYTES, size):
            crc = crc32c(piece, crc)
            size += len(piece)
    return size, crc


# --- reading ----------------------------------------------------------------------------------


def open_backup(fs: FileSystem, directory: str) -> Backup:
    """Read the manifest of a backup, and nothing else."""
    path = f"{directory}/{BACKUP}"
    if not fs.exists(directory):
        raise NoSuchDirectory(directory)
    if not fs.exists(path):
        raise MissingFile(path, directory)
    lines, _ = read_lines(fs, path)
    if len(lines) != 1:
        raise DamagedFile(path, 0, f"has {len(lines)} whole lines, not 1")
    value = json.loads(lines[0][1])
    if value["version"] != VERSION:
        raise UnsupportedVersion(path, value["version"], VERSION)
    files = {name: (size, crc) for name, (size, crc) in value["files"].items()}
    for name in files:
        if not is_backup_file(name):
            raise DamagedFile(path, 0, f"{name!r} cannot be a file of a backup")
    numbers = (value["index"], value["term"])
    return Backup(directory, value["group"], *numbers, value["members"], value["entries"], files)


def verify_backup(fs: FileSystem, directory: str) -> Backup:
    """Read every byte; raises `Corrupt` if one differs from what was written, or `ReadFailed`."""
    try:
        return _verify(fs, directory)
    except OSError as error:
        raise ReadFailed(error.filename or directory, 0, error) from error


def _verify(fs: FileSystem, directory: str) -> Backup:
    backup = open_backup(fs, directory)
    for name, (size, crc) in backup.files.items():
        path = f"{directory}/{name}"
        if not fs.exists(path):
            raise MissingFile(path, f"{directory}/{BACKUP}")
        measured = _measure(fs, path)
        if measured != (size, crc):
            raise DamagedFile(path, 0, f"size and CRC-32C are {measured}, not {(size, crc)}")
    saved = read_backup(fs, backup)
    for _ in saved.pieces:
        pass
    indexes = (entry.index for entries in saved.entries for entry in entries)
    for index, expected in zip(indexes, saved.live, strict=False):
        if index != expected:
            raise DamagedFile(directory, 0, f"has entry {index}, the state needs {expected}")
    if len(saved.live) != backup.entries or saved.head.meta.index != backup.index:
        raise DamagedFile(f"{directory}/{BACKUP}", 0, "does not belong to the snapshot")
    return backup


def read_backup(fs: FileSystem, backup: Backup) -> Saved:
    """The content of a backup; CRCs are checked as it is read."""
    path = f"{backup.directory}/{LIVE}"
    live = LiveSet.from_bytes(read_file(fs, path), path)
    with fs.open_read(f"{backup.directory}/{SNAPSHOT}") as file:
        head, _ = read_head(file)
    pieces, entries = _pieces(fs, backup.directory), _entries(fs, backup)
    return Saved(backup.group, head, live, pieces, entries)


def _pieces(fs: FileSystem, directory: str) -> Iterator[bytes]:
    with fs.open_read(f"{directory}/{SNAPSHOT}") as file:
        yield from read_pieces(file, read_head(file)[1])


def _entries(fs: FileSystem, backup: Backup) -> Iterator[list[Entry]]:
    numbers = sorted(n for name in backup.files if (n := parse_segment(name)) is not None)
    after = 0
    for number in numbers:
        with fs.open_read(f"{backup.directory}/{segment_name(number)}") as file:
            stop = read_footer(file).frames_end
            for frames in scan_frames(file, SEGMENT_HEADER_BYTES, stop, after):
                entries = list(entries_of(frames))
                after = entries[-1].index
                for start in range(0, len(entries), READ_ENTRIES):
                    yield entries[start : start + READ_ENTRIES]
