"""Copies the live frames of a segment, unchanged, to the end of another one.

1. Only the 64 KiB blocks of the source that hold a live position are read; gaps of up to 256 KiB
   are read too, so that reads are few and large.
2. A kernel steps from frame to frame through each piece and checks the CRC of each live one. Live
   frames are collected, adjacent ones together, until there is enough for a large write.
3. The frames are counted: if the number differs from the live entries, a damaged dead frame has
   made the kernel lose the frame boundaries, or the set names missing positions. The source is then
   read in full to locate the damage.

Pieces and collected frames use the memory of a `CopyBuffers`, which is reused for each source.

Invariants: a source is never written to, and only checked frames reach the target. Nothing is
durable on return. Called by the writer of the target, in one thread at a time per `CopyBuffers`
and per target.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import DamagedFrame
from lithify.log.open_segments import OpenSegment
from lithify.log.segments import frame_kernels
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.scan import PIECE_BYTES, Frames, ScanWindow, Window, describe, scan_frames
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from lithify.compaction.limits.budget import Allowance
    from lithify.fs import FileSystem
    from lithify.live_set import LiveSet
    from lithify.log.manifest import SegmentRef
    from lithify.log.segments.segment_file import SegmentWriter

    _Array = NDArray[np.int64]
    _Step = tuple[int, int, int]
    """Where a kernel stopped: offset, last position, status."""

__all__ = ["CopyBuffers", "concatenated", "copy_live", "measure_live"]

GAP_BYTES_MAX = 256 * 1024
BEHIND_BYTES = 8 * 2**20
GATHERED_BYTES = 4 * PIECE_BYTES
"""Size of a write, unless the source ends."""


class CopyBuffers:
    """Buffers of one copying thread, reused for each source.

    New memory costs a page fault per 4 KiB, which can take longer than the copy.
    """

    __slots__ = ("offsets", "out", "positions", "times", "window")

    def __init__(self) -> None:
        self.window = Window()
        self.allocate(GATHERED_BYTES)

    def allocate(self, size: int) -> None:
        """Make room for `size` bytes of frames; earlier contents are lost."""
        self.out: NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        self.offsets: _Array = np.empty(size // HEADER_BYTES + 1, dtype=np.int64)
        self.positions: _Array = np.empty_like(self.offsets)
        self.times: _Array = np.empty_like(self.offsets)


def copy_live(
    fs: FileSystem,
    directory: str,
    source: SegmentRef,
    live: LiveSet,
    expected: int,
    writer: SegmentWriter,
    allowance: Allowance,
    edit: Callable[[Frames], Frames] | None = None,
    room: CopyBuffers | None = None,
) -> tuple[_Array, _Array]:
    """Append the entries of a segment that are in `live` to a target, checked.

    Returns their positions, and their offsets in the target. If the number differs from the
    expected one, the whole segment was read and no frame is damaged: the caller interprets that.
    `edit` transforms the frames before they are written; for many segments, share one `room`.
    """
    room = room or CopyBuffers()
    collected = _Collected(writer, allowance, edit, room)
    segment = OpenSegment(fs, directory, source)
    with segment.file:
        _walk(segment, source, live, allowance.read, collected.gather, room.window)
        collected.write()
        positions = concatenated(collected.positions)
        if len(positions) != expected:
            _read_through(segment, source)
    return positions, concatenated(collected.offsets)


class _Collected:
    """Collects live frames of one source and writes them to the target in large pieces.

    After every `BEHIND_BYTES` the operating system is asked to start writeback, so that the disk
    works while the next frames are collected, and the fsync at the end has little left to do.
    """

    __slots__ = (
        "_allowance",
        "_bytes",
        "_count",
        "_edit",
        "_room",
        "_writer",
        "offsets",
        "positions",
    )

    def __init__(
        self,
        writer: SegmentWriter,
        allowance: Allowance,
        edit: Callable[[Frames], Frames] | None,
        room: CopyBuffers,
    ) -> None:
        self.positions: list[_Array] = []
        self.offsets: list[_Array] = []
        """Positions and offsets of the frames written to the target."""
        self._writer = writer
        self._allowance = allowance
        self._edit = edit
        self._room = room
        self._count = self._bytes = 0

    def gather(
        self, pieces: ScanWindow, held: int, after: int, starts: _Array, stops: _Array
    ) -> _Step:
        """Collect the live frames of a piece."""
        buffer, offsets, positions = pieces.buffer, pieces.offsets, pieces.positions
        count, end, after, status = frame_kernels.choose(
            buffer, 0, held, after, starts, stops, offsets, positions
        )
        if count:
            frames = Frames(buffer[:held], offsets[:count], positions[:count], pieces.base)
            self._take(frames if self._edit is None else self._edit(frames))
        return end, after, status

    def _take(self, frames: Frames) -> None:
        room, size = self._room, len(frames.buffer)
        if size > len(room.out) - self._bytes:
            self.write()
            if size > len(room.out):
                room.allocate(size)
        first, stop = self._count, self._count + len(frames)
        self._bytes = frame_kernels.collect(
            frames.buffer,
            frames.offsets,
            room.out,
            self._bytes,
            room.offsets[first:],
            room.times[first:],
        )
        room.positions[first:stop] = frames.positions
        self._count = stop

    def write(self) -> None:
        """Append the collected frames to the target."""
        count, writer, room = self._count, self._writer, self._room
        if not count:
            return
        before = writer.end
        self._allowance.write(self._bytes)
        data = room.out.data[: self._bytes]
        positions, offsets = room.positions[:count].copy(), room.offsets[:count]
        writer.append_many(data, positions, offsets, room.times[:count])
        self.positions.append(positions)
        self.offsets.append(offsets + before)
        if before // BEHIND_BYTES != writer.end // BEHIND_BYTES:
            writer.file.begin_sync()
        self._count = self._bytes = 0


def measure_live(
    fs: FileSystem,
    directory: str,
    source: SegmentRef,
    live: LiveSet,
    before_read: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """(entries, bytes of their frames) of a segment whose positions are in `live`.

    Reads headers only, and only in blocks that hold a live position.
    """
    entries, total = 0, 0

    def count(pieces: ScanWindow, held: int, after: int, starts: _Array, stops: _Array) -> _Step:
        nonlocal entries, total
        found, size, end, after, status = frame_kernels.measure(
            pieces.buffer, 0, held, after, starts, stops
        )
        entries += found
        total += size
        return end, after, status

    segment = OpenSegment(fs, directory, source)
    with segment.file:
        _walk(segment, source, live, before_read, count)
    return entries, total


def _walk(
    segment: OpenSegment,
    source: SegmentRef,
    live: LiveSet,
    before_read: Callable[[int], None],
    step: Callable[[ScanWindow, int, int, _Array, _Array], _Step],
    window: Window | None = None,
) -> None:
    """Read the parts of a segment that hold live positions and pass them to a kernel."""
    starts, stops = live.range_arrays()
    for start, stop, position in _spans(segment, starts, stops):
        pieces = ScanWindow(segment.file, start, stop, before_read, window)
        after = position - 1
        while True:
            held = pieces.fill()
            row = int(stops.searchsorted(after, side="right"))
            end, after, status = step(pieces, held, after, starts[row:], stops[row:])
            cut_off = status == frame_kernels.NEED_MORE and pieces.base + held >= stop
            if cut_off or status not in (frame_kernels.END, frame_kernels.NEED_MORE):
                _read_through(segment, source)
                raise DamagedFrame(segment.file.path, pieces.base + end, describe(status), after)
            if not pieces.advance(end):
                break


def _read_through(segment: OpenSegment, source: SegmentRef) -> None:
    """Read the whole segment; raises at the first damaged frame, dead or live."""
    first = source.first_position - 1
    for _ in scan_frames(segment.file, SEGMENT_HEADER_BYTES, segment.frames_end, first):
        pass


def _spans(segment: OpenSegment, starts: _Array, stops: _Array) -> Iterator[tuple[int, int, int]]:
    """(start, stop, first position) of the byte ranges that hold live positions."""
    positions, offsets = segment.blocks.arrays()
    if not len(positions):
        return
    ends = np.append(offsets[1:], segment.frames_end)
    # A block holds the positions from its row's up to the next row's. It is selected if the first
    # range that ends behind its beginning begins before its end.
    following = np.append(positions[1:], 2**63 - 1)
    ranges = stops.searchsorted(positions, side="right")
    inside = ranges < len(starts)
    wanted = np.zeros(len(positions), dtype=bool)
    wanted[inside] = starts[ranges[inside]] < following[inside]
    blocks = np.flatnonzero(wanted)
    if not len(blocks):
        return
    gaps = offsets[blocks[1:]] - ends[blocks[:-1]]
    cuts = np.flatnonzero(gaps > GAP_BYTES_MAX) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(blocks)]):
        first, last = blocks[low], blocks[high - 1]
        yield int(offsets[first]), int(ends[last]), int(positions[first])


def concatenated(arrays: Sequence[_Array]) -> _Array:
    """Concatenate arrays, of which there may be none."""
    return np.concatenate([np.empty(0, np.int64), *arrays])
