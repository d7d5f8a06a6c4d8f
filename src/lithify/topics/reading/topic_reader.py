"""Reads a topic: messages for the library, the newest of a key, the last one, and search by time.

Readers see the entries that are durable as configured. Compacted readers see the retained entries
up to the horizon, and the log above it. Dispatch to consumers reads by `dispatch_reads.py`.

One thread at a time, as for the topic, except for methods that allow any thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lithify.positions import NO_POSITION, unpack
from lithify.topics.compaction.compaction_service import LogCompactionService
from lithify.topics.disk_steps import DiskCall
from lithify.topics.messages.message import Message, MessageId, read_entry
from lithify.topics.reading.newest_of_key import NewestOfKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.log.reader import Snapshot
    from lithify.log.segments.frame import LogEntry
    from lithify.topics.compaction.compaction_service import TopicCompactionService
    from lithify.topics.compaction.topic_compaction import TopicCompaction
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.dispatch_reads import TopicReads
    from lithify.topics.reading.last_message_id import LastMessageId

__all__ = ["TopicReader"]

LIBRARY_READ = 10_000
"""Retained entries per call of the compaction service."""


class TopicReader:
    """Reads one topic."""

    def __init__(
        self,
        fs: FileSystem,
        name: TopicName,
        log: Log,
        end: LastMessageId,
        reading: TopicReads,
        compaction: TopicCompaction,
        service: TopicCompactionService,
    ) -> None:
        self._partition = name.partition
        self._log = log
        self._end = end
        self._reading = reading
        self._compaction = compaction
        self._service = service
        self._lookup = NewestOfKey(fs, log)

    def read(self, start: MessageId | None = None, *, compacted: bool = False) -> Iterator[Message]:
        """All messages from `start` (inclusive) on, in a snapshot; optionally only retained ones.

        An entry that cannot be decoded yields one message with the reason in `error`.
        """
        position = 0 if start is None else start.ledger << 32 | start.entry
        with self._log.snapshot("library reader") as snapshot:
            entries = self._retained(snapshot, position) if compacted else snapshot.read(position)
            for entry in entries:
                for message in read_entry(entry, self._partition):
                    if start is None or message.id >= start:
                        yield message

    def get(self, key: str | bytes) -> Message | None:
        """The newest message of a key by the key indexes; None if there is none or a tombstone."""
        return self._lookup.newest(
            key.encode() if isinstance(key, str) else key,
            by_event_time=self._compaction.settings().by_event_time,
            partition=self._partition,
        )

    def _retained(self, snapshot: Snapshot, position: int) -> Iterator[LogEntry]:
        """The retained entries, and the log above the horizon."""
        if isinstance(self._service, LogCompactionService):
            # One generation for the whole read: a later run may drop messages superseded by newer
            # ones that are not in the snapshot.
            yield from snapshot.read(position, compacted=True)
            return
        horizon = self._service.last_compacted_position
        while position <= horizon:
            entries, through = self._service.read_compacted_entries(position, LIBRARY_READ, horizon)
            if through < position:
                break  # The view was deleted during the read: the rest is in the log.
            yield from entries
            position = through + 1
        yield from snapshot.read(position)

    def finding_last_message_id(self, through: int | None = None) -> Steps[MessageId]:
        """See `Topic.last_message_id`. Reads an entry only after an open or a failed write."""
        if through is None or self._log.last_position > self._reading.compacted_end(through):
            position, index = yield from self._end.finding_last()
        else:
            last = self._service.last_message_position()
            position, index = (NO_POSITION, -1) if last is None else (last.position, last.slot)
        ledger, entry = unpack(position) if position >= 0 else (-1, -1)
        return MessageId(ledger, entry, index, self._partition)

    def border(self, joined: int) -> int:
        """The border of a consumer that joined at this horizon; see `dispatch_reads.py`."""
        return self._reading.compacted_end(joined)

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        return self._reading.following(position)

    def find_message_time(self, time_ms: int) -> int:
        """The first position of the log or the view published at or after a time.

        The view has messages that retention has trimmed from the log. Returns the next position if
        there is none. Waits for the disk; in any thread.
        """
        in_log, in_view = self.find_time(time_ms), self._service.find_by_publish_time(time_ms)
        return in_log if in_view is None else min(in_log, in_view)

    def entry_at(self, position: int) -> Steps[LogEntry | None]:
        """The entry at a position, None if there is none."""
        run = self._reading.cached(position)
        if run is None:
            run = yield from self._reading.loading(position)
        entries, _ = run.take(position, 1)
        return entries[0] if entries and entries[0].position == position else None

    def finding_time(self, time_ms: int, *, compacted: bool = False) -> Steps[int]:
        """See `find_time`."""
        position: int = yield DiskCall(
            self._reading, lambda: partial(self.find_time, time_ms, compacted=compacted)
        )
        return position

    def find_time(self, time_ms: int, *, compacted: bool = False) -> int:
        """The first position published at or after a time; the next position if there is none.

        Waits for the disk; in any thread.
        """
        horizon = NO_POSITION
        if compacted:
            position = self._service.find_by_publish_time(time_ms)
            if position is not None:
                return position
            horizon = self._service.last_compacted_position
        with self._log.snapshot("time search") as snapshot:
            position = snapshot.find_time(time_ms)
        return self._log.next_position if position is None else max(position, horizon + 1)
