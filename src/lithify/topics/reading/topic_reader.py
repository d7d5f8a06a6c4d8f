"""Reads a topic: messages for the library, the newest of a key, and single entries.

Readers see the entries that are durable as configured. Compacted readers see the retained entries
up to the horizon, and the log above it. Dispatch to consumers reads by `dispatch_reads.py`;
`find_time.py` searches by time, and `last_message_id.py` finds the last message.

One thread at a time, as for the topic, except for methods that allow any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.topics.compaction.compaction_service import LogCompactionService
from lithify.topics.messages.message import Message, MessageId, read_entry
from lithify.topics.reading.find_time import TimeSearch
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
        self.end = end
        self.times = TimeSearch(log, reading, service)
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

    def border(self, joined: int) -> int:
        """The border of a consumer that joined at this horizon; see `dispatch_reads.py`."""
        return self._reading.compacted_end(joined)

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        return self._reading.following(position)

    def entry_at(self, position: int) -> Steps[LogEntry | None]:
        """The entry at a position, None if there is none."""
        run = self._reading.cached(position)
        if run is None:
            run = yield from self._reading.loading(position)
        entries, _ = run.take(position, 1)
        return entries[0] if entries and entries[0].position == position else None
