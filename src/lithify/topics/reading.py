"""Reads a topic's log for dispatch: in pieces, the newest of which are kept for a while.

A consumer with few permits takes a few entries of a piece and comes back for the next ones, and
subscriptions that follow the end of the topic all want the same entries. So the last pieces read
are kept, `KEPT_MAX` a topic, and dropped by `forget_unused` when nobody came for them.

A piece covers every position from `start` to `through`: what is in between and has no entry does
not exist. Such a gap within a ledger, left by a failed write, is remembered, so that cursors can
move over it; those at the ends of ledgers are known from the manifest.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lithify.positions import PACKED_ENTRY_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.log.frame import Entry
    from lithify.log.log import Log
    from lithify.log.reader import Snapshot
    from lithify.log.scan import Frames

__all__ = ["Reading"]

KEPT_MAX = 4
WALKS_MAX = 16
"""Places of the log that one read of single positions may go to."""


@dataclass(slots=True)
class _Piece:
    start: int
    through: int
    positions: list[int]
    entries: list[Entry]
    used: bool = field(default=True)


class Reading:
    """The reads of one topic."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pieces: list[_Piece] = []
        self._gap_starts: list[int] = []
        self._gap_stops: dict[int, int] = {}

    def read(self, start: int, limit: int) -> tuple[list[Entry], int]:
        """(entries, through): entries from `start` on, `limit` at most, what was looked at."""
        piece = self._piece(start)
        if piece is None:
            return [], start - 1
        low = bisect_left(piece.positions, start)
        entries = piece.entries[low : low + limit]
        if low + limit >= len(piece.entries):
            return entries, piece.through
        return entries, entries[-1].position

    def _piece(self, start: int) -> _Piece | None:
        for piece in self._pieces:
            if piece.start <= start <= piece.through:
                piece.used = True
                return piece
        with self._log.snapshot("dispatch") as snapshot:
            for frames in snapshot.read_frames(start):
                entries = list(frames.entries())
                self._note_gaps(start, frames)
                positions = frames.positions.tolist()
                new = _Piece(start, positions[-1], positions, entries)
                self._pieces = [new, *self._pieces[: KEPT_MAX - 1]]
                return new
        return None

    def read_each(self, positions: Sequence[int], bytes_max: int) -> tuple[list[Entry], int]:
        """(entries, through): those at ascending positions, until there are `bytes_max` bytes."""
        entries: list[Entry] = []
        through = positions[0] - 1
        at = size = walks = 0
        with self._log.snapshot("redelivery") as snapshot:
            while at < len(positions) and size < bytes_max and walks < WALKS_MAX:
                walks += 1
                found, last = self._around(snapshot, positions[at])
                stop = bisect_right(positions, last, at)
                wanted = set(positions[at:stop])
                taken = [entry for entry in found if entry.position in wanted]
                entries += taken
                size += sum(len(entry.body) for entry in taken)
                through = positions[stop - 1]
                at = stop
        return entries, through

    def _around(self, snapshot: Snapshot, position: int) -> tuple[list[Entry], int]:
        """Entries from a position on, and the last position that was looked at."""
        for piece in self._pieces:
            if piece.start <= position <= piece.through:
                piece.used = True
                return piece.entries, piece.through
        for frames in snapshot.read_frames(position):
            return list(frames.entries()), int(frames.positions[-1])
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
        self._pieces = [piece for piece in self._pieces if piece.start >= position]
        low = bisect_left(self._gap_starts, position)
        for start in self._gap_starts[:low]:
            del self._gap_stops[start]
        del self._gap_starts[:low]
