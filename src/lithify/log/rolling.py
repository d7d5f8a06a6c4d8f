"""Seals the active segment of a log and starts the next.

1. Wait for the fsync in progress, if any.
2. Write block index and footer behind the frames, and fsync. A crash leaves the segment active: the
   footer is truncated, or accepted as the end of the frames.
3. Create the file of the next segment with its header, and fsync. No manifest names it yet.
4. Publish one manifest that names the old segment as sealed and the new one as active.

`roll` does the slowest parts first, while other threads append: the fsync of the written frames,
and step 3. Appends wait only for the footer's fsync and the manifest. An append that finds its
segment full does all steps under the write lock.

A segment is too old `segment_age_ms_max` after its creation. Appends and `Log.maintain` check it.

If a step fails the segment stays active, and what was written behind its frames is truncated before
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
    from lithify.log.fsync import Syncer
    from lithify.log.segments.segment_file import SegmentFooter, SegmentHeader
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
        """Seal the active segment and start the next; does nothing if it is empty."""
        if self._writes.current.active.unsynced:
            self._syncer.sync()
        with self._writes.events:
            self._roll_aside()

    def _roll_aside(self) -> None:
        """Create the next segment while other threads append, then roll."""
        writes = self._writes
        with writes.lock:
            while writes.rolling:
                writes.ended.wait()
            # After the wait, during which the log may have been closed: the file of the next
            # segment may then be another owner's.
            writes.check_usable()
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
        """Roll under the write lock; `spare` is the next segment, if it exists already."""
        writes = self._writes
        rolled = writes.current.active
        while writes.syncing or (writes.rolling and spare is None):
            writes.ended.wait()
        self.sealing = True
        try:
            with writes.publisher.lock, ExitStack() as unused:
                if spare is not None:
                    unused.callback(spare.file.close)
                # During the wait for the fsync or the manifest, another thread may have closed the
                # log, caused a repair, or rolled.
                writes.check_usable()
                active = writes.current.active
                if active is not rolled or not active.writer.entries:
                    return
                header = self._successor()
                # If this fails or is interrupted, the footer is truncated before the next write.
                active.torn = True
                footer = self._seal(active)
                if spare is None or not _is_usable(spare.header, header):
                    spare = self._begin(header)
                else:
                    unused.pop_all()
                active.torn = False
                self._start(footer, spare)
        finally:
            self.sealing = False

    def roll_if_old(self) -> None:
        """Roll if the active segment has entries and is too old; called under the write lock."""
        active = self._writes.current.active
        if self._writes.closed or active.torn or self._writes.publisher.failed:
            self._writes.check_usable()
        if active.writer.entries and self.too_old(active.writer):
            self.roll_locked()

    def too_old(self, writer: SegmentWriter) -> bool:
        """Must the segment be rolled because of its age?"""
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
        """Create an empty segment, durably; no manifest names it yet."""
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
        """Publish the active segment as sealed and its successor as active."""
        writes = self._writes
        active = writes.current.active
        name = writes.publisher.manifest.active.name

        def keep_active() -> None:
            # The roll was not published: the footer is truncated, and the segment stays active.
            successor.file.close()
            active.torn = True

        writes.publisher.publish(
            lambda m: _rolled(m, footer, active.flags, successor.header),
            "roll",
            adopt=lambda m: writes.switch(m, successor),
            drop=keep_active,
        )
        writes.events.put(SegmentSealed(writes.directory, name, footer.entries, footer.file_bytes))


def _is_usable(header: SegmentHeader, wanted: SegmentHeader) -> bool:
    """May a segment that was created with `header` be used as `wanted`?"""
    return replace(header, created_ms=wanted.created_ms) == wanted


def _rolled(
    manifest: Manifest, footer: SegmentFooter, flags: int, header: SegmentHeader
) -> Manifest:
    """The manifest with the active segment sealed and a new one that begins with `header`."""
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
