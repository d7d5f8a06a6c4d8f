"""Reading frames out of a segment file in large pieces, every CRC checked.

Files are read with `readinto` in pieces of 1 MiB, not mapped: an I/O error is then an exception
with file and offset instead of a signal that kills the process, and a piece is still in the CPU's
cache when its CRCs are computed. A frame that straddles two pieces is moved to the front of the
buffer; a frame larger than the buffer makes it grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lithify.errors import DamagedFrame, ReadFailed
from lithify.log.segments import frame_kernels
from lithify.log.segments.frame import HEADER_BYTES, LogEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from lithify.log.dead_set.dead_set import Parts

__all__ = [
    "PIECE_BYTES",
    "Frames",
    "ReadableFile",
    "ScanWindow",
    "Window",
    "describe",
    "scan_frames",
    "stamps_of",
]

PIECE_BYTES = 2**20

_WHAT = {
    frame_kernels.NEED_MORE: "frame reaches past the end",
    frame_kernels.BAD_LENGTH: "frame length is impossible",
    frame_kernels.BAD_CRC: "CRC-32C does not match",
    frame_kernels.BAD_ORDER: "position does not ascend",
}


def describe(status: int) -> str:
    """The error text for a kernel's status."""
    return _WHAT[status]


def stamps_of(buffer: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The `stamp` fields (time << 16 | flags) of the frames at these offsets."""
    return _field(buffer, offsets, 16, 8).view("<i8").reshape(-1)


def _field(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], at: int, size: int
) -> NDArray[np.uint8]:
    field: NDArray[np.uint8] = buffer[offsets[:, None] + np.arange(at, at + size)]
    return field


@dataclass(frozen=True, slots=True)
class Frames:
    """Consecutive frames of a segment in one buffer.

    Valid until the next step of the iterator that returned them: the buffer is reused.
    """

    buffer: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """Offset of each frame in the buffer."""
    positions: NDArray[np.int64]
    base: int
    """The file offset of the buffer's first byte."""
    parts: Parts | None = None
    """The partly live ones among them, if any."""

    def __len__(self) -> int:
        return len(self.offsets)

    def lengths(self) -> NDArray[np.int64]:
        """Length of each body."""
        return _field(self.buffer, self.offsets, 4, 4).view("<u4").reshape(-1).astype(np.int64)

    def times(self) -> NDArray[np.int64]:
        """Milliseconds since 1970."""
        return stamps_of(self.buffer, self.offsets) >> 16

    def flags(self) -> NDArray[np.int64]:
        """Flags of the log and of the store."""
        return stamps_of(self.buffer, self.offsets) & 0xFFFF

    def tags(self) -> NDArray[np.uint32]:
        """Tags, as defined by the store."""
        return _field(self.buffer, self.offsets, 24, 4).view("<u4").reshape(-1)

    def select(self, keep: NDArray[np.bool_] | slice) -> Frames:
        """A subset of the frames."""
        return Frames(self.buffer, self.offsets[keep], self.positions[keep], self.base, self.parts)

    def entries(self) -> Iterator[LogEntry]:
        """Each frame as an independent value, which stays valid."""
        memory = self.buffer.data
        lengths = self.lengths().tolist()
        stamps = stamps_of(self.buffer, self.offsets).tolist()
        tags = self.tags().tolist()
        lives = repeat(None, len(self)) if self.parts is None else self.parts.masks(self.positions)
        rows = zip(
            self.offsets.tolist(),
            self.positions.tolist(),
            lengths,
            stamps,
            tags,
            lives,
            strict=True,
        )
        for offset, position, length, stamp, tag, live in rows:
            begin = offset + HEADER_BYTES
            body = bytes(memory[begin : begin + length])
            yield LogEntry(position, stamp >> 16, body, stamp & 0xFFFF, tag, live)


class ReadableFile(Protocol):
    """What a scan needs of a file."""

    @property
    def path(self) -> str:
        """The path it was opened by."""

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; returns the length, shorter only at the end of the file."""


class Window:
    """Reusable memory for a piece and its frames; reuse avoids page faults."""

    __slots__ = ("buffer", "offsets", "positions")

    def __init__(self) -> None:
        self.allocate(0)

    def allocate(self, size: int) -> None:
        """Allocate this size; earlier contents are lost."""
        self.buffer: NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        self.offsets: NDArray[np.int64] = np.empty(size // HEADER_BYTES + 1, dtype=np.int64)
        self.positions: NDArray[np.int64] = np.empty_like(self.offsets)


class ScanWindow:
    """A window that moves over `file[start:stop]`; a frame cut by its end is kept for the next."""

    __slots__ = ("_before_read", "_file", "_held", "_stop", "_window", "base")

    def __init__(
        self,
        file: ReadableFile,
        start: int,
        stop: int,
        before_read: Callable[[int], None] = lambda _: None,
        window: Window | None = None,
    ) -> None:
        self._file = file
        self._before_read = before_read
        self._stop = stop
        self._held = 0
        self._window = window or Window()
        self.base = start
        size = max(HEADER_BYTES, min(PIECE_BYTES, stop - start))
        # A window that grew for a large frame is dropped, so that reads stay small.
        if not size <= len(self.buffer) <= PIECE_BYTES:
            self._window.allocate(size)

    @property
    def buffer(self) -> NDArray[np.uint8]:
        """The bytes of the window; the first `fill()` of them are valid."""
        return self._window.buffer

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Output array for the offset of each frame in the window."""
        return self._window.offsets

    @property
    def positions(self) -> NDArray[np.int64]:
        """Output array for their positions."""
        return self._window.positions

    def fill(self) -> int:
        """Read more; returns the number of bytes now in the window."""
        want = min(len(self.buffer) - self._held, self._stop - self.base - self._held)
        view = self.buffer.data[self._held : self._held + want]
        if want:
            self._before_read(want)
        at = self.base + self._held
        try:
            got = self._file.readinto(view, at) if want else 0
        except OSError as error:
            raise ReadFailed(self._file.path, at, error) from error
        if got < want:
            raise DamagedFrame(self._file.path, at + got, f"file ends {want - got} bytes too early")
        self._held += got
        return self._held

    def advance(self, consumed: int) -> bool:
        """Drop the first `consumed` bytes; False when everything was read and consumed."""
        left = self._held - consumed
        self.base += consumed
        at_end = self.base + left >= self._stop
        if consumed == 0 and not at_end and left == len(self.buffer):
            old = self.buffer
            need = HEADER_BYTES + int.from_bytes(old[4:8].tobytes(), "little")
            self._window.allocate(max(2 * len(old), need))
            self.buffer[:left] = old[:left]
        elif left and consumed:
            self.buffer[:left] = self.buffer[consumed : self._held]
        self._held = left
        return not (at_end and (left == 0 or consumed == 0))


def scan_frames(
    file: ReadableFile,
    start: int,
    stop: int,
    after: int,
    before_read: Callable[[int], None] = lambda _: None,
) -> Iterator[Frames]:
    """All frames of `file[start:stop]`, in pieces.

    `start` must be the beginning of a frame and `stop` the end of one. Positions must ascend from
    above `after`. A bad frame raises `DamagedFrame` after all good frames before it were returned.
    `before_read` is called with the number of bytes and may wait or raise.
    """
    if start >= stop:
        return
    pieces = ScanWindow(file, start, stop, before_read)
    while True:
        held = pieces.fill()
        count, end, status = frame_kernels.scan(
            pieces.buffer, 0, held, after, pieces.offsets, pieces.positions
        )
        if count:
            frames = Frames(
                pieces.buffer, pieces.offsets[:count], pieces.positions[:count], pieces.base
            )
            after = int(frames.positions[-1])
            yield frames
        if status not in (frame_kernels.END, frame_kernels.NEED_MORE) or (
            status == frame_kernels.NEED_MORE and pieces.base + held >= stop
        ):
            raise DamagedFrame(
                file.path, pieces.base + end, describe(status), None if after < 0 else after
            )
        if not pieces.advance(end):
            return
