"""The active segment of a log: made durable, sealed when it is full, followed by the next.

Making durable
    One fsync at a time covers everything that was written before it began. After a failed one in
    mode `always` everything that was not acknowledged is cut off again, because the operating
    system may have dropped those pages while still showing them. In the other modes the bytes
    stay, and the error goes to whoever syncs.

Rolling
    1. The fsync that is under way, if any, comes to its end.
    2. Block index and footer are written behind the frames, and fsynced. A crash leaves the segment
       active: the footer is cut, or accepted as the end of the frames.
    3. The successor's file is made, with its header, and fsynced. Nobody knows it yet.
    4. One manifest names the one as sealed and the other as active.

    Whoever calls `roll` has done before, while others append, what takes longest: the fsync of what
    was written, and step 3. They wait for the footer's fsync and for the manifest. An append that
    finds its segment full does all of it under the lock.

Invariants: manifest and active segment are replaced together, as one value that never changes, so
a reader takes it and needs no lock afterwards. If a step fails the segment stays active, and what
was written behind its frames is cut off before the next write. Positions of what was cut off are
not given out again.

The lowest part of a `Log`, whose locks it has; for `appending.py`.
"""

from __future__ import annotations

import errno
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.errors import LithifyError, LogClosed, PositionOutOfRange, WriteFailed
from lithify.events import SegmentSealed, WriteRefused
from lithify.log.commit import Tick
from lithify.log.manifest import Manifest, SegmentRef
from lithify.log.names import segment_name
from lithify.log.segment import SEGMENT_HEADER_BYTES, SegmentWriter
from lithify.positions import NO_POSITION, POSITION_MAX
from lithify.settings import Durability

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.log.publisher import Publisher
    from lithify.log.segment import SegmentFooter, SegmentHeader, WriterMark
    from lithify.log.telling import Telling
    from lithify.positions import PositionRule
    from lithify.settings import LogSettings

__all__ = ["Active", "Rolling", "State"]


class Active:
    """The active segment: what is written, what is durable, what may be read."""

    __slots__ = ("durable", "flags", "visible", "writer")

    def __init__(self, writer: SegmentWriter, last_position: int, flags: int = 0) -> None:
        self.writer = writer
        self.flags = flags
        self.durable: WriterMark = writer.mark()
        last = writer.last_position if writer.entries else last_position
        self.visible = (writer.end, last)


@dataclass(frozen=True, slots=True)
class State:
    """A generation, and the active segment that goes with it."""

    manifest: Manifest
    active: Active


class Rolling:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        publisher: Publisher,
        active: Active,
        settings: LogSettings,
        clock: Clock,
        rule: PositionRule,
        events: Telling,
    ) -> None:
        self._fs = fs
        self._publisher = publisher
        self._clock = clock
        self._rule = rule
        self._events = events
        self._sync_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._sync_ended = threading.Condition(self._write_lock)
        self._syncing = False
        self._rolling = False
        """Is somebody making the next segment's file?"""
        self.sealing = False
        """Would an append have to wait for a roll?"""
        self._state = State(publisher.manifest, active)
        self._tick = Tick()
        self._next_position = self._first_free()
        self._torn = False
        self._closed = False
        self._synced_at_s = clock.monotonic_s()
        self.directory = directory
        self.settings = settings

    def _first_free(self) -> int:
        """The lowest position that an append may take."""
        active = self._state.active
        writer = active.writer
        after = writer.last_position if writer.entries else active.visible[1]
        return max(after + 1, writer.header.first_position)

    def _check_usable(self) -> None:
        """Raise if closed; repair what an earlier failed write left behind."""
        if self._closed:
            raise LogClosed(f"{self.directory} is closed")
        if not self._publisher.settled:
            self._publisher.settle()
        if self._torn:
            writer = self._state.active.writer
            try:
                writer.file.truncate(writer.end)
            except OSError as error:
                raise WriteFailed(writer.path, error) from error
            self._torn = False

    def _write_failed(self, error: OSError, last: int = NO_POSITION) -> WriteFailed:
        """A write may have left part of its bytes: cut them off, now or before the next write.

        Of its frames, up to position `last`, some may be whole. A power cut can undo the cut and
        bring them back, so their positions go to nobody else.
        """
        writer = self._state.active.writer
        self._next_position = max(self._next_position, last + 1)
        self._events.put(WriteRefused(self.directory, writer.path, str(error)))
        self._torn = True
        with suppress(WriteFailed):
            self._check_usable()
        return WriteFailed(writer.path, error)

    def _write_interrupted(self, last: int) -> None:
        """Its bytes may be in the file, but nobody counts them: as of a write that has failed."""
        self._next_position = max(self._next_position, last + 1)
        self._torn = True

    def must_settle(self) -> bool:
        """Would an append have to wait, for a roll or for what an earlier failure left?"""
        return self.sealing or self._torn or not self._publisher.settled

    def settle(self) -> None:
        """Make sure that `manifest` is what is on disk; raises `WriteFailed` while it is not."""
        with self._events, self._write_lock:
            self._check_usable()

    # --- making durable ---------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything appended so far durable, in any mode."""
        with self._events, self._sync_lock:
            self._sync()

    def sync_tick(self, tick: Tick) -> None:
        """Make what belongs to a tick durable; nothing if somebody has done it meanwhile."""
        with self._events, self._sync_lock:
            if not tick.done:
                self._sync()

    def _sync(self) -> None:
        with self._write_lock:
            try:
                self._check_usable()
            except LogClosed:
                raise  # Whoever closed it has told those who wait.
            except LithifyError as refused:
                # Nobody else would tell those who wait.
                self._drop_unacknowledged(self._state.active, refused)
                raise
            active, tick = self._state.active, self._tick
            mark = active.writer.mark()
            self._tick = Tick()
            self._syncing = True
        failure: WriteFailed | None = None
        try:
            if mark.end != active.durable.end:
                active.writer.file.fdatasync()
        except OSError as error:
            failure = WriteFailed(active.writer.path, error)
            self._events.put(WriteRefused(self.directory, active.writer.path, str(error)))
        except BaseException:
            # An interrupt: nobody may wait for this fsync any longer. The next one covers it.
            with self._write_lock:
                self._syncing = False
                self._sync_ended.notify_all()
            cause = InterruptedError(errno.EINTR, "fsync was interrupted")
            tick.complete(WriteFailed(active.writer.path, cause))
            raise
        with self._write_lock:
            self._syncing = False
            self._sync_ended.notify_all()
            if failure is None:
                self._durable_up_to(active, mark)
            else:
                self._drop_unacknowledged(active, failure)
                # Under the lock: an append that is to stand behind these must know.
                tick.complete(failure)
        self._synced_at_s = self._clock.monotonic_s()
        if failure is not None:
            raise failure
        tick.complete()

    def _has_unsynced(self) -> bool:
        active = self._state.active
        return active.writer.end != active.durable.end

    def _durable_up_to(self, active: Active, mark: WriterMark) -> None:
        active.durable = mark
        if mark.entries and mark.end > active.visible[0]:
            active.visible = (mark.end, mark.last_position)

    def _drop_unacknowledged(self, active: Active, failure: LithifyError) -> None:
        """After a failed fsync: back to what is durable, if that is what was promised."""
        if self.settings.durability is not Durability.ALWAYS:
            return
        active.writer.rewind(active.durable)
        self._torn = True
        tick, self._tick = self._tick, Tick()
        tick.complete(failure)
        with suppress(LithifyError):
            self._check_usable()

    # --- rolling ----------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the active segment and start the next; an empty one stays. See the module."""
        if self._has_unsynced():
            self.sync()
        with self._events:
            self._roll_aside()

    def _roll_aside(self) -> None:
        """Make the successor while others append, then roll."""
        with self._write_lock:
            self._check_usable()
            while self._rolling:
                self._sync_ended.wait()
            if not self._state.active.writer.entries:
                return
            header = self._successor()
            self._rolling = True
        spare: SegmentWriter | None = None
        try:
            spare = self._begin(header)
        finally:
            with self._write_lock:
                try:
                    if spare is not None:
                        self._roll(spare)
                finally:
                    self._rolling = False
                    self._sync_ended.notify_all()

    def _roll(self, spare: SegmentWriter | None = None) -> None:
        """Under the write lock; `spare` is the successor, if it was made before."""
        rolled = self._state.active
        while self._syncing or (self._rolling and spare is None):
            self._sync_ended.wait()
        self.sealing = True
        try:
            with self._publisher.lock, ExitStack() as unused:
                if spare is not None:
                    unused.callback(spare.file.close)
                # While this waited for the fsync or for the manifest, others may have closed the
                # log, left something to be repaired first, or rolled.
                self._check_usable()
                active = self._state.active
                if active is not rolled or not active.writer.entries:
                    return
                header = self._successor()
                # If this fails or is interrupted, the footer is cut off before the next write.
                self._torn = True
                footer = self._seal(active)
                if spare is None or not _is_for(spare.header, header):
                    spare = self._begin(header)
                else:
                    unused.pop_all()
                self._torn = False
                self._start(footer, spare)
        finally:
            self.sealing = False

    def _successor(self) -> SegmentHeader:
        """The header of the segment after the active one."""
        segment_id = self._publisher.manifest.next_segment_id
        first = self._rule.first(segment_id, self._next_position - 1)
        if first > POSITION_MAX:
            raise PositionOutOfRange(first, f"{POSITION_MAX} or lower")
        return replace(
            self._state.active.writer.header,
            segment_id=segment_id,
            first_position=first,
            created_ms=self._clock.now_ms(),
        )

    def _begin(self, header: SegmentHeader) -> SegmentWriter:
        """A segment without entries, durable; nobody knows it yet."""
        path = f"{self.directory}/{segment_name(header.segment_id)}"
        try:
            writer = SegmentWriter.create(self._fs, path, header)
            try:
                writer.file.fsync()
            except BaseException:
                writer.file.close()
                raise
        except OSError as error:
            self._events.put(WriteRefused(self.directory, path, str(error)))
            raise WriteFailed(path, error) from error
        return writer

    def _seal(self, active: Active) -> SegmentFooter:
        try:
            footer = active.writer.seal()
        except OSError as error:
            failure = self._write_failed(error)
            self._drop_unacknowledged(active, failure)
            raise failure from error
        self._durable_up_to(active, active.writer.mark())
        return footer

    def _start(self, footer: SegmentFooter, successor: SegmentWriter) -> None:
        """Publish that the active segment is sealed and its successor active."""
        name, flags = self._publisher.manifest.active.name, self._state.active.flags
        self._publisher.publish(
            lambda m: _rolled(m, footer, flags, successor.header),
            "roll",
            adopt=lambda m: self._switch(m, successor),
            drop=lambda: self._unseal(successor),
        )
        self._events.put(SegmentSealed(self.directory, name, footer.entries, footer.file_bytes))

    def _switch(self, manifest: Manifest, successor: SegmentWriter) -> None:
        """The roll is published: the successor is active, and all before it is durable."""
        old = self._state.active
        self._state = State(manifest, Active(successor, old.visible[1]))
        self._next_position = max(self._next_position, self._first_free())
        old.writer.file.close()
        tick, self._tick = self._tick, Tick()
        tick.complete()

    def _unseal(self, successor: SegmentWriter) -> None:
        """The roll was not published: the footer goes, the segment stays active."""
        successor.file.close()
        self._torn = True


def _is_for(made: SegmentHeader, wanted: SegmentHeader) -> bool:
    """May a segment with the one header be used where the other is wanted?"""
    return replace(made, created_ms=wanted.created_ms) == wanted


def _rolled(
    manifest: Manifest, footer: SegmentFooter, flags: int, header: SegmentHeader
) -> Manifest:
    """The manifest after the active segment was sealed and `header` begins the next."""
    sealed = replace(
        manifest.active,
        last_position=footer.last_position,
        entries=footer.entries,
        frame_bytes=footer.frame_bytes,
        file_bytes=footer.file_bytes,
        time_min=footer.time_min,
        time_max=footer.time_max,
        sealed=True,
        flags=flags,
    )
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
