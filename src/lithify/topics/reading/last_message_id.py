"""The id of the last message of a log, kept in memory so that the log need not be read.

Each append records the id of its last message, which becomes readable only when the append is
visible. Until then the record is queued. Without a record, after an open or a failed write, the
last entry is read once.

One thread at a time; owned by the topic.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from lithify.positions import NO_POSITION
from lithify.topics.disk_steps import DiskCall
from lithify.topics.subscriptions.entry_flags import FLAG_BATCH

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.topics.disk_steps import Steps

__all__ = ["LastMessageId"]


class LastMessageId:
    """The last message id of one log."""

    def __init__(self, log: Log) -> None:
        self._log = log
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

    def finding_last(self) -> Steps[tuple[int, int]]:
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
