"""Finds the first position of a topic published at or after a time: for seeks, TTL and resets.

The log is searched by the publish times in its block indexes (`log/reader.py`), the view of a
compacted topic by its compaction service.

One thread at a time, as for the topic, except for methods that allow any thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lithify.positions import NO_POSITION
from lithify.topics.disk_steps import DiskCall

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.topics.compaction.compaction_service import TopicCompactionService
    from lithify.topics.disk_steps import Steps
    from lithify.topics.reading.dispatch_reads import TopicReads

__all__ = ["TimeSearch"]


class TimeSearch:
    """Searches one topic by publish time."""

    def __init__(self, log: Log, reading: TopicReads, service: TopicCompactionService) -> None:
        self._log = log
        self._reading = reading
        self._service = service

    def finding(self, time_ms: int, *, compacted: bool = False) -> Steps[int]:
        """See `find`."""
        position: int = yield DiskCall(
            self._reading, lambda: partial(self.find, time_ms, compacted=compacted)
        )
        return position

    def find(self, time_ms: int, *, compacted: bool = False) -> int:
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

    def find_message(self, time_ms: int) -> int:
        """The first position of the log or the view published at or after a time.

        The view has messages that retention has trimmed from the log. Returns the next position if
        there is none. Waits for the disk; in any thread.
        """
        in_log, in_view = self.find(time_ms), self._service.find_by_publish_time(time_ms)
        return in_log if in_view is None else min(in_log, in_view)
