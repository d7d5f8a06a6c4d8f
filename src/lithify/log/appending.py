"""Appending to a log: the next position, a frame in the active segment, and a promise.

An append writes under the lock and returns a `Pending`: the entry is in the file, and counts once
it is durable as configured. One that finds the active segment full, used up or too old rolls it
first. A write that fails raises `WriteFailed` and leaves what was acknowledged as it was; positions
of which frames may have reached the disk are not given out again.

The part of a `Log` that writers use, on top of `rolling.py`; for `log.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import PositionOutOfRange
from lithify.log.batch import Batch
from lithify.log.commit import Pending, Tick
from lithify.log.frame import HEADER_BYTES, NewEntry, check_fields
from lithify.log.rolling import Rolling
from lithify.settings import Durability

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.log.batch import Slices
    from lithify.log.rolling import Active
    from lithify.log.segment import SegmentWriter

__all__ = ["Appending"]

_DONE = Tick()
_DONE.complete()


class Appending(Rolling):
    """See the module."""

    def append(
        self,
        body: Buffer,
        *,
        time_ms: int | None = None,
        flags: int = 0,
        tag: int = 0,
        position: int | None = None,
    ) -> Pending:
        """Append one entry. `position` must be above all others; by default it is the next one."""
        time_ms = self._clock.now_ms() if time_ms is None else time_ms
        return self._append((NewEntry(body, time_ms, flags, tag),), position, None)

    def append_together(
        self, entries: Sequence[NewEntry], *, after: Pending | None = None
    ) -> Pending:
        """Append some entries side by side, in one write; the result names the last position.

        They stand in one segment, also where they are larger. If the append `after` has failed,
        nothing is written, and its error is raised.
        """
        return self._append(entries, None, after)

    def _append(
        self, entries: Sequence[NewEntry], position: int | None, after: Pending | None
    ) -> Pending:
        limit, size, all_flags = self.settings.entry_bytes_max, 0, 0
        for body, time_ms, flags, tag, more in entries:
            length = len(body) + len(more)
            check_fields(length, position or 0, time_ms, flags, tag, limit)
            size += HEADER_BYTES + length
            all_flags |= flags
        with self._events, self._write_lock:
            active, place = self._prepare(size, position, len(entries))
            last = place + len(entries) - 1
            if after is not None and after.done():
                after.result()
            try:
                active.writer.append(entries, place, active.durable.end)
            except OSError as error:
                raise self._write_failed(error, last) from error
            except BaseException:
                self._write_interrupted(last)
                raise
            active.flags |= all_flags
            return self._written(active, last)

    def append_many(
        self,
        bodies: Sequence[Buffer] | Slices,
        *,
        time_ms: int | Sequence[int] | NDArray[np.int64] | None = None,
        flags: int | Sequence[int] | NDArray[np.int64] = 0,
        tags: int | Sequence[int] | NDArray[np.int64] = 0,
        positions: Sequence[int] | NDArray[np.int64] | None = None,
        after: Pending | None = None,
    ) -> Pending:
        """Append several entries; the result stands for all of them and names the last position.

        Numbers hold for all bodies, sequences give one for each. If a write fails in the middle,
        the entries before it are in the log and nothing is acknowledged. If the append `after` has
        failed, these must not be without it: nothing is written, and its error is raised.
        """
        times = self._clock.now_ms() if time_ms is None else time_ms
        batch = Batch(bodies, times, flags, tags, positions, self.settings.entry_bytes_max)
        with self._events, self._write_lock:
            place = self._state.active.visible[1]
            pending = Pending(place, _DONE, self)
            runs: list[tuple[int, int]] = []
            while len(batch):
                active, place = self._prepare(batch.next_size, batch.next_position)
                if pending.done():
                    # Rolling may have waited for an fsync that failed and took the pieces before
                    # this one with it: then nothing of the batch may be acknowledged.
                    pending.result()
                if after is not None and after.done():
                    after.result()
                writer = active.writer
                room = self.settings.segment_bytes_max - writer.end
                limit = self._rule.last(writer.header.segment_id)
                piece = batch.take(room, place, limit, active.durable.end)
                try:
                    writer.append_piece(piece)
                except OSError as error:
                    raise self._write_failed(error, int(piece.positions[-1])) from error
                except BaseException:
                    self._write_interrupted(int(piece.positions[-1]))
                    raise
                active.flags |= batch.flags
                pending = self._written(active, int(piece.positions[-1]))
                runs.append((int(piece.positions[0]), pending.position))
            pending.runs = runs
            return pending

    def _prepare(self, size: int, position: int | None, count: int = 1) -> tuple[Active, int]:
        """The active segment, rolled if need be, and where the first of `count` goes."""
        self._check_usable()
        writer = self._state.active.writer
        place = self._place(position)
        full = writer.end + size > self.settings.segment_bytes_max
        used_up = place + count - 1 > self._rule.last(writer.header.segment_id)
        if writer.entries and (full or used_up or self._too_old(writer)):
            self._roll()
            # Rolling may have waited for an fsync, and others may have appended meanwhile.
            place = self._place(position)
        last = self._rule.last(self._state.active.writer.header.segment_id)
        if place + count - 1 > last:
            raise PositionOutOfRange(place + count - 1, f"{last} or lower")
        return self._state.active, place

    def _place(self, position: int | None) -> int:
        """The position for the next entry, which may have been given."""
        if position is None:
            return self._next_position
        if position < self._first_free():
            raise PositionOutOfRange(position, f"{self._first_free()} or higher")
        return position

    def _written(self, active: Active, last: int) -> Pending:
        self._next_position = last + 1
        if self.settings.durability is Durability.ALWAYS:
            return Pending(last, self._tick, self)
        active.visible = (active.writer.end, last)
        return Pending(last, _DONE, self)

    def _too_old(self, writer: SegmentWriter) -> bool:
        limit = self.settings.segment_age_ms_max
        return limit is not None and self._clock.now_ms() - writer.header.created_ms >= limit

    def must_roll(self, size_bytes: int) -> bool:
        """Do so many bytes more not fit into the active segment, or is it too old for them?"""
        writer = self._state.active.writer
        full = writer.end + size_bytes > self.settings.segment_bytes_max
        return writer.entries > 0 and (full or self._too_old(writer))
