"""Commands on topics. Pure.

A topic is named by its namespace, TENANT/NAMESPACE, and its name there. It has 0 partitions, which
is one log, or 1 to 10,000, and one owner for each log. The number of partitions only grows; a topic
without partitions never gets any. Partition 3 of a topic is itself named like a topic,
`NAME-partition-3`, so a topic and a partition of another one cannot have the same name.

The owners are given, or one is chosen among `nodes`, the live ones, when the command is planned.
Then all partitions of the topic have that owner, because its schemas are stored once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lithify.catalog.changes import PutObject
from lithify.catalog.commands.checks import (
    absent,
    altered,
    check_named,
    check_number,
    namespace_named,
    owners_of,
    present,
    settings_of,
    zone_named,
)
from lithify.catalog.commands.removals import removal_of
from lithify.catalog.errors import InvalidDefinition, ObjectExists, ObjectNotFound
from lithify.catalog.objects import ObjectKind, TopicDescriptor
from lithify.names import check_topic_name, split_partition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds

__all__ = ["TOPIC_PARTITIONS_MAX", "AddPartitions", "AlterTopic", "CreateTopic", "DropTopic"]

TOPIC_PARTITIONS_MAX = 10_000

_TOPIC = ObjectKind.TOPIC


def _full(namespace: str, name: str) -> str:
    return f"persistent://{namespace}/{name}"


def _check_free(catalog: Catalog, namespace: str, local: str, new: range) -> None:
    """Raise `ObjectExists` if one of these partitions has the name of a topic."""
    for number in new:
        name = f"{local}-partition-{number}"
        if catalog.topic(namespace, name) is not None:
            raise ObjectExists(_TOPIC, _full(namespace, name))


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic."""

    namespace: str
    name: str
    partitions: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    zone: str = ""
    """Empty: the default one."""
    owners: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    created_ms: int = 0
    if_not_exists: bool = False

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        full = _full(self.namespace, self.name)
        check_named(_TOPIC, full, lambda: check_topic_name(self.name))
        check_number(_TOPIC, full, "partitions", self.partitions, 0, TOPIC_PARTITIONS_MAX)
        settings = settings_of(_TOPIC, full, self.settings)
        namespace = namespace_named(catalog, self.namespace)
        if catalog.topic(self.namespace, self.name) is not None:
            return present(_TOPIC, full, if_not_exists=self.if_not_exists)
        whole, number = split_partition(self.name)
        partitioned = catalog.topic(self.namespace, whole) if number >= 0 else None
        if partitioned is not None and number < partitioned.partitions:
            raise ObjectExists(_TOPIC, full)
        _check_free(catalog, self.namespace, self.name, range(self.partitions))
        zone = zone_named(catalog, self.zone, _TOPIC, full)
        count = self.partitions or 1
        given = self.owners
        if not given:
            given = owners_of(catalog, (_TOPIC, full), zone.id, (), self.nodes, 1) * count
        owners = owners_of(catalog, (_TOPIC, full), zone.id, given, (), count)
        topic = TopicDescriptor(
            ids.take(),
            namespace.id,
            self.name,
            zone.id,
            owners,
            self.partitions,
            self.created_ms,
            settings,
        )
        return (PutObject(topic),)


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Set settings of a topic, and unset others."""

    namespace: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        full = _full(self.namespace, self.name)
        old = catalog.topic(self.namespace, self.name)
        if old is None:
            return absent(_TOPIC, full, if_exists=self.if_exists)
        return altered(old, full, self.settings, self.unset)


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add partitions to a partitioned topic, up to this number; `owners` are those of new ones."""

    namespace: str
    name: str
    partitions: int
    owners: tuple[str, ...] = ()
    """Empty: that of the first partition."""

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        full = _full(self.namespace, self.name)
        check_number(_TOPIC, full, "partitions", self.partitions, 1, TOPIC_PARTITIONS_MAX)
        old = catalog.topic(self.namespace, self.name)
        if old is None:
            raise ObjectNotFound(_TOPIC, full)
        if not old.partitions:
            raise InvalidDefinition(_TOPIC, full, "it is not partitioned")
        new = range(old.partitions, self.partitions)
        if self.partitions < old.partitions:
            rule = f"it has {old.partitions} partitions; their number only grows"
            raise InvalidDefinition(_TOPIC, full, rule)
        if not new:
            return ()
        _check_free(catalog, self.namespace, self.name, new)
        given = self.owners or old.owners[:1] * len(new)
        added = owners_of(catalog, (_TOPIC, full), old.zone_id, given, (), len(new))
        owners = (*old.owners, *added)
        return (PutObject(replace(old, partitions=self.partitions, owners=owners)),)


@dataclass(frozen=True, slots=True)
class DropTopic:
    """Delete a topic: it becomes a removal."""

    namespace: str
    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.topic(self.namespace, self.name)
        if old is None:
            return absent(_TOPIC, _full(self.namespace, self.name), if_exists=self.if_exists)
        return (removal_of(catalog, old),)
