"""Appends to a log: assigns positions and writes frames to the active segment.

An append writes under the lock and returns a `Pending`: the entry is in the file, and is
acknowledged when it is durable as configured. If the active segment is full, too old or out of
positions, the append rolls it first. A failed write raises `WriteFailed` and leaves acknowledged
entries as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import PositionOutOfRange
from lithify.log.group_commit import Pending, Tick
from lithify.log.segments.frame import HEADER_BYTES, check_fields
from lithify.settings import Durability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.log.active_segment import ActiveSegment
    from lithify.log.fsync import Syncer
    from lithify.log.rolling import Roller
    from lithify.log.segments.frame import NewEntry
    from lithify.log.segments.frame_batch import FrameBatch
    from lithify.log.write_state import WriteState
    from lithify.positions import PositionRule

__all__ = ["Appender"]

_DONE = Tick()
_DONE.complete()


class Appender:
    """Writes entries to the active segment of one log."""

    def __init__(
        self, writes: WriteState, syncer: Syncer, roller: Roller, rule: PositionRule
    ) -> None:
        self._writes = writes
        self._syncer = syncer
        self._roller = roller
        self._rule = rule

    def append(
        self, entries: Sequence[NewEntry], position: int | None, after: Pending | None
    ) -> Pending:
        """Append entries in one write to one segment; `position`, if given, is the first one's."""
        writes = self._writes
        limit, size, all_flags = writes.settings.entry_bytes_max, 0, 0
        for body, time_ms, flags, tag, more in entries:
            length = len(body) + len(more)
            check_fields(length, position or 0, time_ms, flags, tag, limit)
            size += HEADER_BYTES + length
            all_flags |= flags
        with writes.events, writes.lock:
            active, first = self._prepare(size, position, len(entries))
            last = first + len(entries) - 1
            if after is not None and after.done():
                after.result()
            try:
                active.writer.append(entries, first, active.durable.end)
            except OSError as error:
                raise writes.write_failed(error, last) from error
            except BaseException:
                writes.write_interrupted(last)
                raise
            active.flags |= all_flags
            return self._written(active, last)

    def append_batch(self, batch: FrameBatch, after: Pending | None) -> Pending:
        """Append a batch, split at segment boundaries."""
        writes = self._writes
        with writes.events, writes.lock:
            first = writes.current.active.visible[1]
            pending = Pending(first, _DONE, self._syncer)
            runs: list[tuple[int, int]] = []
            while len(batch):
                active, first = self._prepare(batch.next_size, batch.next_position)
                if pending.done():
                    # Rolling may have waited for an fsync that failed and dropped the earlier
                    # pieces: then nothing of the batch may be acknowledged.
                    pending.result()
                if after is not None and after.done():
                    after.result()
                writer = active.writer
                room = writes.settings.segment_bytes_max - writer.end
                limit = self._rule.last(writer.header.segment_id)
                piece = batch.take(room, first, limit, active.durable.end)
                last = int(piece.positions[-1])
                try:
                    writer.append_piece(piece)
                except OSError as error:
                    raise writes.write_failed(error, last) from error
                except BaseException:
                    writes.write_interrupted(last)
                    raise
                active.flags |= batch.flags
                pending = self._written(active, last)
                runs.append((int(piece.positions[0]), last))
            pending.runs = runs
            return pending

    def _prepare(
        self, size: int, position: int | None, count: int = 1
    ) -> tuple[ActiveSegment, int]:
        """Roll if necessary; return the active segment and the position of the first entry."""
        writes = self._writes
        writes.check_usable()
        active = writes.current.active
        writer = active.writer
        first = self._next_position(position)
        last = self._rule.last(writer.header.segment_id)
        full = writer.end + size > writes.settings.segment_bytes_max
        used_up = first + count - 1 > last
        if writer.entries and (full or used_up or self._roller.too_old(writer)):
            self._roller.roll_locked()
            # Rolling may have waited for an fsync, and other threads may have appended meanwhile.
            first = self._next_position(position)
            active = writes.current.active
            last = self._rule.last(active.writer.header.segment_id)
        if first + count - 1 > last:
            raise PositionOutOfRange(first + count - 1, f"{last} or lower")
        return active, first

    def _next_position(self, position: int | None) -> int:
        """The position of the next entry: the caller's, if valid, or the next free one."""
        if position is None:
            return self._writes.next_position
        first_free = self._writes.current.active.first_free
        if position < first_free:
            raise PositionOutOfRange(position, f"{first_free} or higher")
        return position

    def _written(self, active: ActiveSegment, last: int) -> Pending:
        writes = self._writes
        writes.next_position = last + 1
        if writes.settings.durability is Durability.ALWAYS:
            return Pending(last, writes.tick, self._syncer)
        active.visible = (active.writer.end, last)
        return Pending(last, _DONE, self._syncer)

    def must_roll(self, size_bytes: int) -> bool:
        """Is the active segment too old, or too full for `size_bytes` more?"""
        writer = self._writes.current.active.writer
        full = writer.end + size_bytes > self._writes.settings.segment_bytes_max
        return writer.entries > 0 and (full or self._roller.too_old(writer))
