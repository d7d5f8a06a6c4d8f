"""A file system in memory that can simulate the state after a power cut.

It has the guarantees of `base.py` and no more: bytes that were not fsynced and names whose
directory was not synced are pending (see `memory_inodes.py`). There are three views of them:

1. The object itself: what the running process sees, which is everything.
2. `kill_clone()`: what the next process sees after a SIGKILL. Everything written is there, pending
   changes are still pending, locks are released.
3. `crash_clone(rng)`: what the next process sees after a power cut. Of each pending write all,
   nothing or a prefix is there; each pending truncation and name change happened or did not.
   Nothing is pending, and locks are released. All choices come from `rng`, so a seed reproduces a
   crash.

Clones are independent of the original. Open `File`s stay with the file system that opened them.
Relative paths start at the root. `capacity_bytes` limits the disk: a write that does not fit writes
what fits and raises ENOSPC. Removed files keep their space while they are open.

Used by tests, through the protocol in `base.py`.
"""

from __future__ import annotations

import copy
import errno
import os
import threading
from typing import TYPE_CHECKING, Self

from lithify.clock import ManualClock
from lithify.fs.base import FileStat
from lithify.fs.memory_inodes import DirInode, FileInode, LinkInode, NameChange, Slot, Tree, failure

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.fs.base import File, FileLock
    from lithify.fs.memory_inodes import Inode

__all__ = ["MemoryFileSystem"]

UNLIMITED_BYTES = 1 << 50
"""Free space of a disk without a capacity: a pebibyte, more than any test writes."""

DEVICE = 1
"""All paths are on one device."""


class _Disk:
    """State shared by all files: the lock, the clock, the space, and which inodes are locked."""

    def __init__(self, clock: Clock, capacity_bytes: int | None) -> None:
        self.guard = threading.RLock()
        self.clock = clock
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.locked: set[int] = set()

    def free_bytes(self) -> int:
        """Free bytes of the disk."""
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        return self.capacity_bytes - self.used_bytes

    def write(self, inode: FileInode, offset: int, data: bytes) -> int:
        """Write what fits of `data` at `offset`; returns the number of bytes."""
        reach = len(inode.content) + self.free_bytes()
        fitting = data[: max(0, reach - offset)]
        if fitting:
            self.used_bytes -= len(inode.content)
            inode.write(offset, fitting)
            self.used_bytes += len(inode.content)
            inode.mtime_ms = self.clock.now_ms()
        return len(fitting)

    def truncate(self, inode: FileInode, size: int, path: str) -> None:
        """Set the size of a file."""
        growth = size - len(inode.content)
        if growth > self.free_bytes():
            raise failure(errno.ENOSPC, path)
        inode.truncate(size)
        self.used_bytes += growth
        inode.mtime_ms = self.clock.now_ms()

    def forget(self, inode: Inode | None) -> None:
        """Free the space of a file that has no name and is not open."""
        if isinstance(inode, FileInode) and not inode.links and not inode.opens:
            self.used_bytes -= len(inode.content)


class _MemoryFile:
    """One open file; like a local one it tracks the end at which it appends."""

    def __init__(self, disk: _Disk, path: str, inode: FileInode, *, appends: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._appends = appends
        self._end = len(inode.content)
        self._open = True
        inode.opens += 1

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        with self._disk.guard:
            return self._end if self._appends else len(self._opened().content)

    def pread(self, length: int, offset: int) -> bytes:
        with self._disk.guard:
            return bytes(memoryview(self._opened().content)[offset : offset + length])

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self.pread(len(view), offset)
        view[: len(data)] = data
        return len(data)

    def readinto_cached(self, buffer: bytearray | memoryview, offset: int) -> int:
        return self.readinto(buffer, offset)

    def write(self, data: Buffer) -> None:
        with self._disk.guard:
            inode = self._opened(to_write=True)
            written = self._disk.write(inode, self._end, bytes(data))
            self._end += written
            if written < len(data):
                raise failure(errno.ENOSPC, self._path)

    def writev(self, buffers: Sequence[Buffer]) -> None:
        self.write(b"".join(buffers))

    def overwrite(self, data: Buffer, offset: int) -> None:
        with self._disk.guard:
            inode = self._opened(to_write=True)
            if offset + len(data) > self._end:
                raise failure(errno.EINVAL, self._path)
            self._disk.write(inode, offset, bytes(data))

    def truncate(self, size: int) -> None:
        with self._disk.guard:
            self._disk.truncate(self._opened(to_write=True), size, self._path)
            self._end = size

    def fsync(self) -> None:
        with self._disk.guard:
            self._opened().sync()

    def fdatasync(self) -> None:
        self.fsync()

    def begin_sync(self) -> None:
        """Does nothing: a power cut may come before any byte has reached the disk."""

    def close(self) -> None:
        with self._disk.guard:
            if self._open:
                self._open = False
                self._inode.opens -= 1
                self._disk.forget(self._inode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _opened(self, *, to_write: bool = False) -> FileInode:
        if not self._open or (to_write and not self._appends):
            raise failure(errno.EBADF, self._path)
        return self._inode


class _MemoryLock:
    """A lock on inodes, like that of `flock`."""

    def __init__(self, disk: _Disk, *numbers: int) -> None:
        self._disk = disk
        self._numbers = numbers

    def release(self) -> None:
        with self._disk.guard:
            self._disk.locked.difference_update(self._numbers)
            self._numbers = ()


class MemoryFileSystem:
    """Files in memory with live and durable state; see the module."""

    def __init__(self, *, clock: Clock | None = None, capacity_bytes: int | None = None) -> None:
        self._disk = _Disk(clock or ManualClock(), capacity_bytes)
        self._newest = 0
        self._tree = Tree(DirInode(*self._identity()))

    def kill_clone(self) -> MemoryFileSystem:
        """The state after a SIGKILL of this process."""
        return self._clone(None)

    def crash_clone(self, rng: random.Random) -> MemoryFileSystem:
        """The state after a power cut, one of the possible ones."""
        return self._clone(rng)

    def _clone(self, power_cut: random.Random | None) -> MemoryFileSystem:
        disk = self._disk
        with disk.guard:
            clone = MemoryFileSystem(clock=disk.clock, capacity_bytes=disk.capacity_bytes)
            clone._tree = copy.deepcopy(self._tree)
            clone._newest = self._newest
        if power_cut:
            clone._tree.lose_power(power_cut)
        files = [inode for inode in clone._tree.inodes() if isinstance(inode, FileInode)]
        clone._disk.used_bytes = sum(len(inode.content) for inode in files)
        return clone

    def flip(self, path: str, offset: int, mask: int = 0x01) -> None:
        """Damage one byte of a file, in its live and its durable state."""
        with self._disk.guard:
            inode = self.file(path)
            inode.content[offset] ^= mask
            if offset < len(inode.durable):
                inode.durable[offset] ^= mask

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:  # noqa: ARG002  there is no cache
        """Open for reading and appending, creating it; `exclusive` refuses one that exists."""
        with self._disk.guard:
            slot = self._tree.find(path, follow=not exclusive)
            if slot.inode is None:
                self._change(NameChange(FileInode(*self._identity()), placed=slot))
            elif exclusive:
                raise failure(errno.EEXIST, path)
            return _MemoryFile(self._disk, path, self.file(path), appends=True)

    def open_read(self, path: str) -> File:
        """Open for reading."""
        with self._disk.guard:
            return _MemoryFile(self._disk, path, self.file(path), appends=False)

    def mkdir(self, path: str) -> None:
        """Create a directory and its parents, each durable in its own parent."""
        with self._disk.guard:
            ends = [at for at, char in enumerate(path) if char == "/"] + [len(path)]
            for end in ends:
                slot = self._tree.find(path[:end], follow=True)
                if slot.inode is None:
                    self._change(NameChange(DirInode(*self._identity()), placed=slot))
                    self._tree.sync(slot.directory)
                elif not isinstance(slot.inode, DirInode):
                    raise failure(errno.EEXIST, path)

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, replacing an existing file, atomically."""
        with self._disk.guard:
            old, moved = self._movable(source)
            new = self._tree.find(target, follow=False)
            if new.inode is moved:
                # Two names of one file: POSIX says that both stay.
                return
            if isinstance(new.inode, DirInode):
                if not isinstance(moved, DirInode):
                    raise failure(errno.EISDIR, target)
                if new.inode.names:
                    raise failure(errno.ENOTEMPTY, target)
            elif new.inode is not None and isinstance(moved, DirInode):
                raise failure(errno.ENOTDIR, target)
            self._change(NameChange(moved, gone=old, placed=new))

    def link(self, source: str, target: str) -> None:
        """Create `target` as a hard link to `source`."""
        with self._disk.guard:
            _, inode = self._existing(source)
            if isinstance(inode, DirInode):
                raise failure(errno.EPERM, source)
            self._change(NameChange(inode, placed=self._vacant(target)))

    def symlink(self, source: str, target: str) -> None:
        """Create `target` as a symbolic link to `source`."""
        with self._disk.guard:
            slot = self._vacant(target)
            self._change(NameChange(LinkInode(*self._identity(), source), placed=slot))

    def remove(self, path: str) -> None:
        """Remove the name of a file or a symbolic link."""
        with self._disk.guard:
            slot, inode = self._movable(path)
            if isinstance(inode, DirInode):
                raise failure(errno.EISDIR, path)
            self._change(NameChange(inode, gone=slot))

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        with self._disk.guard:
            slot, inode = self._movable(path)
            if not isinstance(inode, DirInode):
                raise failure(errno.ENOTDIR, path)
            if inode.names:
                raise failure(errno.ENOTEMPTY, path)
            self._change(NameChange(inode, gone=slot))

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        with self._disk.guard:
            return sorted(self._directory(path).names)

    def stat(self, path: str) -> FileStat:
        """Size and identity, of a symbolic link its own."""
        with self._disk.guard:
            _, inode = self._existing(path)
            size = 0
            if isinstance(inode, FileInode):
                size = len(inode.content)
            elif isinstance(inode, LinkInode):
                size = len(inode.target.encode())
            return FileStat(
                size=size,
                inode=inode.number,
                links=inode.links,
                device=DEVICE,
                mtime_ms=inode.mtime_ms,
                is_file=isinstance(inode, FileInode),
                is_dir=isinstance(inode, DirInode),
                is_symlink=isinstance(inode, LinkInode),
            )

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        with self._disk.guard:
            try:
                return self._tree.find(path, follow=False).inode is not None
            except (FileNotFoundError, NotADirectoryError):
                return False

    def free_bytes(self, path: str) -> int:
        """Free bytes of the disk."""
        del path  # one disk holds all paths
        with self._disk.guard:
            return self._disk.free_bytes()

    def copy_range(self, source: File, offset: int, target: File, length: int) -> None:
        """Append `length` bytes of `source` at `offset` to `target`; EINVAL if it has fewer."""
        data = source.pread(length, offset)
        target.write(data)
        if len(data) < length:
            raise failure(errno.EINVAL, source.path)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        with self._disk.guard:
            self._tree.sync(self._directory(path))

    def lock(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` and write `owner` into it; `None` if it is locked."""
        with self._disk.guard:
            if self.exists(path) and self.stat(path).is_symlink:
                raise failure(errno.ELOOP, path)
        with self._disk.guard, self.open_append(path) as file:
            number = self.file(path).number
            if number in self._disk.locked:
                return None
            file.truncate(0)
            file.write(owner.encode())
            self._disk.locked.add(number)
            return _MemoryLock(self._disk, number)

    def lock_directory(self, path: str, owner: str) -> FileLock | None:
        """Lock the file `path` and its directory; `None` if one of them is locked."""
        with self._disk.guard:
            directory = self._directory(path.rpartition("/")[0]).number
            if directory in self._disk.locked or self.lock(path, owner) is None:
                return None
            self._disk.locked.add(directory)
            return _MemoryLock(self._disk, directory, self.file(path).number)

    def lock_holder(self, path: str) -> str:
        """The pid of this process, which is the only one."""
        return f"pid {os.getpid()}" if self._directory(path).number in self._disk.locked else ""

    def _identity(self) -> tuple[int, int]:
        """The number and the time of a new inode."""
        self._newest += 1
        return self._newest, self._disk.clock.now_ms()

    def _change(self, change: NameChange) -> None:
        self._disk.forget(self._tree.change(change))
        for slot in (change.gone, change.placed):
            if slot:
                slot.directory.mtime_ms = self._disk.clock.now_ms()

    def _existing(self, path: str) -> tuple[Slot, Inode]:
        slot = self._tree.find(path, follow=False)
        if slot.inode is None:
            raise failure(errno.ENOENT, path)
        return slot, slot.inode

    def _movable(self, path: str) -> tuple[Slot, Inode]:
        slot, inode = self._existing(path)
        if not slot.name:
            raise failure(errno.EBUSY, path)
        return slot, inode

    def _vacant(self, path: str) -> Slot:
        slot = self._tree.find(path, follow=False)
        if slot.inode is not None:
            raise failure(errno.EEXIST, path)
        return slot

    def file(self, path: str) -> FileInode:
        """The file of that name, with its content and what of it is durable."""
        inode = self._tree.find(path, follow=True).inode
        if not isinstance(inode, FileInode):
            raise failure(errno.EISDIR if inode else errno.ENOENT, path)
        return inode

    def _directory(self, path: str) -> DirInode:
        inode = self._tree.find(path, follow=True).inode
        if not isinstance(inode, DirInode):
            raise failure(errno.ENOTDIR if inode else errno.ENOENT, path)
        return inode
