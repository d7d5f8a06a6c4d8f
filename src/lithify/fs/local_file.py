"""A file of the machine: POSIX calls, nothing buffered in Python.

1. It is opened without O_APPEND and its end is asked for once. From then on the `File` keeps the
   end itself, so that one append is one system call and `truncate` can move the end.
2. `write` is one `pwrite` at the end, `writev` one `pwritev` for each 1024 buffers; of more than
   `WRITE_BYTES_MAX` they make several. The end moves by what the kernel took. Where it took less
   than asked, the rest follows in further calls.
3. An error leaves the end behind the bytes that landed; the caller truncates.

Invariants: a closed `File` never uses its descriptor number again, which by then may belong to
another file. Two append handles on one file overwrite each other; the layers above hold a `lock`.
A `memoryview` handed to `write` is one of bytes: its length counts bytes.

Opened by `local.py`; what the methods do, `base.py` says.
"""
# ruff: noqa: D102

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.checksum import Buffer

__all__ = ["CLOSED_FD", "LocalFile"]

IOV_MAX = 1024
"""Buffers one `pwritev` may take; Linux's limit."""

WRITE_BYTES_MAX = 2 << 20
"""Of one call. For a larger one Linux takes pages of several megabytes at once, which are seldom at
hand: in a virtual machine a write of 4 MiB took up to four times as long as two of 2 MiB."""

CLOSED_FD = (1 << 31) - 1
"""A descriptor no process can have, so that every call with it gets EBADF; -1 makes Python raise
`ValueError` for some calls."""

_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
"""Linux's; where there is none, `begin_sync` does nothing, and an error in it means nothing."""
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

_COPY_UNSUPPORTED = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def _parts(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The buffers in parts that one call takes; one that is larger is a part of its own."""
    part: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if part and size + len(buffer) > WRITE_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(buffer)
        size += len(buffer)
    yield part


class LocalFile:
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

    def write(self, data: Buffer) -> None:
        if len(data) > WRITE_BYTES_MAX:
            self._write_on(data, 0)
            return
        written = os.pwrite(self._fd, data, self._end)
        self._end += written
        if written != len(data):
            self._write_on(data, written)

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
            # Rare (a signal, a disk about to be full), so joining costs nothing that matters.
            self._write_on(b"".join(buffers), written)

    def _write_on(self, data: Buffer, written: int) -> None:
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
            # All of the file: what is on disk already, or on its way, costs next to nothing.
            _sync_file_range(self._fd, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def close(self) -> None:
        fd, self._fd = self._fd, CLOSED_FD
        if fd != CLOSED_FD:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def copy_from(self, source: LocalFile, offset: int, length: int) -> int:
        """Append in the kernel; the bytes it did, which is less where it cannot or will not."""
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
