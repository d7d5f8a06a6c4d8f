"""A file of the machine that is written past the page cache (O_DIRECT).

Linux keeps what is written in memory: it has to find that memory, and what was there goes. For a
large file that is written once and not read soon this is work for nothing, and takes from readers
what they use. So:

1. What is written is collected in `STAGE_BYTES` of memory, the stage.
2. When it is full a thread writes it to the disk, while another one is filled.
3. Whatever else is asked of the file than to grow, be it an fsync, first waits for the thread, has
   the rest written in the usual way, and makes it a file like others from then on. So does a disk
   that takes less than all of a stage, or nothing because its sectors are larger.

Invariants: bytes that have landed, the stage that is being written, and those that are held follow
each other without a gap. An error of the thread is raised by the next call that needs it; what was
held is forgotten then, so that `close` does not stumble over it.

Opened by `local.py`; what the methods do, `base.py` says.
"""
# ruff: noqa: D102

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lithify.fs.local_file import LocalFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from lithify.checksum import Buffer

__all__ = ["UncachedFile"]

STAGE_BYTES = 4 << 20
"""A multiple of what any disk has for a sector."""


class UncachedFile(LocalFile):
    """See the module."""

    __slots__ = ("_held", "_left", "_pool", "_spare", "_stage", "_writing")

    def __init__(self, path: str, fd: int) -> None:
        super().__init__(path, fd, appends=True)
        # Pages begin where the disk can take them from.
        self._stage: memoryview | None = memoryview(mmap.mmap(-1, STAGE_BYTES))
        self._spare = memoryview(mmap.mmap(-1, STAGE_BYTES))
        self._held = 0
        """Bytes in the stage."""
        self._writing: Future[int] | None = None
        """What becomes of the spare one, which was the stage before."""
        self._left = self._spare[:0]
        """Of it, what the disk has not taken."""
        self._pool = ThreadPoolExecutor(1, "lithify-uncached")
        if self._end:
            self._settle()

    def size(self) -> int:
        return self._end + self._held + (STAGE_BYTES if self._writing is not None else 0)

    def write(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while rest and self._stage is not None:
            count = min(len(rest), STAGE_BYTES - self._held)
            self._stage[self._held : self._held + count] = rest[:count]
            self._held += count
            rest = rest[count:]
            if self._held == STAGE_BYTES:
                self._put(self._stage)
        if rest:
            super().write(rest)

    def writev(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self.write(buffer)

    def _put(self, stage: memoryview) -> None:
        """Have the stage written while the other one is filled."""
        self._land()
        if self._left:
            self._settle()
            return
        self._writing = self._pool.submit(_write_direct, self._fd, stage, self._end)
        self._stage, self._spare, self._held = self._spare, stage, 0

    def _land(self) -> None:
        """Wait until what is under way has landed, or some of it."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        try:
            written = writing.result()
        except OSError:
            self._held = 0
            raise
        self._end += written
        self._left = self._spare[written:]

    def _settle(self) -> None:
        """Be a file like others from now on."""
        if self._stage is None:
            return
        try:
            self._land()
        finally:
            self._pool.shutdown(wait=False)
            rest, self._stage, self._held = self._stage[: self._held], None, 0
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        super().write(self._left)
        super().write(rest)

    def pread(self, length: int, offset: int) -> bytes:
        self._settle()
        return super().pread(length, offset)

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        self._settle()
        return super().readinto(buffer, offset)

    def overwrite(self, data: Buffer, offset: int) -> None:
        self._settle()
        super().overwrite(data, offset)

    def truncate(self, size: int) -> None:
        if size or self.size():
            self._settle()
        super().truncate(size)

    def fsync(self) -> None:
        self._settle()
        super().fsync()

    def fdatasync(self) -> None:
        self._settle()
        super().fdatasync()

    def begin_sync(self) -> None:
        if self._stage is None:
            super().begin_sync()

    def close(self) -> None:
        try:
            self._settle()
        finally:
            super().close()

    def copy_from(self, source: LocalFile, offset: int, length: int) -> int:
        self._settle()
        return super().copy_from(source, offset, length)


def _write_direct(fd: int, stage: memoryview, offset: int) -> int:
    try:
        return os.pwrite(fd, stage, offset)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return 0  # There are disks with larger sectors.
        raise
