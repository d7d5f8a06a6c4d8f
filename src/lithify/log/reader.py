"""Reading a log: snapshots, and scans in position order.

A `Snapshot` is the view of one reader: a manifest, and the end of the active segment at that time.
It is immutable, so a scan needs no lock and blocks no writer. To continue later, a reader takes a
new snapshot and asks for the positions above the last one it has read.

There are two kinds of scan. *log*: the log's own segments. *compacted*: the compacted view up to
the horizon, the log above it. Both skip what the dead set of a segment names, and report the live
slots of a partly live entry (`LogEntry.live`).

A snapshot may be **cached**: it then reads from memory only and raises `NotCached` where it would
have to open a file or wait for the disk, so an event loop may use it.

The first segment of a scan is found by binary search. Open segments and dead sets are shared by all
readers of a log (`open_segments.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lithify.log.open_segments import CachedFile, OpenSegments
from lithify.log.segments.scan import Frames, ReadableFile, scan_frames
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.log.dead_set.dead_set import DeadSet
    from lithify.log.manifest import Manifest, SegmentRef
    from lithify.log.segments.block_index import BlockIndex
    from lithify.log.segments.frame import LogEntry

__all__ = ["ActiveTail", "SegmentSpan", "Snapshot"]


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """One segment of a scan, and the range of positions to read from it, inclusive."""

    ref: SegmentRef
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class ActiveTail:
    """The end of the active segment when the snapshot was taken."""

    blocks: BlockIndex
    end: int
    last_position: int


class Snapshot:
    """The contents of a log at one point in time."""

    def __init__(
        self,
        manifest: Manifest,
        segments: OpenSegments,
        tail: ActiveTail,
        *,
        cached: bool = False,
    ) -> None:
        """With `cached`, `read_frames` raises `NotCached` instead of waiting for the disk."""
        self._segments = segments
        self._cached = cached
        self._dead: tuple[str, DeadSet] | None = None
        self.manifest = manifest
        self.tail = tail

    @property
    def last_position(self) -> int:
        """The last visible position, -1 if there is none."""
        return self.tail.last_position

    def spans(
        self, start: int = 0, *, compacted: bool = False, through: int | None = None
    ) -> tuple[SegmentSpan, ...]:
        """The segments of a scan from a position on, in position order.

        A compacted scan reads the view up to `through` and the log above it. If the log begins
        only later, the view is read up to there: trimmed entries are in the view only. `through`
        defaults to the horizon and never exceeds it.
        """
        manifest = self.manifest
        if not compacted or manifest.view is None:
            return tuple(self._span(ref, -1) for ref in _reaching(manifest.segments, start))
        border = manifest.horizon
        if through is not None:
            border = min(border, max(through, manifest.segments[0].first_position - 1))
        view = (
            SegmentSpan(ref, ref.first_position, min(ref.last_position, border))
            for ref in (_reaching(manifest.view, start) if start <= border else ())
            if ref.first_position <= border
        )
        above = _reaching(manifest.segments, max(start, border + 1))
        log = (self._span(ref, border) for ref in above)
        return (*view, *(span for span in log if span.high > border))

    def _span(self, ref: SegmentRef, above: int) -> SegmentSpan:
        high = ref.last_position if ref.sealed else self.tail.last_position
        return SegmentSpan(ref, above + 1, high)

    def dead_set(self, ref: SegmentRef) -> DeadSet | None:
        """The dead set of a segment, or None."""
        if ref.dead is None:
            return None
        if self._dead is None or self._dead[0] != ref.dead.name:
            # The scan holds a reference, even if the dead set is too large for the cache.
            self._dead = ref.dead.name, self._segments.dead_set(ref.dead, cached=self._cached)
        return self._dead[1]

    @contextmanager
    def _opened(self, ref: SegmentRef) -> Iterator[tuple[ReadableFile, BlockIndex, int]]:
        with self._segments.use(ref, cached=self._cached) as segment:
            file = CachedFile(segment.file) if self._cached else segment.file
            if ref.sealed:
                yield file, segment.blocks, segment.frames_end
            else:
                yield file, self.tail.blocks, self.tail.end

    def read_frames(
        self, start: int = 0, *, compacted: bool = False, through: int | None = None
    ) -> Iterator[Frames]:
        """Frames with positions at or above `start`, in pieces, ascending."""
        for span in self.spans(start, compacted=compacted, through=through):
            yield from self._forward(span, max(start, span.low))

    def _forward(self, span: SegmentSpan, low: int) -> Iterator[Frames]:
        if low > span.high:
            return
        with self._opened(span.ref) as (file, blocks, end):
            if not len(blocks):
                return
            position, offset = blocks.row(blocks.find_position(low))
            for frames in scan_frames(file, offset, end, position - 1):
                kept = self._within(frames, span, low)
                if len(kept):
                    yield kept
                if frames.positions[-1] >= span.high:
                    return

    def _within(self, frames: Frames, span: SegmentSpan, low: int) -> Frames:
        begin = int(np.searchsorted(frames.positions, low))
        stop = int(np.searchsorted(frames.positions, span.high, side="right"))
        if (begin, stop) != (0, len(frames)):
            frames = frames.select(slice(begin, stop))
        dead = self.dead_set(span.ref)
        if dead is not None and len(frames):
            alive = ~dead.entries.contains_many(frames.positions)
            if not alive.all():
                frames = frames.select(alive)
            if len(dead.parts):
                frames = replace(frames, parts=dead.parts)
        return frames

    def read(
        self,
        start: int = 0,
        *,
        compacted: bool = False,
        through: int | None = None,
        limit: int | None = None,
    ) -> Iterator[LogEntry]:
        """Entries with positions at or above `start`, ascending."""
        left = POSITION_MAX if limit is None else limit
        if left <= 0:
            return
        for frames in self.read_frames(start, compacted=compacted, through=through):
            part = frames if len(frames) <= left else frames.select(slice(0, left))
            yield from part.entries()
            left -= len(part)
            if left <= 0:
                return

    def get(self, position: int, *, compacted: bool = False) -> LogEntry | None:
        """The entry at a position, or None; reads one block of its segment, not a whole piece."""
        for span in self.spans(position, compacted=compacted)[:1]:
            if not span.low <= position <= span.high:
                return None
            with self._opened(span.ref) as (file, blocks, end):
                if not len(blocks):
                    return None
                number = blocks.find_position(position)
                first, offset = blocks.row(number)
                stop = blocks.row(number + 1)[1] if number + 1 < len(blocks) else end
                only = SegmentSpan(span.ref, position, position)
                for frames in scan_frames(file, offset, min(stop, end), first - 1):
                    for entry in self._within(frames, only, position).entries():
                        return entry
        return None

    def read_backward(
        self, start: int = POSITION_MAX, *, compacted: bool = False
    ) -> Iterator[LogEntry]:
        """Entries with positions at or below `start`, descending."""
        for span in reversed(self.spans(compacted=compacted)):
            if span.low <= start:
                yield from self._backward(span, min(start, span.high))

    def _backward(self, span: SegmentSpan, high: int) -> Iterator[LogEntry]:
        with self._opened(span.ref) as (file, blocks, end):
            stop = end
            rows = len(blocks)
            below = SegmentSpan(span.ref, span.low, high)
            for number in range(rows - 1, -1, -1):
                position, offset = blocks.row(number)
                if offset >= stop:
                    continue  # A row the writer added after the snapshot was taken.
                if position <= high:
                    block = [
                        entry
                        for frames in scan_frames(file, offset, stop, position - 1)
                        for entry in self._within(frames, below, span.low).entries()
                    ]
                    yield from reversed(block)
                if position <= span.low:
                    return
                stop = offset

    def find(self, position: int, *, compacted: bool = False) -> int | None:
        """The first position at or above the given one, or None."""
        for frames in self.read_frames(position, compacted=compacted):
            return int(frames.positions[0])
        return None

    def find_time(self, time_ms: int, *, compacted: bool = False) -> int | None:
        """The first position whose time is at or after `time_ms`, or None."""
        for span in self.spans(compacted=compacted):
            if span.ref.sealed and span.ref.time_max < time_ms:
                continue
            with self._opened(span.ref) as (file, blocks, end):
                if not len(blocks):
                    continue
                position, offset = blocks.row(blocks.find_time(time_ms))
                for frames in scan_frames(file, offset, end, position - 1):
                    kept = self._within(frames, span, span.low)
                    late = np.flatnonzero(kept.times() >= time_ms)
                    if len(late):
                        return int(kept.positions[late[0]])
        return None


def _reaching(segments: tuple[SegmentRef, ...], position: int) -> tuple[SegmentRef, ...]:
    """Segments that end at or above a position; the end of an active one is not in its entry."""
    sealed = len(segments) - (not segments[-1].sealed) if segments else 0
    return segments[bisect_left(segments, position, hi=sealed, key=_last_position) :]


def _last_position(ref: SegmentRef) -> int:
    return ref.last_position
