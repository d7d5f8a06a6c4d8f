"""A read-write transaction on the rows of one partition: optimistic, serialisable.

    transaction = PartitionTransaction(opened, partition, ...)
    row = await transaction.get("orders", {"id": 5})
    await transaction.put("orders", {"id": 5, "count": row["count"] + 1})
    await transaction.commit()

1. The first operation determines the partition, the first read the revision of it that is read: the
   newest one. All reads are at this revision, plus what the transaction itself has written.
2. Writes are kept here. `commit` sends them in one transaction of the partition's store, which
   demands that no key that was read has changed, that no range that was scanned has, and that its
   time is below the limit up to which the tables are known to be as the transaction sees them. If
   only the limit was too low, because clocks differ, a later one is asked for.
3. So a transaction that was committed has read and written at one moment, that of its revision. One
   that only reads has no commit: it has read at one moment.

Index entries are written in the same step (`keys.py`). A row of a table with indexes is read before
it is written, so that its old entries are known. An index that is being dropped is not written.

What a transaction keeps is bounded: by what fits into one command (`TransactionTooLarge`), and with
the other transactions of the node (`TooManyTransactions`). Both refuse a request, and the
transaction stays as it was.

If the store cannot say whether it has committed, `MayHaveHappened` is raised. One event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lithify.catalog.errors import ObjectNotFound
from lithify.catalog.objects import IndexStatus, ObjectKind, ZoneDescriptor
from lithify.errors import InvalidInput
from lithify.metastore.errors import RevisionCompacted
from lithify.metastore.transaction import (
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Compare,
    Condition,
    Delete,
    Put,
    Transaction,
)
from lithify.tables.errors import (
    InvalidRow,
    SchemaChanged,
    TransactionConflict,
    TransactionEnded,
    TransactionTooLarge,
    UniqueViolation,
    WrongPartition,
)
from lithify.tables.keys import (
    columns_of,
    index_entry_key,
    partition_of,
    prefix_bounds,
    primary_key,
    row_key,
)
from lithify.tables.rows import (
    check_key,
    check_row,
    decode_row,
    encode_row,
    key_names,
    leading_values,
    schema_version_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lithify.catalog.objects import IndexDescriptor, TableDescriptor
    from lithify.metastore.metastore import KeyValue, Metastore, Outcome, Rows
    from lithify.tables.active_transactions import OpenTransaction
    from lithify.tables.assignments import Partition

__all__ = ["Limit", "PartitionTransaction"]

PARTS_MAX = OPERATIONS_MAX - 1
"""Reads and writes; the command also compares its time."""
SCANNED_ROWS_MAX = 10_000
SCANNED_BYTES_MAX = 16 * 2**20
"""Of one scan, whose rows are all in memory."""


class Limit(Protocol):
    """The time below which tables are as a transaction sees them; above a time if possible."""

    async def __call__(self, tables: frozenset[int], above: int, /) -> int:
        """`tables` are ids."""


class _Written(NamedTuple):
    """A row that was written; None is deleted."""

    table: TableDescriptor
    row: dict[str, Any] | None
    size_bytes: int


class PartitionTransaction:
    """See the module."""

    def __init__(
        self,
        opened: OpenTransaction,
        store_of: Callable[[Partition], Awaitable[Metastore]],
        limit: Limit,
    ) -> None:
        self._opened = opened
        self._store_of = store_of
        self._limit = limit
        self._store: Metastore
        self.partition: Partition | None = None
        self._revision: int | None = None
        """The one that is read; 0 if the partition is empty, None before the first read."""
        self._read: dict[bytes, int] = {}
        """The revision of each key that was read, 0 if it was absent."""
        self._ranges: list[tuple[bytes, bytes]] = []
        self._rows: dict[bytes, _Written] = {}
        """Rows that were written, by their key."""
        self._bytes = 0
        self._entries: dict[bytes, bytes | None] = {}
        """Index entries that were written; None is deleted."""
        self._tables: dict[int, str] = {}
        self._is_over = False

    # --- reading ----------------------------------------------------------------------------

    async def get(self, name: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """A row of a table; None if there is none."""
        table = self._table(name)
        return await self._row(table, check_key(table, key))

    async def _row(
        self, table: TableDescriptor, checked: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        await self._enter(table, checked)
        stored = row_key(table, checked)
        if stored in self._rows:
            written = self._rows[stored].row
            return None if written is None else dict(written)
        found = await self._get(stored)
        return None if found is None else self._decoded(table, found)

    async def scan(self, name: str, prefix: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All rows whose key begins with these values, which determine the partition, in order."""
        table = self._table(name)
        columns = columns_of(table, table.key)
        values = leading_values(table, "key", columns, prefix)
        if any(column.name not in prefix for column in columns_of(table, table.partition_key)):
            raise InvalidRow(name, "a transaction scans the rows of one partition key")
        await self._enter(table, prefix)
        low, high = prefix_bounds(table.id, columns, values, nullable=False)
        revision = await self._read_revision()
        self._reserve(1, len(low) + len(high))
        self._ranges.append((low, high))
        found: dict[bytes, dict[str, Any]] = {}
        size = 0
        if revision:
            at = low
            while True:
                page = await self._range(at, high, revision)
                size += sum(len(row.value) for row in page.rows)
                found.update((row.key, self._decoded(table, row)) for row in page.rows)
                if len(found) > SCANNED_ROWS_MAX or size > SCANNED_BYTES_MAX:
                    most = f"{SCANNED_ROWS_MAX} rows and {SCANNED_BYTES_MAX} bytes"
                    raise TransactionTooLarge(f"a scan of table {name} in it has at most {most}")
                if not page.more:
                    break
                at = page.rows[-1].key + b"\0"
        for key, written in self._rows.items():
            if low <= key < high:
                found.pop(key, None)
                if written.row is not None:
                    found[key] = dict(written.row)
        return [found[key] for key in sorted(found)]

    # --- writing ----------------------------------------------------------------------------

    async def put(self, name: str, row: Mapping[str, Any]) -> None:
        """Insert or replace a row."""
        table = self._table(name)
        checked = check_row(table, row)
        # Encoded here, so that the commit cannot fail for it.
        await self._write(table, checked, checked, len(encode_row(table, checked)))

    async def delete(self, name: str, key: Mapping[str, Any]) -> None:
        """Delete a row; no change if there is none."""
        table = self._table(name)
        await self._write(table, check_key(table, key), None, 0)

    async def _write(
        self, table: TableDescriptor, key: Mapping[str, Any], row: dict[str, Any] | None, size: int
    ) -> None:
        await self._enter(table, key)
        stored = row_key(table, key)
        indexes = self._indexes(table)
        entries: dict[bytes, bytes | None] = {}
        if indexes:
            old = await self._row(table, {each: key[each] for each in key_names(table)})
            entries = await self._changed_entries(table, indexes, old, row)
        before = self._rows.get(stored)
        more = len(stored) + size if before is None else size - before.size_bytes
        new = [each for each in entries if each not in self._entries]
        more += sum(len(each) + len(entries[each] or b"") for each in new)
        self._reserve(len(new) + (before is None), more)
        self._entries.update(entries)
        self._rows[stored] = _Written(table, row, size)

    async def _changed_entries(
        self,
        table: TableDescriptor,
        indexes: list[IndexDescriptor],
        old: dict[str, Any] | None,
        new: dict[str, Any] | None,
    ) -> dict[bytes, bytes | None]:
        added: list[tuple[IndexDescriptor, bytes]] = []
        removed: list[bytes] = []
        for index in indexes:
            before = None if old is None else index_entry_key(table, index, old)
            after = None if new is None else index_entry_key(table, index, new)
            if before is not None and before != after:
                removed.append(before)
            if after is not None and before != after:
                added.append((index, after))
        for index, entry in added:
            if index.unique and entry not in removed and await self._has_entry(entry):
                raise UniqueViolation(table.name, index.name)
        changed: dict[bytes, bytes | None] = dict.fromkeys(removed)
        if new is not None:
            value = primary_key(table, new)
            changed.update((entry, value if index.unique else b"") for index, entry in added)
        return changed

    async def _has_entry(self, entry: bytes) -> bool:
        if entry in self._entries:
            return self._entries[entry] is not None
        return await self._get(entry) is not None

    def _indexes(self, table: TableDescriptor) -> list[IndexDescriptor]:
        catalog = self._opened.catalog
        return [
            index
            for index in catalog.indexes_of(table.id)
            if index.status is not IndexStatus.STOPPING
        ]

    # --- the end ----------------------------------------------------------------------------

    async def commit(self) -> Outcome | None:
        """Commit the writes, if there are any; see the module."""
        self._check_open()
        self._is_over = True
        if not self._rows:
            return None
        compares = [
            Compare(key, Condition.REVISION, revision) for key, revision in self._read.items()
        ]
        compares += [
            Compare(start, Condition.RANGE_UNCHANGED, self._revision or 0, end=end)
            for start, end in self._ranges
        ]
        then = [
            Delete(key) if each.row is None else Put(key, encode_row(each.table, each.row))
            for key, each in self._rows.items()
        ]
        then += [
            Delete(key) if value is None else Put(key, value)
            for key, value in self._entries.items()
        ]
        self._opened.is_committing = True
        tables, table = frozenset(self._tables), next(iter(self._tables.values()))
        limit = await self._limit(tables, 0)
        while True:
            in_time = Compare(b"", Condition.TIME_BELOW, time=limit)
            try:
                transaction = Transaction((*compares, in_time), tuple(then))
            except InvalidInput as error:
                raise TransactionTooLarge(str(error)) from error
            outcome = await self._store.transact(transaction)
            if outcome.succeeded:
                return outcome
            if outcome.timestamp < limit:
                raise TransactionConflict(table)
            limit = await self._limit(tables, outcome.timestamp)
            if limit <= outcome.timestamp:
                raise SchemaChanged(table)

    def roll_back(self) -> None:
        """Forget the writes."""
        self._is_over = True

    # --- the partition ----------------------------------------------------------------------

    async def _enter(self, table: TableDescriptor, row: Mapping[str, Any]) -> None:
        """Check that a row is in the partition of the transaction; the first one chooses it."""
        self._check_open()
        catalog = self._opened.catalog
        zone = catalog.get(ZoneDescriptor, table.zone_id)
        partition = zone.id, partition_of(table, row, zone.partitions)
        if self.partition is None:
            self._store = await self._store_of(partition)
            self.partition = partition
        elif partition != self.partition:
            raise WrongPartition(table.name, _named(partition), _named(self.partition))
        self._tables[table.id] = table.name

    async def _read_revision(self) -> int:
        if self._revision is None:
            self._revision = (await self._store.range(b"", b"", limit=1)).revision
        return self._revision

    async def _get(self, key: bytes) -> KeyValue | None:
        found = None
        if key not in self._read:
            self._reserve(1, len(key))
        if revision := await self._read_revision():
            try:
                found = await self._store.get(key, revision=revision)
            except RevisionCompacted as error:
                raise TransactionConflict(next(iter(self._tables.values()))) from error
        self._read[key] = 0 if found is None else found.revision
        return found

    async def _range(self, start: bytes, end: bytes, revision: int) -> Rows:
        try:
            return await self._store.range(start, end, revision=revision)
        except RevisionCompacted as error:
            raise TransactionConflict(next(iter(self._tables.values()))) from error

    def _reserve(self, parts: int, size: int) -> None:
        """Count parts of the commit and their bytes before they are kept."""
        parts += len(self._read) + len(self._ranges) + len(self._rows) + len(self._entries)
        if parts > PARTS_MAX:
            raise TransactionTooLarge(f"it would have {parts} parts, at most {PARTS_MAX} fit")
        if self._bytes + size > TRANSACTION_BYTES_MAX:
            what = f"it would have {self._bytes + size} bytes"
            raise TransactionTooLarge(f"{what}, at most {TRANSACTION_BYTES_MAX} fit")
        self._opened.reserve(size)
        self._bytes += size

    def _decoded(self, table: TableDescriptor, found: KeyValue) -> dict[str, Any]:
        if schema_version_of(found.value) > table.schema_version:
            raise SchemaChanged(table.name)
        return decode_row(table, found.value)

    def _table(self, name: str) -> TableDescriptor:
        table = self._opened.catalog.table(name)
        if table is None:
            raise ObjectNotFound(ObjectKind.TABLE, name)
        return table

    def _check_open(self) -> None:
        if self._is_over:
            raise TransactionEnded


def _named(partition: Partition) -> str:
    zone, number = partition
    return f"{number} of zone {zone}"
