"""Retention and limits of a topic. The topic overrides its namespace, which overrides the node.

    retention_ms, retention_bytes   age and size up to which entries that every durable subscription
                                    has acknowledged are kept; -1 is no limit, 0 keeps none
    message_ttl_ms                  older messages of a subscription are acknowledged; 0 is off
    backlog_bytes_max               producers are refused while a subscription has a larger backlog;
                                    -1 is off
    producers_max, consumers_max, subscriptions_max, subscription_consumers_max
                                    maximum number at a time; 0 is off
    deduplication                   drop messages that a producer sends again

The settings also have `terminated`, the partitions of a topic that accept no more messages; -1
is a topic without partitions.

Compaction settings are resolved in the same way, see `compaction_settings.py`.

Pure: values only. Enforced by `topics/maintenance.py` with `topics/retention.py` (retention, time
to live), `topics/backlog_limit.py`, `topics/admission.py` (numbers at a time) and
`topics/producers/deduplication_switch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
    from lithify.topics.definitions.definitions import Definitions
    from lithify.topics.definitions.topic_names import TopicName

__all__ = [
    "TERMINATED",
    "Policies",
    "deduplicates",
    "deduplication",
    "is_terminated",
    "policies_of",
]

TERMINATED = "terminated"

_Settings = TypeVar("_Settings", "Policies", "TopicCompactionSettings")
_LIMIT = 2**62
_COUNT = 2**31


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one topic; the module docstring lists them."""

    retention_ms: int = -1
    retention_bytes: int = -1
    message_ttl_ms: int = 0
    backlog_bytes_max: int = -1
    producers_max: int = 0
    consumers_max: int = 0
    subscriptions_max: int = 0
    subscription_consumers_max: int = 0

    def __post_init__(self) -> None:
        check_range("retention_ms", self.retention_ms, -1, _LIMIT)
        check_range("retention_bytes", self.retention_bytes, -1, _LIMIT)
        check_range("message_ttl_ms", self.message_ttl_ms, 0, _LIMIT)
        check_range("backlog_bytes_max", self.backlog_bytes_max, -1, _LIMIT)
        check_range("producers_max", self.producers_max, 0, _COUNT)
        check_range("consumers_max", self.consumers_max, 0, _COUNT)
        check_range("subscriptions_max", self.subscriptions_max, 0, _COUNT)
        check_range("subscription_consumers_max", self.subscription_consumers_max, 0, _COUNT)


def policies_of(definitions: Definitions, name: TopicName, node: _Settings) -> _Settings:
    """Resolve the settings of a topic; `node` has the defaults."""
    topic = definitions.topics.get(str(name)) or definitions.topics.get(str(name.whole))
    namespace = definitions.namespaces.get(str(name.namespace))
    values = {field.name: getattr(node, field.name) for field in fields(node)}
    for level in (namespace, topic):
        settings = level.settings if level is not None else {}
        values |= {key: settings[key] for key in values if settings.get(key) is not None}
    return type(node)(**values)


def deduplicates(definitions: Definitions, name: TopicName, *, node: bool) -> bool:
    """Is deduplication on? The topic overrides its namespace, which overrides the node."""
    topic = definitions.topics.get(str(name)) or definitions.topics.get(str(name.whole))
    namespace = definitions.namespaces.get(str(name.namespace))
    for level in (topic, namespace):
        if level is not None and level.settings.get("deduplication") is not None:
            return bool(level.settings["deduplication"])
    return node


def deduplication(
    current: Callable[[], Definitions], name: TopicName, *, node: bool
) -> Callable[[], bool]:
    """`deduplicates` by the current definitions, found again only when they have changed.

    It is called before every append.
    """
    cached_for: Definitions | None = None
    cached = False

    def lookup() -> bool:
        nonlocal cached_for, cached
        found = current()
        if found is not cached_for:
            cached = deduplicates(found, name, node=node)
            cached_for = found
        return cached

    return lookup


def is_terminated(definitions: Definitions, name: TopicName) -> bool:
    """Is a topic or partition terminated, so that it accepts no more messages?"""
    topic = definitions.topics.get(str(name))
    partition = -1
    if topic is None:
        topic, partition = definitions.topics.get(str(name.whole)), name.partition
    return topic is not None and partition in topic.settings.get(TERMINATED, ())
