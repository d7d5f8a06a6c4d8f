"""The state that all writes to a log share, under one lock.

It consists of the active segment, the next position, the tick that the next fsync ends, and what is
in progress. `Appender`, `Syncer` and `Roller` share one `WriteState`.

If a write fails, the counted frames stay, and the rest is truncated before the next write. The
positions of truncated frames are never reused: a power cut can undo the truncation and bring the
frames back.

`lock` is held during a write, not during an fsync. `ended` is notified after an fsync or a roll.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from lithify.errors import LithifyError, LogClosed, WriteFailed
from lithify.events import WriteRefused
from lithify.log.active_segment import ActiveSegment, OpenGeneration
from lithify.log.group_commit import Tick
from lithify.positions import NO_POSITION
from lithify.settings import Durability

if TYPE_CHECKING:
    from lithify.log.deferred_events import DeferredEvents
    from lithify.log.manifest import Manifest
    from lithify.log.manifest_publisher import ManifestPublisher
    from lithify.log.segments.segment_file import SegmentWriter
    from lithify.settings import LogSettings

__all__ = ["WriteState"]


class WriteState:
    """See the module. Methods are called under `lock`."""

    def __init__(
        self,
        directory: str,
        publisher: ManifestPublisher,
        active: ActiveSegment,
        settings: LogSettings,
        events: DeferredEvents,
    ) -> None:
        self.directory = directory
        self.publisher = publisher
        self.settings = settings
        self.events = events
        self.lock = threading.Lock()
        self.ended = threading.Condition(self.lock)
        self.syncing = False
        """Is an fsync in progress?"""
        self.rolling = False
        """Is the file of the next segment being created?"""
        self.closed = False
        self.current = OpenGeneration(publisher.manifest, active)
        self.tick = Tick()
        self.next_position = active.first_free

    def check_usable(self) -> None:
        """Raise if closed; repair what an earlier failed write left behind."""
        if self.closed:
            raise LogClosed(f"{self.directory} is closed")
        if not self.publisher.settled:
            self.publisher.settle()
        active = self.current.active
        if active.torn:
            active.repair()

    def write_failed(self, error: OSError, last: int = NO_POSITION) -> WriteFailed:
        """Truncate what a failed write may have left, now or before the next write.

        Some of its frames, up to position `last`, may be whole.
        """
        active = self.current.active
        self.write_interrupted(last)
        self.events.put(WriteRefused(self.directory, active.writer.path, str(error)))
        with suppress(WriteFailed):
            self.check_usable()
        return WriteFailed(active.writer.path, error)

    def write_interrupted(self, last: int) -> None:
        """Handle uncounted bytes of an interrupted write, as after a failed one."""
        self.next_position = max(self.next_position, last + 1)
        self.current.active.torn = True

    def take_tick(self) -> Tick:
        """End the current tick: appends from here on belong to the next fsync."""
        tick, self.tick = self.tick, Tick()
        return tick

    def drop_unacknowledged(self, failure: LithifyError) -> None:
        """After a failed fsync, go back to the durable state if the mode promises durability."""
        if self.settings.durability is not Durability.ALWAYS:
            return
        self.current.active.rewind()
        self.take_tick().complete(failure)
        with suppress(LithifyError):
            self.check_usable()

    def adopt(self, manifest: Manifest) -> None:
        """Set a published generation that has the same active segment."""
        self.current = OpenGeneration(manifest, self.current.active)

    def switch(self, manifest: Manifest, successor: SegmentWriter) -> None:
        """Set a published roll: the successor is active, and all before it is durable."""
        old = self.current.active
        self.current = OpenGeneration(manifest, ActiveSegment(successor, old.visible[1]))
        self.next_position = max(self.next_position, self.current.active.first_free)
        old.writer.file.close()
        self.take_tick().complete()
