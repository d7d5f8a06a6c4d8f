"""The bytes of rows, and their check against the columns of a table. Pure.

    4   schema version of the table, by which the rest is read
        nulls: one bit for each column, rounded up to bytes; bit i of byte i // 8 is column i
        values of the columns of fixed width; zeros for null
    4   for each string or bytes: where it ends, from the end of this list
        the strings and bytes

Columns are those of the schema version, in the order of their ids. Numbers are little-endian. So
all rows of one schema version have their fixed columns at the same places.

A row that was written with an older schema version is read as one of the newest that the reader
knows: a column that was added since has its default; a column that was dropped is not returned, not
even if its name is in use again; a widened type has the same values.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from lithify.metastore.transaction import VALUE_BYTES_MAX
from lithify.tables.column_values import ValueForm, form_of
from lithify.tables.errors import InvalidRow, RowDamaged
from lithify.tables.made_once import MadeOnce

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lithify.catalog.objects import Column, TableDescriptor

__all__ = [
    "ROW_BYTES_MAX",
    "RowLayout",
    "check_key",
    "check_row",
    "check_some",
    "decode_row",
    "encode_row",
    "key_names",
    "layout_of",
    "leading_values",
    "schema_version_of",
]

ROW_BYTES_MAX = VALUE_BYTES_MAX
_VERSION = struct.Struct("<I")


class RowLayout(NamedTuple):
    """Where the values are in the rows of a schema version."""

    columns: tuple[Column, ...]
    forms: tuple[ValueForm, ...]
    offsets: tuple[int, ...]
    """Where the value of a column of fixed width is, or the end of the others."""
    ends: struct.Struct
    """Of the values without a fixed width."""
    ends_at: int
    data_at: int


def layout_of(columns: tuple[Column, ...]) -> RowLayout:
    """The layout of rows with these columns."""
    forms = tuple(form_of(column.type) for column in columns)
    at = _VERSION.size + (len(columns) + 7) // 8
    offsets = {}
    for number, form in enumerate(forms):
        if form.width is not None:
            offsets[number] = at
            at += form.width
    ends_at, variable = at, 0
    for number, form in enumerate(forms):
        if form.width is None:
            offsets[number] = variable
            variable += 1
    ends = struct.Struct(f"<{variable}I")
    ordered = tuple(offsets[number] for number in range(len(forms)))
    return RowLayout(columns, forms, ordered, ends, ends_at, ends_at + ends.size)


def _no_layouts(_: TableDescriptor) -> dict[int, RowLayout]:
    return {}


_LAYOUTS = MadeOnce(_no_layouts)
"""By schema version."""


def _layout(table: TableDescriptor, version: int) -> RowLayout:
    """The layout of the rows of a schema version, which the table has."""
    layouts = _LAYOUTS.of(table)
    found = layouts.get(version)
    if found is None:
        found = layouts[version] = layout_of(table.columns_at(version))
    return found


def _make_key_columns(table: TableDescriptor) -> dict[str, Column]:
    return {column.name: column for column in table.columns if column.id in table.key}


_KEY_COLUMNS = MadeOnce(_make_key_columns)


def check_row(table: TableDescriptor, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with a value for each column: the one given, its default, or null."""
    if unknown := row.keys() - {column.name for column in table.columns}:
        raise InvalidRow(table.name, f"it has no column {min(map(str, unknown))}")
    return {column.name: _checked(table, column, row) for column in table.columns}


def check_key(table: TableDescriptor, key: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all key columns, and of no other."""
    columns = _KEY_COLUMNS.of(table)
    if unknown := key.keys() - columns.keys():
        raise InvalidRow(table.name, f"its key has no column {min(map(str, unknown))}")
    if missing := columns.keys() - key.keys():
        raise InvalidRow(table.name, f"column {min(missing)} of the key is missing")
    return {name: _checked(table, column, key) for name, column in columns.items()}


def check_some(table: TableDescriptor, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of columns of a table, each checked as in a row."""
    columns = {column.name: column for column in table.columns}
    if unknown := values.keys() - columns.keys():
        raise InvalidRow(table.name, f"it has no column {min(map(str, unknown))}")
    return {name: _checked(table, columns[name], values) for name in values}


def leading_values(
    table: TableDescriptor, what: str, columns: Sequence[Column], given: Mapping[str, Any]
) -> list[Any]:
    """The values of the first columns of a key or index; no other column may be given."""
    names = [column.name for column in columns]
    leading = names[: len(given)]
    if set(leading) != set(given):
        rule = f"values must be given of the first columns of its {what}: {', '.join(names)}"
        raise InvalidRow(table.name, rule)
    checked = check_some(table, given)
    return [checked[name] for name in leading]


def _checked(table: TableDescriptor, column: Column, row: Mapping[str, Any]) -> Any:
    value = row.get(column.name, column.default)
    if value is None:
        if not column.nullable:
            rule = "is missing" if column.name not in row else "must not be null"
            raise InvalidRow(table.name, f"column {column.name} {rule}")
    elif not column.type.accepts(value):
        shown = f"{value!r:.60}"
        raise InvalidRow(table.name, f"column {column.name}: {shown} is no {column.type}")
    return value


def key_names(table: TableDescriptor) -> list[str]:
    """The names of the key columns."""
    return [column.name for column in table.columns if column.id in table.key]


def encode_row(table: TableDescriptor, row: Mapping[str, Any]) -> bytes:
    """The bytes of a checked row, in the newest schema version of the descriptor."""
    layout = _layout(table, table.schema_version)
    nulls = 0
    fixed: list[bytes] = []
    variable: list[bytes] = []
    ends: list[int] = []
    end = 0
    for number, (column, form) in enumerate(zip(layout.columns, layout.forms, strict=True)):
        value = row[column.name]
        if value is None:
            nulls |= 1 << number
            data = bytes(form.width or 0)
        else:
            data = form.pack(value)
        if form.width is None:
            end += len(data)
            ends.append(end)
            variable.append(data)
        else:
            fixed.append(data)
    head = _VERSION.pack(table.schema_version)
    head += nulls.to_bytes((len(layout.columns) + 7) // 8, "little")
    if (size := layout.data_at + end) > ROW_BYTES_MAX:
        raise InvalidRow(table.name, f"a row has {size} bytes, at most {ROW_BYTES_MAX} fit")
    return b"".join((head, *fixed, layout.ends.pack(*ends), *variable))


def schema_version_of(data: bytes) -> int:
    """The schema version of a row; 0 if there is none."""
    return int(_VERSION.unpack_from(data)[0]) if len(data) >= _VERSION.size else 0


def decode_row(table: TableDescriptor, data: bytes) -> dict[str, Any]:
    """A row with the columns of the newest schema version of the descriptor."""
    version = schema_version_of(data)
    if not 1 <= version <= table.schema_version:
        raise RowDamaged(table.name, f"it has schema version {version}")
    layout = _layout(table, version)
    try:
        ends = layout.ends.unpack_from(data, layout.ends_at)
        if len(data) != layout.data_at + (ends[-1] if ends else 0):
            raise RowDamaged(table.name, f"it has {len(data)} bytes")
        values = dict(_values(layout, data, ends))
    except (struct.error, ValueError, OverflowError) as error:
        raise RowDamaged(table.name, str(error)) from error
    if version == table.schema_version:
        return {column.name: values[column.id] for column in layout.columns}
    return {
        column.name: values.get(column.id, column.default)
        for column in table.columns_at(table.schema_version)
    }


def _values(layout: RowLayout, data: bytes, ends: tuple[int, ...]) -> list[tuple[int, Any]]:
    nulls = int.from_bytes(
        data[_VERSION.size : _VERSION.size + (len(layout.columns) + 7) // 8], "little"
    )
    found: list[tuple[int, Any]] = []
    start = layout.data_at
    for number, (column, form, at) in enumerate(
        zip(layout.columns, layout.forms, layout.offsets, strict=True)
    ):
        if form.width is not None:
            part = data[at : at + form.width]
        else:
            end = layout.data_at + ends[at]
            part, start = data[start:end], end
        found.append((column.id, None if nulls >> number & 1 else form.unpack(part)))
    return found
