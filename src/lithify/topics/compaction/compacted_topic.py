"""What the compaction of topics uses of an open topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lithify.log.log import Log
    from lithify.topics.compaction.compaction_service import TopicCompactionService
    from lithify.topics.compaction.topic_compaction import TopicCompaction
    from lithify.topics.definitions.topic_names import TopicName

__all__ = ["CompactedTopic"]


class CompactedTopic(Protocol):
    """An open topic."""

    name: TopicName
    log: Log
    compaction: TopicCompaction
    service: TopicCompactionService
