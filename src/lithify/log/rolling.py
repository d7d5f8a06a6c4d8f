"""Seals the active segment of a log and starts the next.

1. The fsync in progress, if any, ends.
2. Block index and footer are written behind the frames, and fsynced. A crash leaves the segment
   active: the footer is cut, or accepted as the end of the frames.
3. The file of the successor is made, with its header, and fsynced. No manifest names it yet.
4. One manifest names the one as sealed and the other as active.

`roll` does first, while others append, what takes longest: the fsync of what was written, and
step 3. Appends wait for the footer's fsync and for the manifest. An append that finds its segment
full does all of it under the write lock.

If a step fails the segment stays active, and what was written behind its frames is cut off before
the next write.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.errors import PositionOutOfRange, WriteFailed
from lithify.events import SegmentSealed, WriteRefused
from lithify.log.file_names import segment_name
from lithify.log.manifest import Manifest, SegmentRef
from lithify.log.segments.segment_file import SEGMENT_HEADER_BYTES, SegmentWriter
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.active_segment import ActiveSegment
    from lithify.log.segments.segment_file import SegmentFooter, SegmentHeader
    from lithify.log.syncing import Syncer
    from lithify.log.write_state import WriteState
    from lithify.positions import PositionRule

__all__ = ["Roller"]


class Roller:
    """Rolls one log."""

    def __init__(
        self, fs: FileSystem, writes: WriteState, syncer: Syncer, clock: Clock, rule: PositionRule
    ) -> None:
        self._fs = fs
        self._writes = writes
        self._syncer = syncer
        self._clock = clock
        self._rule = rule
        self.sealing = False
        """Would an append have to wait for a roll?"""

    def roll(self) -> None:
        """Seal the active segment and start the next; an empty one stays. See the module."""
        if self._writes.current.active.unsynced:
            self._syncer.sync()
        with self._writes.events:
            self._roll_aside()

    def _roll_aside(self) -> None:
        """Make the successor while others append, then roll."""
        writes = self._writes
        with writes.lock:
            writes.check_usable()
            while writes.rolling:
                writes.ended.wait()
            if not writes.current.active.writer.entries:
                return
            header = self._successor()
            writes.rolling = True
        spare: SegmentWriter | None = None
        try:
            spare = self._begin(header)
        finally:
            with writes.lock:
                try:
                    if spare is not None:
                        self.roll_locked(spare)
                finally:
                    writes.rolling = False
                    writes.ended.notify_all()

    def roll_locked(self, spare: SegmentWriter | None = None) -> None:
        """Roll under the write lock; `spare` is the successor, if it was made before."""
        writes = self._writes
        rolled = writes.current.active
        while writes.syncing or (writes.rolling and spare is None):
            writes.ended.wait()
        self.sealing = True
        try:
            with writes.publisher.lock, ExitStack() as unused:
                if spare is not None:
                    unused.callback(spare.file.close)
                # While this waited for the fsync or for the manifest, others may have closed the
                # log, left something to be repaired first, or rolled.
                writes.check_usable()
                active = writes.current.active
                if active is not rolled or not active.writer.entries:
                    return
                header = self._successor()
                # If this fails or is interrupted, the footer is cut off before the next write.
                active.torn = True
                footer = self._seal(active)
                if spare is None or not _is_for(spare.header, header):
                    spare = self._begin(header)
                else:
                    unused.pop_all()
                active.torn = False
                self._start(footer, spare)
        finally:
            self.sealing = False

    def too_old(self, writer: SegmentWriter) -> bool:
        """Must a segment be rolled because of its age?"""
        limit = self._writes.settings.segment_age_ms_max
        return limit is not None and self._clock.now_ms() - writer.header.created_ms >= limit

    def _successor(self) -> SegmentHeader:
        """The header of the segment after the active one."""
        writes = self._writes
        segment_id = writes.publisher.manifest.next_segment_id
        first = self._rule.first(segment_id, writes.next_position - 1)
        if first > POSITION_MAX:
            raise PositionOutOfRange(first, f"{POSITION_MAX} or lower")
        return replace(
            writes.current.active.writer.header,
            segment_id=segment_id,
            first_position=first,
            created_ms=self._clock.now_ms(),
        )

    def _begin(self, header: SegmentHeader) -> SegmentWriter:
        """A segment without entries, durable; no manifest names it yet."""
        directory = self._writes.directory
        path = f"{directory}/{segment_name(header.segment_id)}"
        try:
            writer = SegmentWriter.create(self._fs, path, header)
            try:
                writer.file.fsync()
            except BaseException:
                writer.file.close()
                raise
        except OSError as error:
            self._writes.events.put(WriteRefused(directory, path, str(error)))
            raise WriteFailed(path, error) from error
        return writer

    def _seal(self, active: ActiveSegment) -> SegmentFooter:
        try:
            footer = active.writer.seal()
        except OSError as error:
            failure = self._writes.write_failed(error)
            self._writes.drop_unacknowledged(failure)
            raise failure from error
        active.set_durable(active.writer.mark())
        return footer

    def _start(self, footer: SegmentFooter, successor: SegmentWriter) -> None:
        """Publish that the active segment is sealed and its successor active."""
        writes = self._writes
        active = writes.current.active
        name = writes.publisher.manifest.active.name

        def stay() -> None:
            # The roll was not published: the footer is cut off, and the segment stays active.
            successor.file.close()
            active.torn = True

        writes.publisher.publish(
            lambda m: _rolled(m, footer, active.flags, successor.header),
            "roll",
            adopt=lambda m: writes.switch(m, successor),
            drop=stay,
        )
        writes.events.put(SegmentSealed(writes.directory, name, footer.entries, footer.file_bytes))


def _is_for(made: SegmentHeader, wanted: SegmentHeader) -> bool:
    """May a segment with the one header be used where the other is wanted?"""
    return replace(made, created_ms=wanted.created_ms) == wanted


def _rolled(
    manifest: Manifest, footer: SegmentFooter, flags: int, header: SegmentHeader
) -> Manifest:
    """The manifest after the active segment was sealed and `header` begins the next."""
    sealed = manifest.active.sealed_by(footer, flags=flags)
    successor = SegmentRef(
        header.segment_id, segment_name(header.segment_id), header.first_position
    )
    return replace(
        manifest,
        next_segment_id=manifest.next_segment_id + 1,
        segments=(*manifest.segments[:-1], sealed, successor),
        last_position=footer.last_position,
        synced_bytes=SEGMENT_HEADER_BYTES,
    )
