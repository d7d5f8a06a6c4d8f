"""The real file system: names and locks here, files in `local_file.py` and `uncached.py`.

Called through the protocol in `base.py` by everything above `fs/`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from lithify.fs.base import FileStat
from lithify.fs.local_file import CLOSED_FD, LocalFile
from lithify.fs.uncached import UncachedFile

if TYPE_CHECKING:
    from lithify.fs.base import File, FileLock

__all__ = ["LocalFileSystem"]

COPY_CHUNK_BYTES = 1 << 20
"""Bytes held in memory at once where the kernel cannot copy by itself."""


class _LocalLock:
    """An open descriptor that holds the `flock`; closing it, or dying, drops the lock."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, CLOSED_FD
        if fd != CLOSED_FD:
            os.close(fd)


class LocalFileSystem:
    """The machine's file system."""

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        """Open to read and to append, creating it; `exclusive` refuses one that exists."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
        fd = os.open(path, flags, 0o644)
        if uncached:
            try:
                fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
            except OSError:
                pass  # Not every file system can.
            else:
                return UncachedFile(path, fd)
        return LocalFile(path, fd, appends=True)

    def open_read(self, path: str) -> File:
        """Open to read only."""
        return LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), appends=False)

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, each durable in its own parent.

        A process killed between a mkdir and the fsync that follows leaves a directory that exists
        and is not durable: it is the deepest one there is, so its parent is synced as well.
        """
        missing = []
        deepest = path
        while not os.path.isdir(deepest):
            missing.append(deepest)
            deepest = _parent(deepest)
        # Above the directories that are ours there may be one that only others may read.
        with contextlib.suppress(PermissionError):
            self.sync_dir(_parent(deepest))
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not os.path.isdir(directory):
                    raise
            self.sync_dir(_parent(directory))

    def rename(self, source: str, target: str) -> None:
        """Give `source` the name `target`, replacing what was there, atomically."""
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Make `target` a second name of `source`."""
        os.link(source, target, follow_symlinks=False)

    def symlink(self, source: str, target: str) -> None:
        """Make `target` a symbolic link that reads `source`."""
        os.symlink(source, target)

    def remove(self, path: str) -> None:
        """Remove a file's or a symbolic link's name."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(os.listdir(path))

    def stat(self, path: str) -> FileStat:
        """Size and identity, of a symbolic link its own."""
        found = os.lstat(path)
        return FileStat(
            size=found.st_size,
            inode=found.st_ino,
            links=found.st_nlink,
            device=found.st_dev,
            mtime_ms=found.st_mtime_ns // 1_000_000,
            is_file=stat.S_ISREG(found.st_mode),
            is_dir=stat.S_ISDIR(found.st_mode),
            is_symlink=stat.S_ISLNK(found.st_mode),
        )

    def exists(self, path: str) -> bool:
        """Is there anything under this name? An I/O error is raised, never taken for a no."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def free_bytes(self, path: str) -> int:
        """Bytes an ordinary user may still write, where `path` is or would be created."""
        while not self.exists(path):
            path = _parent(path)
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def copy_range(self, source: File, offset: int, target: File, length: int) -> None:
        """Append `length` bytes of `source` at `offset` to `target`; EINVAL if it has fewer."""
        if isinstance(source, LocalFile) and isinstance(target, LocalFile):
            copied = target.copy_from(source, offset, length)
        else:
            copied = 0
        while copied < length:
            chunk = source.pread(min(COPY_CHUNK_BYTES, length - copied), offset + copied)
            if not chunk:
                raise OSError(errno.EINVAL, "the range to copy ends behind the file", source.path)
            target.write(chunk)
            copied += len(chunk)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` with `flock` and write `owner` into it; `None` if it is taken."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.pwrite(fd, owner.encode(), 0)
            if os.fstat(fd).st_size > size:
                # Only then: a file that is cut is written to disk at once by some file systems.
                os.ftruncate(fd, size)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return _LocalLock(fd)


def _parent(path: str) -> str:
    return os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
