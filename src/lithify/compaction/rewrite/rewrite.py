"""Copy the live entries of a group of segments into one new segment.

This function does the heavy work, both in the process that runs a compaction and in a Spark task.
It takes file names and needs no open log, so it can run wherever the files are visible.

1. For each source, the live set is all positions except its dead set.
2. Copy the live frames unchanged, with CRC checks (`copy_frames.py`). The store's `Rewriting`
   shrinks partly live frames: their positions stay, dead slots are removed, CRCs are new.
3. The copied entries must be exactly the live ones, otherwise the plan is stale.
4. Seal the target: block index, footer, fsync. Then the store writes its side files.

Invariants: sources are never written to; only checked frames reach the target; the target is
durable on return, and nothing refers to it yet. Run twice, it writes two files.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from socket import gethostname
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance, Budget
from lithify.compaction.rewrite.copy_frames import CopyBuffers, concatenated, copy_live
from lithify.errors import DamagedFile, InvalidInput, PlanStale
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet, Parts
from lithify.log.file_names import parse_name, segment_name
from lithify.log.manifest import SegmentRef
from lithify.log.open_segments import OpenSegment, read_dead_set
from lithify.log.segments.frame import HEADER_BYTES
from lithify.log.segments.segment_file import SegmentWriter, read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lithify.clock import Clock
    from lithify.compaction.tasks.jobs import Check
    from lithify.fs import FileSystem
    from lithify.log.segments.scan import Frames
    from lithify.log.segments.segment_file import SegmentHeader

    _Array = NDArray[np.int64]

__all__ = [
    "Copied",
    "RewriteTask",
    "Rewriting",
    "Rewritten",
    "check_target",
    "live_of",
    "rewrite",
    "run_rewrite",
]


class Rewriting(Protocol):
    """How a store transforms its entries during a rewrite; a picklable value."""

    def edit(self, frames: Frames, parts: Parts) -> Frames:
        """The frames to write to the target: all of them, at the same positions.

        Those that `parts` names are shrunk, the others copied. The result is consecutive from the
        first byte of the buffer on, each frame with its CRC. Called only if there are parts.
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
        """Write the side files of a durable target, within the allowance of the task."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What is known of a target's frames, to avoid reading the target again."""

    positions: _Array
    """Positions of all frames, ascending."""
    offsets: _Array
    """Offset of each frame in the target's file."""
    edited_bytes: _Array
    """New sizes of the partly live frames, by ascending position."""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """The rewrite of one group, as a value that can be sent to another process."""

    fs: FileSystem
    directory: str
    sources: tuple[SegmentRef, ...]
    """In position order, each with its new dead set."""
    target: str
    """Name of the new file, unless an earlier attempt of this task has created it."""
    created_ms: int
    budget: Budget = field(default_factory=Budget)
    """The budget of this task."""
    rewriting: Rewriting | None = None
    """None if every entry is wholly live or dead, and there are no side files."""
    clock: Clock = field(default_factory=SystemClock)


def live_of(segment: SegmentRef, dead: DeadSet) -> LiveSet:
    """The positions of a segment that are not in its dead set.

    May include positions at which the segment has no entry, which is harmless.
    """
    return LiveSet.from_range(segment.first_position, segment.last_position + 1) - dead.entries


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The target of a task, and the machine that reports to have written it."""

    target: SegmentRef
    host: str


def run_rewrite(task: RewriteTask, check: Check) -> Rewritten:
    """Execute a task; returns the target as an entry of a manifest."""
    target = rewrite(task, Allowance(task.budget, task.clock, check))
    return Rewritten(target, gethostname())


def check_target(fs: FileSystem, directory: str, target: SegmentRef, log_id: bytes) -> None:
    """Raise `Corrupt` unless this process sees the whole target, and it belongs to the log.

    Header, footer, block index and size are read; the frames were checked when they were copied.
    """
    with OpenSegment(fs, directory, target).file as file:
        if read_header(file).log_id != log_id:
            raise DamagedFile(file.path, 48, "is a segment of another log")


def rewrite(task: RewriteTask, allowance: Allowance) -> SegmentRef:
    """Like `run_rewrite`, with an existing allowance."""
    fs = task.fs
    first = task.sources[0]
    with fs.open_read(f"{task.directory}/{first.name}") as file:
        header = replace(read_header(file), created_ms=task.created_ms)
    name, writer = _create(task, header)
    with writer.file:
        room = CopyBuffers()
        copied = _join([_copy(task, source, writer, allowance, room) for source in task.sources])
        footer = writer.seal()
    target = SegmentRef(first.id, name, first.first_position).sealed_by(footer)
    if task.rewriting is not None:
        task.rewriting.finish(fs, task.directory, task.sources, target, copied, allowance)
    return target


def _create(task: RewriteTask, header: SegmentHeader) -> tuple[str, SegmentWriter]:
    """(name, writer) of the target; another name if an earlier attempt left the task's file."""
    name = task.target
    while True:
        try:
            path = f"{task.directory}/{name}"
            writer = SegmentWriter.create(task.fs, path, header, exclusive=True, uncached=True)
            return name, writer
        except FileExistsError:
            parsed = parse_name(task.target)
            name = segment_name(parsed.segment_id, parsed.attempt + secrets.token_hex(3))


def _copy(
    task: RewriteTask,
    source: SegmentRef,
    writer: SegmentWriter,
    allowance: Allowance,
    room: CopyBuffers,
) -> Copied:
    """Copy the live entries of one source."""
    dead = DeadSet(LiveSet.empty())
    if source.dead is not None:
        dead = read_dead_set(task.fs, task.directory, source.dead)
    editing = _Editing(task, dead.parts)
    live, expected = live_of(source, dead), source.live_entries
    positions, offsets = copy_live(
        task.fs, task.directory, source, live, expected, writer, allowance, editing, room
    )
    if len(positions) != expected:
        path = f"{task.directory}/{source.name}"
        raise PlanStale(f"{path} has {len(positions)} live entries, {expected} were planned")
    return Copied(positions, offsets, concatenated(editing.edited_bytes))


def _join(copied: Sequence[Copied]) -> Copied:
    return Copied(
        concatenated([each.positions for each in copied]),
        concatenated([each.offsets for each in copied]),
        concatenated([each.edited_bytes for each in copied]),
    )


class _Editing:
    """Removes dead slots from partly live frames with the store's `Rewriting`."""

    __slots__ = ("_parts", "_task", "edited_bytes")

    def __init__(self, task: RewriteTask, parts: Parts) -> None:
        self._task = task
        self._parts = parts
        self.edited_bytes: list[_Array] = []

    def __call__(self, frames: Frames) -> Frames:
        """The frames without their dead slots."""
        parts, task = self._parts, self._task
        if not len(parts):
            return frames
        here = parts.slice(int(frames.positions[0]), int(frames.positions[-1]) + 1)
        if not len(here):
            return frames
        if task.rewriting is None:
            what = f"the entry at {here.positions[0]} is partly live"
            raise InvalidInput(
                f"{what}, but the task of {task.target} has no store to remove dead slots"
            )
        edited = task.rewriting.edit(frames, here)
        if not np.array_equal(edited.positions, frames.positions):
            raise InvalidInput(f"{task.target}: an edit must keep every position")
        partly = edited.select(here.names(edited.positions))
        self.edited_bytes.append(partly.lengths() + HEADER_BYTES)
        return edited
