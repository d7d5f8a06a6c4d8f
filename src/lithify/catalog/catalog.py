"""One version of the catalog: an immutable value that shares its parts with other versions.

Three persistent maps (hash array mapped tries, library `immutables`), of which a change copies one
path of a few hundred bytes:

    objects      id -> object
    directory    group -> key -> id      by name and by the object above, see `objects.py`
    owned        (zone id or 0, node) -> number of topic partitions and stores that it owns

The last two follow from the first and are not stored. A group that has no object does not exist.

Version 0 is empty. The activation of a version is the time from which it is in force: the time at
which its update was appended plus the update's delay, and always above that of the version before.

Any thread may read a catalog at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from immutables import Map

from lithify.catalog.changes import PutObject, RemoveObject, SetNextId
from lithify.catalog.errors import ObjectNotFound, OutOfOrder
from lithify.catalog.objects import (
    BlobStoreDescriptor,
    IndexDescriptor,
    IndexStatus,
    NamespaceDescriptor,
    ObjectKind,
    Removal,
    TableDescriptor,
    TenantDescriptor,
    TopicDescriptor,
    ZoneDescriptor,
    in_zone,
)
from lithify.hybrid_time import MIN_TIMESTAMP, add_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from immutables import MapMutation

    from lithify.catalog.changes import CatalogChange, CatalogUpdate
    from lithify.catalog.objects import CatalogObject, Group

__all__ = ["Catalog", "CatalogBuilder", "activation_of"]

_T = TypeVar("_T", bound="CatalogObject")

_LARGE_PARTS: dict[ObjectKind, tuple[str, ...]] = {
    ObjectKind.ZONE: ("name",),
    ObjectKind.TENANT: ("name",),
    ObjectKind.NAMESPACE: ("name",),
    ObjectKind.TOPIC: ("name", "owners", "created_ms"),
    ObjectKind.STORE: ("name", "owner", "created_ms", "capacity_bytes"),
    ObjectKind.TABLE: ("name", "columns", "key", "partition_key", "past"),
    ObjectKind.INDEX: ("name", "columns"),
    ObjectKind.REMOVAL: ("name",),
}
"""Parts of which equal ones are stored once; settings are not: True equals 1."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """See the module."""

    version: int = 0
    activation: int = MIN_TIMESTAMP
    next_id: int = 1
    default_zone_id: int = 0
    """0: there is none."""
    objects: Map[int, CatalogObject] = field(default_factory=Map, repr=False)
    directory: Map[Group, Map[str | int, int]] = field(
        default_factory=Map, repr=False, compare=False
    )
    owned: Map[tuple[int, str], int] = field(default_factory=Map, repr=False, compare=False)

    # --- by id and by name ------------------------------------------------------------------

    def find(self, kind: type[_T], object_id: int) -> _T | None:
        """The object of the kind with the id, if it exists."""
        found = self.objects.get(object_id)
        return found if isinstance(found, kind) else None

    def get(self, kind: type[_T], object_id: int) -> _T:
        """The object of the kind with the id; raises `ObjectNotFound`."""
        found = self.find(kind, object_id)
        if found is None:
            raise ObjectNotFound(kind.kind, object_id)
        return found

    def zone(self, name: str) -> ZoneDescriptor | None:
        """The zone with the name, if it exists."""
        return self._named(ZoneDescriptor, 0, name)

    def tenant(self, name: str) -> TenantDescriptor | None:
        """The tenant with the name, if it exists."""
        return self._named(TenantDescriptor, 0, name)

    def namespace(self, name: str) -> NamespaceDescriptor | None:
        """The namespace with the name TENANT/NAMESPACE, if it exists."""
        tenant, _, local = name.partition("/")
        above = self.tenant(tenant)
        return self._named(NamespaceDescriptor, above.id, local) if above else None

    def topic(self, namespace: str, name: str) -> TopicDescriptor | None:
        """The topic with the name in the namespace TENANT/NAMESPACE, if it exists."""
        above = self.namespace(namespace)
        return self._named(TopicDescriptor, above.id, name) if above else None

    def store(self, name: str) -> BlobStoreDescriptor | None:
        """The blob store with the name, if it exists."""
        return self._named(BlobStoreDescriptor, 0, name)

    def table(self, name: str) -> TableDescriptor | None:
        """The table with the name, if it exists."""
        return self._named(TableDescriptor, 0, name)

    def index(self, table_id: int, name: str) -> IndexDescriptor | None:
        """The index of the table with the name, if it exists and is not stopping."""
        return self._named(IndexDescriptor, table_id, name)

    def _named(self, kind: type[_T], above: int, name: str) -> _T | None:
        group = self.directory.get((kind.kind, above))
        found = group.get(name) if group is not None else None
        return None if found is None else self.get(kind, found)

    @property
    def default_zone(self) -> ZoneDescriptor | None:
        """The zone of objects that name none."""
        return self.find(ZoneDescriptor, self.default_zone_id)

    # --- lists, ascending by id -------------------------------------------------------------

    def zones(self) -> list[ZoneDescriptor]:
        """All zones."""
        return self._group(ZoneDescriptor, (ObjectKind.ZONE, 0))

    def tenants(self) -> list[TenantDescriptor]:
        """All tenants."""
        return self._group(TenantDescriptor, (ObjectKind.TENANT, 0))

    def namespaces_of(self, tenant_id: int) -> list[NamespaceDescriptor]:
        """The namespaces of a tenant."""
        return self._group(NamespaceDescriptor, (ObjectKind.NAMESPACE, tenant_id))

    def topics_of(self, namespace_id: int) -> list[TopicDescriptor]:
        """The topics of a namespace."""
        return self._group(TopicDescriptor, (ObjectKind.TOPIC, namespace_id))

    def stores_of(self, namespace_id: int) -> list[BlobStoreDescriptor]:
        """The blob stores of a namespace."""
        return self._group(BlobStoreDescriptor, (ObjectKind.STORE, namespace_id))

    def stores(self) -> list[BlobStoreDescriptor]:
        """All blob stores."""
        return self._group(BlobStoreDescriptor, (ObjectKind.STORE, 0))

    def tables(self) -> list[TableDescriptor]:
        """All tables."""
        return self._group(TableDescriptor, (ObjectKind.TABLE, 0))

    def indexes_of(self, table_id: int) -> list[IndexDescriptor]:
        """The indexes of a table, also those that are stopping."""
        return self._group(IndexDescriptor, (ObjectKind.INDEX, table_id))

    def alive_indexes_of(self, table_id: int) -> list[IndexDescriptor]:
        """The indexes of a table that are not stopping."""
        indexes = self.indexes_of(table_id)
        return [each for each in indexes if each.status is not IndexStatus.STOPPING]

    def removals(self) -> list[Removal]:
        """All deletions that nodes have not confirmed."""
        return self._group(Removal, (ObjectKind.REMOVAL, 0))

    def namespaces(self) -> Iterator[NamespaceDescriptor]:
        """All namespaces, tenant by tenant."""
        for tenant in self.tenants():
            yield from self.namespaces_of(tenant.id)

    def topics(self) -> Iterator[TopicDescriptor]:
        """All topics, namespace by namespace."""
        for namespace in self.namespaces():
            yield from self.topics_of(namespace.id)

    def in_zone(self, zone_id: int) -> list[CatalogObject]:
        """The topics, blob stores and tables of a zone."""
        return [self.objects[each] for each in self._ids(in_zone(zone_id))]

    def _group(self, kind: type[_T], group: Group) -> list[_T]:
        return [self.get(kind, each) for each in self._ids(group)]

    def _ids(self, group: Group) -> list[int]:
        found = self.directory.get(group)
        return sorted(found.values()) if found is not None else []

    # --- names and numbers ------------------------------------------------------------------

    def full_name(self, of: CatalogObject) -> str:
        """The name by which commands and people call an object."""
        if isinstance(of, NamespaceDescriptor):
            return f"{self.get(TenantDescriptor, of.tenant_id).name}/{of.name}"
        if isinstance(of, TopicDescriptor):
            namespace = self.get(NamespaceDescriptor, of.namespace_id)
            return f"persistent://{self.full_name(namespace)}/{of.name}"
        if isinstance(of, IndexDescriptor):
            return f"{self.get(TableDescriptor, of.table_id).name}.{of.name}"
        return of.name

    def owned_by(self, node: str, zone_id: int = 0) -> int:
        """The number of topic partitions and stores of a node, of one zone or of all."""
        return self.owned.get((zone_id, node), 0)

    # --- the next version -------------------------------------------------------------------

    def with_update(self, update: CatalogUpdate, timestamp: int) -> Catalog:
        """The next version; `timestamp` is the time at which the update was appended."""
        if update.version != self.version + 1:
            raise OutOfOrder(update.version, self.version)
        activation = activation_of(update, timestamp, self.activation)
        builder = CatalogBuilder(self)
        for change in update.changes:
            builder.apply(change, activation)
        return builder.build(update.version, activation)

    def with_changes(self, changes: Iterable[CatalogChange]) -> Catalog:
        """The catalog with changes that have no version yet."""
        builder = CatalogBuilder(self)
        for change in changes:
            builder.apply(change, 0)
        return builder.build(self.version, self.activation)


def activation_of(update: CatalogUpdate, timestamp: int, before: int) -> int:
    """The activation of a version whose update was appended at a time, after the one before it."""
    return max(add_ms(timestamp, update.delay_ms), before + 1)


class CatalogBuilder:
    """Makes a catalog from another one by changes; for `Catalog`, and to read snapshots."""

    def __init__(self, base: Catalog) -> None:
        self.next_id = base.next_id
        self.default_zone_id = base.default_zone_id
        self._base = base
        self._objects: MapMutation[int, CatalogObject] = base.objects.mutate()
        # None while it is that of the base: most changes leave both as they are.
        self._directory: MapMutation[Group, Map[str | int, int]] | None = None
        self._owned: MapMutation[tuple[int, str], int] | None = None

    def apply(self, change: CatalogChange, updated: int) -> None:
        """Apply one change."""
        if isinstance(change, PutObject):
            new = change.object
            same = _equal_parts(self._objects.get(new.id), new)
            self.put(replace(new, updated=updated, **same))
        elif isinstance(change, RemoveObject):
            self._change_places(self._objects.pop(change.id), None)
        elif isinstance(change, SetNextId):
            self.next_id = change.id
        else:
            self.default_zone_id = change.id

    def put(self, new: CatalogObject) -> None:
        """Add an object, or replace the one with its id."""
        self._change_places(self._objects.get(new.id), new)
        self._objects[new.id] = new

    def build(self, version: int, activation: int) -> Catalog:
        """The catalog; the builder must not be used again."""
        base = self._base
        return Catalog(
            version,
            activation,
            self.next_id,
            self.default_zone_id,
            self._objects.finish(),
            base.directory if self._directory is None else self._directory.finish(),
            base.owned if self._owned is None else self._owned.finish(),
        )

    def _change_places(self, old: CatalogObject | None, new: CatalogObject | None) -> None:
        """Replace what follows from an object."""
        before = old.places() if old is not None else ()
        after = new.places() if new is not None else ()
        if before != after:
            if self._directory is None:
                self._directory = self._base.directory.mutate()
            directory = self._directory
            for group, key in before:
                rest = directory[group].delete(key)
                if rest:
                    directory[group] = rest
                else:
                    del directory[group]
            for group, key in after:
                assert new is not None
                found = directory.get(group)
                directory[group] = (found if found is not None else Map()).set(key, new.id)
        if _ownership(old) != _ownership(new):
            self._count(old, new)

    def _count(self, old: CatalogObject | None, new: CatalogObject | None) -> None:
        # A plain dict: a `Counter` takes as long as all the rest, for each of thousands of topics.
        counts: dict[tuple[int, str], int] = {}
        for sign, each in ((-1, old), (1, new)):
            zone_id, owners = _ownership(each)
            for node in owners:
                for place in ((0, node), (zone_id, node)):
                    counts[place] = counts.get(place, 0) + sign
        if self._owned is None:
            self._owned = self._base.owned.mutate()
        for place, count in counts.items():
            total = self._owned.get(place, 0) + count
            if total:
                self._owned[place] = total
            elif count:
                del self._owned[place]


def _equal_parts(old: CatalogObject | None, new: CatalogObject) -> dict[str, Any]:
    """The parts of an object that it has in common with its last form, so that they share them."""
    same = {}
    if old is not None and old.kind == new.kind:
        for name in _LARGE_PARTS[new.kind]:
            value = getattr(old, name)
            if value == getattr(new, name):
                same[name] = value
    return same


def _ownership(of: CatalogObject | None) -> tuple[int, tuple[str, ...]]:
    if isinstance(of, TopicDescriptor | BlobStoreDescriptor):
        return of.zone_id, of.owners
    return 0, ()
