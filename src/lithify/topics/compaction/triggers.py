"""What calls for the compaction of a topic without being asked.

| trigger | when |
|---|---|
| unfinished | a run was killed: it is finished or, where that cannot be, made again |
| lag | a message of `compaction_lag_max_ms` has not been judged |
| threshold | `compaction_threshold_bytes` or `…_messages` came since the last run |
| periodic | the last run began `compaction_every_ms` ago |

All but the first need something new; none of them counts where `compaction_enabled` is off. The
queue decides which one is due, and when (`compaction/scheduling/schedule.py`).

How far runs have judged says the topic's `TopicCompactionService`. Bytes and times come from the
manifest. Messages are counted by reading what is new, each message once, and only as far as the
threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.scheduling.schedule import NOTHING_CALLS, Observation
from lithify.positions import NO_POSITION
from lithify.topics.statistics.statistics import stored_above

if TYPE_CHECKING:
    from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
    from lithify.topics.topic import Topic

__all__ = ["TopicTriggers"]


@dataclass(slots=True)
class TopicTriggers:
    """What is known of one topic from one look to the next."""

    _horizon: int = NO_POSITION
    _counted: int = NO_POSITION
    _messages: int = 0

    def observe(self, topic: Topic) -> Observation:
        """What calls for a run on the topic now."""
        settings = topic.compaction.settings()
        if not settings.by_itself:
            return NOTHING_CALLS
        is_new = topic.log.last_position > topic.service.last_compacted_position
        if not is_new and not topic.compaction.may_have_expired():
            return NOTHING_CALLS
        lag_ms = settings.compaction_lag_max_ms
        return Observation(
            _oldest_ms(topic) if lag_ms else None,
            lag_ms or None,
            self._reached(topic, settings),
            settings.compaction_every_ms or None,
        )

    def _reached(self, topic: Topic, settings: TopicCompactionSettings) -> str:
        bytes_max = settings.compaction_threshold_bytes
        messages_max = settings.compaction_threshold_messages
        judged = topic.service.last_compacted_position
        if bytes_max and (new_bytes := stored_above(topic, judged)[1]) >= bytes_max:
            return f"{new_bytes} new bytes, threshold {bytes_max}"
        if messages_max and self._has_new(topic, messages_max):
            return f"{self._messages} new messages, threshold {messages_max}"
        return ""

    def _has_new(self, topic: Topic, wanted: int) -> bool:
        horizon = topic.service.last_compacted_position
        if horizon != self._horizon:
            self._horizon = self._counted = horizon
            self._messages = 0
        if self._messages < wanted and topic.log.last_position > self._counted:
            with topic.log.snapshot("count of new messages") as snapshot:
                for frames in snapshot.read_frames(self._counted + 1):
                    self._messages += int(np.maximum(frames.tags(), 1).sum())
                    self._counted = int(frames.positions[-1])
                    if self._messages >= wanted:
                        break
        return self._messages >= wanted


def _oldest_ms(topic: Topic) -> int | None:
    """When the oldest message came that no run has judged; of the active ledger, its beginning."""
    judged = topic.service.last_compacted_position
    for segment in topic.log.manifest.segments:
        if segment.sealed and segment.entries and segment.last_position > judged:
            return segment.time_min
    times_ms = topic.log.active_times_ms
    return None if times_ms is None else times_ms[0]
