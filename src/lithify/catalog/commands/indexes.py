"""Commands on indexes of tables. Pure.

    CreateIndex -> REGISTERED -> BUILDING -> AVAILABLE -> STOPPING -> removed
        StartBuildingIndex ──┘      │            │           │           │
        MakeIndexAvailable ─────────────────────┘           │           │
        DropIndex ───────────────────────────────────────────┘           │
        RemoveIndex ─────────────────────────────────────────────────────┘

No other step exists. `DropIndex` removes an index at once that is not available yet; one that stops
is not found by its name. The index of a table that the same batch creates begins as AVAILABLE: the
table is empty. The steps between are named by id, because the name may be in use again.

A unique index contains the partition key of its table: otherwise rows with equal values may be in
partitions that do not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.catalog.changes import PutObject, RemoveObject
from lithify.catalog.commands.checks import absent, check_named, present
from lithify.catalog.commands.tables import ids_of_columns
from lithify.catalog.errors import InvalidDefinition, ObjectNotFound, WrongIndexStatus
from lithify.catalog.objects import IndexDescriptor, IndexStatus, ObjectKind
from lithify.names import check_plain_name

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds

__all__ = [
    "CreateIndex",
    "DropIndex",
    "MakeIndexAvailable",
    "RemoveIndex",
    "StartBuildingIndex",
]

_INDEX = ObjectKind.INDEX


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """Create an index."""

    table: str
    name: str
    columns: tuple[str, ...]
    unique: bool = False
    if_not_exists: bool = False

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        full = f"{self.table}.{self.name}"
        check_named(_INDEX, full, lambda: check_plain_name("an index", self.name))
        table = catalog.table(self.table)
        if table is None:
            raise ObjectNotFound(ObjectKind.TABLE, self.table)
        columns = ids_of_columns(_INDEX, full, table.columns, self.columns)
        if self.unique and not set(table.partition_key) <= set(columns):
            rule = "a unique index must contain the partition key of its table"
            raise InvalidDefinition(_INDEX, full, rule)
        if catalog.index(table.id, self.name) is not None:
            return present(_INDEX, full, if_not_exists=self.if_not_exists)
        status = IndexStatus.AVAILABLE if ids.has(table.id) else IndexStatus.REGISTERED
        index = IndexDescriptor(ids.take(), table.id, self.name, columns, self.unique, status)
        return (PutObject(index),)


@dataclass(frozen=True, slots=True)
class DropIndex:
    """Drop an index: one that is available stops, any other is removed."""

    table: str
    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        table = catalog.table(self.table)
        index = catalog.index(table.id, self.name) if table is not None else None
        if index is None:
            return absent(_INDEX, f"{self.table}.{self.name}", if_exists=self.if_exists)
        if index.status is IndexStatus.AVAILABLE:
            return (PutObject(replace(index, status=IndexStatus.STOPPING)),)
        return (RemoveObject(index.id),)


def _index(catalog: Catalog, index_id: int, expected: IndexStatus, target: str) -> IndexDescriptor:
    index = catalog.get(IndexDescriptor, index_id)
    if index.status is not expected:
        raise WrongIndexStatus(index_id, index.status, target, expected)
    return index


@dataclass(frozen=True, slots=True)
class StartBuildingIndex:
    """REGISTERED -> BUILDING."""

    id: int

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        index = _index(catalog, self.id, IndexStatus.REGISTERED, IndexStatus.BUILDING)
        return (PutObject(replace(index, status=IndexStatus.BUILDING)),)


@dataclass(frozen=True, slots=True)
class MakeIndexAvailable:
    """BUILDING -> AVAILABLE."""

    id: int

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        index = _index(catalog, self.id, IndexStatus.BUILDING, IndexStatus.AVAILABLE)
        return (PutObject(replace(index, status=IndexStatus.AVAILABLE)),)


@dataclass(frozen=True, slots=True)
class RemoveIndex:
    """STOPPING -> removed."""

    id: int

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        _index(catalog, self.id, IndexStatus.STOPPING, "removed")
        return (RemoveObject(self.id),)
