"""What only time brings about in a topic: policies, retention, rates, and deleting what may go.

1. Once a second the policies are looked at: what is older than the time to live is taken as
   acknowledged; a subscription that is too far behind stops the producers; and the position is
   found below which nothing is needed any more (`retention.py`). That is memory only, but for the
   search by time and the snapshot of the producers, which are steps of their own (`disk_steps.py`).
2. The files follow in the next round: the log and the cursors do their own upkeep, the active
   segment is rolled if all of it is over age, the head is dropped, and what is retired is deleted.

What a run of compaction has retired is deleted by that run. What readers had pinned then is left
to the rounds here, and the bytes are added to the run's report.

`files` waits for the disk and may be called from any thread; the rest is the topic's thread's.
Owned by the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.positions import NO_POSITION
from lithify.topics.retention import LogHold, acknowledged_through, active_may_go, first_to_keep
from lithify.topics.statistics.backlog import backlog

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.topics.definitions.policies import Policies
    from lithify.topics.disk_steps import Steps
    from lithify.topics.subscriptions.cursor_gaps import CursorGaps
    from lithify.topics.topic import Topic

__all__ = ["Maintenance", "log_holds"]

LOOKED_AT_A_STEP = 200
"""Subscriptions, about 1 ms."""
POLICY_SECONDS = 1.0
"""Retention, time to live and backlog are looked at so often."""


class Maintenance:
    """The upkeep of one topic."""

    def __init__(self, topic: Topic, gaps: CursorGaps, clock: Clock) -> None:
        self._topic = topic
        self._gaps = gaps
        self._clock = clock
        self._keep_from = 0
        self._rolls_for_age = False
        self._enforced_s = -POLICY_SECONDS

    def files(self) -> None:
        """The part that waits for the disk, and only that."""
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
        """Is it time to look at the policies?"""
        return self._clock.monotonic_s() - self._enforced_s >= POLICY_SECONDS

    def enforcing(self, policies: Policies) -> Steps[None]:
        """Look at them now; what may go after that goes with `files`."""
        self._enforced_s = self._clock.monotonic_s()
        topic = self._topic
        now_ms = self._clock.now_ms()
        if policies.message_ttl_ms:
            yield from topic.expiring(now_ms - policies.message_ttl_ms)
        yield from self._looking_at_backlogs(policies.backlog_bytes_max)
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
            # It is made again from the log behind its snapshot: that must all be there.
            yield from topic.writer.saving_producers()
        self._keep_from = keep_from

    def _looking_at_backlogs(self, limit: int) -> Steps[None]:
        """Move the cursors of all subscriptions over gaps, and refuse producers if one is behind.

        There may be thousands: in steps.
        """
        topic, size = self._topic, 0
        for number, each in enumerate(list(topic.subscriptions.values()), 1):
            if not number % LOOKED_AT_A_STEP:
                yield None
            if not each.durable or topic.subscriptions.get(each.name) is not each:
                continue
            if not each.compacted:
                self._gaps.take(each)
            if limit >= 0:
                size = max(size, backlog(topic, each.acked)[1])
        topic.writer.refusal = ""
        if 0 <= limit < size:
            topic.writer.refusal = (
                f"topic {topic.name} has a backlog of {size} bytes, the limit is {limit}"
            )


def log_holds(topic: Topic) -> list[LogHold]:
    """Who keeps the log from being trimmed, and from where on.

    A durable subscription what it has not acknowledged; a consumer that reads compacted what
    it will get from the log, be it a reader; compaction what it has not judged.
    """
    holds = []
    judged = topic.service.last_compacted_position
    compaction = topic.compaction
    # What a run is judging must not be dropped under it: it would have to be rolled back.
    if compaction.running or judged != NO_POSITION or compaction.settings().by_itself:
        holds.append(LogHold("compaction", judged))
    for each in topic.subscriptions.values():
        if each.durable:
            holds.append(LogHold(f"subscription {each.name}", each.acked.mark_delete))
        for consumer in each.consumers if each.compacted else ():
            if consumer.through is not None:
                position = max(each.cursor.mark_delete, consumer.through)
                holds.append(LogHold(f"compacted reader {consumer.name}", position))
    return holds
