"""Copy the live entries of a group of segments into one new segment.

This is the function that does the work, in the process that runs a compaction and in a Spark task
alike. It is given file names and knows no log that is open, so it can run anywhere the files are.

1. For each source, take what is live: all its positions but its dead set.
2. Of its 64 KiB blocks read those that hold a live position; gaps of up to 256 KiB are read over,
   so that reads are few and large.
3. Hop from frame to frame through what was read; check the CRC of each live one and copy it as it
   is, neighbours in one piece.
4. Count: exactly the live entries must have come, else a damaged dead frame has led the hop astray
   or the set names what is not there; the source is then read through to say where.
5. Seal the target: block index, footer, fsync.

Invariants: sources are never written to; nothing but checked frames reaches the target; the target
is durable when this returns, and nothing refers to it yet. Run twice, it writes two files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lithify.errors import DamagedFrame, PlanStale
from lithify.liveset import LiveSet
from lithify.log import kernels
from lithify.log.manifest import SegmentRef
from lithify.log.reader import OpenSegment, read_dead_set
from lithify.log.scan import PIECE_BYTES, Pieces, describe, scan_frames, stamps_of
from lithify.log.segment import SEGMENT_HEADER_BYTES, SegmentWriter, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from lithify.fs import FileSystem

    _Array = NDArray[np.int64]
    _Step = tuple[int, int, int]
    """Where a kernel stopped: offset, last position, status."""

__all__ = ["RewriteTask", "live_of", "measure_live", "rewrite"]

GAP_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """One group, as names and numbers only: it can be sent to another process."""

    directory: str
    sources: tuple[SegmentRef, ...]
    """In position order, each with the dead set that was judged for it."""
    target: str
    """The new file's name; unique to this attempt."""
    created_ms: int


def live_of(fs: FileSystem, directory: str, segment: SegmentRef) -> LiveSet:
    """The positions of a segment that its dead set does not name.

    Positions at which the segment has no entry are among them; that does no harm.
    """
    everything = LiveSet.from_range(segment.first_position, segment.last_position + 1)
    if segment.dead is None:
        return everything
    return everything - read_dead_set(fs, directory, segment.dead)


def rewrite(
    fs: FileSystem,
    task: RewriteTask,
    before_read: Callable[[int], None] = lambda _: None,
    before_write: Callable[[int], None] = lambda _: None,
) -> SegmentRef:
    """Carry out a task; the target as a manifest would name it.

    `before_read` and `before_write` are called with the number of bytes and may wait or raise.
    """
    first = task.sources[0]
    path = f"{task.directory}/{task.target}"
    with fs.open_read(f"{task.directory}/{first.name}") as file:
        header = replace(read_header(file), created_ms=task.created_ms)
    writer = SegmentWriter.create(fs, path, header, exclusive=True)
    with writer.file:
        for source in task.sources:
            live = live_of(fs, task.directory, source)
            _copy(fs, task.directory, source, live, writer, before_read, before_write)
        footer = writer.seal()
    return SegmentRef(
        id=first.id,
        name=task.target,
        first_position=first.first_position,
        last_position=footer.last_position,
        entries=footer.entries,
        frame_bytes=footer.frame_bytes,
        file_bytes=footer.file_bytes,
        time_min=footer.time_min,
        time_max=footer.time_max,
        sealed=True,
    )


def _copy(
    fs: FileSystem,
    directory: str,
    source: SegmentRef,
    live: LiveSet,
    writer: SegmentWriter,
    before_read: Callable[[int], None],
    before_write: Callable[[int], None],
) -> None:
    out: NDArray[np.uint8] = np.empty(PIECE_BYTES, dtype=np.uint8)
    before = writer.entries

    def gather(pieces: Pieces, held: int, after: int, starts: _Array, stops: _Array) -> _Step:
        nonlocal out
        if len(out) < held:
            out = np.empty(len(pieces.buffer), dtype=np.uint8)
        offsets, positions = pieces.offsets, pieces.positions
        count, filled, end, after, status = kernels.gather(
            pieces.buffer, 0, held, after, starts, stops, out, offsets, positions
        )
        if count:
            before_write(filled)
            times = stamps_of(out, offsets[:count]) >> 16
            writer.append_many(out.data[:filled], positions[:count], offsets[:count], times)
        return end, after, status

    segment = OpenSegment(fs, directory, source)
    with segment.file:
        _walk(segment, source, live, before_read, gather)
        copied = writer.entries - before
        expected = source.entries - (source.dead.entries if source.dead is not None else 0)
        if copied != expected:
            _read_through(segment, source)
            path = segment.file.path
            raise PlanStale(f"{path} has {copied} live entries, {expected} were planned")


def measure_live(
    fs: FileSystem,
    directory: str,
    source: SegmentRef,
    live: LiveSet,
    before_read: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """(entries, bytes of their frames) of a segment whose positions are in `live`.

    Only headers are looked at, and only in blocks that hold a live position.
    """
    entries, total = 0, 0

    def count(pieces: Pieces, held: int, after: int, starts: _Array, stops: _Array) -> _Step:
        nonlocal entries, total
        found, size, end, after, status = kernels.measure(
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
    step: Callable[[Pieces, int, int, _Array, _Array], _Step],
) -> None:
    """Read the parts of a segment that hold live positions and hand them to a kernel."""
    starts, stops = live.range_arrays()
    for start, stop, position in _spans(segment, starts, stops):
        pieces = Pieces(segment.file, start, stop, before_read)
        after = position - 1
        while True:
            held = pieces.fill()
            row = int(np.searchsorted(stops, after, side="right"))
            end, after, status = step(pieces, held, after, starts[row:], stops[row:])
            cut_off = status == kernels.NEED_MORE and pieces.base + held >= stop
            if cut_off or status not in (kernels.END, kernels.NEED_MORE):
                _read_through(segment, source)
                raise DamagedFrame(segment.file.path, pieces.base + end, describe(status), after)
            if not pieces.advance(end):
                break


def _read_through(segment: OpenSegment, source: SegmentRef) -> None:
    """Raise at the first damaged frame, dead or live."""
    first = source.first_position - 1
    for _ in scan_frames(segment.file, SEGMENT_HEADER_BYTES, segment.frames_end, first):
        pass


def _spans(segment: OpenSegment, starts: _Array, stops: _Array) -> Iterator[tuple[int, int, int]]:
    """(start, stop, first position) of the byte ranges that hold live positions."""
    positions, offsets = segment.blocks.arrays()
    if not len(positions):
        return
    ends = np.append(offsets[1:], segment.frames_end)
    # A block holds the positions from its row's up to the next row's. It is wanted if the first
    # range that ends behind its beginning begins before its end.
    following = np.append(positions[1:], 2**63 - 1)
    first = np.searchsorted(stops, positions, side="right")
    inside = first < len(starts)
    wanted = np.zeros(len(positions), dtype=bool)
    wanted[inside] = starts[first[inside]] < following[inside]
    blocks = np.flatnonzero(wanted)
    gaps = offsets[blocks[1:]] - ends[blocks[:-1]]
    for run in np.split(blocks, np.flatnonzero(gaps > GAP_BYTES_MAX) + 1):
        if len(run):
            yield int(offsets[run[0]]), int(ends[run[-1]]), int(positions[run[0]])
