"""The operating system's file system: POSIX calls, nothing buffered in Python.

How an append works:

1. The file is opened without O_APPEND and its size is read once. From then on the `File` tracks its
   end, so that an append is one system call and `truncate` can move the end.
2. `write` is one `pwrite` at the end, `writev` one `pwritev` per 1024 buffers; data above
   `WRITE_BYTES_MAX` takes several calls. The end moves by the bytes written. After a short write
   the rest is written with further calls.
3. After an error the end is after the bytes that were written; the caller truncates.

An `uncached` file is written with the same calls and the flag RWF_DONTCACHE (Linux 6.14 or newer):
the kernel starts writing at once and drops the pages when they are on disk. Without this flag the
file is written like any other.

Invariants: a closed `File` never uses its descriptor number again, which may then belong to another
file. Two append handles on one file overwrite each other; the layers above hold a `lock`. A
`memoryview` passed to `write` is one of bytes: its length counts bytes. New files have mode 0600
and new directories 0700: a log is for its user alone, who may widen the mode of a directory by
hand.

Called through the protocol in `base.py` by everything above `fs/`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING, Self

from lithify.fs.base import FileStat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.checksum import Buffer
    from lithify.fs.base import File, FileLock

__all__ = ["LocalFileSystem"]

IOV_MAX = 1024
"""Maximum number of buffers of one `pwritev` on Linux."""

WRITE_BYTES_MAX = 2 << 20
"""Maximum size of one call. For a larger one Linux allocates pages of several megabytes, which are
often not available: in a virtual machine a write of 4 MiB took up to four times as long as two of 2
MiB.
"""

RWF_DONTCACHE = 0x80

RWF_NOWAIT = 0x08
"""A flag of Linux. A read with it fails with EAGAIN if it would wait for the disk, and with
EOPNOTSUPP on file systems that cannot tell, such as overlayfs.
"""

_NOT_CACHED = frozenset({errno.EAGAIN, errno.EOPNOTSUPP})

COPY_CHUNK_BYTES = 1 << 20
"""Bytes buffered in memory if the kernel cannot copy."""

_OF_OTHERS = 0o077
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

CLOSED_FD = (1 << 31) - 1
"""A descriptor that no process can have, so that every call with it fails with EBADF; with -1
Python raises `ValueError` for some calls.
"""

_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux only; otherwise `begin_sync` does nothing. Its errors are ignored."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_NO_LOCK_OF_DIRECTORIES = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP}
"""NFS implements them as byte range locks, which need a file that is open for writing."""

_COPY_UNSUPPORTED = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def _parts(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Split the buffers for single calls; a larger buffer is a part of its own."""
    part: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if part and size + len(buffer) > WRITE_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(buffer)
        size += len(buffer)
    yield part


class _LocalFile:
    """One descriptor and, if it is for appending, the end of its file."""

    __slots__ = ("_appends", "_end", "_fd", "_path")

    def __init__(self, path: str, fd: int, *, appends: bool) -> None:
        self._path = path
        self._fd = fd
        self._appends = appends
        self._end = os.fstat(fd).st_size if appends else 0

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._end if self._appends else os.fstat(self._fd).st_size

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            count = os.preadv(self._fd, [view[filled:]], offset + filled)
            if not count:
                break
            filled += count
        return filled

    def readinto_cached(self, buffer: bytearray | memoryview, offset: int) -> int:
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            try:
                count = os.preadv(self._fd, [view[filled:]], offset + filled, RWF_NOWAIT)
            except OSError as error:
                if error.errno in _NOT_CACHED:
                    raise BlockingIOError(error.errno, error.strerror, self._path) from None
                raise
            if not count:
                break
            filled += count
        return filled

    def write(self, data: Buffer) -> None:
        if len(data) > WRITE_BYTES_MAX:
            self._write_rest(data, 0)
            return
        written = os.pwrite(self._fd, data, self._end)
        self._end += written
        if written != len(data):
            self._write_rest(data, written)

    def writev(self, buffers: Sequence[Buffer]) -> None:
        for first in range(0, len(buffers), IOV_MAX):
            batch = buffers if len(buffers) <= IOV_MAX else buffers[first : first + IOV_MAX]
            size = sum(map(len, batch))
            if size <= WRITE_BYTES_MAX:
                self._writev(batch, size)
                continue
            for part in _parts(batch):
                if len(part) == 1:
                    self.write(part[0])
                else:
                    self._writev(part, sum(map(len, part)))

    def _writev(self, buffers: Sequence[Buffer], size: int) -> None:
        written = os.pwritev(self._fd, buffers, self._end)
        self._end += written
        if written != size:
            # Rare (a signal, a disk that is almost full), so the cost of joining does not matter.
            self._write_rest(b"".join(buffers), written)

    def _write_rest(self, data: Buffer, written: int) -> None:
        rest = memoryview(data).cast("B")[written:]
        while rest:
            count = os.pwrite(self._fd, rest[:WRITE_BYTES_MAX], self._end)
            self._end += count
            rest = rest[count:]

    def overwrite(self, data: Buffer, offset: int) -> None:
        rest = memoryview(data).cast("B")
        if offset + len(rest) > self._end:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        while rest:
            count = os.pwrite(self._fd, rest, offset)
            offset += count
            rest = rest[count:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._end = size

    def fsync(self) -> None:
        os.fsync(self._fd)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def begin_sync(self) -> None:
        if _sync_file_range is not None:
            # The whole file: pages that are on disk or being written cost almost nothing.
            _sync_file_range(self._fd, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def close(self) -> None:
        fd, self._fd = self._fd, CLOSED_FD
        if fd != CLOSED_FD:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def copy_from(self, source: _LocalFile, offset: int, length: int) -> int:
        """Append in the kernel; returns the bytes copied, fewer than `length` if it cannot."""
        copied = 0
        while copied < length:
            try:
                count = os.copy_file_range(
                    source._fd,
                    self._fd,
                    length - copied,
                    offset + copied,
                    self._end,
                )
            except OSError as error:
                if error.errno not in _COPY_UNSUPPORTED:
                    raise
                break
            if not count:
                break
            copied += count
            self._end += count
        return copied


class _UncachedFile(_LocalFile):
    """A file whose written data is not kept in the page cache."""

    __slots__ = ()

    def write(self, data: Buffer) -> None:
        self._write_rest(data, 0)

    def writev(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self.write(buffer)

    def _write_rest(self, data: Buffer, written: int) -> None:
        rest = memoryview(data).cast("B")[written:]
        while rest:
            count = self._put(rest[:WRITE_BYTES_MAX])
            self._end += count
            rest = rest[count:]

    def _put(self, data: memoryview) -> int:
        try:
            return os.pwritev(self._fd, [data], self._end, RWF_DONTCACHE)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return os.pwrite(self._fd, data, self._end)


class _LocalLock:
    """Open descriptors that hold the `flock`s; closing them, or exiting, releases the lock."""

    __slots__ = ("_fds",)

    def __init__(self, *fds: int) -> None:
        self._fds = fds

    def release(self) -> None:
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)


class LocalFileSystem:
    """The file system of the machine."""

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        """Open for reading and appending, creating it; `exclusive` refuses one that exists."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
        kind = _UncachedFile if uncached else _LocalFile
        return kind(path, os.open(path, flags, FILE_MODE), appends=True)

    def open_read(self, path: str) -> File:
        """Open for reading."""
        return _LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC), appends=False)

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, each durable in its own parent.

        A process killed between a mkdir and the fsync that follows leaves a directory that exists
        and is not durable: it is the deepest existing one, so its parent is synced as well.
        """
        missing = []
        deepest = path
        while not os.path.isdir(deepest):
            missing.append(deepest)
            deepest = _parent(deepest)
        # A directory above ours may not be readable by this user.
        with contextlib.suppress(PermissionError):
            self.sync_dir(_parent(deepest))
        for directory in reversed(missing):
            try:
                os.mkdir(directory, DIRECTORY_MODE)
            except FileExistsError:
                if not os.path.isdir(directory):
                    raise
            self.sync_dir(_parent(directory))

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, replacing an existing file, atomically."""
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Create `target` as a hard link to `source`."""
        os.link(source, target, follow_symlinks=False)

    def symlink(self, source: str, target: str) -> None:
        """Create `target` as a symbolic link to `source`."""
        os.symlink(source, target)

    def remove(self, path: str) -> None:
        """Remove the name of a file or a symbolic link."""
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
            is_private=found.st_uid == os.geteuid() and not found.st_mode & _OF_OTHERS,
        )

    def exists(self, path: str) -> bool:
        """Whether the path exists. An I/O error is raised, not treated as absence."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def free_bytes(self, path: str) -> int:
        """Bytes that an unprivileged user may still write, where `path` is or would be created."""
        while not self.exists(path):
            path = _parent(path)
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def copy_range(self, source: File, offset: int, target: File, length: int) -> None:
        """Append `length` bytes of `source` at `offset` to `target`; EINVAL if it has fewer."""
        if isinstance(source, _LocalFile) and isinstance(target, _LocalFile):
            copied = target.copy_from(source, offset, length)
        else:
            copied = 0
        while copied < length:
            chunk = source.pread(min(COPY_CHUNK_BYTES, length - copied), offset + copied)
            if not chunk:
                raise OSError(
                    errno.EINVAL, "the range to copy ends after the end of the file", source.path
                )
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
        """Lock the file `path` with `flock` and write `owner` into it; `None` if it is locked."""
        fd = self._lock(path, owner)
        return None if fd is None else _LocalLock(fd)

    def _lock(self, path: str, owner: str) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.pwrite(fd, owner.encode(), 0)
            if os.fstat(fd).st_size > size:
                # Only if necessary: some file systems write a truncated file to disk at once.
                os.ftruncate(fd, size)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        return fd

    def lock_directory(self, path: str, owner: str) -> FileLock | None:
        """Lock the directory, then the file in it; `None` if one of them is locked."""
        held = os.open(_parent(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(held)
                return None
            except OSError as error:
                if error.errno not in _NO_LOCK_OF_DIRECTORIES:
                    raise
            fd = self._lock(path, owner)
        except OSError:
            os.close(held)
            raise
        if fd is None:
            os.close(held)
            return None
        return _LocalLock(fd, held)

    def lock_holder(self, path: str) -> str:
        """From `/proc/locks`, by device and inode."""
        found = os.stat(path)
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as lines:
            for line in lines:
                # 1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF
                words = line.split()
                if words[1] == "FLOCK" and words[5] == f"{device}:{found.st_ino}":
                    return f"pid {words[4]}"
        return ""


def _parent(path: str) -> str:
    return os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
