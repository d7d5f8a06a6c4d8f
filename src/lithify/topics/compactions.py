"""The compaction of all topics of a node: runs on request and by themselves, one after the other.

    request_id = compactions.request(topic, "admin")     # waits for its turn
    compactions.status(topic, request_id)                # how that one stands, or its report
    compactions.look()                                   # once in a while: requests what is due
    compactions.close()

1. Requests take turns, those of persons first (`compaction/queue.py`). All of them count as of one
   disk: there is one Spark, and two runs at a time would only be slower together.
2. A topic whose run failed or found nothing to do is left alone by triggers for a minute. Persons
   need not wait.

All methods may be called from any thread. A topic that is closed, because it is unloaded or
deleted, cancels its run itself (`TopicCompaction.close`); its request is forgotten here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.compaction.jobs import LocalJobs
from lithify.compaction.queue import Request, RunQueue, new_request_id
from lithify.compaction.record import WAITING, CompactionState, CompactionStatus
from lithify.compaction.schedule import Trigger
from lithify.damage import Damage
from lithify.errors import LithifyError, LogClosed, RunRefused
from lithify.logger import get_logger
from lithify.topics.compaction_due import REST_MS, Due

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.clock import Clock
    from lithify.compaction.jobs import Jobs, Progress
    from lithify.compaction.report import Report
    from lithify.topics.names import TopicName
    from lithify.topics.topic import Topic

__all__ = ["Compactions"]

DISK = "topics"

log = get_logger("lithify.compaction")


class Compactions:
    """See the module."""

    def __init__(
        self,
        opened: Callable[[], Mapping[TopicName, Topic]],
        clock: Clock,
        damage: Damage | None = None,
    ) -> None:
        """`damage` is told what runs come across."""
        self._opened = opened
        self._damage = damage or Damage()
        self._clock = clock
        self._due: dict[TopicName, Due] = {}
        self._lock = threading.Lock()
        self._queue = RunQueue(limit="topic")
        self.jobs: Jobs = LocalJobs()
        """Who does the work of the runs to come."""

    def request(
        self, topic: Topic, trigger: str = Trigger.ADMIN, request_id: str | None = None
    ) -> str:
        """Have a topic compacted as soon as its turn comes, or raise `RunRefused`.

        The id of the request, which may be given: a person's is a run of its own, also while
        another one goes on.
        """

        def run(go_on: Progress) -> Report:
            return self._run(topic, trigger, go_on)

        name, request_id = str(topic.name), request_id or new_request_id()
        return self._queue.add(Request(topic.compaction, name, DISK, trigger, run, request_id))

    def is_busy(self, topic: Topic) -> bool:
        """Does a run of it go on or wait for its turn?"""
        return self._queue.is_busy(topic.compaction)

    def status(self, topic: Topic, request_id: str | None = None) -> CompactionStatus:
        """That of the topic, or of a request; a run that waits for its turn counts as running.

        Raises `RequestUnknown`.
        """
        if request_id is not None:
            return self._queue.status(request_id, topic.compaction, str(topic.name))
        if self._queue.waits(topic.compaction):
            return CompactionStatus(CompactionState.RUNNING, phase=WAITING)
        return topic.compaction.status()

    def cancel(self, topic: Topic) -> bool:
        """Stop the run of a topic, or forget the request; False if there is neither."""
        return self._queue.cancel(topic.compaction)

    def look(self) -> None:
        """Request the runs that are due; reads files where messages are counted."""
        now_ms = self._clock.now_ms()
        opened = self._opened()
        with self._lock:
            self._due = {name: due for name, due in self._due.items() if name in opened}
        for name, topic in opened.items():
            due = self._due.get(name)
            if due is None:
                latest = topic.compaction.record().latest
                due = self._due[name] = Due(now_ms if latest is None else latest.started_ms)
            try:
                trigger = due.trigger(topic, now_ms)
                if trigger is not None and not self._queue.is_busy(topic.compaction):
                    self.request(topic, trigger)
            except LogClosed:
                continue
            except LithifyError as error:
                log.warning("a topic's need of compaction is unknown", topic=str(name), why=error)

    def close(self) -> None:
        """Cancel the run that is going on, forget the others, and wait until nothing goes on."""
        self._queue.close()

    def _run(self, topic: Topic, trigger: str, go_on: Progress) -> Report:
        """One run, by the thread of the queue."""
        started_ms = self._clock.now_ms()
        try:
            report = topic.service.compact(trigger, self.jobs, go_on)
        except LogClosed:
            raise
        except RunRefused as error:
            if error.limit != "disk":
                log.warning("compaction is refused", topic=str(topic.name), reason=str(error))
                self._ended(topic, started_ms, rests=True)
            raise
        except LithifyError as error:
            self._damage.note(error)
            log.warning("compaction failed", topic=str(topic.name), reason=str(error))
            self._ended(topic, started_ms, rests=True)
            raise
        self._ended(topic, started_ms, rests=report.result == "nothing to do")
        return report

    def _ended(self, topic: Topic, started_ms: int, *, rests: bool) -> None:
        with self._lock:
            due = self._due.setdefault(topic.name, Due(started_ms))
        due.since_ms = started_ms
        due.rest_until_ms = self._clock.now_ms() + REST_MS if rests else 0
