"""Topic names, and the directories of topics.

    persistent://tenant/namespace/topic                 the full name
    persistent://tenant/namespace/topic-partition-3     partition 3 of a partitioned topic
    topic                                               short for persistent://public/default/topic

Tenants and namespaces consist of letters, digits and -=:._ ; a topic may also have any other
printable character, except that its parts between slashes must not be empty, "." or "..". In a path
every character that is not a letter, digit, - or _ is escaped as %XX, so that a path stays within
the data directory and is unique.

Clients choose the names of producers, consumers and subscriptions. These names are not used in
paths, so only their length is limited. One name of a subscription is reserved: `__compaction`, the
name of the compacted view in Pulsar's tools.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from lithify.errors import InvalidInput

__all__ = [
    "CLIENT_NAME_CHARACTERS_MAX",
    "COMPACTION",
    "NAME_CHARACTERS_MAX",
    "Namespace",
    "TopicName",
    "check_client_name",
]

CLIENT_NAME_CHARACTERS_MAX = 1000

COMPACTION = "__compaction"
"""The name of the compacted view among subscriptions and cursors."""

NAME_CHARACTERS_MAX = 200
"""An escaped name has up to 3 times as many bytes; most file systems allow 255 per path part."""

PATH_PART_BYTES_MAX = 240

_PART = re.compile(r"[-=:.\w]+", re.ASCII)
_PLAIN = re.compile(r"[-\w]+", re.ASCII)
_NO_PARTS = frozenset({"", ".", ".."})
_PARTITION = re.compile(r"(.+)-partition-(\d{1,6})")


def _check_part(what: str, part: str, name: str) -> None:
    if len(part) > NAME_CHARACTERS_MAX or part in {".", ".."} or not _PART.fullmatch(part):
        raise InvalidInput(
            f"{what} {part!r} of {name!r} must have 1 to {NAME_CHARACTERS_MAX} letters, digits "
            "or -=:._"
        )


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
        _check_part("tenant", self.tenant, str(self))
        _check_part("namespace", self.name, str(self))

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
        local = self.local
        if (
            not 1 <= len(local) <= NAME_CHARACTERS_MAX
            or not local.isprintable()
            or not _NO_PARTS.isdisjoint(local.split("/"))
            or len(_escape(local)) > PATH_PART_BYTES_MAX
        ):
            raise InvalidInput(
                f"topic {local!r} must have 1 to {NAME_CHARACTERS_MAX} printable characters "
                f"(at most {PATH_PART_BYTES_MAX} bytes escaped), its parts between slashes not "
                "empty, '.' or '..'"
            )

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
        match = _PARTITION.fullmatch(self.local)
        return int(match[2]) if match else -1

    @property
    def whole(self) -> TopicName:
        """The partitioned topic of a partition, otherwise the topic itself."""
        match = _PARTITION.fullmatch(self.local)
        return TopicName(self.namespace, match[1]) if match else self

    def partition_name(self, number: int) -> TopicName:
        """Partition `number` of this topic."""
        return TopicName(self.namespace, f"{self.local}-partition-{number}")

    @property
    def path(self) -> str:
        """The directory of the topic, relative to that of all topics."""
        parts = self.namespace.tenant, self.namespace.name, self.local
        return "/".join(map(_escape, parts))

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


def _escape(part: str) -> str:
    # The fast path: most names need no escape.
    if _PLAIN.fullmatch(part):
        return part
    # quote() does not escape "." and "~"; a part must not be "." or "..".
    return quote(part, safe="").replace(".", "%2E").replace("~", "%7E")
