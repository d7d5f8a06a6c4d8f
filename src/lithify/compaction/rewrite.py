"""Copy the live entries of a group of segments into one new segment.

This is the function that does the work, in the process that runs a compaction and in a Spark task
alike. It is given file names and knows no log that is open, so it can run anywhere the files are.

1. For each source, take what is live: all its positions but its dead set.
2. Of its 64 KiB blocks read those that hold a live position; gaps of up to 256 KiB are read over,
   so that reads are few and large.
3. Hop from frame to frame through what was read; check the CRC of each live one and collect it as
   it is, neighbours in one piece, until there is enough for a large write. Frames that are only
   partly live are made smaller by the store's `Rewriting`: their positions stay, dead slots go,
   CRCs are new.
4. Count: exactly the live entries must have come, else a damaged dead frame has led the hop astray
   or the set names what is not there; the source is then read through to say where.
5. Seal the target: block index, footer, fsync. Then the store makes the side files it wants.

Invariants: sources are never written to; nothing but checked frames reaches the target; the target
is durable when this returns, and nothing refers to it yet. Run twice, it writes two files.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lithify.clock import SystemClock
from lithify.compaction.budget import Allowance, Budget
from lithify.errors import DamagedFrame, InvalidInput, PlanStale
from lithify.liveset import LiveSet
from lithify.log import kernels
from lithify.log.deadset import DeadSet, Parts
from lithify.log.frame import HEADER_BYTES
from lithify.log.manifest import SegmentRef
from lithify.log.names import parse_name, segment_name
from lithify.log.reader import OpenSegment, read_dead_set
from lithify.log.scan import PIECE_BYTES, Frames, Pieces, describe, scan_frames
from lithify.log.segment import SEGMENT_HEADER_BYTES, SegmentWriter, read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from lithify.clock import Clock
    from lithify.compaction.jobs import Check
    from lithify.fs import FileSystem
    from lithify.log.segment import SegmentHeader

    _Array = NDArray[np.int64]
    _Step = tuple[int, int, int]
    """Where a kernel stopped: offset, last position, status."""

__all__ = [
    "Copied",
    "RewriteTask",
    "Rewriting",
    "copy_live",
    "live_of",
    "measure_live",
    "rewrite",
    "run_rewrite",
]

GAP_BYTES_MAX = 256 * 1024
BEHIND_BYTES = 8 * 2**20


class Rewriting(Protocol):
    """What a store does to its entries on the way; a picklable value."""

    def edit(self, frames: Frames, parts: Parts) -> Frames:
        """The frames as they are to stand in the target: all of them, at the same positions.

        Those that `parts` names are made smaller, the others copied. They stand side by side from
        the first byte of the buffer on, each with its CRC. Called only where parts are.
        """

    def finish(
        self,
        fs: FileSystem,
        directory: str,
        sources: Sequence[SegmentRef],
        target: SegmentRef,
        copied: Copied,
        allowance: Allowance,
    ) -> None:
        """Make the side files of a target that is durable, within the task's allowance."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What is known of a target's frames: to find it out again is to read the target."""

    positions: _Array
    """Of all frames, ascending."""
    offsets: _Array
    """Where each of them is in the target's file."""
    edited_bytes: _Array
    """The sizes of those that were partly live, as they are now, by ascending position."""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """One group, as a value that can be sent to another process."""

    fs: FileSystem
    directory: str
    sources: tuple[SegmentRef, ...]
    """In position order, each with the dead set that was judged for it."""
    target: str
    """The new file's name, unless an earlier attempt at this task has made it."""
    created_ms: int
    budget: Budget = field(default_factory=Budget)
    """This task's share."""
    rewriting: Rewriting | None = None
    """None where every entry is wholly live or dead, and there are no side files."""
    clock: Clock = field(default_factory=SystemClock)


def live_of(segment: SegmentRef, dead: DeadSet) -> LiveSet:
    """The positions of a segment that its dead set does not name.

    Positions at which the segment has no entry are among them; that does no harm.
    """
    return LiveSet.from_range(segment.first_position, segment.last_position + 1) - dead.entries


def run_rewrite(task: RewriteTask, check: Check) -> SegmentRef:
    """Carry out a task; the target as a manifest would name it."""
    return rewrite(task, Allowance(task.budget, task.clock, check))


def rewrite(task: RewriteTask, allowance: Allowance) -> SegmentRef:
    """The same with an allowance that is there already."""
    fs = task.fs
    first = task.sources[0]
    with fs.open_read(f"{task.directory}/{first.name}") as file:
        header = replace(read_header(file), created_ms=task.created_ms)
    name, writer = _create(task, header)
    with writer.file:
        copied = _join([_copy(task, source, writer, allowance) for source in task.sources])
        footer = writer.seal()
    target = SegmentRef(
        id=first.id,
        name=name,
        first_position=first.first_position,
        last_position=footer.last_position,
        entries=footer.entries,
        frame_bytes=footer.frame_bytes,
        file_bytes=footer.file_bytes,
        time_min=footer.time_min,
        time_max=footer.time_max,
        sealed=True,
    )
    if task.rewriting is not None:
        task.rewriting.finish(fs, task.directory, task.sources, target, copied, allowance)
    return target


def _create(task: RewriteTask, header: SegmentHeader) -> tuple[str, SegmentWriter]:
    """(name, writer) of the target; another name if an earlier attempt has left the task's."""
    name = task.target
    while True:
        try:
            path = f"{task.directory}/{name}"
            return name, SegmentWriter.create(task.fs, path, header, exclusive=True)
        except FileExistsError:
            parsed = parse_name(task.target)
            name = segment_name(parsed.segment_id, parsed.attempt + secrets.token_hex(3))


def _copy(
    task: RewriteTask, source: SegmentRef, writer: SegmentWriter, allowance: Allowance
) -> Copied:
    """Copy what is live of one source."""
    dead = DeadSet(LiveSet.empty())
    if source.dead is not None:
        dead = read_dead_set(task.fs, task.directory, source.dead)
    editing = _Editing(task, dead.parts)
    live, expected = live_of(source, dead), source.live_entries
    positions, offsets = copy_live(
        task.fs, task.directory, source, live, expected, writer, allowance, editing
    )
    if len(positions) != expected:
        path = f"{task.directory}/{source.name}"
        raise PlanStale(f"{path} has {len(positions)} live entries, {expected} were planned")
    return Copied(positions, offsets, _concatenated(editing.edited_bytes))


def _join(copied: Sequence[Copied]) -> Copied:
    return Copied(
        _concatenated([each.positions for each in copied]),
        _concatenated([each.offsets for each in copied]),
        _concatenated([each.edited_bytes for each in copied]),
    )


def _concatenated(arrays: Sequence[_Array]) -> _Array:
    return np.concatenate([np.empty(0, np.int64), *arrays])


def copy_live(
    fs: FileSystem,
    directory: str,
    source: SegmentRef,
    live: LiveSet,
    expected: int,
    writer: SegmentWriter,
    allowance: Allowance,
    edit: Callable[[Frames], Frames] | None = None,
) -> tuple[_Array, _Array]:
    """Append the entries of a segment that are in `live` to a target, checked.

    Returns their positions, and where they are in the target. If they are not as many as expected,
    the whole segment has been read and no frame is damaged: what that means is the caller's to say.
    `edit` gets the frames on their way.
    """
    collected = _Collected(writer, allowance, edit)
    segment = OpenSegment(fs, directory, source)
    with segment.file:
        _walk(segment, source, live, allowance.read, collected.gather)
        collected.write()
        positions = _concatenated(collected.positions)
        if len(positions) != expected:
            _read_through(segment, source)
    return positions, _concatenated(collected.offsets)


class _Collected:
    """Live frames of one source, written to the target in pieces that are large.

    The operating system is asked to begin with each `BEHIND_BYTES` of them at once, so that the
    disk works while the next ones are gathered, and the fsync at the end has little left to do.
    """

    __slots__ = (
        "_allowance",
        "_bytes",
        "_count",
        "_edit",
        "_offsets",
        "_out",
        "_positions",
        "_times",
        "_writer",
        "offsets",
        "positions",
    )

    def __init__(
        self,
        writer: SegmentWriter,
        allowance: Allowance,
        edit: Callable[[Frames], Frames] | None,
    ) -> None:
        self.positions: list[_Array] = []
        self.offsets: list[_Array] = []
        """What has been written, and where it is in the target."""
        self._writer = writer
        self._allowance = allowance
        self._edit = edit
        self._make_room(4 * PIECE_BYTES)

    def _make_room(self, size: int) -> None:
        self._out: NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        self._offsets: _Array = np.empty(size // HEADER_BYTES + 1, dtype=np.int64)
        self._positions: _Array = np.empty_like(self._offsets)
        self._times: _Array = np.empty_like(self._offsets)
        self._count = self._bytes = 0

    def gather(self, pieces: Pieces, held: int, after: int, starts: _Array, stops: _Array) -> _Step:
        """Take the live frames out of a piece."""
        buffer, offsets, positions = pieces.buffer, pieces.offsets, pieces.positions
        count, end, after, status = kernels.choose(
            buffer, 0, held, after, starts, stops, offsets, positions
        )
        if count:
            frames = Frames(buffer[:held], offsets[:count], positions[:count], pieces.base)
            self._take(frames if self._edit is None else self._edit(frames))
        return end, after, status

    def _take(self, frames: Frames) -> None:
        size, first, stop = len(frames.buffer), self._count, self._count + len(frames)
        if size > len(self._out) - self._bytes:
            self.write()
            first, stop = 0, len(frames)
            if size > len(self._out):
                self._make_room(size)
        self._bytes = kernels.collect(
            frames.buffer,
            frames.offsets,
            self._out,
            self._bytes,
            self._offsets[first:],
            self._times[first:],
        )
        self._positions[first:stop] = frames.positions
        self._count = stop

    def write(self) -> None:
        """Append what was gathered to the target."""
        count, writer = self._count, self._writer
        if not count:
            return
        before = writer.end
        self._allowance.write(self._bytes)
        data = self._out.data[: self._bytes]
        positions, offsets = self._positions[:count].copy(), self._offsets[:count]
        writer.append_many(data, positions, offsets, self._times[:count])
        self.positions.append(positions)
        self.offsets.append(offsets + before)
        if before // BEHIND_BYTES != writer.end // BEHIND_BYTES:
            writer.file.begin_sync()
        self._count = self._bytes = 0


class _Editing:
    """Takes what is dead out of the frames that are partly live, as the task's store does it."""

    __slots__ = ("_parts", "_task", "edited_bytes")

    def __init__(self, task: RewriteTask, parts: Parts) -> None:
        self._task = task
        self._parts = parts
        self.edited_bytes: list[_Array] = []

    def __call__(self, frames: Frames) -> Frames:
        """The frames without the slots that are dead in them."""
        parts, task = self._parts, self._task
        if not len(parts):
            return frames
        here = parts.slice(int(frames.positions[0]), int(frames.positions[-1]) + 1)
        if not len(here):
            return frames
        if task.rewriting is None:
            what = f"the entry at {here.positions[0]} is partly live"
            raise InvalidInput(
                f"{what}, but nobody was given to {task.target} who can take parts out"
            )
        edited = task.rewriting.edit(frames, here)
        if not np.array_equal(edited.positions, frames.positions):
            raise InvalidInput(f"{task.target}: an edit must keep every position")
        partly = edited.select(here.names(edited.positions))
        self.edited_bytes.append(partly.lengths() + HEADER_BYTES)
        return edited


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
