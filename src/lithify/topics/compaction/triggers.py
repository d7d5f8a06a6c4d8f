"""Triggers that start the compaction of a topic without a request.

| trigger | condition |
|---|---|
| unfinished | a run was killed; it is completed or, if that is not possible, repeated |
| lag | a message above the horizon is `compaction_lag_max_ms` old |
| threshold | `compaction_threshold_bytes` or `…_messages` were appended since the last run |
| periodic | the last run started `compaction_every_ms` ago |

All but the first require new messages, and none applies if `compaction_enabled` is off. The queue
decides which trigger is due, and when (`compaction/scheduling/triggers.py`).

The horizon comes from the topic's `TopicCompactionService`, bytes and times from the manifest.
Messages are counted by reading the new ones, each once, and only up to the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.scheduling.triggers import NOTHING_DUE, Observation
from lithify.positions import NO_POSITION
from lithify.topics.ledger_sizes import stored_above

if TYPE_CHECKING:
    from lithify.topics.compaction.compacted_topic import CompactedTopic
    from lithify.topics.definitions.compaction_settings import TopicCompactionSettings

__all__ = ["TopicTriggers"]


@dataclass(slots=True)
class TopicTriggers:
    """The triggers of one topic, with its count of new messages."""

    _horizon: int = NO_POSITION
    _counted: int = NO_POSITION
    _messages: int = 0

    def observe(self, topic: CompactedTopic) -> Observation:
        """The triggers that apply to the topic now."""
        settings = topic.compaction.settings()
        if not settings.by_itself:
            return NOTHING_DUE
        is_new = topic.log.last_position > topic.service.last_compacted_position
        if not is_new and not topic.compaction.may_have_expired():
            return NOTHING_DUE
        lag_ms = settings.compaction_lag_max_ms
        return Observation(
            _oldest_ms(topic) if lag_ms else None,
            lag_ms or None,
            self._reached_threshold(topic, settings),
            settings.compaction_every_ms or None,
        )

    def _reached_threshold(self, topic: CompactedTopic, settings: TopicCompactionSettings) -> str:
        bytes_max = settings.compaction_threshold_bytes
        messages_max = settings.compaction_threshold_messages
        covered_through = topic.service.last_compacted_position
        if bytes_max and (new_bytes := stored_above(topic.log, covered_through)[1]) >= bytes_max:
            return f"{new_bytes} new bytes, threshold {bytes_max}"
        if messages_max and self._count_reaches(topic, messages_max):
            return f"{self._messages} new messages, threshold {messages_max}"
        return ""

    def _count_reaches(self, topic: CompactedTopic, wanted: int) -> bool:
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


def _oldest_ms(topic: CompactedTopic) -> int | None:
    """Time of the oldest message above the horizon; for the active ledger, its first time."""
    covered_through = topic.service.last_compacted_position
    for segment in topic.log.manifest.segments:
        if segment.sealed and segment.entries and segment.last_position > covered_through:
            return segment.time_min
    times_ms = topic.log.active_times_ms
    return None if times_ms is None else times_ms[0]
