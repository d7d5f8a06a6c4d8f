"""How long a topic keeps what, as its definitions say: topic over namespace over the node.

    retention_ms, retention_bytes   what every durable subscription has acknowledged is kept so
                                    long, and the newest so many bytes of it; -1 is without limit,
                                    0 keeps nothing that is acknowledged
    message_ttl_ms                  a subscription's older messages count as acknowledged; 0 is off
    backlog_bytes_max               producers are refused while a subscription is further behind;
                                    -1 is off

Pure: values only. `retention.py` acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from lithify.settings import check_range

if TYPE_CHECKING:
    from lithify.topics.definitions import Definitions
    from lithify.topics.names import TopicName

__all__ = ["Policies", "policies_of"]

_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Policies:
    """The limits of one topic; see the module."""

    retention_ms: int = -1
    retention_bytes: int = -1
    message_ttl_ms: int = 0
    backlog_bytes_max: int = -1

    def __post_init__(self) -> None:
        check_range("retention_ms", self.retention_ms, -1, _LIMIT)
        check_range("retention_bytes", self.retention_bytes, -1, _LIMIT)
        check_range("message_ttl_ms", self.message_ttl_ms, 0, _LIMIT)
        check_range("backlog_bytes_max", self.backlog_bytes_max, -1, _LIMIT)


def policies_of(definitions: Definitions, name: TopicName, node: Policies) -> Policies:
    """Those of a topic; what neither it nor its namespace sets is as the node says."""
    topic = definitions.topics.get(str(name)) or definitions.topics.get(str(name.whole))
    namespace = definitions.namespaces.get(str(name.namespace))
    values = {field.name: getattr(node, field.name) for field in fields(Policies)}
    for level in (namespace, topic):
        found = level.settings if level is not None else {}
        values |= {key: found[key] for key in values if found.get(key) is not None}
    return Policies(**values)
