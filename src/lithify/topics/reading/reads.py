"""Reads a topic for dispatch: in pieces, the newest of which are kept for a while.

A consumer with few permits takes a few entries of a piece and comes back for the next ones, and
subscriptions that follow the end of the topic all want the same entries. So the last pieces read
are kept, `KEPT_MAX` a topic, and dropped by `forget_unused` when nobody came for them. Of a piece
of small messages most entries are made only when a consumer takes them.

A piece covers every position from `start` to `through`: what is in between and has no entry does
not exist. Such a gap within a ledger, left by a failed write, is remembered, so that cursors can
move over it; those at the ends of ledgers are known from the manifest.

Who owns the topic, an event loop as a rule, never waits for the disk here:

1. `at_hand` finds the piece of a position among those that are kept. A piece of the log that the
   operating system has in memory is read at once, because that is faster than to ask a thread:
   what consumers at the end of a topic want was written a moment ago.
2. If there is none, `loading` reads it in a thread, keeps it and gives it to the caller. The thread
   reads one piece at a time for a topic and changes nothing here.

Compacted reads take what is retained up to a **border**, and the log above it. The border is the
horizon that a consumer has found when it joined, so that it does not miss what is deleted while it
reads; where the log begins only later it is there, for what was trimmed is nowhere else. It is
found anew for each piece, together with the log's beginning: what lies between two pieces is in one
of the two places. Pieces of what is retained are dropped as soon as there is a new generation; one
that was being read then is still good for the caller that waited for it, as if read before.

One thread at a time, but for `load`; owned by the topic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from lithify.log.reader import NotCached
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
COMPACTED_ENTRIES_MAX = 10_000
"""Of a piece; a service may give fewer."""
WALKS_MAX = 4
"""Places of the log that one read of single positions may go to."""


@dataclass(slots=True)
class EntryRun:
    """Some entries side by side."""

    start: int
    through: int
    entries: Sequence[LogEntry]
    view: tuple[int, ...] | None = None
    """Generation, horizon and border of what is retained; None for a piece of the log."""
    gaps: Sequence[tuple[int, int]] = ()
    """Half-open ranges of a ledger in which nothing is."""
    used: bool = field(default=True)

    def covers(self, position: int) -> bool:
        """Is everything known of this position?"""
        return self.start <= position <= self.through

    def find(self, position: int) -> int:
        """The number of the first entry at or above a position."""
        return _find(self.entries, position)

    def take(self, start: int, limit: int) -> tuple[list[LogEntry], int]:
        """(entries, through): entries from `start` on, `limit` at most, what was looked at."""
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
    """Those at the positions; of a piece with thousands of others these are not looked at."""
    found = []
    for position in positions:
        number = _find(entries, position)
        if number < len(entries) and (entry := entries[number]).position == position:
            found.append(entry)
    return found


class TopicReads:
    """The reads of one topic."""

    def __init__(
        self, log: Log, service: TopicCompactionService, latencies: Latencies, clock: Clock
    ) -> None:
        """`latencies` are told how long each read has taken."""
        self._log = log
        self._service = service
        self._latencies = latencies
        self._clock = clock
        self._pieces: list[EntryRun] = []
        self._gap_starts: list[int] = []
        self._gap_stops: dict[int, int] = {}

    def cached(self, start: int, joined: int | None = None) -> EntryRun | None:
        """The piece of a position if it is in memory; None if it has to be loaded.

        With `joined`, the horizon that a consumer has found: as it is compacted. What comes from
        the compaction service is in memory only if it is kept.
        """
        if joined is not None and start <= (border := self.compacted_end(joined)):
            now = self.view()
            self._pieces = [p for p in self._pieces if p.view is None or p.view[:-1] == now]
            return self._kept(start, (*now, border))
        kept = self._kept(start, None)
        if kept is not None:
            return kept
        began_s = self._clock.monotonic_s()
        try:
            with self._log.snapshot("dispatch", cached=True) as snapshot:
                piece = self._keep(_from_log(snapshot, start))
        except NotCached:
            return None
        self._latencies.add(self._clock.monotonic_s() - began_s)
        return piece

    def loading(self, start: int, joined: int | None = None) -> Steps[EntryRun]:
        """Read the piece of a position in a thread."""
        began_s = self._clock.monotonic_s()
        piece: EntryRun = yield DiskCall(self, lambda: partial(self.load, start, joined))
        # Consumers have waited for the thread as well as for the disk.
        self._latencies.add(self._clock.monotonic_s() - began_s)
        return self._keep(piece)

    def load(self, start: int, joined: int | None = None) -> EntryRun:
        """The piece of a position, read now; in any thread."""
        now = self.view()
        with self._log.snapshot("dispatch") as snapshot:
            border = start - 1 if joined is None else self._border(joined, snapshot.manifest)
            if start <= border:
                entries, looked = self._service.read_compacted_entries(
                    start, COMPACTED_ENTRIES_MAX, border
                )
                # Less only if the view was deleted since: there is only the log now.
                if looked >= start:
                    return EntryRun(start, looked, entries, (*now, border))
            return _from_log(snapshot, start)

    def _kept(self, start: int, view: tuple[int, ...] | None) -> EntryRun | None:
        for piece in self._pieces:
            if piece.covers(start) and piece.view == view:
                piece.used = True
                return piece
        return None

    def _keep(self, piece: EntryRun) -> EntryRun:
        if piece.covers(piece.start):
            self._pieces = [piece, *self._pieces[: KEPT_MAX - 1]]
        for start, stop in piece.gaps:
            self._note_gap(start, stop)
        return piece

    # --- compacted --------------------------------------------------------------------------

    def compacted_end(self, joined: int) -> int:
        """Up to where a consumer that has found this horizon gets what is retained."""
        return self._border(joined, self._log.manifest)

    def _border(self, joined: int, manifest: Manifest) -> int:
        before_log = manifest.segments[0].first_position - 1
        return min(self._service.last_compacted_position, max(joined, before_log))

    def view(self) -> tuple[int, int]:
        """Changes whenever what is retained may have changed."""
        return self._log.manifest.generation, self._service.last_compacted_position

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        segments = self._log.manifest.segments
        sealed = len(segments) - 1
        at = bisect_left(segments, position, hi=sealed, key=lambda ref: ref.last_position)
        there = max(position, segments[at].first_position)
        return self.end_of_gap(there)

    # --- single positions -------------------------------------------------------------------

    def read_each(
        self, positions: Sequence[int], bytes_max: int, first: EntryRun, joined: int | None = None
    ) -> tuple[list[LogEntry], int]:
        """(entries, through): those at ascending positions, until there are `bytes_max` bytes.

        `first` is the piece of the first one. Those behind it are read as far as they are at hand.
        """
        entries: list[LogEntry] = []
        through = positions[0] - 1
        at = size = 0
        piece: EntryRun | None = first
        for _ in range(WALKS_MAX):
            if piece is None:
                break
            stop = bisect_right(positions, max(positions[at], piece.through), at)
            taken = _at(piece.entries, positions[at:stop])
            entries += taken
            size += sum(len(entry.body) for entry in taken)
            through = positions[stop - 1]
            at = stop
            if at == len(positions) or size >= bytes_max:
                break
            piece = self.cached(positions[at], joined)
        return entries, through

    def _note_gap(self, start: int, stop: int) -> None:
        if start >= stop:
            return
        if start not in self._gap_stops:
            insort(self._gap_starts, start)
        self._gap_stops[start] = max(stop, self._gap_stops.get(start, 0))

    def end_of_gap(self, position: int) -> int:
        """Where a gap that has this position ends; the position if none is known."""
        at = bisect_right(self._gap_starts, position) - 1
        return max(position, self._gap_stops[self._gap_starts[at]]) if at >= 0 else position

    def forget_unused(self) -> None:
        """Drop pieces that nobody asked for since the last call."""
        self._pieces = [piece for piece in self._pieces if piece.used]
        for piece in self._pieces:
            piece.used = False

    def forget_below(self, position: int) -> None:
        """What is below is gone from the log."""
        self._pieces = [piece for piece in self._pieces if piece.view or piece.start >= position]
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
    """Within the ledger of the first frame, and between the frames."""
    positions = frames.positions
    first = int(positions[0])
    ledger_start = first >> PACKED_ENTRY_BITS << PACKED_ENTRY_BITS
    before = np.flatnonzero(np.diff(positions) > 1).tolist()
    between = [(int(positions[at]) + 1, int(positions[at + 1])) for at in before]
    return [(max(start, ledger_start), first), *between]
