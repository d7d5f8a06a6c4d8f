"""Compaction of all topics of a node, on the node's run queue.

    request_id = compactions.request(topic)              # queues a run
    compactions.status(topic, request_id)                # progress of the run, or its report
    compactions.request_due_runs()                       # once a second: evaluates the triggers
    compactions.close()

The queue decides on order, fairness, back-off and disks (`compaction/scheduling/run_queue.py`). A
topic that is unloaded or deleted cancels its own run (`TopicCompaction.close`).

All methods may be called from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.compaction.scheduling.run_queue import new_request_id
from lithify.compaction.scheduling.triggers import Trigger
from lithify.damage import Damage
from lithify.topics.compaction.triggers import TopicTriggers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lithify.compaction.reports.report import Report
    from lithify.compaction.reports.status import CompactionStatus
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.run_queue import RunQueue
    from lithify.compaction.scheduling.triggers import Observation
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.errors import LithifyError
    from lithify.topics.compaction.compacted_topic import CompactedTopic
    from lithify.topics.definitions.topic_names import TopicName

__all__ = ["TopicCompactions"]

KIND = "topic"


@dataclass(slots=True)
class _Scheduled:
    """An open topic in the queue; implements `ScheduledLog`."""

    topic: CompactedTopic
    damage: Damage
    _triggers: TopicTriggers = field(default_factory=TopicTriggers)

    @property
    def runs(self) -> LogRuns:
        return self.topic.compaction.runs

    @property
    def name(self) -> str:
        return str(self.topic.name)

    @property
    def device(self) -> str:
        return self.runs.device

    def began_ms(self) -> int:
        latest = self.topic.compaction.record().latest
        return self.topic.compaction.now_ms() if latest is None else latest.started_ms

    def observe(self) -> Observation:
        return self._triggers.observe(self.topic)

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:
        return self.topic.service.compact(trigger, jobs, control)

    def failed(self, error: LithifyError) -> None:
        self.damage.record(error)


class TopicCompactions:
    """Requests, status and triggers of all topics; see the module."""

    def __init__(
        self,
        opened: Callable[[], Mapping[TopicName, CompactedTopic]],
        queue: RunQueue,
        damage: Damage | None = None,
    ) -> None:
        """Runs record the damage that they find in `damage`."""
        self._opened = opened
        self._damage = damage or Damage()
        self._scheduled: dict[TopicName, _Scheduled] = {}
        self.queue = queue

    def request(
        self, topic: CompactedTopic, request_id: str | None = None, *, waits: bool = True
    ) -> str:
        """Queue a run for a topic and return the id of the request, or raise `RunRefused`.

        Each request is a separate run, also while another one is in progress. Without `waits` the
        request is refused if it would have to wait.
        """
        scheduled = self._of(topic)

        def run(jobs: Jobs, control: RunControl) -> Report:
            return scheduled.run(Trigger.ADMIN, jobs, control)

        return self.queue.request(scheduled, run, request_id=request_id, waits=waits)

    def request_all(self, topics: Sequence[CompactedTopic], *, waits: bool = True) -> str:
        """Queue a run for each partition of a topic and return the id of all these requests.

        Without `waits` none is queued if one would have to wait. They may wait for each other.
        """
        if not waits:
            for topic in topics:
                self.queue.check_free(self._of(topic))
        request_id = new_request_id()
        for number, topic in enumerate(topics):
            self.request(topic, request_id, waits=waits or number > 0)
        return request_id

    def is_busy(self, topic: CompactedTopic) -> bool:
        """Is a run of the topic in progress or queued?"""
        return self.queue.is_busy(self._of(topic))

    def status(self, topic: CompactedTopic, request_id: str | None = None) -> CompactionStatus:
        """The status of the topic, or of one request; a queued run counts as running.

        Raises `RequestUnknown`.
        """
        return self.queue.status(self._of(topic), request_id)

    def cancel(self, topic: CompactedTopic) -> bool:
        """Cancel the run of a topic or remove it from the queue; False if there is none."""
        return self.queue.cancel(self._of(topic))

    def request_due_runs(self) -> None:
        """Evaluate the triggers and pass them to the queue; reads files to count messages."""
        opened = self._opened()
        self._scheduled = {name: self._of(topic) for name, topic in opened.items()}
        self.queue.observe(KIND, self._scheduled.values())

    def close(self) -> None:
        """Cancel the run in progress, clear the queue, and wait until all runs have stopped."""
        self.queue.close()

    def _of(self, topic: CompactedTopic) -> _Scheduled:
        known = self._scheduled.get(topic.name)
        if known is not None and known.topic is topic:
            return known
        return _Scheduled(topic, self._damage)
