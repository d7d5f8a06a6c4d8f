"""Which message is the last one of a log, known without reading it.

Each append leaves a note of its last message, and is one only once it may be read. So the notes of
appends that nobody may read yet wait in line. Where there is no note, after an open or a failed
write, the last entry is read, once.

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
    """The end of one log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known = (NO_POSITION, -1)
        self._waiting: deque[tuple[int, int]] = deque()

    def appended(self, position: int, messages: int, flags: int) -> None:
        """Note the last entry of an append."""
        self._waiting.append((position, messages - 1 if flags & FLAG_BATCH else -1))
        self._take_notes()

    def _take_notes(self) -> None:
        last = self._log.last_position
        while self._waiting and self._waiting[0][0] <= last:
            self._known = self._waiting.popleft()

    def finding_last(self) -> Steps[tuple[int, int]]:
        """(position, index in its batch or -1) of the last message; (-1, -1) if there is none."""
        self._take_notes()
        last = self._log.last_position
        if last < self._log.manifest.segments[0].first_position:
            # All there was is gone from the log.
            return NO_POSITION, -1
        if self._known[0] != last:
            index = yield DiskCall(self, lambda: partial(self._read, last))
            # Others may have been appended meanwhile, and noted.
            self._known = max(self._known, (last, index))
        return self._known

    def _read(self, position: int) -> int:
        with self._log.snapshot("last message") as snapshot:
            for frames in snapshot.read_frames(position):
                batch = int(frames.flags()[0]) & FLAG_BATCH
                return int(frames.tags()[0]) - 1 if batch else -1
        return -1
