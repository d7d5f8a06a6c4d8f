"""Periodic maintenance of a topic: policies, retention, rates, and deletion of old files.

1. Once per second the policies are enforced: messages older than the time to live are acknowledged
   (`message_ttl.py`); producers are refused while a subscription exceeds the backlog limit
   (`backlog_limit.py`); and the first position that the log must keep is computed
   (`retention.py`). This works in memory, except for the search by time and the snapshot of the
   producers, which are disk steps (`disk_steps.py`).
2. The next round does the disk work: maintain the log and the cursors, roll the active segment if
   all of it is past retention, drop the head of the log, and delete retired files.

A compaction run deletes the files that it retires. Files that readers had pinned at that time are
deleted here, and their bytes are added to the report of the run.

`files` waits for the disk and may be called from any thread; all other methods belong to the thread
of the topic. Owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lithify.errors import WriteFailed
from lithify.positions import NO_POSITION
from lithify.topics.backlog_limit import checking_backlogs
from lithify.topics.message_ttl import expiring
from lithify.topics.retention import LogHold, acknowledged_through, active_may_go, first_to_keep

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.log.log import Log
    from lithify.topics.compaction.compaction_service import TopicCompactionService
    from lithify.topics.compaction.topic_compaction import TopicCompaction
    from lithify.topics.definitions.policies import Policies
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.disk_steps import Steps
    from lithify.topics.producers.topic_writer import TopicWriter
    from lithify.topics.reading.topic_reader import TopicReader
    from lithify.topics.subscriptions.cursor_gaps import CursorGaps
    from lithify.topics.subscriptions.cursor_store import CursorStore
    from lithify.topics.subscriptions.subscription import Subscription

__all__ = ["MaintainedTopic", "Maintenance", "log_holds"]

POLICY_SECONDS = 1.0
"""Interval at which retention, time to live and backlogs are enforced."""


class MaintainedTopic(Protocol):
    """What maintenance uses of a topic."""

    name: TopicName
    log: Log
    cursors: CursorStore
    compaction: TopicCompaction
    service: TopicCompactionService
    writer: TopicWriter
    subscriptions: dict[str, Subscription]
    reader: TopicReader

    def acknowledging_below(self, position: int) -> Steps[None]:
        """Acknowledge, for every subscription, all messages below a position."""


class Maintenance:
    """Maintains one topic."""

    def __init__(self, topic: MaintainedTopic, gaps: CursorGaps, clock: Clock) -> None:
        self._topic = topic
        self._gaps = gaps
        self._clock = clock
        self._keep_from = 0
        self._rolls_for_age = False
        self._enforced_s = -POLICY_SECONDS

    def files(self) -> None:
        """Do the work that waits for the disk."""
        topic = self._topic
        log = topic.log
        log.maintain()
        topic.cursors.maintain()
        if self._rolls_for_age:
            self._rolls_for_age = False
            log.roll()
        if log.manifest.retired:
            with topic.compaction.reserve.if_full():
                topic.compaction.reclaim()
        first = log.manifest.segments[0]
        if first.sealed and first.last_position < self._keep_from:
            with topic.compaction.reserve.if_full():
                if log.drop_head(self._keep_from):
                    log.reclaim()

    def is_due(self) -> bool:
        """Has `POLICY_SECONDS` passed since the policies were last enforced?"""
        return self._clock.monotonic_s() - self._enforced_s >= POLICY_SECONDS

    def enforcing(self, policies: Policies) -> Steps[None]:
        """Enforce the policies; the next call of `files` deletes what they release."""
        self._enforced_s = self._clock.monotonic_s()
        topic = self._topic
        now_ms = self._clock.now_ms()
        yield from expiring(
            topic.reader.times, topic.acknowledging_below, policies.message_ttl_ms, now_ms
        )
        exceeded = yield from checking_backlogs(
            topic.log, topic.subscriptions, self._gaps, policies.backlog_bytes_max
        )
        topic.writer.refusal = f"topic {topic.name} {exceeded}" if exceeded else ""
        acknowledged = acknowledged_through(log_holds(topic)).position
        keep_from = first_to_keep(
            topic.log.manifest.segments,
            topic.log.active_bytes,
            acknowledged=acknowledged,
            policies=policies,
            now_ms=now_ms,
        )
        self._rolls_for_age = topic.log.last_position <= acknowledged and active_may_go(
            topic.log.active_times_ms, policies, now_ms
        )
        if keep_from > self._keep_from:
            # Recovery replays the log after the snapshot of the producers, so the snapshot must
            # cover everything that is about to be dropped.
            try:
                yield from topic.writer.saving_producers(topic.compaction.reserve.if_full)
            except WriteFailed:
                # It is reported, and retried before anything is dropped.
                return
        self._keep_from = keep_from


def log_holds(topic: MaintainedTopic) -> list[LogHold]:
    """What keeps the log from being trimmed, and from which position on.

    A durable subscription holds entries that it has not acknowledged. A consumer or reader that
    reads compacted holds entries that it will read from the log. Compaction holds entries above the
    horizon.
    """
    holds = []
    horizon = topic.service.last_compacted_position
    compaction = topic.compaction
    # Dropping a segment that a run is reading would force the run to roll back.
    if compaction.running or horizon != NO_POSITION or compaction.settings().by_itself:
        holds.append(LogHold("compaction", horizon))
    for each in topic.subscriptions.values():
        if each.durable:
            holds.append(LogHold(f"subscription {each.name}", each.acked.mark_delete))
        for consumer in each.consumers if each.compacted else ():
            if consumer.through is not None:
                position = max(each.cursor.mark_delete, consumer.through)
                holds.append(LogHold(f"compacted reader {consumer.name}", position))
    return holds
