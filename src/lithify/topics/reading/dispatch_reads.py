"""Reads a topic for dispatch, in runs of entries; the newest runs are cached.

A consumer with few permits takes a few entries of a run and returns for the next ones, and
subscriptions at the end of the topic all read the same entries. So the last runs read are cached,
`KEPT_MAX` per topic; `forget_unused` drops those without a hit. Most entries of a run of small
messages are decoded only when a consumer takes them.

A run covers every position from `start` to `through`: a position in between without an entry does
not exist. Such a gap within a ledger, left by a failed write, is recorded, so that cursors can move
over it; gaps at the ends of ledgers follow from the manifest.

The thread of the topic, usually an event loop, never waits for the disk here:

1. `cached` finds the run of a position among the cached runs. Otherwise it reads a run of the log
   directly if the page cache of the operating system has it, which is faster than a thread: the
   entries at the end of a topic were written a moment ago.
2. Otherwise `loading` reads the run in a thread, caches it and returns it. The thread reads one run
   at a time per topic and changes nothing here.

A compacted read returns retained entries up to a **border**, and the log above it. The border is
the horizon at the time the consumer joined, so that a later run cannot delete messages before the
consumer has read them. If the log starts above that, the border is the start of the log, as trimmed
messages are in the view only. The border is recomputed for each run, together with the start of
the log, so the positions between two runs are in one of the two places. Cached runs of retained
entries are dropped when there is a new generation; one that was being loaded is still valid for the
caller that waited for it, as if it had been read before.

One thread at a time, except `load`; owned by the topic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from lithify.log.open_segments import NotCached
from lithify.log.segments.lazy_entries import FrameEntries
from lithify.positions import PACKED_ENTRY_BITS
from lithify.topics.disk_steps import DiskCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.latencies import Latencies
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest
    from lithify.log.reader import Snapshot
    from lithify.log.segments.frame import LogEntry
    from lithify.log.segments.scan import Frames
    from lithify.topics.compaction.compaction_service import TopicCompactionService
    from lithify.topics.disk_steps import Steps

__all__ = ["EntryRun", "TopicReads"]

KEPT_MAX = 4
"""Maximum number of cached runs per topic."""
COMPACTED_ENTRIES_MAX = 10_000
"""Maximum number of retained entries in a run; a service may return fewer."""
WALKS_MAX = 4
"""Maximum number of runs that one read of single positions may use."""


@dataclass(slots=True)
class EntryRun:
    """The entries of a range of positions."""

    start: int
    through: int
    entries: Sequence[LogEntry]
    view: tuple[int, ...] | None = None
    """Retained entries: generation, horizon and border; None for a run of the log."""
    gaps: Sequence[tuple[int, int]] = ()
    """Half-open ranges within ledgers that have no entries."""
    used: bool = field(default=True)

    def covers(self, position: int) -> bool:
        """Is a position within the run?"""
        return self.start <= position <= self.through

    def find(self, position: int) -> int:
        """The index of the first entry at or above a position."""
        return _find(self.entries, position)

    def take(self, start: int, limit: int) -> tuple[list[LogEntry], int]:
        """(entries, last position covered): at most `limit` entries from `start` on."""
        low = self.find(start)
        entries = list(self.entries[low : low + limit])
        if low + limit >= len(self.entries):
            return entries, self.through
        return entries, entries[-1].position


def _find(entries: Sequence[LogEntry], position: int) -> int:
    if isinstance(entries, FrameEntries):
        return entries.find(position)
    return bisect_left(entries, position, key=attrgetter("position"))


def _at(entries: Sequence[LogEntry], positions: Sequence[int]) -> list[LogEntry]:
    """The entries at these positions, by binary search."""
    existing = []
    for position in positions:
        number = _find(entries, position)
        if number < len(entries) and (entry := entries[number]).position == position:
            existing.append(entry)
    return existing


class TopicReads:
    """Reads runs of one topic for dispatch."""

    def __init__(
        self, log: Log, service: TopicCompactionService, latencies: Latencies, clock: Clock
    ) -> None:
        """`latencies` records the duration of each read."""
        self._log = log
        self._service = service
        self._latencies = latencies
        self._clock = clock
        self._runs: list[EntryRun] = []
        self._gap_starts: list[int] = []
        self._gap_stops: dict[int, int] = {}

    def cached(self, start: int, joined: int | None = None) -> EntryRun | None:
        """The run of a position if it is in memory; None if it has to be loaded.

        `joined` is the horizon at which a compacted consumer joined; None to read the log. A run of
        retained entries is in memory only if it is cached.
        """
        if joined is not None and start <= (border := self.compacted_end(joined)):
            view = self.view()
            self._runs = [p for p in self._runs if p.view is None or p.view[:-1] == view]
            return self._find_cached(start, (*view, border))
        kept = self._find_cached(start, None)
        if kept is not None:
            return kept
        began_s = self._clock.monotonic_s()
        try:
            with self._log.snapshot("dispatch", cached=True) as snapshot:
                run = self._cache(_from_log(snapshot, start))
        except NotCached:
            return None
        self._latencies.add(self._clock.monotonic_s() - began_s)
        return run

    def loading(self, start: int, joined: int | None = None) -> Steps[EntryRun]:
        """Read the run of a position in a thread."""
        began_s = self._clock.monotonic_s()
        run: EntryRun = yield DiskCall(self, lambda: partial(self.load, start, joined))
        # Measured with the wait for a thread, as consumers waited for that too.
        self._latencies.add(self._clock.monotonic_s() - began_s)
        return self._cache(run)

    def load(self, start: int, joined: int | None = None) -> EntryRun:
        """Read the run of a position; in any thread."""
        view = self.view()
        with self._log.snapshot("dispatch") as snapshot:
            border = start - 1 if joined is None else self._border(joined, snapshot.manifest)
            if start <= border:
                entries, through = self._service.read_compacted_entries(
                    start, COMPACTED_ENTRIES_MAX, border
                )
                # Lower only if the view was deleted during the read: then read the log.
                if through >= start:
                    return EntryRun(start, through, entries, (*view, border))
            return _from_log(snapshot, start)

    def _find_cached(self, start: int, view: tuple[int, ...] | None) -> EntryRun | None:
        for run in self._runs:
            if run.covers(start) and run.view == view:
                run.used = True
                return run
        return None

    def _cache(self, run: EntryRun) -> EntryRun:
        if run.covers(run.start):
            self._runs = [run, *self._runs[: KEPT_MAX - 1]]
        for start, stop in run.gaps:
            self._record_gap(start, stop)
        return run

    # --- compacted --------------------------------------------------------------------------

    def compacted_end(self, joined: int) -> int:
        """The border of a consumer that joined at this horizon."""
        return self._border(joined, self._log.manifest)

    def _border(self, joined: int, manifest: Manifest) -> int:
        before_log = manifest.segments[0].first_position - 1
        return min(self._service.last_compacted_position, max(joined, before_log))

    def view(self) -> tuple[int, int]:
        """(generation, horizon); changes whenever the retained entries may change."""
        return self._log.manifest.generation, self._service.last_compacted_position

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        segments = self._log.manifest.segments
        sealed = len(segments) - 1
        at = bisect_left(segments, position, hi=sealed, key=lambda ref: ref.last_position)
        return self.end_of_gap(max(position, segments[at].first_position))

    # --- single positions -------------------------------------------------------------------

    def read_each(
        self, positions: Sequence[int], bytes_max: int, first: EntryRun, joined: int | None = None
    ) -> tuple[list[LogEntry], int]:
        """(entries, last position covered): the entries at ascending positions, up to `bytes_max`.

        `first` is the run of the first position. The others are read as far as their runs are in
        memory.
        """
        entries: list[LogEntry] = []
        through = positions[0] - 1
        at = size = 0
        run: EntryRun | None = first
        for _ in range(WALKS_MAX):
            if run is None:
                break
            stop = bisect_right(positions, max(positions[at], run.through), at)
            taken = _at(run.entries, positions[at:stop])
            entries += taken
            size += sum(len(entry.body) for entry in taken)
            through = positions[stop - 1]
            at = stop
            if at == len(positions) or size >= bytes_max:
                break
            run = self.cached(positions[at], joined)
        return entries, through

    def _record_gap(self, start: int, stop: int) -> None:
        if start >= stop:
            return
        if start not in self._gap_stops:
            insort(self._gap_starts, start)
        self._gap_stops[start] = max(stop, self._gap_stops.get(start, 0))

    def end_of_gap(self, position: int) -> int:
        """The end of the gap that contains this position; the position itself if there is none."""
        at = bisect_right(self._gap_starts, position) - 1
        return max(position, self._gap_stops[self._gap_starts[at]]) if at >= 0 else position

    def forget_unused(self) -> None:
        """Drop cached runs without a hit since the last call."""
        self._runs = [run for run in self._runs if run.used]
        for run in self._runs:
            run.used = False

    def forget_below(self, position: int) -> None:
        """Drop runs and gaps below a position, which was trimmed from the log."""
        self._runs = [run for run in self._runs if run.view or run.start >= position]
        low = bisect_left(self._gap_starts, position)
        for start in self._gap_starts[:low]:
            del self._gap_stops[start]
        del self._gap_starts[:low]


def _from_log(snapshot: Snapshot, start: int) -> EntryRun:
    for frames in snapshot.read_frames(start):
        through = int(frames.positions[-1])
        return EntryRun(start, through, FrameEntries(frames), gaps=_gaps(start, frames))
    return EntryRun(start, max(start - 1, snapshot.last_position), [])


def _gaps(start: int, frames: Frames) -> list[tuple[int, int]]:
    """Gaps before the first frame, within its ledger, and between the frames."""
    positions = frames.positions
    first = int(positions[0])
    ledger_start = first >> PACKED_ENTRY_BITS << PACKED_ENTRY_BITS
    before = np.flatnonzero(np.diff(positions) > 1).tolist()
    between = [(int(positions[at]) + 1, int(positions[at + 1])) for at in before]
    return [(max(start, ledger_start), first), *between]
