"""Defaults for the topics of a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from lithify.settings import LogSettings
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies

__all__ = ["TopicSettings"]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Defaults for the topics of a node; namespaces and topics override them."""

    log: LogSettings = field(default_factory=LogSettings)
    policies: Policies = field(default_factory=Policies)
    auto_create: bool = True
    deduplication: bool = False
    """Drop messages that a producer sends again; a topic or namespace setting takes precedence."""
    compaction: TopicCompactionSettings = field(default_factory=TopicCompactionSettings)
    compaction_service: str = ""
    """The compaction service, as "module:factory"; see `compaction/compaction_service.py`."""
