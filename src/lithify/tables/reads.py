"""Reads the rows of tables at a timestamp: single rows, scans and index look-ups, in pages.

    reader = TableReader(catalog, timestamp, store_of)
    row = await reader.get("orders", {"id": 5})
    page = await reader.scan("orders", {"customer": 7}, limit=100)
    more = await reader.scan("orders", {"customer": 7}, limit=100, after=page.next)

All reads of a reader are those of one moment, in all partitions: each is read at the revision that
it had at the timestamp. The tables are those of the catalog that was in force then.

A scan has the rows whose first columns of the key have given values; an index look-up, those whose
first columns of the index have. If the values determine the partition, only that one is read. The
order is that of the key, or of the index, within each partition.

A page is followed by the next one at its `next`: a partition, and the key after which to continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.catalog.errors import ObjectNotFound
from lithify.catalog.objects import IndexStatus, ObjectKind, ZoneDescriptor
from lithify.errors import InvalidInput
from lithify.metastore.errors import RevisionCompacted, TimeCompacted
from lithify.metastore.metastore import Rows
from lithify.tables.errors import IndexNotAvailable, SchemaChanged
from lithify.tables.keys import (
    columns_of,
    partition_of,
    prefix_bounds,
    primary_key_of_entry,
    row_key,
    space_of,
)
from lithify.tables.rows import check_key, check_some, decode_row, leading_values, schema_version_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.objects import IndexDescriptor, TableDescriptor
    from lithify.metastore.metastore import KeyValue, Metastore
    from lithify.tables.assignments import Partition

__all__ = [
    "PAGE_ROWS_MAX",
    "Cursor",
    "Page",
    "TableReader",
    "decode_checked",
    "numbers_with",
    "partitions_with",
    "table_named",
]

PAGE_ROWS_MAX = 1000
PAGE_BYTES_MAX = 4 * 2**20
"""Of rows; a page that reaches it ends, before it has as many rows as were asked for."""
LOOKED_UP_TOGETHER = 50
"""Rows of index entries, whose size is known when they are read."""

Cursor = tuple[int, bytes]
"""The number of a partition, and the key after which to continue; empty at its begin."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows, and where the others begin; None after the last page."""

    rows: list[dict[str, Any]]
    next: Cursor | None


def table_named(catalog: Catalog, name: str) -> TableDescriptor:
    """The table with a name; raises `ObjectNotFound`."""
    table = catalog.table(name)
    if table is None:
        raise ObjectNotFound(ObjectKind.TABLE, name)
    return table


def partitions_with(catalog: Catalog, table: TableDescriptor, prefix: Mapping[str, Any]) -> range:
    """The partitions that can have rows with these values of columns."""
    return numbers_with(table, catalog.get(ZoneDescriptor, table.zone_id).partitions, prefix)


def numbers_with(table: TableDescriptor, partitions: int, prefix: Mapping[str, Any]) -> range:
    """The same in a zone with this number of partitions."""
    if all(column.name in prefix for column in columns_of(table, table.partition_key)):
        number = partition_of(table, check_some(table, prefix), partitions)
        return range(number, number + 1)
    return range(partitions)


def decode_checked(table: TableDescriptor, data: bytes) -> dict[str, Any]:
    """A row; `SchemaChanged` if it was written by a version that the descriptor does not know."""
    if schema_version_of(data) > table.schema_version:
        raise SchemaChanged(table.name)
    return decode_row(table, data)


class TableReader:
    """See the module."""

    def __init__(
        self,
        catalog: Catalog,
        timestamp: int,
        store_of: Callable[[Partition], Awaitable[Metastore]],
    ) -> None:
        self.catalog = catalog
        self.timestamp = timestamp
        self._store_of = store_of
        self._revisions: dict[Partition, int] = {}

    async def get(self, name: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """A row of a table; None if there was none."""
        table = table_named(self.catalog, name)
        checked = check_key(table, key)
        zone = self._zone(table)
        partition = zone.id, partition_of(table, checked, zone.partitions)
        value = await self._value(partition, row_key(table, checked))
        return None if value is None else decode_checked(table, value)

    async def scan(
        self, name: str, prefix: Mapping[str, Any], *, limit: int, after: Cursor | None = None
    ) -> Page:
        """A page of the rows whose key begins with the values of `prefix`."""
        table = table_named(self.catalog, name)
        columns = columns_of(table, table.key)
        values = leading_values(table, "key", columns, prefix)
        bounds = prefix_bounds(table.id, columns, values, nullable=False)

        async def values_of(partition: Partition, found: Rows) -> list[bytes]:  # noqa: ARG001
            return [each.value for each in found.rows]

        return await self._page(table, prefix, bounds, values_of, limit, after)

    async def look_up(
        self,
        name: str,
        index_name: str,
        prefix: Mapping[str, Any],
        *,
        limit: int,
        after: Cursor | None = None,
    ) -> Page:
        """A page of the rows whose columns of an index begin with the values of `prefix`."""
        table = table_named(self.catalog, name)
        index = self._index(table, index_name)
        columns = columns_of(table, index.columns)
        values = leading_values(table, f"index {index_name}", columns, prefix)
        bounds = prefix_bounds(index.id, columns, values, nullable=True)

        async def values_of(partition: Partition, found: Rows) -> list[bytes]:
            values = []
            for entry in found.rows:
                key = primary_key_of_entry(table, index, entry.key, entry.value)
                value = await self._value(partition, space_of(table.id) + key)
                if value is not None:
                    values.append(value)
            return values

        return await self._page(table, prefix, bounds, values_of, limit, after, LOOKED_UP_TOGETHER)

    # --- pages ------------------------------------------------------------------------------

    async def _page(
        self,
        table: TableDescriptor,
        prefix: Mapping[str, Any],
        bounds: tuple[bytes, bytes],
        values_of: Callable[[Partition, Rows], Awaitable[list[bytes]]],
        limit: int,
        after: Cursor | None,
        at_once: int = PAGE_ROWS_MAX,
    ) -> Page:
        zone = self._zone(table)
        numbers = partitions_with(self.catalog, table, prefix)
        limit = min(limit, PAGE_ROWS_MAX)
        rows: list[dict[str, Any]] = []
        size = 0
        number, key = after if after is not None else (numbers[0], b"")
        if number not in numbers or (key and not bounds[0] <= key < bounds[1]):
            raise InvalidInput(f"the cursor of table {table.name} is that of other rows")
        while number in numbers:
            partition = zone.id, number
            start = key + b"\0" if key else bounds[0]
            some = min(limit - len(rows), at_once)
            found = await self.key_range(partition, start, bounds[1], some)
            values = await values_of(partition, found)
            rows += (decode_checked(table, value) for value in values)
            size += sum(map(len, values))
            if found.more:
                key = found.rows[-1].key
            else:
                number, key = number + 1, b""
            if (len(rows) >= limit or size >= PAGE_BYTES_MAX) and number in numbers:
                return Page(rows, (number, key))
        return Page(rows, None)

    async def key_range(
        self, partition: Partition, start: bytes, end: bytes, limit: int = 0
    ) -> Rows:
        """The first keys of a range of a partition, as they are stored."""
        store = await self._store_of(partition)
        revision = await self.revision_of(partition, store)
        if not revision:
            # At revision 0 the partition was empty; the store would read the newest one.
            return Rows(0, self.timestamp, ())
        try:
            return await store.range(start, end, revision=revision, limit=limit)
        except RevisionCompacted as error:
            raise TimeCompacted(self.timestamp) from error

    async def _value(self, partition: Partition, key: bytes) -> bytes | None:
        store = await self._store_of(partition)
        revision = await self.revision_of(partition, store)
        if not revision:
            return None
        try:
            found: KeyValue | None = await store.get(key, revision=revision)
        except RevisionCompacted as error:
            raise TimeCompacted(self.timestamp) from error
        return None if found is None else found.value

    async def revision_of(self, partition: Partition, store: Metastore) -> int:
        """The revision of a partition that is read; 0 if it was empty."""
        found = self._revisions.get(partition)
        if found is None:
            found = self._revisions[partition] = await store.revision_at(self.timestamp)
        return found

    # --- definitions ------------------------------------------------------------------------

    def _zone(self, table: TableDescriptor) -> ZoneDescriptor:
        return self.catalog.get(ZoneDescriptor, table.zone_id)

    def _index(self, table: TableDescriptor, name: str) -> IndexDescriptor:
        index = self.catalog.index(table.id, name)
        if index is None:
            raise ObjectNotFound(ObjectKind.INDEX, f"{table.name}.{name}")
        if index.status is not IndexStatus.AVAILABLE:
            raise IndexNotAvailable(table.name, name, index.status)
        return index
