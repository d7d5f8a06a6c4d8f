"""Reads a topic for dispatch: in pieces, the newest of which are kept for a while.

A consumer with few permits takes a few entries of a piece and comes back for the next ones, and
subscriptions that follow the end of the topic all want the same entries. So the last pieces read
are kept, `KEPT_MAX` a topic, and dropped by `forget_unused` when nobody came for them. Of a piece
of small messages most entries are made only when a consumer takes them.

A piece covers every position from `start` to `through`: what is in between and has no entry does
not exist. Such a gap within a ledger, left by a failed write, is remembered, so that cursors can
move over it; those at the ends of ledgers are known from the manifest.

Compacted reads take what is retained up to a **border**, and the log above it. The border is the
horizon that a consumer has found when it joined, so that it does not miss what is deleted while it
reads; where the log begins only later it is there, for what was trimmed is nowhere else. It is
found anew for each piece, together with the log's beginning: what lies between two pieces is in one
of the two places. Pieces of what is retained are dropped as soon as there is a new generation.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from lithify.log.entries import FrameEntries
from lithify.positions import PACKED_ENTRY_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.log.frame import Entry
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest
    from lithify.log.reader import Snapshot
    from lithify.log.scan import Frames
    from lithify.topics.compaction_service import TopicCompactionService

__all__ = ["Reading"]

KEPT_MAX = 4
COMPACTED_ENTRIES_MAX = 10_000
"""Of a piece; a service may give fewer."""
WALKS_MAX = 4
"""Places of the log that one read of single positions may go to."""


@dataclass(slots=True)
class _Piece:
    start: int
    through: int
    entries: Sequence[Entry]
    view: tuple[int, ...] | None = None
    """Generation, horizon and border of what is retained; None for a piece of the log."""
    used: bool = field(default=True)

    def find(self, position: int) -> int:
        """The number of the first entry at or above a position."""
        return _find(self.entries, position)


def _find(entries: Sequence[Entry], position: int) -> int:
    if isinstance(entries, FrameEntries):
        return entries.find(position)
    return bisect_left(entries, position, key=attrgetter("position"))


def _at(entries: Sequence[Entry], positions: Sequence[int]) -> list[Entry]:
    """Those at the positions; of a piece with thousands of others these are not looked at."""
    found = []
    for position in positions:
        number = _find(entries, position)
        if number < len(entries) and (entry := entries[number]).position == position:
            found.append(entry)
    return found


class Reading:
    """The reads of one topic."""

    def __init__(self, log: Log, service: TopicCompactionService) -> None:
        self._log = log
        self._service = service
        self._pieces: list[_Piece] = []
        self._gap_starts: list[int] = []
        self._gap_stops: dict[int, int] = {}

    def read(self, start: int, limit: int, joined: int | None = None) -> tuple[list[Entry], int]:
        """(entries, through): entries from `start` on, `limit` at most, what was looked at.

        With `joined`, the horizon that a consumer has found: as they are compacted.
        """
        piece = self._from_log(start) if joined is None else self._compacted(start, joined)
        if piece is None:
            return [], start - 1
        low = piece.find(start)
        entries = list(piece.entries[low : low + limit])
        if low + limit >= len(piece.entries):
            return entries, piece.through
        return entries, entries[-1].position

    def _kept(self, start: int, view: tuple[int, ...] | None) -> _Piece | None:
        for piece in self._pieces:
            if piece.start <= start <= piece.through and piece.view == view:
                piece.used = True
                return piece
        return None

    def _keep(self, piece: _Piece) -> _Piece:
        self._pieces = [piece, *self._pieces[: KEPT_MAX - 1]]
        return piece

    def _from_log(self, start: int) -> _Piece | None:
        kept = self._kept(start, None)
        if kept is not None:
            return kept
        with self._log.snapshot("dispatch") as snapshot:
            return self._from_snapshot(snapshot, start)

    def _from_snapshot(self, snapshot: Snapshot, start: int) -> _Piece | None:
        for frames in snapshot.read_frames(start):
            self._note_gaps(start, frames)
            return self._keep(_Piece(start, int(frames.positions[-1]), FrameEntries(frames)))
        return None

    # --- compacted --------------------------------------------------------------------------

    def border(self, joined: int) -> int:
        """Up to where a consumer that has found this horizon gets what is retained."""
        return self._border(joined, self._log.manifest)

    def _border(self, joined: int, manifest: Manifest) -> int:
        before_log = manifest.segments[0].first_position - 1
        return min(self._service.last_compacted_position, max(joined, before_log))

    def view(self) -> tuple[int, int]:
        """Changes whenever what is retained may have changed."""
        return self._log.manifest.generation, self._service.last_compacted_position

    def _compacted(self, start: int, joined: int) -> _Piece:
        now = self.view()
        self._pieces = [p for p in self._pieces if p.view is None or p.view[:-1] == now]
        with self._log.snapshot("dispatch") as snapshot:
            border = self._border(joined, snapshot.manifest)
            if start <= border:
                view = *now, border
                kept = self._kept(start, view)
                if kept is not None:
                    return kept
                entries, looked = self._service.read_compacted_entries(
                    start, COMPACTED_ENTRIES_MAX, border
                )
                if entries:
                    return self._keep(_Piece(start, looked, entries, view))
                if looked < start:
                    # The view was deleted since the border was found: there is only the log now.
                    border = start - 1
            above = max(start, border + 1)
            piece = self._kept(above, None) or self._from_snapshot(snapshot, above)
        # If there is nothing, all of what is compacted was looked at and need not be again.
        return piece or _Piece(start, max(start - 1, border), [])

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        segments = self._log.manifest.segments
        sealed = len(segments) - 1
        at = bisect_left(segments, position, hi=sealed, key=lambda ref: ref.last_position)
        there = max(position, segments[at].first_position)
        return self.end_of_gap(there)

    def following_retained(
        self, position: int, joined: int, is_done: Callable[[Entry], bool]
    ) -> int:
        """The same of a consumer's compacted reads; entries that are done with count as gone."""
        border = self.border(joined)
        while position <= border:
            piece = self._compacted(position, joined)
            for number in range(piece.find(position), len(piece.entries)):
                entry = piece.entries[number]
                if entry.position > border:
                    break
                if not is_done(entry):
                    return entry.position
            if piece.through < position:
                # The view was deleted since the border was found, and the log has nothing there.
                break
            position = min(piece.through, border) + 1
        return self.following(position)

    # --- single positions -------------------------------------------------------------------

    def read_each(
        self, positions: Sequence[int], bytes_max: int, joined: int | None = None
    ) -> tuple[list[Entry], int]:
        """(entries, through): those at ascending positions, until there are `bytes_max` bytes.

        `joined` is as in `read`.
        """
        entries: list[Entry] = []
        through = positions[0] - 1
        at = size = walks = 0
        with self._log.snapshot("redelivery") as snapshot:
            while at < len(positions) and size < bytes_max and walks < WALKS_MAX:
                walks += 1
                found, last = self._around(snapshot, positions[at], joined)
                stop = bisect_right(positions, last, at)
                taken = _at(found, positions[at:stop])
                entries += taken
                size += sum(len(entry.body) for entry in taken)
                through = positions[stop - 1]
                at = stop
        return entries, through

    def _around(
        self, snapshot: Snapshot, position: int, joined: int | None
    ) -> tuple[Sequence[Entry], int]:
        """Entries from a position on, and the last position that was looked at."""
        kept = self._kept(position, None) if joined is None else self._compacted(position, joined)
        if kept is not None:
            return kept.entries, max(position, kept.through)
        for frames in snapshot.read_frames(position):
            return FrameEntries(frames), int(frames.positions[-1])
        return [], max(position, snapshot.last_position)

    def _note_gaps(self, start: int, frames: Frames) -> None:
        positions = frames.positions
        first = int(positions[0])
        ledger_start = first >> PACKED_ENTRY_BITS << PACKED_ENTRY_BITS
        self._note_gap(max(start, ledger_start), first)
        for at in np.flatnonzero(np.diff(positions) > 1).tolist():
            before, after = int(positions[at]), int(positions[at + 1])
            self._note_gap(before + 1, after)

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
