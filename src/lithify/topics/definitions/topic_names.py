"""Topic names, and the directories of topics.

    persistent://tenant/namespace/topic                 the full name
    persistent://tenant/namespace/topic-partition-3     partition 3 of a partitioned topic
    topic                                               short for persistent://public/default/topic

`names.py` has the rules for the parts of a name, and their form in a path.

Clients choose the names of producers, consumers and subscriptions. These names are not used in
paths, so only their length is limited. One name of a subscription is reserved: `__compaction`, the
name of the compacted view in Pulsar's tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from lithify.errors import InvalidInput
from lithify.names import check_namespace_part, check_topic_name, escape, split_partition

__all__ = [
    "CLIENT_NAME_CHARACTERS_MAX",
    "COMPACTION",
    "Namespace",
    "TopicName",
    "check_client_name",
]

CLIENT_NAME_CHARACTERS_MAX = 1000

COMPACTION = "__compaction"
"""The name of the compacted view among subscriptions and cursors."""


def check_client_name(what: str, name: str) -> None:
    """Raise `InvalidInput` unless a producer, consumer or subscription may have the name."""
    if not 1 <= len(name) <= CLIENT_NAME_CHARACTERS_MAX:
        raise InvalidInput(
            f"the name of a {what} has 1 to {CLIENT_NAME_CHARACTERS_MAX} characters, "
            f"not {len(name)}"
        )
    if what == "subscription" and name == COMPACTION:
        raise InvalidInput(f"subscription name {name} is reserved for the compacted view")


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """The name of a namespace: tenant/namespace."""

    tenant: str
    name: str

    def __post_init__(self) -> None:
        check_namespace_part("tenant", self.tenant, str(self))
        check_namespace_part("namespace", self.name, str(self))

    @classmethod
    def parse(cls, text: str) -> Namespace:
        """Parse "tenant/namespace"."""
        parts = text.split("/")
        if len(parts) != 2:
            raise InvalidInput(f"namespace {text!r} must be tenant/namespace")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A persistent topic, or one partition of a partitioned one."""

    namespace: Namespace
    local: str

    def __post_init__(self) -> None:
        check_topic_name(self.local)

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse a full or a short name."""
        scheme, separator, rest = text.partition("://")
        if not separator:
            if text.count("/") not in {0, 2}:
                raise InvalidInput(f"topic {text!r} must be NAME or TENANT/NAMESPACE/NAME")
            rest = text if "/" in text else f"public/default/{text}"
            scheme = "persistent"
        if scheme != "persistent":
            raise InvalidInput(f"topic {text!r} must begin with persistent://")
        parts = rest.split("/", 2)
        if len(parts) != 3:
            raise InvalidInput(f"topic {text!r} must be persistent://TENANT/NAMESPACE/NAME")
        return cls(Namespace(parts[0], parts[1]), parts[2])

    @property
    def partition(self) -> int:
        """The number of the partition, -1 if the topic is not a partition."""
        return split_partition(self.local)[1]

    @property
    def whole(self) -> TopicName:
        """The partitioned topic of a partition, otherwise the topic itself."""
        local, number = split_partition(self.local)
        return self if number < 0 else TopicName(self.namespace, local)

    def partition_name(self, number: int) -> TopicName:
        """Partition `number` of this topic."""
        return TopicName(self.namespace, f"{self.local}-partition-{number}")

    @property
    def path(self) -> str:
        """The directory of the topic, relative to that of all topics."""
        parts = self.namespace.tenant, self.namespace.name, self.local
        return "/".join(map(escape, parts))

    @classmethod
    def from_path(cls, path: str) -> TopicName:
        """The inverse of `path`."""
        tenant, namespace, local = map(unquote, path.split("/"))
        return cls(Namespace(tenant, namespace), local)

    def __hash__(self) -> int:
        # Fast for thousands of partitions: strings cache their hash.
        return hash(self.local)

    def __str__(self) -> str:
        return f"persistent://{self.namespace}/{self.local}"
