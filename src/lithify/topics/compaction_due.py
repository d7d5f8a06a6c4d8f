"""When a topic is to be compacted without being asked.

| trigger | when |
|---|---|
| unfinished | a run was killed: it is finished or, where that cannot be, made again |
| lag | a message of `compaction_lag_max_ms` has not been judged |
| threshold | `compaction_threshold_bytes` or `…_messages` came since the last run |
| periodic | the last run began `compaction_every_ms` ago |

All but the first need something new; none of them counts where `compaction_enabled` is off.

How far runs have judged says the topic's `TopicCompactionService`. Bytes and times come from the
manifest. Messages are counted by reading what is new, each message once, and only as far as the
threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.schedule import Trigger
from lithify.positions import NO_POSITION
from lithify.topics.stats import stored_above

if TYPE_CHECKING:
    from lithify.topics.compaction_settings import CompactionSettings
    from lithify.topics.topic import Topic

__all__ = ["REST_MS", "Due"]

REST_MS = 60_000
"""How long a topic rests after a run that failed or found nothing to do."""


@dataclass(slots=True)
class Due:
    """What is known of one topic from one look to the next."""

    since_ms: int
    """When the last run began, or when the topic was first looked at."""
    rest_until_ms: int = 0
    """Not before: the last run failed or found nothing to do."""
    looked: bool = False
    _horizon: int = NO_POSITION
    _counted: int = NO_POSITION
    _messages: int = 0

    def trigger(self, topic: Topic, now_ms: int) -> Trigger | None:
        """Why the topic is to be compacted now; None if it is not."""
        # A clock that was set back must not make it wait for as long as it went back.
        self.since_ms = min(self.since_ms, now_ms)
        self.rest_until_ms = min(self.rest_until_ms, now_ms + REST_MS)
        settings = topic.compaction.settings()
        if not settings.compaction_enabled or now_ms < self.rest_until_ms:
            return None
        if not self.looked:
            # A killed run is found when its topic is opened, and not looked for again.
            self.looked = True
            if topic.compaction.unfinished():
                return Trigger.UNFINISHED
        is_new = topic.log.last_position > topic.service.last_compacted_position
        if not is_new and not topic.compaction.may_have_expired():
            return None
        return self._of_new(topic, settings, now_ms)

    def _of_new(self, topic: Topic, settings: CompactionSettings, now_ms: int) -> Trigger | None:
        lag_ms, every_ms = settings.compaction_lag_max_ms, settings.compaction_every_ms
        size_bytes = settings.compaction_threshold_bytes
        messages = settings.compaction_threshold_messages
        oldest_ms = _oldest_ms(topic) if lag_ms else None
        if oldest_ms is not None and now_ms - oldest_ms >= lag_ms:
            return Trigger.LAG
        judged = topic.service.last_compacted_position
        if size_bytes and stored_above(topic, judged)[1] >= size_bytes:
            return Trigger.THRESHOLD
        if messages and self._has_new(topic, messages):
            return Trigger.THRESHOLD
        return Trigger.PERIODIC if every_ms and now_ms - self.since_ms >= every_ms else None

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
