"""Writes the targets of a run on a group: the live entries of one to eight neighbours, in one file.

1. A target is a file `….compacting` whose name lists its sources. Its kind is "raftlive": its
   entries were live when it was written, and none of them was ever overwritten.
2. Live frames are copied unchanged, and every CRC is checked. `EntriesLost` is raised for a live
   index that is missing in its segment.
3. If there is much to copy, two threads write the targets, one thread per target. No target counts
   until all targets of its portion are written, so their order does not matter.
4. The targets of a portion are synced together: fsyncs of many files cost hardly more than of one.
   A portion is `PORTION_BYTES`, or half of the disk's free bytes if that is less: its live entries
   are on disk twice until it is published. On a disk that is nearly full each portion frees space
   for the next.

If a target fails, the run fails, and its portion is rolled back. Published portions stay.

Called by the kernel's phases, in the worker's thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lithify.compaction.limits.budget import Allowance
from lithify.compaction.rewrite.copy_frames import CopyBuffers, copy_live
from lithify.compaction.tasks.jobs import LocalJobs, ThreadJobs
from lithify.log.segments.segment_file import SegmentHeader, SegmentWriter
from lithify.raft.compaction.segments_port import lost_entries
from lithify.raft.storage.file_names import compacting_name
from lithify.raft.storage.segment_file import MERGED_KIND, log_id_of, ref_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.budget import Budget
    from lithify.compaction.run.journal import RunRecord
    from lithify.compaction.tasks.jobs import Check, Jobs, Progress
    from lithify.fs import FileSystem
    from lithify.live_set import LiveSet
    from lithify.log.manifest import SegmentRef
    from lithify.raft.compaction.segments_port import NamedLog

__all__ = ["SOURCES_MAX", "MergeJobs", "MergeTargets"]

SOURCES_MAX = 8
"""A target's name lists all sources: with 8 it has 146 characters, the limit is 255."""

PORTION_BYTES = 512 * 2**20

WRITERS = 2
"""Threads per portion. Reads, writes and CRCs take most of the time and release the interpreter's
lock: with an idle core, two threads take about a fifth less time. More would slow clients."""
ALONE_BYTES_MAX = 8 * 2**20
"""Up to this many live bytes, about 8 ms of copying, a second thread does not pay."""

T = TypeVar("T")
R = TypeVar("R")


class MergeJobs:
    """One thread up to `ALONE_BYTES_MAX`, `WRITERS` threads above."""

    slots = WRITERS

    def run(
        self,
        name: str,
        function: Callable[[T, Check], R],
        tasks: Sequence[T],
        *,
        weights: Sequence[int] = (),
        check: Check,
        progress: Progress,
    ) -> Iterator[tuple[int, R]]:
        """See `Jobs`."""
        alone = sum(weights) <= ALONE_BYTES_MAX
        jobs: Jobs = LocalJobs() if alone else ThreadJobs(self.slots)
        return jobs.run(name, function, tasks, weights=weights, check=check, progress=progress)


class _ThreadBuffers(threading.local):
    """The copy buffers of each thread."""

    def __init__(self) -> None:
        self.buffers = CopyBuffers()


@dataclass(frozen=True, slots=True)
class _Merge:
    """One target to write, with its sources."""

    fs: FileSystem
    directory: str
    group: str
    sources: tuple[SegmentRef, ...]
    lives: tuple[LiveSet, ...]
    budget: Budget
    clock: Clock
    buffers: _ThreadBuffers


class MergeTargets:
    """See the module; an implementation of `Targets` (`compaction/run/log_port.py`)."""

    def __init__(self, fs: FileSystem, log: NamedLog, group: str, clock: Clock) -> None:
        self._fs = fs
        self._log = log
        self._group = group
        self._clock = clock

    def portions(self, record: RunRecord) -> Sequence[Sequence[int]]:
        """Groups of the run per portion, in the order of the log."""
        free_bytes = self._fs.free_bytes(self._log.directory)
        portion_bytes = min(PORTION_BYTES, free_bytes // 2)
        portions: list[list[int]] = [[]]
        size = 0
        for number, weight in enumerate(_weights(record)):
            if portions[-1] and size + weight > portion_bytes:
                portions.append([])
                size = 0
            portions[-1].append(number)
            size += weight
        return portions

    def write(
        self,
        record: RunRecord,
        numbers: Sequence[int],
        jobs: Jobs,
        allowance: Allowance,
        progress: Progress,
    ) -> Iterator[tuple[int, SegmentRef]]:
        """Write the targets of a portion, then sync all of them."""
        log, buffers, weights = self._log, _ThreadBuffers(), _weights(record)
        budget = allowance.budget.share(min(jobs.slots, len(numbers)))
        merges = [
            _Merge(
                self._fs,
                log.directory,
                self._group,
                tuple(log.span(source).ref for source in record.groups[number]),
                tuple(log.live_in(source) for source in record.groups[number]),
                budget,
                self._clock,
                buffers,
            )
            for number in numbers
        ]
        before, total = sum(weights[: numbers[0]]) if numbers else 0, sum(weights)
        written = jobs.run(
            "rewrite",
            _write_target,
            merges,
            weights=[weights[number] for number in numbers],
            check=allowance.check,
            progress=lambda name, done, _: progress(name, before + done, total),
        )
        targets = sorted((numbers[finished], target) for finished, target in written)
        for number, target in targets:
            # Writeback of all targets has begun: the first fsync waits for most of it.
            with self._fs.open_append(f"{log.directory}/{target.name}") as file:
                file.fsync()
            yield number, target


def _weights(record: RunRecord) -> list[int]:
    """The live bytes of each group."""
    live_bytes = {segment.id: segment.live_bytes for segment in record.judged}
    return [sum(live_bytes[source] for source in group) for group in record.groups]


def _write_target(merge: _Merge, check: Check) -> SegmentRef:
    """Copy the live entries into a new file. It is complete then, but not synced."""
    fs, directory, lives = merge.fs, merge.directory, merge.lives
    allowance = Allowance(merge.budget, merge.clock, check)
    numbers = [source.id for source in merge.sources]
    first = lives[0].first or 0
    header = SegmentHeader(numbers[0], first, 0, MERGED_KIND, log_id_of(merge.group))
    name = compacting_name(numbers)
    writer = SegmentWriter.create(fs, f"{directory}/{name}", header)
    with writer.file:
        for source, live in zip(merge.sources, lives, strict=True):
            expected = len(live)
            copied, _ = copy_live(
                fs, directory, source, live, expected, writer, allowance, room=merge.buffers.buffers
            )
            if len(copied) != expected:
                raise lost_entries(fs, directory, merge.group, source, live)
        rows, footer = writer.footer()
        writer.file.writev([rows, footer.to_bytes()])
        writer.file.begin_sync()
    return ref_of(numbers[0], footer, name)
