"""The entries of a TOML text of definitions, one by one, for `definitions_toml.py` only.

Each is checked for fields that it cannot have, then compared with the object of its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lithify.catalog.commands.blob_stores import AlterBlobStore, CreateBlobStore, DropBlobStore
from lithify.catalog.commands.indexes import CreateIndex, DropIndex
from lithify.catalog.commands.tables import (
    KEEP,
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CreateTable,
    DropColumns,
    DropTable,
)
from lithify.catalog.commands.tenants_and_namespaces import (
    AlterNamespace,
    AlterTenant,
    CreateNamespace,
    CreateTenant,
    DropNamespace,
    DropTenant,
)
from lithify.catalog.commands.topics import AddPartitions, AlterTopic, CreateTopic, DropTopic
from lithify.catalog.commands.zones import AlterZone, CreateZone, DropZone, SetDefaultZone
from lithify.catalog.describe import object_row
from lithify.catalog.errors import InvalidDefinition

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.objects import CatalogObject, TableDescriptor

__all__ = ["apply_entry", "drop_entry"]

_SETTINGS: dict[str, type] = {"settings": dict, "unset": list}

FIELDS: dict[str, dict[str, type]] = {
    "zones": {"partitions": int, "replicas": int, "default": bool},
    "tenants": _SETTINGS,
    "namespaces": _SETTINGS,
    "topics": {"partitions": int, "zone": str, **_SETTINGS},
    "stores": {
        "namespace": str,
        "capacity_bytes": int,
        "segment_bytes": int,
        "zone": str,
        **_SETTINGS,
    },
    "tables": {
        "columns": list,
        "key": list,
        "partition_key": list,
        "zone": str,
        "indexes": dict,
    },
    "column": {"name": str, "type": str, "nullable": bool, "default": object},
    "index": {"columns": list, "unique": bool},
}
"""The fields of entries, beside `absent`. A list has texts; the columns of a table are tables."""

_LISTS_OF_TABLES = {("tables", "columns"), ("column", "default")}
_WORDS = {bool: "true or false", dict: "a table", int: "an integer", list: "a list", str: "text"}


class DefinitionsPlan(Protocol):
    """What an entry is applied to."""

    catalog: Catalog
    nodes: tuple[str, ...]
    created_ms: int

    def do(self, command: CatalogCommand) -> None:
        """Execute a command."""


def apply_entry(plan: DefinitionsPlan, section: str, name: str, entry: dict[str, Any]) -> None:
    """Create or change what an entry defines; absent parts of a table are left for later."""
    _check(section, name, entry)
    _APPLY[section](plan, name, entry)


def drop_entry(plan: DefinitionsPlan, section: str, name: str, entry: dict[str, Any]) -> None:
    """Drop what is absent in an entry: all of it, or columns and indexes of a table."""
    if entry.get("absent") is True:
        _check(section, name, entry)
        if section == "topics":
            plan.do(DropTopic(*_topic(name), if_exists=True))
        else:
            plan.do(_DROP[section](name, if_exists=True))
    elif section == "tables":
        for index, fields in entry.get("indexes", {}).items():
            if fields.get("absent") is True:
                plan.do(DropIndex(name, index, if_exists=True))
        absent = [each["name"] for each in entry.get("columns", ()) if each.get("absent") is True]
        if absent:
            plan.do(DropColumns(name, tuple(absent), if_exists=True))


def _check(section: str, name: str, entry: object) -> None:
    """Raise unless the fields of an entry are known and of their types."""
    known = FIELDS[section]
    kind = section.removesuffix("s")
    if not isinstance(entry, dict):
        raise InvalidDefinition(kind, name, "must be a table of fields")
    if not isinstance(entry.get("absent", False), bool):
        raise InvalidDefinition(kind, name, "absent must be true or false")
    more = entry.keys() - {"absent", "name"}
    if entry.get("absent") and more:
        raise InvalidDefinition(kind, name, f"it is absent, but has {', '.join(sorted(more))}")
    for field, value in entry.items():
        if field == "absent":
            continue
        if field not in known:
            rule = f"unknown field {field}; the fields are {', '.join((*known, 'absent'))}"
            raise InvalidDefinition(kind, name, rule)
        wanted = known[field]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise InvalidDefinition(kind, name, f"{field} must be {_WORDS[wanted]}, is {value!r}")
        if isinstance(value, list) and (section, field) not in _LISTS_OF_TABLES:
            if not all(isinstance(each, str) for each in value):
                raise InvalidDefinition(kind, name, f"{field} must be a list of texts")
            entry[field] = tuple(value)


def _check_fixed(plan: DefinitionsPlan, of: CatalogObject, entry: dict[str, Any]) -> None:
    """Raise unless all these fields are what they are."""
    row = object_row(plan.catalog, of)
    for field, value in entry.items():
        wanted = list(value) if isinstance(value, tuple) else value
        if wanted != row[field]:
            rule = f"{field} is fixed: it is {row[field]!r}, not {wanted!r}"
            raise InvalidDefinition(of.kind, row["name"], rule)


def _chosen(entry: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {field: entry[field] for field in fields if field in entry}


def _required(kind: str, name: str, entry: dict[str, Any], *fields: str) -> None:
    for field in fields:
        if field not in entry:
            raise InvalidDefinition(kind, name, f"a new object needs {field}")


# --- zones, tenants, namespaces -------------------------------------------------------------


def _zone(plan: DefinitionsPlan, name: str, entry: dict[str, Any]) -> None:
    given = _chosen(entry, "partitions", "replicas")
    exists = plan.catalog.zone(name) is not None
    plan.do(AlterZone(name, **given) if exists else CreateZone(name, **given))
    if entry.get("default"):
        plan.do(SetDefaultZone(name))


def _tenant(plan: DefinitionsPlan, name: str, entry: dict[str, Any]) -> None:
    if plan.catalog.tenant(name) is None:
        plan.do(CreateTenant(name, **_chosen(entry, "settings")))
    else:
        plan.do(AlterTenant(name, **_chosen(entry, "settings", "unset")))


def _namespace(plan: DefinitionsPlan, name: str, entry: dict[str, Any]) -> None:
    if plan.catalog.namespace(name) is None:
        plan.do(CreateNamespace(name, **_chosen(entry, "settings")))
    else:
        plan.do(AlterNamespace(name, **_chosen(entry, "settings", "unset")))


# --- topics and stores ----------------------------------------------------------------------


def _topic(name: str) -> tuple[str, str]:
    """Namespace and name of a topic."""
    parts = name.removeprefix("persistent://").split("/", 2)
    if len(parts) != 3:
        raise InvalidDefinition("topic", name, "its name must be TENANT/NAMESPACE/NAME")
    return f"{parts[0]}/{parts[1]}", parts[2]


def _apply_topic(plan: DefinitionsPlan, name: str, entry: dict[str, Any]) -> None:
    topic = _topic(name)
    old = plan.catalog.topic(*topic)
    if old is None:
        given = _chosen(entry, "partitions", "zone", "settings")
        plan.do(CreateTopic(*topic, nodes=plan.nodes, created_ms=plan.created_ms, **given))
        return
    _check_fixed(plan, old, _chosen(entry, "zone"))
    if entry.get("partitions", old.partitions) != old.partitions:
        plan.do(AddPartitions(*topic, entry["partitions"]))
    plan.do(AlterTopic(*topic, **_chosen(entry, "settings", "unset")))


def _apply_store(plan: DefinitionsPlan, name: str, entry: dict[str, Any]) -> None:
    shape = _chosen(entry, "namespace", "capacity_bytes", "segment_bytes", "zone")
    old = plan.catalog.store(name)
    if old is None:
        _required("store", name, entry, "namespace", "capacity_bytes", "segment_bytes")
        given = shape | _chosen(entry, "settings")
        # Its owner sets the time when it has created the files.
        plan.do(CreateBlobStore(name=name, nodes=plan.nodes, **given))
        return
    _check_fixed(plan, old, shape)
    plan.do(AlterBlobStore(name, **_chosen(entry, "settings", "unset")))


# --- tables ---------------------------------------------------------------------------------


def _apply_table(plan: DefinitionsPlan, name: str, entry: dict[str, Any]) -> None:
    columns = entry.get("columns", [])
    for number, column in enumerate(columns, 1):
        of = column.get("name", number) if isinstance(column, dict) else number
        _check("column", f"{name}.{of}", column)
        _required("column", f"{name}.{of}", column, "name")
    for index, fields in entry.get("indexes", {}).items():
        _check("index", f"{name}.{index}", fields)
    alive = [each for each in columns if not each.get("absent")]
    old = plan.catalog.table(name)
    if old is None:
        _required("table", name, entry, "columns", "key")
        given = _chosen(entry, "key", "partition_key", "zone")
        plan.do(CreateTable(name, tuple(_new_column(name, each) for each in alive), **given))
    else:
        _check_fixed(plan, old, _chosen(entry, "key", "partition_key", "zone"))
        _apply_columns(plan, old, alive)
    for index, fields in entry.get("indexes", {}).items():
        if not fields.get("absent"):
            _apply_index(plan, name, index, fields)


def _new_column(table: str, column: dict[str, Any]) -> ColumnDefinition:
    _required("column", f"{table}.{column['name']}", column, "type")
    return ColumnDefinition(**_chosen(column, "name", "type", "nullable", "default"))


def _apply_columns(
    plan: DefinitionsPlan, table: TableDescriptor, columns: list[dict[str, Any]]
) -> None:
    new = [each for each in columns if table.column(each["name"]) is None]
    for each in columns:
        if table.column(each["name"]) is not None:
            given = {"default": KEEP} | _chosen(each, "type", "nullable", "default")
            plan.do(AlterColumn(table.name, each["name"], **given))
    plan.do(AddColumns(table.name, tuple(_new_column(table.name, each) for each in new)))


def _apply_index(plan: DefinitionsPlan, table: str, name: str, entry: dict[str, Any]) -> None:
    of = plan.catalog.table(table)
    old = plan.catalog.index(of.id, name) if of is not None else None
    if old is not None:
        _check_fixed(plan, old, _chosen(entry, "columns", "unique"))
        return
    _required("index", f"{table}.{name}", entry, "columns")
    plan.do(CreateIndex(table, name, **_chosen(entry, "columns", "unique")))


_APPLY: dict[str, Callable[[DefinitionsPlan, str, dict[str, Any]], None]] = {
    "zones": _zone,
    "tenants": _tenant,
    "namespaces": _namespace,
    "topics": _apply_topic,
    "stores": _apply_store,
    "tables": _apply_table,
}
_DROP: dict[str, Callable[..., CatalogCommand]] = {
    "zones": DropZone,
    "tenants": DropTenant,
    "namespaces": DropNamespace,
    "stores": DropBlobStore,
    "tables": DropTable,
}
