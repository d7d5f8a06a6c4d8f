"""The compaction of all topics of a node: what they bring to the queue.

    request_id = compactions.request(topic)              # waits for its turn
    compactions.status(topic, request_id)                # how that one is, or its report
    compactions.request_due_runs()                       # once a second: what the triggers say
    compactions.close()

Order, fairness, back-off and disks are the queue's (`compaction/scheduling/run_queue.py`). A topic
that is closed, because it is unloaded or deleted, cancels its run itself (`TopicCompaction.close`).

All methods may be called from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.compaction.scheduling.schedule import Trigger
from lithify.damage import Damage
from lithify.topics.compaction.triggers import TopicTriggers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.compaction.reports.report import Report
    from lithify.compaction.reports.status import CompactionStatus
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.run.log_runs import LogRuns
    from lithify.compaction.scheduling.run_queue import RunQueue
    from lithify.compaction.scheduling.schedule import Observation
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.errors import LithifyError
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.topic import Topic

__all__ = ["TopicCompactions"]

KIND = "topic"


@dataclass(slots=True)
class _Scheduled:
    """One open topic; an implementation of `ScheduledLog`."""

    topic: Topic
    damage: Damage
    _due: TopicTriggers = field(default_factory=TopicTriggers)

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
        return self._due.observe(self.topic)

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:
        return self.topic.service.compact(trigger, jobs, control)

    def failed(self, error: LithifyError) -> None:
        self.damage.record(error)


class TopicCompactions:
    """See the module."""

    def __init__(
        self,
        opened: Callable[[], Mapping[TopicName, Topic]],
        queue: RunQueue,
        damage: Damage | None = None,
    ) -> None:
        """`damage` is told what runs come across."""
        self._opened = opened
        self._damage = damage or Damage()
        self._scheduled: dict[TopicName, _Scheduled] = {}
        self.queue = queue

    def request(self, topic: Topic, request_id: str | None = None, *, waits: bool = True) -> str:
        """Have a topic compacted as soon as its turn comes, or raise `RunRefused`.

        The id of the request, which may be given: each is a run of its own, also while another one
        goes on. One that does not wait is refused if it would have to.
        """
        scheduled = self._of(topic)

        def run(jobs: Jobs, control: RunControl) -> Report:
            return scheduled.run(Trigger.ADMIN, jobs, control)

        return self.queue.request(scheduled, run, request_id=request_id, waits=waits)

    def is_busy(self, topic: Topic) -> bool:
        """Does a run of it go on or wait for its turn?"""
        return self.queue.is_busy(self._of(topic))

    def status(self, topic: Topic, request_id: str | None = None) -> CompactionStatus:
        """That of the topic, or of a request; a run that waits for its turn counts as running.

        Raises `RequestUnknown`.
        """
        return self.queue.status(self._of(topic), request_id)

    def cancel(self, topic: Topic) -> bool:
        """Stop the run of a topic, or forget the request; False if there is neither."""
        return self.queue.cancel(self._of(topic))

    def request_due_runs(self) -> None:
        """Tell the queue what the triggers say; reads files where messages are counted."""
        opened = self._opened()
        self._scheduled = {name: self._of(topic) for name, topic in opened.items()}
        self.queue.observe(KIND, self._scheduled.values())

    def close(self) -> None:
        """Stop the run that is going on, forget the others, and wait until nothing goes on."""
        self.queue.close()

    def _of(self, topic: Topic) -> _Scheduled:
        known = self._scheduled.get(topic.name)
        if known is not None and known.topic is topic:
            return known
        return _Scheduled(topic, self._damage)
