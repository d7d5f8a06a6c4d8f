"""The file system interface: a protocol with three implementations.

| class | module | for |
|---|---|---|
| `LocalFileSystem` | `local.py` | production: POSIX calls, nothing buffered in Python |
| `MemoryFileSystem` | `memory.py` | tests: knows what a power cut would leave, see `crash_clone` |
| `FaultyFileSystem` | `testing/faulty_fs.py` | tests: wraps another, fails where its rules say |

All code above `fs/` opens files through it, so every crash and every full disk can be simulated.

The guarantees are those of POSIX and no more:

1. Bytes are durable after `fsync` or `fdatasync` of the file that they were written to.
2. A name (created, renamed, linked, removed) is durable after `sync_dir` of its directory. `fsync`
   of a file does not make its name durable.
3. `rename` is atomic: before it the old file has the new name, after it the new one.
4. `write` and `writev` append all bytes to the file or raise `OSError`; after an error the file may
   have any prefix of them, and the caller truncates.
5. Errors are `OSError` with an errno, as the operating system reports them.

Files and directories are created without any permission for other users, for any umask.

Paths are strings with `/`. Any thread may call any method; appends to one `File` must come from one
thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.checksum import Buffer

__all__ = ["File", "FileLock", "FileStat", "FileSystem"]


@dataclass(frozen=True, slots=True)
class FileStat:
    """The result of `stat`. Symbolic links are not followed."""

    size: int
    inode: int
    links: int
    device: int
    mtime_ms: int
    is_file: bool = True
    """A regular file: no directory, no link, no device."""
    is_dir: bool = False
    is_symlink: bool = False
    is_private: bool = True
    """Owned by the user of this process, and without any permission for others."""


class File(Protocol):
    """One open file."""

    @property
    def path(self) -> str:
        """The path with which it was opened."""

    def size(self) -> int:
        """Current size of the file."""

    def pread(self, length: int, offset: int) -> bytes:
        """`length` bytes at `offset`; fewer only at the end of the file."""

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; returns the number of bytes, fewer only at the end."""

    def readinto_cached(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Like `readinto`, from the page cache only: `BlockingIOError` if the disk must be read.

        The error is no error of the file. On a system without such reads it is always raised.
        """

    def write(self, data: Buffer) -> None:
        """Append `data`."""

    def writev(self, buffers: Sequence[Buffer]) -> None:
        """Append all `buffers`, in order, without joining them first."""

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Overwrite existing bytes with `data`; a range beyond the end is EINVAL.

        After an error any part of `data` may be written, and a concurrent reader may see a part.
        """

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes; later writes are appended there."""

    def fsync(self) -> None:
        """Make bytes and metadata durable."""

    def fdatasync(self) -> None:
        """Make bytes (and the size that reaches them) durable."""

    def begin_sync(self) -> None:
        """Start writing dirty pages to the disk; guarantees nothing.

        It shortens the fsync that follows.
        """

    def close(self) -> None:
        """Close the file. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class FileLock(Protocol):
    """An exclusive lock that the operating system releases when its process dies."""

    def release(self) -> None:
        """Release the lock; the file stays. Idempotent."""


@runtime_checkable
class FileSystem(Protocol):
    """The operations; see the module for their guarantees."""

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        """Open for reading and appending, creating it; `exclusive` refuses one that exists.

        The data written to an `uncached` file is not kept in the page cache: it is large and not
        known to be read soon, and would evict more useful pages.
        """

    def open_read(self, path: str) -> File:
        """Open for reading."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, if missing. Durable when it returns."""

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, replacing an existing file, atomically."""

    def link(self, source: str, target: str) -> None:
        """Create `target` as a hard link to `source`; `target` must not exist."""

    def symlink(self, source: str, target: str) -> None:
        """Create `target` as a symbolic link to `source`; `target` must not exist."""

    def remove(self, path: str) -> None:
        """Remove the name of a file or a symbolic link."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def stat(self, path: str) -> FileStat:
        """Size and identity; raises `FileNotFoundError`."""

    def exists(self, path: str) -> bool:
        """Whether the path exists."""

    def free_bytes(self, path: str) -> int:
        """Bytes that an unprivileged user may still write on the disk of `path`."""

    def copy_range(self, source: File, offset: int, target: File, length: int) -> None:
        """Append `length` bytes of `source` at `offset` to `target`, in the kernel if possible."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def lock(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` (created if missing) and write `owner` into it.

        `None` if another holder has it; `pread` the file for that holder's `owner` text. A symbolic
        link under that name is refused with ELOOP.
        """

    def lock_directory(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` as `lock` does, and its directory too.

        If the file is removed or replaced, its lock is lost; the directory keeps the second one. On
        a file system without locks of directories only the file is locked.
        """

    def lock_holder(self, path: str) -> str:
        """The process that has locked a directory, if the system can tell; else empty."""
