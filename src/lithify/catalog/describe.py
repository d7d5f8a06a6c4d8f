"""Objects of the catalog as rows for people: names instead of ids, JSON values only. Pure.

{"kind":"topic","id":12,"name":"persistent://a/b/c","zone":"default","owners":["n1"],…}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.catalog.objects import (
    BlobStoreDescriptor,
    IndexDescriptor,
    NamespaceDescriptor,
    Removal,
    TableDescriptor,
    TenantDescriptor,
    TopicDescriptor,
    ZoneDescriptor,
)
from lithify.hybrid_time import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.objects import CatalogObject, Column

__all__ = ["catalog_rows", "object_row"]


def catalog_rows(catalog: Catalog) -> Iterator[dict[str, Any]]:
    """The rows of all objects, ascending by id."""
    for each in sorted(catalog.objects):
        yield object_row(catalog, catalog.objects[each])


def object_row(catalog: Catalog, of: CatalogObject) -> dict[str, Any]:
    """The row of an object."""
    row = {"kind": of.kind.value, "id": of.id, "name": catalog.full_name(of)}
    row |= _fields(catalog, of)
    return row | {"updated": describe(of.updated) if of.updated else None}


def _fields(catalog: Catalog, of: CatalogObject) -> dict[str, Any]:
    if isinstance(of, ZoneDescriptor):
        default = of.id == catalog.default_zone_id
        return {"partitions": of.partitions, "replicas": of.replicas, "default": default}
    if isinstance(of, TenantDescriptor | NamespaceDescriptor):
        return {"settings": dict(of.settings)}
    if isinstance(of, TableDescriptor):
        return _table(catalog, of)
    if isinstance(of, IndexDescriptor):
        table = catalog.get(TableDescriptor, of.table_id)
        # A stopping index may have columns that the table has lost.
        known = [*(past.column for past in table.past), *table.columns]
        columns = _names(known, of.columns)
        return {"columns": columns, "unique": of.unique, "status": of.status.value}
    if isinstance(of, Removal):
        return {
            "of": of.of.value,
            "nodes": list(of.nodes),
            "partitions": of.partitions,
            "created_ms": of.created_ms,
        }
    return _placed(catalog, of)


def _placed(catalog: Catalog, of: TopicDescriptor | BlobStoreDescriptor) -> dict[str, Any]:
    rest = {"created_ms": of.created_ms, "settings": dict(of.settings)}
    zone = {"zone": catalog.get(ZoneDescriptor, of.zone_id).name}
    if isinstance(of, TopicDescriptor):
        return {"partitions": of.partitions, "owners": list(of.owners)} | zone | rest
    namespace = catalog.get(NamespaceDescriptor, of.namespace_id)
    return {
        "namespace": catalog.full_name(namespace),
        "capacity_bytes": of.capacity_bytes,
        "segment_bytes": of.segment_bytes,
        "owner": of.owner,
        **zone,
        **rest,
    }


def _table(catalog: Catalog, of: TableDescriptor) -> dict[str, Any]:
    return {
        "zone": catalog.get(ZoneDescriptor, of.zone_id).name,
        "columns": [_column(each) for each in of.columns],
        "key": _names(of.columns, of.key),
        "partition_key": _names(of.columns, of.partition_key),
        "schema_version": of.schema_version,
    }


def _column(column: Column) -> dict[str, Any]:
    row: dict[str, Any] = {"id": column.id, "name": column.name, "type": str(column.type)}
    row["nullable"] = column.nullable
    return row if column.default is None else row | {"default": column.default}


def _names(columns: Iterable[Column], ids: tuple[int, ...]) -> list[str]:
    names = {each.id: each.name for each in columns}
    return [names[each] for each in ids]
