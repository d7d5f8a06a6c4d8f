"""The descriptors of the catalog's objects: frozen values. Pure.

    zone ◄── topic, blob store, table      where partitions and replicas are placed
    tenant ◄── namespace ◄── topic, blob store
    table ◄── index
    removal                                a deleted topic or store, until its directories are gone

An id comes from one counter for all kinds, in the catalog, and is never reused: an object that is
created again with the same name has a new id. A removal has the id of what was deleted.

`updated` is the activation time of the version that last changed the object; in an update that has
no version yet it is 0.

`places` are the entries of the catalog's directory (`catalog.py`) by which an object is found: a
group, and a key in it. The key is its name, or its id where the group only lists it.

Values are not checked here but by the commands. Mappings must not be changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.catalog.column_types import ColumnType

__all__ = [
    "BlobStoreDescriptor",
    "CatalogObject",
    "Column",
    "Group",
    "IndexDescriptor",
    "IndexStatus",
    "NamespaceDescriptor",
    "ObjectKind",
    "PastColumn",
    "Place",
    "Removal",
    "TableDescriptor",
    "TenantDescriptor",
    "TopicDescriptor",
    "ZoneDescriptor",
    "in_zone",
]

Group: TypeAlias = tuple[str, int]
"""What the objects of a group are, and the id of the object above them; 0 if there is none."""

Place: TypeAlias = tuple[Group, str | int]


class ObjectKind(StrEnum):
    """The kinds of objects, as texts and formats name them."""

    ZONE = "zone"
    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    STORE = "store"
    TABLE = "table"
    INDEX = "index"
    REMOVAL = "removal"


class IndexStatus(StrEnum):
    """In the order in which an index passes through them."""

    REGISTERED = "registered"
    """Writers maintain it; older transactions that do not know it may still run."""
    BUILDING = "building"
    """Rows of before are added."""
    AVAILABLE = "available"
    STOPPING = "stopping"
    """Dropped: new transactions do not use it. Its name is free."""


def in_zone(zone_id: int) -> Group:
    """The group of everything that is placed in a zone."""
    return ("in zone", zone_id)


@dataclass(frozen=True, slots=True)
class ZoneDescriptor:
    """Rules of placement."""

    kind: ClassVar = ObjectKind.ZONE
    id: int
    name: str
    partitions: int
    """Of a table."""
    replicas: int
    """Copies of each of these partitions."""
    updated: int = 0

    def places(self) -> tuple[Place, ...]:
        """See the module."""
        return (((self.kind, 0), self.name),)


@dataclass(frozen=True, slots=True)
class TenantDescriptor:
    """The owner of namespaces."""

    kind: ClassVar = ObjectKind.TENANT
    id: int
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    updated: int = 0

    def places(self) -> tuple[Place, ...]:
        """See the module."""
        return (((self.kind, 0), self.name),)


@dataclass(frozen=True, slots=True)
class NamespaceDescriptor:
    """A namespace, with the default settings of its topics."""

    kind: ClassVar = ObjectKind.NAMESPACE
    id: int
    tenant_id: int
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    updated: int = 0

    def places(self) -> tuple[Place, ...]:
        """See the module."""
        return (((self.kind, self.tenant_id), self.name),)


@dataclass(frozen=True, slots=True)
class TopicDescriptor:
    """A topic."""

    kind: ClassVar = ObjectKind.TOPIC
    id: int
    namespace_id: int
    name: str
    """Without the namespace."""
    zone_id: int
    owners: tuple[str, ...]
    """One node per partition; one node if the topic is not partitioned."""
    partitions: int = 0
    """0: not partitioned."""
    created_ms: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    updated: int = 0

    def places(self) -> tuple[Place, ...]:
        """See the module."""
        return (((self.kind, self.namespace_id), self.name), (in_zone(self.zone_id), self.id))


@dataclass(frozen=True, slots=True)
class BlobStoreDescriptor:
    """A blob store. Its name is unique among those of all namespaces."""

    kind: ClassVar = ObjectKind.STORE
    id: int
    namespace_id: int
    name: str
    zone_id: int
    owner: str
    capacity_bytes: int
    segment_bytes: int
    created_ms: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    updated: int = 0

    @property
    def owners(self) -> tuple[str, ...]:
        """The owner, as a topic has them."""
        return (self.owner,)

    def places(self) -> tuple[Place, ...]:
        """See the module."""
        return (
            ((self.kind, 0), self.name),
            ((self.kind, self.namespace_id), self.id),
            (in_zone(self.zone_id), self.id),
        )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, with an id that is unique in the table and never reused."""

    id: int
    name: str
    type: ColumnType
    nullable: bool = False
    default: Any = None
    """A JSON value; None is no default."""
    since: int = 1
    """The first schema version that has the column in this form."""


@dataclass(frozen=True, slots=True)
class PastColumn:
    """A form of a column that later schema versions do not have."""

    column: Column
    until: int
    """The first schema version without it."""


@dataclass(frozen=True, slots=True)
class TableDescriptor:
    """A table.

    Schema versions count from 1 and are never dropped, so that rows of any of them can be read.
    In each the columns are in the order of their ids.
    """

    kind: ClassVar = ObjectKind.TABLE
    id: int
    name: str
    zone_id: int
    columns: tuple[Column, ...]
    """Those of the newest schema version."""
    key: tuple[int, ...]
    """Ids of columns."""
    partition_key: tuple[int, ...]
    """Those of the key that determine the partition of a row."""
    next_column_id: int
    schema_version: int = 1
    past: tuple[PastColumn, ...] = ()
    """In the order in which they ended."""
    updated: int = 0

    def places(self) -> tuple[Place, ...]:
        """See the module."""
        return (((self.kind, 0), self.name), (in_zone(self.zone_id), self.id))

    def column(self, name: str) -> Column | None:
        """The column of the newest schema version."""
        return next((each for each in self.columns if each.name == name), None)

    def columns_at(self, version: int) -> tuple[Column, ...]:
        """The columns of a schema version, from 1 to `schema_version`."""
        found = [each for each in self.columns if each.since <= version]
        found += [past.column for past in self.past if past.column.since <= version < past.until]
        return tuple(sorted(found, key=lambda column: column.id))


@dataclass(frozen=True, slots=True)
class IndexDescriptor:
    """An index of a table."""

    kind: ClassVar = ObjectKind.INDEX
    id: int
    table_id: int
    name: str
    columns: tuple[int, ...]
    """Ids of columns."""
    unique: bool = False
    status: IndexStatus = IndexStatus.REGISTERED
    updated: int = 0

    def places(self) -> tuple[Place, ...]:
        """See the module. The name of a stopping index is free."""
        stopping = self.status is IndexStatus.STOPPING
        return (((self.kind, self.table_id), self.id if stopping else self.name),)


@dataclass(frozen=True, slots=True)
class Removal:
    """A deleted topic or store of which nodes still have directories.

    It permits exactly these nodes to delete them, and is a hold on the catalog's history. The
    last node that confirms ends it.
    """

    kind: ClassVar = ObjectKind.REMOVAL
    id: int
    """Of what was deleted."""
    of: ObjectKind
    name: str
    """The full name that it had."""
    nodes: tuple[str, ...]
    """Those that have not confirmed, ascending."""
    partitions: int = 0
    created_ms: int = 0
    updated: int = 0

    def places(self) -> tuple[Place, ...]:
        """See the module."""
        return (((self.kind, 0), self.id),)


CatalogObject: TypeAlias = (
    ZoneDescriptor
    | TenantDescriptor
    | NamespaceDescriptor
    | TopicDescriptor
    | BlobStoreDescriptor
    | TableDescriptor
    | IndexDescriptor
    | Removal
)
