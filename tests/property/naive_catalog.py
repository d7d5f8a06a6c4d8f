"""A catalog of plain dicts, and random commands for it: what `lithify.catalog` must do."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from lithify.catalog.commands.blob_stores import AlterBlobStore, CreateBlobStore, DropBlobStore
from lithify.catalog.commands.indexes import (
    CreateIndex,
    DropIndex,
    MakeIndexAvailable,
    RemoveIndex,
    StartBuildingIndex,
)
from lithify.catalog.commands.removals import ConfirmRemoval
from lithify.catalog.commands.tables import (
    AddColumns,
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
from lithify.catalog.describe import catalog_rows

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog

NODES = ("n1", "n2")


class RefusedCommand(Exception):
    """The command is wrong."""


@dataclass
class NaiveCatalog:
    """Rows by id, like those of `describe.py`."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    next_id: int = 1
    default: str = ""

    def copy(self) -> NaiveCatalog:
        return deepcopy(self)

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        for row in self.rows.values():
            if row["kind"] == kind and row["name"] == name and row.get("status") != "stopping":
                return row
        return None

    def inside(self, kind: str, prefix: str) -> list[dict[str, Any]]:
        rows = self.rows.values()
        return [row for row in rows if row["kind"] == kind and row["name"].startswith(prefix)]

    def add(self, kind: str, name: str, **fields: Any) -> bool:
        self.rows[self.next_id] = {"kind": kind, "id": self.next_id, "name": name, **fields}
        self.next_id += 1
        return True

    def delete(self, row: dict[str, Any], nodes: set[str]) -> bool:
        self.rows[row["id"]] = {
            "kind": "removal",
            "id": row["id"],
            "name": row["name"],
            "of": row["kind"],
            "nodes": sorted(nodes),
        }
        return True


def refuse_if(condition: object) -> None:
    if condition:
        raise RefusedCommand


def execute(model: NaiveCatalog, command: Any, batch_first_id: int) -> bool:
    """Did the command change something?"""
    name = getattr(command, "name", "")
    kind = _KIND.get(type(command), "")
    full = name
    if kind == "topic":
        full = f"persistent://{command.namespace}/{name}"
    elif kind == "index":
        full = f"{command.table}.{name}"
    row = model.find(kind, full) if kind else None
    if isinstance(command, _CREATE):
        if isinstance(command, CreateIndex):
            return _create_index(model, command, full, row, batch_first_id)
        return _create(model, command, kind, full, row)
    if row is None and kind:
        refuse_if(not getattr(command, "if_exists", False))
        return False
    if isinstance(command, _ALTER):
        assert row is not None
        settings = {k: v for k, v in row["settings"].items() if k not in command.unset}
        settings |= command.settings
        changed = settings != row["settings"]
        row["settings"] = settings
        return bool(changed)
    return bool(_DO[type(command)](model, command, row))


def _create(
    model: NaiveCatalog, command: Any, kind: str, full: str, row: dict[str, Any] | None
) -> bool:
    above = ""
    if isinstance(command, CreateNamespace):
        refuse_if(model.find("tenant", full.split("/", maxsplit=1)[0]) is None)
    elif isinstance(command, CreateTopic | CreateBlobStore):
        refuse_if(model.find("namespace", command.namespace) is None)
        above = command.namespace
    if row is not None:
        refuse_if(not command.if_not_exists)
        return False
    if isinstance(command, CreateZone):
        return model.add(kind, full, partitions=command.partitions, replicas=command.replicas)
    if isinstance(command, CreateTenant | CreateNamespace):
        return model.add(kind, full, settings=dict(command.settings))
    zone = command.zone or model.default
    if isinstance(command, CreateTable):
        refuse_if(model.find("zone", zone) is None)
        columns = [each.name for each in command.columns]
        ids = dict(zip(columns, range(1, 99), strict=False))
        return model.add(kind, full, zone=zone, columns=ids, next_column=len(ids) + 1, version=1)
    if isinstance(command, CreateTopic):
        for number in range(command.partitions):
            refuse_if(model.find("topic", f"{full}-partition-{number}"))
        whole, dash, number_text = full.rpartition("-partition-")
        owner = model.find("topic", whole) if dash else None
        refuse_if(owner is not None and int(number_text) < owner["partitions"])
        refuse_if(model.find("zone", zone) is None)
        refuse_if(len(command.owners) != max(command.partitions, 1))
        return model.add(
            kind,
            full,
            partitions=command.partitions,
            owners=list(command.owners),
            zone=zone,
            settings=dict(command.settings),
        )
    refuse_if(model.find("zone", zone) is None)
    settings = dict(command.settings)
    return model.add(kind, full, namespace=above, owner=command.owner, zone=zone, settings=settings)


def _create_index(
    model: NaiveCatalog, command: CreateIndex, full: str, row: Any, batch_first_id: int
) -> bool:
    table = model.find("table", command.table)
    if table is None:
        raise RefusedCommand
    refuse_if(set(command.columns) - table["columns"].keys())
    refuse_if(command.unique and "id" not in command.columns)
    if row is not None:
        refuse_if(not command.if_not_exists)
        return False
    status = "available" if table["id"] >= batch_first_id else "registered"
    columns = list(command.columns)
    return model.add("index", full, columns=columns, unique=command.unique, status=status)


def _drop_zone(model: NaiveCatalog, command: Any, row: Any) -> bool:
    refuse_if(model.default == row["name"])
    refuse_if(any(each.get("zone") == row["name"] for each in model.rows.values()))
    del model.rows[row["id"]]
    return True


def _alter_zone(model: NaiveCatalog, command: AlterZone, row: Any) -> bool:
    new = {"partitions": command.partitions, "replicas": command.replicas}
    new = {name: value for name, value in new.items() if value not in {None, row[name]}}
    tables = [each for each in model.inside("table", "") if each["zone"] == row["name"]]
    refuse_if("partitions" in new and tables)
    row |= new
    return bool(new)


def _set_default(model: NaiveCatalog, command: SetDefaultZone, row: Any) -> bool:
    changed = model.default != command.name
    model.default = command.name
    return changed


def _drop_namespace(model: NaiveCatalog, command: Any, row: Any) -> bool:
    topics = model.inside("topic", f"persistent://{row['name']}/")
    stores = [each for each in model.inside("store", "") if each["namespace"] == row["name"]]
    refuse_if((topics or stores) and not command.cascade)
    for each in topics:
        model.delete(each, set(each["owners"]))
    for each in stores:
        model.delete(each, {each["owner"]})
    del model.rows[row["id"]]
    return True


def _drop_tenant(model: NaiveCatalog, command: Any, row: Any) -> bool:
    namespaces = model.inside("namespace", f"{row['name']}/")
    refuse_if(namespaces and not command.cascade)
    for each in namespaces:
        _drop_namespace(model, command, each)
    del model.rows[row["id"]]
    return True


def _add_partitions(model: NaiveCatalog, command: AddPartitions, row: Any) -> bool:
    refuse_if(not row["partitions"] or command.partitions < row["partitions"])
    new = range(row["partitions"], command.partitions)
    for number in new:
        refuse_if(model.find("topic", f"{row['name']}-partition-{number}"))
    if not new:
        return False
    refuse_if(len(command.owners) != len(new))
    row["partitions"] = command.partitions
    row["owners"] += command.owners
    return True


def _confirm(model: NaiveCatalog, command: ConfirmRemoval, _row: Any) -> bool:
    refuse_if(command.id >= model.next_id)
    row = model.rows.get(command.id)
    refuse_if(row is not None and row["kind"] != "removal")
    if row is None or command.node not in row["nodes"]:
        return False
    row["nodes"].remove(command.node)
    if not row["nodes"]:
        del model.rows[command.id]
    return True


def _drop_table(model: NaiveCatalog, command: Any, row: Any) -> bool:
    for each in (*model.inside("index", f"{row['name']}."), row):
        del model.rows[each["id"]]
    return True


def _add_columns(model: NaiveCatalog, command: AddColumns, _row: Any) -> bool:
    table = model.find("table", command.table)
    if table is None:
        raise RefusedCommand
    for each in command.columns:
        refuse_if(each.name in table["columns"])
        table["columns"][each.name] = table["next_column"]
        table["next_column"] += 1
    table["version"] += 1
    return True


def _drop_columns(model: NaiveCatalog, command: DropColumns, _row: Any) -> bool:
    table = model.find("table", command.table)
    if table is None:
        raise RefusedCommand
    for name in command.names:
        refuse_if(name == "id" or name not in table["columns"])
        for index in model.inside("index", f"{command.table}."):
            refuse_if(index["status"] != "stopping" and name in index["columns"])
        del table["columns"][name]
    table["version"] += 1
    return True


def _drop_index(model: NaiveCatalog, command: Any, row: Any) -> bool:
    if row["status"] == "available":
        row["status"] = "stopping"
    else:
        del model.rows[row["id"]]
    return True


def _step(before: str, after: str) -> Any:
    def step(model: NaiveCatalog, command: Any, _row: Any) -> bool:
        row = model.rows.get(command.id)
        if row is None or row.get("status") != before:
            raise RefusedCommand
        row["status"] = after
        if not after:
            del model.rows[command.id]
        return True

    return step


_KIND = {
    CreateZone: "zone", AlterZone: "zone", DropZone: "zone", SetDefaultZone: "zone",
    CreateTenant: "tenant", AlterTenant: "tenant", DropTenant: "tenant",
    CreateNamespace: "namespace", AlterNamespace: "namespace", DropNamespace: "namespace",
    CreateTopic: "topic", AlterTopic: "topic", AddPartitions: "topic", DropTopic: "topic",
    CreateBlobStore: "store", AlterBlobStore: "store", DropBlobStore: "store",
    CreateTable: "table", DropTable: "table", CreateIndex: "index", DropIndex: "index",
}  # fmt: skip
_CREATE = (
    CreateZone | CreateTenant | CreateNamespace | CreateTopic | CreateBlobStore | CreateTable
    | CreateIndex
)  # fmt: skip
_ALTER = AlterTenant | AlterNamespace | AlterTopic | AlterBlobStore
_DO: dict[type, Any] = {
    AlterZone: _alter_zone,
    DropZone: _drop_zone,
    SetDefaultZone: _set_default,
    DropTenant: _drop_tenant,
    DropNamespace: _drop_namespace,
    AddPartitions: _add_partitions,
    DropTopic: lambda model, _, row: model.delete(row, set(row["owners"])),
    DropBlobStore: lambda model, _, row: model.delete(row, {row["owner"]}),
    ConfirmRemoval: _confirm,
    DropTable: _drop_table,
    AddColumns: _add_columns,
    DropColumns: _drop_columns,
    DropIndex: _drop_index,
    StartBuildingIndex: _step("registered", "building"),
    MakeIndexAvailable: _step("building", "available"),
    RemoveIndex: _step("stopping", ""),
}


def rows_of(catalog: Catalog) -> dict[int, dict[str, Any]]:
    """What the naive catalog knows of a catalog."""
    rows = {}
    for row in catalog_rows(catalog):
        known = {"updated", "created_ms", "capacity_bytes", "segment_bytes", "default"}
        if row["kind"] == "removal":
            known = known | {"partitions"}
        found = {name: value for name, value in row.items() if name not in known}
        if row["kind"] == "table":
            columns = {each["name"]: each["id"] for each in row["columns"]}
            version, zone = row["schema_version"], row["zone"]
            found = {"kind": "table", "id": row["id"], "name": row["name"], "zone": zone}
            found |= {"columns": columns, "version": version}
        rows[row["id"]] = found
    return rows


def naive_rows(model: NaiveCatalog) -> dict[int, dict[str, Any]]:
    return {
        number: {name: value for name, value in row.items() if name != "next_column"}
        for number, row in model.rows.items()
    }


# --- random commands ------------------------------------------------------------------------

_name = st.sampled_from(["a", "a", "a", "b"])
_other = st.sampled_from(["b", "b", "b", "b", "a"])
_flag = st.booleans()
_settings = st.dictionaries(_name, st.sampled_from([0, "x", [1], None]), max_size=2)
_unset = st.lists(_name, max_size=1).map(tuple)
_namespace = st.sampled_from(["a/a", "a/a", "a/a", "a/b", "b/a"])
_other_namespace = st.sampled_from(["a/b", "a/b", "b/a", "b/a", "a/a"])
_topic = st.sampled_from(["a", "a", "b", "a-partition-1"])
_zone = st.sampled_from(["", "", "", "", "a", "b"])
_owners = st.lists(st.sampled_from(NODES), min_size=1, max_size=3).map(tuple)
_column = st.sampled_from(["x", "y"])
_id = st.integers(1, 30)


def _of(kind: type, *parts: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> Any:
    return st.builds(kind, *parts, **named)


def _new_columns(names: list[str]) -> tuple[ColumnDefinition, ...]:
    return tuple(ColumnDefinition(each, "int8", nullable=True) for each in names)


def _topic_of(namespace: str, name: str, owners: tuple[str, ...], whole: bool, **more: Any) -> Any:
    partitions = 0 if whole and len(owners) == 1 else len(owners)
    return CreateTopic(namespace, name, partitions, owners=owners, **more)


_CONTAINERS = st.one_of(
    _of(CreateZone, _name, st.integers(1, 3), if_not_exists=_flag),
    _of(AlterZone, _name, st.integers(1, 3), st.integers(1, 3), _flag),
    _of(DropZone, _name, _flag),
    _of(SetDefaultZone, _other),
    _of(CreateTenant, _name, _settings, _flag),
    _of(AlterTenant, _name, _settings, _unset, _flag),
    _of(DropTenant, _other, _flag, _flag),
    _of(CreateNamespace, _namespace, _settings, _flag),
    _of(AlterNamespace, _namespace, _settings, _unset, _flag),
    _of(DropNamespace, _other_namespace, _flag, _flag),
)
_TOPIC = st.builds(
    _topic_of, _namespace, _topic, _owners, _flag, settings=_settings, zone=_zone,
    if_not_exists=_flag,
)  # fmt: skip
_STORE = _of(
    CreateBlobStore, _namespace, _name, st.just(8192), st.just(4096), _settings, _zone,
    st.sampled_from(NODES), if_not_exists=_flag,
)  # fmt: skip
_TOPICS_AND_STORES = st.one_of(
    _TOPIC,
    _TOPIC,
    _STORE,
    _of(AlterTopic, _namespace, _topic, _settings, _unset, _flag),
    _of(AddPartitions, _namespace, _topic, st.integers(1, 3), _owners),
    st.builds(lambda owners: AddPartitions("a/a", "a", 2 + len(owners), owners=owners), _owners),
    _of(DropTopic, _namespace, _topic, _flag),
    _of(AlterBlobStore, _name, _settings, _unset, _flag),
    _of(DropBlobStore, _name, _flag),
    _of(ConfirmRemoval, _id, st.sampled_from(NODES)),
)
_INDEX = _of(
    CreateIndex, _name, _name,
    st.lists(st.sampled_from(["id", "x", "y"]), min_size=1, unique=True).map(tuple), _flag, _flag,
)  # fmt: skip
_TABLES_AND_INDEXES = st.one_of(
    st.builds(
        lambda name, columns, zone, quiet: CreateTable(
            name, (ColumnDefinition("id", "int8"), *_new_columns(columns)), ("id",), (), zone, quiet
        ),
        _name,
        st.lists(_column, unique=True),
        _zone,
        _flag,
    ),
    _of(DropTable, _name, _flag),
    _of(AddColumns, _name, st.lists(_column, min_size=1, unique=True).map(_new_columns)),
    _of(DropColumns, _name, st.lists(_column, min_size=1, unique=True).map(tuple)),
    _INDEX,
    _INDEX,
    _of(DropIndex, _name, _name, _flag),
    _of(StartBuildingIndex, _id),
    _of(MakeIndexAvailable, _id),
    _of(RemoveIndex, _id),
)
COMMANDS = st.one_of(
    _CONTAINERS, _TOPICS_AND_STORES, _TOPICS_AND_STORES, _TABLES_AND_INDEXES, _TABLES_AND_INDEXES
)


def with_known_id(model: NaiveCatalog, command: Any) -> Any:
    """The command with the id of an object of its kind, if there is one."""
    if not hasattr(command, "id"):
        return command
    kind = "removal" if isinstance(command, ConfirmRemoval) else "index"
    ids = [row["id"] for row in model.inside(kind, "")]
    return replace(command, id=ids[command.id % len(ids)]) if ids else command
