"""The id of the last message of a log, kept in memory so that the log need not be read.

Each append records the id of its last message, which becomes readable only when the append is
visible. Until then the record is queued. Without a record, after an open or a failed write, the
last entry is read once.

A compacted reader that has no entry of the log above its border gets the last retained message,
which the compaction service knows without reading an entry.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from lithify.positions import NO_POSITION, unpack
from lithify.topics.disk_steps import DiskCall
from lithify.topics.messages.entry_flags import FLAG_BATCH
from lithify.topics.messages.message import MessageId

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.topics.compaction.compaction_service import TopicCompactionService
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.dispatch_reads import TopicReads

__all__ = ["LastMessageId"]


class LastMessageId:
    """The last message id of one log."""

    def __init__(
        self, log: Log, reading: TopicReads, service: TopicCompactionService, partition: int
    ) -> None:
        self._log = log
        self._reading = reading
        self._service = service
        self._partition = partition
        self._known = (NO_POSITION, -1)
        self._pending: deque[tuple[int, int]] = deque()
        """Records of appends that are not visible yet."""

    def appended(self, position: int, messages: int, flags: int) -> None:
        """Record the last entry of an append."""
        self._pending.append((position, messages - 1 if flags & FLAG_BATCH else -1))
        self._take_visible()

    def _take_visible(self) -> None:
        last = self._log.last_position
        while self._pending and self._pending[0][0] <= last:
            self._known = self._pending.popleft()

    def finding(self, through: int | None = None) -> Steps[MessageId]:
        """See `Topic.last_message_id`. Reads an entry only after an open or a failed write."""
        if through is None or self._log.last_position > self._reading.compacted_end(through):
            position, index = yield from self._finding_in_log()
        else:
            last = self._service.last_message_position()
            position, index = (NO_POSITION, -1) if last is None else (last.position, last.slot)
        ledger, entry = unpack(position) if position >= 0 else (-1, -1)
        return MessageId(ledger, entry, index, self._partition)

    def _finding_in_log(self) -> Steps[tuple[int, int]]:
        """(position, index in its batch or -1) of the last message; (-1, -1) if there is none."""
        self._take_visible()
        last = self._log.last_position
        if last < self._log.manifest.segments[0].first_position:
            # All entries were trimmed from the log.
            return NO_POSITION, -1
        if self._known[0] != last:
            index = yield DiskCall(self, lambda: partial(self._read, last))
            # Appends during the read may have recorded a later one.
            self._known = max(self._known, (last, index))
        return self._known

    def _read(self, position: int) -> int:
        with self._log.snapshot("last message") as snapshot:
            for frames in snapshot.read_frames(position):
                batch = int(frames.flags()[0]) & FLAG_BATCH
                return int(frames.tags()[0]) - 1 if batch else -1
        return -1
