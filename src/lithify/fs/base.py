"""The file system as Lithify sees it: a protocol with three implementations.

| class | module | for |
|---|---|---|
| `LocalFileSystem` | `local.py` | production: POSIX calls, nothing buffered in Python |
| `MemoryFileSystem` | `memory.py` | tests: knows what a power cut would leave, see `crash_clone` |
| `FaultyFileSystem` | `faulty.py` | tests: wraps another one and fails where its rules say |

Nothing above `fs/` opens a file any other way, so every crash and every full disk can be played.

The promises, which are POSIX's and no more:

1. Bytes are durable after `fsync` or `fdatasync` of the file that got them.
2. A name (created, renamed, linked, removed) is durable after `sync_dir` of its directory.
   `fsync` of a file says nothing about its name.
3. `rename` is atomic: before it the old file is there under the new name, after it the new one.
4. `write` and `writev` put all bytes at the end of the file or raise `OSError`; after an error
   any prefix of them may be there, and the caller truncates.
5. Errors are `OSError` with an errno, as the operating system gives them.

Files and directories are created without any permission for other users, whatever the umask says.

Paths are strings with `/`. All methods may be called from several threads; appends to one `File`
must come from one thread at a time.
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
    """What `stat` tells. Symbolic links are not followed."""

    size: int
    inode: int
    links: int
    device: int
    mtime_ms: int
    is_file: bool = True
    """A plain one: no directory, no link, no device."""
    is_dir: bool = False
    is_symlink: bool = False
    is_private: bool = True
    """Owned by the user of this process, and without any permission for others."""


class File(Protocol):
    """One open file."""

    @property
    def path(self) -> str:
        """The path it was opened by."""

    def size(self) -> int:
        """Bytes in the file now."""

    def pread(self, length: int, offset: int) -> bytes:
        """`length` bytes at `offset`; fewer only where the file ends."""

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; the number of bytes, fewer only where the file ends."""

    def readinto_cached(self, buffer: bytearray | memoryview, offset: int) -> int:
        """As `readinto`, but only what is in memory: `BlockingIOError` if the disk has to be read.

        The error says nothing about the file. Where the system cannot tell, it is always raised.
        """

    def write(self, data: Buffer) -> None:
        """Put `data` at the end."""

    def writev(self, buffers: Sequence[Buffer]) -> None:
        """Put all `buffers` at the end, in order, without joining them first."""

    def overwrite(self, data: Buffer, offset: int) -> None:
        """Put `data` in the place of bytes that are there; what reaches past the end is EINVAL.

        After an error any part of it may be there, and whoever reads meanwhile may see a part.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; later writes go there."""

    def fsync(self) -> None:
        """Make bytes and metadata durable."""

    def fdatasync(self) -> None:
        """Make bytes (and the size that reaches them) durable."""

    def begin_sync(self) -> None:
        """Have the operating system begin to write what it got to the disk; promises nothing.

        It makes the fsync that follows later a short one.
        """

    def close(self) -> None:
        """Close; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class FileLock(Protocol):
    """An exclusive lock that the operating system drops when its process dies."""

    def release(self) -> None:
        """Give it up; the file stays. A second call does nothing."""


@runtime_checkable
class FileSystem(Protocol):
    """The operations; see the module for what they promise."""

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        """Open to read and to append, creating it; `exclusive` refuses one that exists.

        Of an `uncached` one nothing that is written is to stay in memory: it is large, nobody is
        known to read it soon, and what others read is worth more.
        """

    def open_read(self, path: str) -> File:
        """Open to read only."""

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents; one that exists is fine. Durable when it returns."""

    def rename(self, source: str, target: str) -> None:
        """Give `source` the name `target`, replacing what was there, atomically."""

    def link(self, source: str, target: str) -> None:
        """Make `target` a second name (hard link) of `source`; `target` must not exist."""

    def symlink(self, source: str, target: str) -> None:
        """Make `target` a symbolic link that reads `source`; `target` must not exist."""

    def remove(self, path: str) -> None:
        """Remove a file's or a symbolic link's name."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def stat(self, path: str) -> FileStat:
        """Size and identity; raises `FileNotFoundError`."""

    def exists(self, path: str) -> bool:
        """Is there anything under this name?"""

    def free_bytes(self, path: str) -> int:
        """Bytes an ordinary user may still write on the disk that holds `path`."""

    def copy_range(self, source: File, offset: int, target: File, length: int) -> None:
        """Append `length` bytes of `source` at `offset` to `target`, in the kernel if possible."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def lock(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` (created if missing) and write `owner` into it.

        `None` when another holder has it; `pread` the file for that holder's `owner` text. A
        symbolic link under that name is refused with ELOOP.
        """

    def lock_directory(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` as `lock` does, and with it the directory that it is in.

        A file that is removed, or replaced by another one, takes its lock with it; the directory
        keeps the second one. A file system that has no locks of directories locks the file only.
        """

    def lock_holder(self, path: str) -> str:
        """The process that has locked a directory, as far as the system tells; else empty."""
