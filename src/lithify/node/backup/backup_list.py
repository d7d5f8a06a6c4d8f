"""The files of a backup: its list, and copies with checksums.

    DIR/BACKUP          the list of all files, written last: without it a directory is no backup
    DIR/UNFINISHED      locked while the backup is in progress; removed when it is complete
    DIR/definitions, DIR/topics/…, DIR/blobs/…      as in a data directory

`BACKUP` is a file of checked lines (`fs/checked_lines.py`): the first is the header, then one per
file:

    {"version":1,"began_ms":…,"ended_ms":…,"source":"/var/lib/lithify","files":17,"bytes":…}
    {"path":"topics/public/default/orders/log/MANIFEST","bytes":612,"crc":"0a1b2c3d"}

`crc` is the CRC-32C of the whole file. Files of a complete backup never change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lithify.blobs.offline.verify import verify_store
from lithify.checksum import crc32c
from lithify.errors import (
    DamagedFile,
    InvalidInput,
    MissingFile,
    ReadFailed,
    UnsupportedVersion,
    WriteFailed,
)
from lithify.exit_codes import CONFLICT, NOT_FOUND
from lithify.fs import write_atomic
from lithify.fs.checked_lines import encode_line, read_lines
from lithify.topics.directories.data_directory import BACKUP, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.clock import Clock
    from lithify.fs import FileSystem

__all__ = [
    "BACKUP",
    "UNFINISHED",
    "BackupExists",
    "BackupList",
    "CopiedFile",
    "NotABackup",
    "check_file",
    "check_store",
    "checksum_file",
    "copy_file",
    "read_list",
    "write_list",
]

_VERSION = 1
_PIECE_BYTES = 2**20


class NotABackup(InvalidInput):
    """The directory holds no complete backup."""

    exit_code = NOT_FOUND


class BackupExists(InvalidInput):
    """The target of a backup holds something else."""

    exit_code = CONFLICT


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file of a backup."""

    bytes: int
    crc: int


@dataclass(frozen=True)
class BackupList:
    """The contents of `BACKUP`."""

    began_ms: int
    ended_ms: int
    source: str
    files: dict[str, CopiedFile] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files.values())

    @cached_property
    def by_directory(self) -> dict[str, dict[str, CopiedFile]]:
        """The files of each topic, partition and store, by its directory."""
        found: dict[str, dict[str, CopiedFile]] = {}
        for path, file in self.files.items():
            parts = path.split("/")
            depth = 2 if parts[0] == "blobs" else 4
            found.setdefault("/".join(parts[:depth]), {})[path] = file
        return found


def write_list(fs: FileSystem, directory: str, files: BackupList) -> None:
    """Complete a backup; everything in the list is already durable."""
    head = {
        "version": _VERSION,
        "began_ms": files.began_ms,
        "ended_ms": files.ended_ms,
        "source": files.source,
        "files": len(files.files),
        "bytes": files.bytes,
    }
    rows = [
        {"path": path, "bytes": file.bytes, "crc": f"{file.crc:08x}"}
        for path, file in sorted(files.files.items())
    ]
    lines = [encode_line(json.dumps(row, separators=(",", ":"))) for row in (head, *rows)]
    write_atomic(fs, f"{directory}/{BACKUP}", b"".join(lines))


def read_list(fs: FileSystem, directory: str) -> BackupList:
    """The list of a complete backup; raises `NotABackup` and `DamagedFile`."""
    path = f"{directory}/{BACKUP}"
    if not fs.exists(path):
        unfinished = fs.exists(f"{directory}/{UNFINISHED}")
        why = "was not finished" if unfinished else f"has no file {BACKUP}"
        raise NotABackup(f"{directory} is not a backup: it {why}")
    lines, _ = read_lines(fs, path)
    if not lines:
        raise DamagedFile(path, 0, "has no lines")
    head, *rows = (json.loads(text) for _, text in lines)
    if head["version"] != _VERSION:
        raise UnsupportedVersion(path, head["version"], _VERSION)
    files = {row["path"]: CopiedFile(row["bytes"], int(row["crc"], 16)) for row in rows}
    found = BackupList(head["began_ms"], head["ended_ms"], head["source"], files)
    if (len(files), found.bytes) != (head["files"], head["bytes"]):
        what = f"names {len(files)} files of {found.bytes} bytes, not {head['files']} of"
        raise DamagedFile(path, 0, f"{what} {head['bytes']}")
    return found


def copy_file(
    fs: FileSystem,
    source: str,
    target: str,
    length: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> CopiedFile:
    """Copy a file, or its first `length` bytes, to a new one; durable except for its name.

    `ReadFailed` is about the source, `WriteFailed` about the target.
    """
    crc = done = 0
    try:
        with fs.open_append(target, exclusive=True, uncached=True) as file:
            for piece in _pieces(fs, source, length):
                file.write(piece)
                crc = crc32c(piece, crc)
                done += len(piece)
                progress(len(piece))
            file.fsync()
    except OSError as error:
        raise WriteFailed(target, error) from error
    return CopiedFile(done, crc)


def checksum_file(
    fs: FileSystem, path: str, progress: Callable[[int], None] = lambda _: None
) -> CopiedFile:
    """Size and CRC of a file."""
    crc = done = 0
    for piece in _pieces(fs, path, None):
        crc = crc32c(piece, crc)
        done += len(piece)
        progress(len(piece))
    return CopiedFile(done, crc)


def check_file(found: CopiedFile, expected: CopiedFile, path: str) -> None:
    """Raise `DamagedFile` if a file of a backup differs from its list."""
    if found.bytes != expected.bytes:
        raise DamagedFile(
            path, 0, f"has {found.bytes} bytes, the list of the backup says {expected.bytes}"
        )
    if found.crc != expected.crc:
        what = f"CRC-32C is {found.crc:08x}, the list of the backup says {expected.crc:08x}"
        raise DamagedFile(path, 0, what)


def check_store(
    fs: FileSystem, directory: str, clock: Clock, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Raise `DamagedFile` unless a blob store is intact, including its index and state."""
    report = verify_store(fs, directory, clock, progress=progress)
    if not report.ok:
        problem = report.problems[0]
        raise DamagedFile(directory, 0, f"{problem.where}: {problem.what}")


def _pieces(fs: FileSystem, path: str, length: int | None) -> Iterator[bytes]:
    """The bytes of a file; errors of the consumer are not caught here."""
    at = 0
    try:
        file = fs.open_read(path)
    except FileNotFoundError:
        raise MissingFile(path, BACKUP) from None
    except OSError as error:
        raise ReadFailed(path, at, error) from error
    with file:
        end = length
        while end is None or at < end:
            try:
                end = file.size() if end is None else end
                piece = file.pread(min(_PIECE_BYTES, end - at), at)
            except OSError as error:
                raise ReadFailed(path, at, error) from error
            if at == end:
                return
            if not piece:
                raise DamagedFile(path, at, f"ends before byte {end}")
            at += len(piece)
            yield piece
