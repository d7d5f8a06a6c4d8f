"""Commands on tables and their columns. Pure.

A change of the columns makes a new schema version. Columns of the key are not nullable and never
change. A new column that is not nullable needs a default, which rows of before have. A type may
only be widened, a column may become nullable but not the reverse, and a column that an index uses
cannot be dropped. Dropping a table drops its indexes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from lithify.catalog.changes import PutObject, RemoveObject
from lithify.catalog.column_types import ColumnType
from lithify.catalog.commands.checks import absent, check_named, present, zone_named
from lithify.catalog.errors import (
    InvalidDefinition,
    ObjectExists,
    ObjectInUse,
    ObjectNotFound,
)
from lithify.catalog.objects import Column, ObjectKind, PastColumn, TableDescriptor
from lithify.names import check_plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds

__all__ = [
    "KEEP",
    "AddColumns",
    "AlterColumn",
    "ColumnDefinition",
    "CreateTable",
    "DropColumns",
    "DropTable",
    "ids_of_columns",
]

COLUMNS_MAX = 1000
TEXT_DEFAULT_CHARACTERS_MAX = 10_000

_TABLE = ObjectKind.TABLE
_COLUMN = "column"


class _Keep(Enum):
    KEEP = "keep"


KEEP = _Keep.KEEP
"""The default of a column stays what it is."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column of a new table, or a new one of a table."""

    name: str
    type: str
    nullable: bool = False
    default: Any = None
    """A JSON value; None is no default."""

    def column(self, table: str, column_id: int, since: int) -> Column:
        """The column, checked."""
        full = f"{table}.{self.name}"
        check_named(_COLUMN, full, lambda: check_plain_name("a column", self.name))
        if not isinstance(self.nullable, bool):
            raise InvalidDefinition(_COLUMN, full, f"nullable is {self.nullable!r}, not a boolean")
        column_type = _type(full, self.type)
        return _checked(
            full, Column(column_id, self.name, column_type, self.nullable, self.default, since)
        )


def _type(full: str, text: str) -> ColumnType:
    try:
        return ColumnType.parse(text)
    except (ValueError, TypeError) as error:
        raise InvalidDefinition(_COLUMN, full, str(error)) from error


def _checked(full: str, column: Column) -> Column:
    default = column.default
    if isinstance(default, str) and len(default) > TEXT_DEFAULT_CHARACTERS_MAX:
        rule = f"its default has more than {TEXT_DEFAULT_CHARACTERS_MAX} characters"
        raise InvalidDefinition(_COLUMN, full, rule)
    if default is not None and not column.type.accepts(default):
        raise InvalidDefinition(
            _COLUMN, full, f"default {default!r} is not a value of {column.type}"
        )
    return column


def ids_of_columns(
    kind: str, name: str, columns: Sequence[Column], names: Sequence[str]
) -> tuple[int, ...]:
    """The ids of columns of a table, for an object that names them."""
    known = {each.name: each.id for each in columns}
    if not names:
        raise InvalidDefinition(kind, name, "it names no column")
    for each in names:
        if each not in known:
            raise InvalidDefinition(kind, name, f"the table has no column {each}")
    if len(set(names)) < len(names):
        raise InvalidDefinition(kind, name, "it names a column twice")
    return tuple(known[each] for each in names)


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Create a table."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    key: tuple[str, ...]
    partition_key: tuple[str, ...] = ()
    """Columns of the key; empty: all of them."""
    zone: str = ""
    """Empty: the default one."""
    if_not_exists: bool = False

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        name = self.name
        check_named(_TABLE, name, lambda: check_plain_name("a table", name))
        _check_columns(name, [each.name for each in self.columns])
        columns = tuple(each.column(name, i, 1) for i, each in enumerate(self.columns, 1))
        key = ids_of_columns(_TABLE, name, columns, self.key)
        for column in columns:
            if column.id in key and column.nullable:
                raise InvalidDefinition(
                    _COLUMN, f"{name}.{column.name}", "a column of the key must not be nullable"
                )
        partition_key = key
        if self.partition_key:
            partition_key = ids_of_columns(_TABLE, name, columns, self.partition_key)
            if not set(partition_key) <= set(key):
                raise InvalidDefinition(_TABLE, name, "its partition key is not part of its key")
        if catalog.table(name) is not None:
            return present(_TABLE, name, if_not_exists=self.if_not_exists)
        zone = zone_named(catalog, self.zone, _TABLE, name)
        table = TableDescriptor(
            ids.take(), name, zone.id, columns, key, partition_key, len(columns) + 1
        )
        return (PutObject(table),)


def _check_columns(table: str, names: Sequence[str]) -> None:
    if not 1 <= len(names) <= COLUMNS_MAX:
        rule = f"it would have {len(names)} columns, must have 1 to {COLUMNS_MAX}"
        raise InvalidDefinition(_TABLE, table, rule)
    if len(set(names)) < len(names):
        twice = next(each for each in names if names.count(each) > 1)
        raise ObjectExists(_COLUMN, f"{table}.{twice}")


@dataclass(frozen=True, slots=True)
class DropTable:
    """Drop a table and its indexes."""

    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.table(self.name)
        if old is None:
            return absent(_TABLE, self.name, if_exists=self.if_exists)
        indexes = [RemoveObject(each.id) for each in catalog.indexes_of(old.id)]
        return (*indexes, RemoveObject(old.id))


@dataclass(frozen=True, slots=True)
class AddColumns:
    """Add columns to a table."""

    table: str
    columns: tuple[ColumnDefinition, ...]
    if_not_exists: bool = False
    """Skip those whose name the table has."""

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = _table(catalog, self.table)
        given = self.columns
        if self.if_not_exists:
            given = tuple(each for each in given if old.column(each.name) is None)
        if not given:
            return ()
        _check_columns(
            old.name, [each.name for each in old.columns] + [each.name for each in given]
        )
        since = old.schema_version + 1
        new = tuple(
            each.column(old.name, old.next_column_id + i, since) for i, each in enumerate(given)
        )
        for column in new:
            if not column.nullable and column.default is None:
                rule = "a new column that is not nullable needs a default"
                raise InvalidDefinition(_COLUMN, f"{old.name}.{column.name}", rule)
        table = replace(
            old,
            columns=old.columns + new,
            next_column_id=old.next_column_id + len(new),
            schema_version=since,
        )
        return (PutObject(table),)


@dataclass(frozen=True, slots=True)
class DropColumns:
    """Drop columns of a table."""

    table: str
    names: tuple[str, ...]
    if_exists: bool = False
    """Skip those that the table does not have."""

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = _table(catalog, self.table)
        dropped = {}
        for name in self.names:
            column = old.column(name)
            if column is not None:
                _check_droppable(catalog, old, column)
                dropped[column.id] = column
            elif not self.if_exists:
                raise ObjectNotFound(_COLUMN, f"{old.name}.{name}")
        return (PutObject(_next(old, dropped, {})),) if dropped else ()


def _check_droppable(catalog: Catalog, table: TableDescriptor, column: Column) -> None:
    full = f"{table.name}.{column.name}"
    if column.id in table.key:
        raise InvalidDefinition(_COLUMN, full, "a column of the key cannot be dropped")
    for index in catalog.alive_indexes_of(table.id):
        if column.id in index.columns:
            raise ObjectInUse(_COLUMN, full, f"index {index.name} uses it")


@dataclass(frozen=True, slots=True)
class AlterColumn:
    """Change a column; what is None, or KEEP, stays as it is."""

    table: str
    name: str
    type: str | None = None
    nullable: bool | None = None
    default: Any = KEEP

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        table = _table(catalog, self.table)
        full = f"{table.name}.{self.name}"
        old = table.column(self.name)
        if old is None:
            raise ObjectNotFound(_COLUMN, full)
        new = replace(
            old,
            type=old.type if self.type is None else _type(full, self.type),
            nullable=old.nullable if self.nullable is None else self.nullable,
            default=old.default if self.default is KEEP else self.default,
        )
        if new == old:
            return ()
        if old.id in table.key:
            raise InvalidDefinition(_COLUMN, full, "a column of the key cannot be changed")
        if not new.type.widens(old.type):
            raise InvalidDefinition(_COLUMN, full, f"type {new.type} is not wider than {old.type}")
        if old.nullable and not new.nullable:
            raise InvalidDefinition(_COLUMN, full, "a nullable column stays nullable")
        new = _checked(full, replace(new, since=table.schema_version + 1))
        return (PutObject(_next(table, {old.id: old}, {old.id: new})),)


def _table(catalog: Catalog, name: str) -> TableDescriptor:
    found = catalog.table(name)
    if found is None:
        raise ObjectNotFound(_TABLE, name)
    return found


def _next(
    table: TableDescriptor, ended: dict[int, Column], new: dict[int, Column]
) -> TableDescriptor:
    """The next schema version, in which columns end and some of them have a new form."""
    version = table.schema_version + 1
    columns = [new.get(each.id, each) for each in table.columns]
    kept = tuple(each for each in columns if each.id in new or each.id not in ended)
    past = tuple(PastColumn(each, version) for each in ended.values())
    return replace(table, columns=kept, past=table.past + past, schema_version=version)
