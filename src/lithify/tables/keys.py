"""The keys of rows and of index entries, whose bytes have the order of the values. Pure.

    4   space: the id of a table or index, big-endian
    the key columns, in the order of the key (`column_values.py`)

An index entry has the columns of the index, each after one byte: 00 if it is null, 01 before its
value; so null is the lowest. Then follows the primary key of the row, as the table has it; a unique
index has it in the value of the entry instead, so that there can be one entry only. Entries with a
null are never equal, so they have the primary key also in a unique index.

The partition of a row is that of its partition key: the murmur3 hash of the ordered bytes of these
columns, modulo the number of partitions. It never changes for a row.

A scan names values of the first columns of the key; `prefix_bounds` are those of all keys that
begin with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import mmh3

from lithify.metastore.transaction import KEY_BYTES_MAX, prefix_range
from lithify.tables.column_values import form_of, ordered_bytes
from lithify.tables.errors import InvalidRow
from lithify.tables.made_once import MadeOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lithify.catalog.objects import Column, IndexDescriptor, TableDescriptor

__all__ = [
    "BUILD_PREFIX",
    "PUBLISHED_KEY",
    "SYSTEM_SPACE",
    "build_key",
    "columns_of",
    "index_entry_key",
    "partition_of",
    "prefix_bounds",
    "primary_key",
    "primary_key_of_entry",
    "row_key",
    "space_of",
]

_NULL, _VALUE = b"\0", b"\1"

SYSTEM_SPACE = 0
"""Keys of a partition that are no rows: no object of the catalog has this id."""
PUBLISHED_KEY = bytes(4) + b"published"
"""The minimum begin time of the cluster's read-write transactions, as its leader has put it."""
BUILD_PREFIX = bytes(4) + b"build"


def build_key(index_id: int) -> bytes:
    """How far the build of an index is in a partition."""
    return BUILD_PREFIX + space_of(index_id)


def space_of(object_id: int) -> bytes:
    """What all keys of a table or index begin with."""
    return object_id.to_bytes(4, "big")


class _Keys(NamedTuple):
    """Name and ordered form of each column of the keys of a table."""

    key: list[tuple[str, Callable[[Any], bytes]]]
    partition_key: list[tuple[str, Callable[[Any], bytes]]]


def _make_keys(table: TableDescriptor) -> _Keys:
    def forms(ids: Iterable[int]) -> list[tuple[str, Callable[[Any], bytes]]]:
        return [(column.name, form_of(column.type).ordered) for column in columns_of(table, ids)]

    return _Keys(forms(table.key), forms(table.partition_key))


_KEYS = MadeOnce(_make_keys)


def primary_key(table: TableDescriptor, row: Mapping[str, Any]) -> bytes:
    """The ordered bytes of the key of a row, whose values were checked."""
    return b"".join([ordered(row[name]) for name, ordered in _KEYS.of(table).key])


def row_key(table: TableDescriptor, row: Mapping[str, Any]) -> bytes:
    """The key of a row."""
    return _checked(table, space_of(table.id) + primary_key(table, row))


def partition_of(table: TableDescriptor, row: Mapping[str, Any], partitions: int) -> int:
    """The partition of a row, or of a mapping that has at least the partition key."""
    parts = [ordered(row[name]) for name, ordered in _KEYS.of(table).partition_key]
    return mmh3.hash(b"".join(parts), signed=False) % partitions


def index_entry_key(
    table: TableDescriptor, index: IndexDescriptor, row: Mapping[str, Any]
) -> bytes:
    """The key of a row's entry in an index."""
    values = [(column, row.get(column.name)) for column in columns_of(table, index.columns)]
    key = space_of(index.id) + _nullable(values)
    if not index.unique or any(value is None for _, value in values):
        key += primary_key(table, row)
    return _checked(table, key)


def primary_key_of_entry(
    table: TableDescriptor, index: IndexDescriptor, key: bytes, value: bytes
) -> bytes:
    """The ordered bytes of the key of the row that an index entry stands for."""
    if index.unique:
        return value
    at = len(space_of(index.id))
    for column in columns_of(table, index.columns):
        is_null = key[at : at + 1] == _NULL
        at += 1 if is_null else 1 + ordered_bytes(column.type, key, at + 1)
    return key[at:]


def prefix_bounds(
    space: int, columns: Sequence[Column], values: Sequence[Any], *, nullable: bool
) -> tuple[bytes, bytes]:
    """(start, end) of all keys whose first columns have these values; `nullable` in an index."""
    pairs = list(zip(columns, values, strict=False))
    if nullable:
        return prefix_range(space_of(space) + _nullable(pairs))
    ordered = b"".join(form_of(column.type).ordered(value) for column, value in pairs)
    return prefix_range(space_of(space) + ordered)


def _nullable(values: Iterable[tuple[Column, Any]]) -> bytes:
    return b"".join(
        _NULL if value is None else _VALUE + form_of(column.type).ordered(value)
        for column, value in values
    )


def columns_of(table: TableDescriptor, ids: Iterable[int]) -> list[Column]:
    """The columns with these ids, in their order."""
    by_id = {column.id: column for column in table.columns}
    return [by_id[each] for each in ids]


def _checked(table: TableDescriptor, key: bytes) -> bytes:
    if len(key) > KEY_BYTES_MAX:
        rule = f"the key of a row or index entry has {len(key)} bytes, at most {KEY_BYTES_MAX} fit"
        raise InvalidRow(table.name, rule)
    return key
