"""The compaction of all topics of a node: runs on request and by themselves, one after the other.

    compactions.request(topic, "admin")     # refused while one is going on or waits
    compactions.look()                      # once in a while: what is due is requested
    compactions.close()

1. A request waits in a queue; those of persons come before those of triggers.
2. One thread, begun with the first request, takes them in turn. There is one disk and one Spark:
   two runs at a time would only be slower together.
3. While another process compacts on the same disk the request goes on waiting.
4. A topic whose run failed or found nothing to do is left alone by triggers for a minute. Persons
   need not wait.

All methods may be called from any thread. A topic that is closed, because it is unloaded or
deleted, cancels its run itself (`TopicCompaction.close`); its request is forgotten here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.compaction.jobs import LocalJobs
from lithify.compaction.schedule import Trigger
from lithify.errors import LithifyError, LogClosed, RunRefused
from lithify.logger import get_logger
from lithify.topics.compaction_due import Due
from lithify.topics.compaction_record import CompactionState, CompactionStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.clock import Clock
    from lithify.compaction.jobs import Jobs
    from lithify.topics.names import TopicName
    from lithify.topics.topic import Topic

__all__ = ["WAITING", "Compactions"]

WAITING = "WAITING"
"""The phase of a run whose turn has not come."""

REST_MS = 60_000
DISK_WAIT_S = 1.0

log = get_logger("lithify.compaction")


class Compactions:
    """See the module."""

    def __init__(self, opened: Callable[[], Mapping[TopicName, Topic]], clock: Clock) -> None:
        self._opened = opened
        self._clock = clock
        self._due: dict[TopicName, Due] = {}
        self._queue: list[tuple[Topic, str]] = []
        self._running: Topic | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.jobs: Jobs = LocalJobs()
        """Who does the work of the runs to come."""

    def request(self, topic: Topic, trigger: str = Trigger.ADMIN) -> None:
        """Have a topic compacted as soon as its turn comes, or raise `RunRefused`."""
        with self._changed:
            if self._closed:
                raise RunRefused("node", "it is stopping")
            if self._is_busy(topic):
                raise RunRefused("topic", f"a run on {topic.name} is going on")
            if trigger == Trigger.ADMIN:
                persons = sum(each == Trigger.ADMIN for _, each in self._queue)
                self._queue.insert(persons, (topic, trigger))
            else:
                self._queue.append((topic, trigger))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lithify-compaction")
                self._thread.start()
            self._changed.notify_all()

    def _is_busy(self, topic: Topic) -> bool:
        return self._waits(topic) or topic is self._running or topic.compaction.running

    def _waits(self, topic: Topic) -> bool:
        return any(each is topic for each, _ in self._queue)

    def status(self, topic: Topic) -> CompactionStatus:
        """That of the topic, where a run that waits for its turn counts as running."""
        with self._changed:
            waits = self._waits(topic) or (topic is self._running and not topic.compaction.running)
        if waits:
            return CompactionStatus(CompactionState.RUNNING, phase=WAITING)
        return topic.compaction.status()

    def cancel(self, topic: Topic) -> bool:
        """Stop the run of a topic, or forget the request; False if there is neither."""
        with self._changed:
            waited = self._waits(topic)
            self._queue = [row for row in self._queue if row[0] is not topic]
            running = topic is self._running or topic.compaction.running
        if running:
            topic.compaction.cancel()
        return waited or running

    def look(self) -> None:
        """Request the runs that are due; reads files where messages are counted."""
        now_ms = self._clock.now_ms()
        opened = self._opened()
        with self._changed:
            self._due = {name: due for name, due in self._due.items() if name in opened}
        for name, topic in opened.items():
            due = self._due.get(name)
            if due is None:
                latest = topic.compaction.record().latest
                due = self._due[name] = Due(now_ms if latest is None else latest.started_ms)
            try:
                trigger = due.trigger(topic, now_ms)
                if trigger is not None and not self._is_busy(topic):
                    self.request(topic, trigger)
            except LogClosed:
                continue
            except LithifyError as error:
                log.warning("a topic's need of compaction is unknown", topic=str(name), why=error)

    def close(self) -> None:
        """Cancel the run that is going on, forget the others, and wait until nothing goes on."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            thread = self._thread
            self._changed.notify_all()
        while thread is not None and thread.is_alive():
            running = self._running
            if running is not None:
                running.compaction.cancel()
            thread.join(0.1)

    # --- the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = None
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                topic, trigger = self._queue.pop(0)
                self._running = topic
            try:
                self._run(topic, trigger)
            except Exception:
                log.exception("compaction failed", topic=str(topic.name))

    def _run(self, topic: Topic, trigger: str) -> None:
        started_ms = self._clock.now_ms()
        rests = True
        try:
            report = topic.service.compact(trigger, self.jobs)
            rests = report.result == "nothing to do"
        except LogClosed:
            return
        except RunRefused as error:
            if error.limit == "disk":
                self._wait_for_disk(topic, trigger)
                return
            log.warning("compaction is refused", topic=str(topic.name), reason=str(error))
        except LithifyError as error:
            log.warning("compaction failed", topic=str(topic.name), reason=str(error))
        with self._changed:
            due = self._due.setdefault(topic.name, Due(started_ms))
            due.since_ms = started_ms
            due.rest_until_ms = self._clock.now_ms() + REST_MS if rests else 0

    def _wait_for_disk(self, topic: Topic, trigger: str) -> None:
        with self._changed:
            if not self._closed:
                self._queue.append((topic, trigger))
                self._changed.wait_for(lambda: self._closed, DISK_WAIT_S)
