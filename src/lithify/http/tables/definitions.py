"""The definitions of tables over HTTP.

| path                           |                                                             |
|--------------------------------|-------------------------------------------------------------|
| /tables                        | GET: all tables; POST: create one                           |
| /tables/TABLE                  | GET: its definition; DELETE: drop it, `?if_exists=true`     |
| /tables/TABLE/columns          | POST {"add": [], "drop": [], "alter": []}: change columns   |
| /tables/TABLE/indexes/INDEX    | PUT {"columns", "unique"}: create it; DELETE: drop it       |

A change is answered when it is in force on every node. An index is available later, when it was
built; the definition of the table says so.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from lithify.catalog.catalog import Catalog
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
from lithify.catalog.objects import TableDescriptor, ZoneDescriptor
from lithify.http.cluster.access import ClusterDep, in_cluster
from lithify.http.paths import decoded
from lithify.http.tables.access import TablePath, TablesDep
from lithify.tables.keys import columns_of
from lithify.tables.reads import table_named

__all__ = ["router"]

router = APIRouter(prefix="/tables", tags=["tables"])


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewColumn(_Body):
    """A column of a new table, or a new one of a table."""

    name: str
    type: str
    nullable: bool = False
    default: Any = None

    def definition(self) -> ColumnDefinition:
        """As the catalog's commands have it."""
        return ColumnDefinition(self.name, self.type, self.nullable, self.default)


class AlteredColumn(_Body):
    """A change of a column; what is not given stays."""

    name: str
    type: str | None = None
    nullable: bool | None = None
    default: Any = None


class NewTable(_Body):
    """A table to create."""

    name: str
    columns: list[NewColumn]
    key: list[str]
    partition_key: list[str] = []
    zone: str = ""
    if_not_exists: bool = False


class ColumnChanges(_Body):
    """Changes of columns, all or none."""

    add: list[NewColumn] = []
    drop: list[str] = []
    alter: list[AlteredColumn] = []


class NewIndex(_Body):
    """An index to create."""

    columns: list[str]
    unique: bool = False
    if_not_exists: bool = False


def _row(catalog: Catalog, table: TableDescriptor) -> dict[str, Any]:
    zone = catalog.get(ZoneDescriptor, table.zone_id)

    def names(ids: tuple[int, ...]) -> list[str]:
        return [column.name for column in columns_of(table, ids)]

    return {
        "name": table.name,
        "id": table.id,
        "zone": zone.name,
        "partitions": zone.partitions,
        "replicas": zone.replicas,
        "schema_version": table.schema_version,
        "columns": [
            {
                "name": column.name,
                "type": str(column.type),
                "nullable": column.nullable,
                "default": column.default,
            }
            for column in table.columns
        ],
        "key": names(table.key),
        "partition_key": names(table.partition_key),
        "indexes": [
            {
                "name": index.name,
                "columns": names(index.columns),
                "unique": index.unique,
                "status": index.status,
            }
            for index in catalog.alive_indexes_of(table.id)
        ],
    }


@router.get("")
async def tables(cluster: ClusterDep) -> list[dict[str, Any]]:
    """All tables."""
    catalog = cluster.catalog.current
    return [_row(catalog, table) for table in catalog.tables()]


@router.get("/{table}")
async def show(cluster: ClusterDep, table: TablePath) -> dict[str, Any]:
    """A table."""
    catalog = cluster.catalog.current
    return _row(catalog, table_named(catalog, table))


async def _execute(cluster: ClusterDep, *commands: Any) -> dict[str, Any]:
    executed = await in_cluster(cluster, partial(cluster.execute, commands))
    return {"version": executed.version, "changed": any(executed.applied)}


@router.post("")
async def create(new: NewTable, cluster: ClusterDep, _: TablesDep) -> dict[str, Any]:
    """Create a table."""
    command = CreateTable(
        new.name,
        tuple(each.definition() for each in new.columns),
        tuple(new.key),
        tuple(new.partition_key),
        new.zone,
        new.if_not_exists,
    )
    return await _execute(cluster, command)


@router.delete("/{table}")
async def drop(
    cluster: ClusterDep, table: TablePath, _: TablesDep, *, if_exists: bool = False
) -> dict[str, Any]:
    """Drop a table, its indexes and its rows."""
    return await _execute(cluster, DropTable(table, if_exists))


@router.post("/{table}/columns")
async def change_columns(
    changes: ColumnChanges, cluster: ClusterDep, table: TablePath, _: TablesDep
) -> dict[str, Any]:
    """Change the columns of a table."""
    commands: list[Any] = []
    if changes.add:
        commands.append(AddColumns(table, tuple(each.definition() for each in changes.add)))
    if changes.drop:
        commands.append(DropColumns(table, tuple(changes.drop)))
    for each in changes.alter:
        default = each.default if "default" in each.model_fields_set else KEEP
        commands.append(AlterColumn(table, each.name, each.type, each.nullable, default))
    return await _execute(cluster, *commands)


@router.put("/{table}/indexes/{index}")
async def create_index(
    new: NewIndex, cluster: ClusterDep, table: TablePath, index: str, _: TablesDep
) -> dict[str, Any]:
    """Create an index."""
    columns, name = tuple(new.columns), decoded(index)
    return await _execute(cluster, CreateIndex(table, name, columns, new.unique, new.if_not_exists))


@router.delete("/{table}/indexes/{index}")
async def drop_index(
    cluster: ClusterDep, table: TablePath, index: str, _: TablesDep, *, if_exists: bool = False
) -> dict[str, Any]:
    """Drop an index."""
    return await _execute(cluster, DropIndex(table, decoded(index), if_exists))
