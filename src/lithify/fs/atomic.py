"""Atomic file operations: replace a file, read one, lock a directory for one process.

`write_atomic` replaces a file so that a crash leaves the old bytes or the new, never a mixture.
`replace_file` replaces it for readers only; `sync_replaced` makes that durable, later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import LogLocked, WriteFailed

if TYPE_CHECKING:
    from lithify.checksum import Buffer
    from lithify.fs.base import FileLock, FileSystem

__all__ = [
    "TEMPORARY_SUFFIX",
    "hold_directory",
    "lock_owner",
    "read_file",
    "replace_file",
    "sync_replaced",
    "write_atomic",
]

TEMPORARY_SUFFIX = ".tmp"
"""A file with this suffix belongs to an unfinished `write_atomic` and may be removed at open."""


def read_file(fs: FileSystem, path: str) -> bytes:
    """The whole of a small file."""
    with fs.open_read(path) as file:
        return file.pread(file.size(), 0)


def lock_owner(fs: FileSystem, path: str) -> str:
    """The holder of a lock, for people: nothing depends on this text, and it may be damaged."""
    text = read_file(fs, path).decode(errors="replace") if fs.exists(path) else ""
    return text or fs.lock_holder(path.rpartition("/")[0] or ".") or "unknown"


def hold_directory(fs: FileSystem, path: str, owner: str) -> FileLock:
    """Lock a directory for this process alone, with the lock file `path` in it.

    Raises `LogLocked`, which names the process that holds the lock, or `WriteFailed`.
    """
    try:
        lock = fs.lock_directory(path, owner)
    except OSError as error:
        if error.filename is not None:
            raise
        # A refused write does not name the path.
        raise WriteFailed(path, error) from error
    if lock is None:
        raise LogLocked(path.rpartition("/")[0], lock_owner(fs, path))
    return lock


def write_atomic(fs: FileSystem, path: str, data: Buffer) -> None:
    """Replace `path` by `data`, durably and atomically.

    A crash before the rename leaves the old file and perhaps a `.tmp`; a crash before the
    directory's fsync leaves the old file or the new one; after it, the new one.
    """
    temporary = path + TEMPORARY_SUFFIX
    with fs.open_append(temporary) as file:
        file.truncate(0)
        file.write(data)
        file.fsync()
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0] or ".")


def replace_file(fs: FileSystem, path: str, data: Buffer) -> None:
    """Replace `path` by `data` atomically for its readers, without a wait for the disk.

    A power cut before `sync_replaced` has returned may leave the old file, the new one, or a torn
    one: only for files that are written again from something durable.
    """
    temporary = path + TEMPORARY_SUFFIX
    with fs.open_append(temporary) as file:
        file.truncate(0)
        file.write(data)
    fs.rename(temporary, path)


def sync_replaced(fs: FileSystem, path: str) -> None:
    """Make a file durable that `replace_file` has replaced, or may replace meanwhile."""
    with fs.open_read(path) as file:
        file.fsync()
    fs.sync_dir(path.rpartition("/")[0] or ".")
