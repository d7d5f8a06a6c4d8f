"""Rows of a table as Arrow columns.

    schema = spark_schema(table)
    for batch in record_batches(table, arrow_schema, values):
        ...

| type of a column                       | type in Spark                               |
|----------------------------------------|---------------------------------------------|
| boolean, int8 to int64, float32, float64 | boolean, tinyint to bigint, float, double |
| date, timestamp                        | the same                                    |
| string, bytes                          | string, binary                              |
| decimal(p,s)                           | the same                                    |
| time, uuid                             | string                                      |

Rows of one schema version have their values at the same places, so each column is one compiled loop
over all of them. A row of an older version is read as one of the version of the table: a column
that it does not have is its default, a widened one is converted. Rows of several versions are in
several batches. Only requested columns are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from lithify.spark.tables.row_kernels import (
    first_damaged,
    fixed_values,
    null_flags,
    text_stops,
    texts,
    uuids,
    versions,
)
from lithify.tables.column_values import form_of
from lithify.tables.errors import RowDamaged, SchemaChanged
from lithify.tables.rows import RowLayout, layout_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql.types import DataType

    from lithify.catalog.column_types import ColumnType
    from lithify.catalog.objects import Column, TableDescriptor

__all__ = ["record_batches", "spark_schema"]

_SPARK: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int8": ByteType(),
    "int16": ShortType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float32": FloatType(),
    "float64": DoubleType(),
    "date": DateType(),
    "time": StringType(),
    "timestamp": TimestampType(),
    "uuid": StringType(),
    "string": StringType(),
    "bytes": BinaryType(),
}
_ARROW = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_UUID_CHARACTERS = 36


def spark_schema(table: TableDescriptor) -> StructType:
    """The columns of a table."""
    schema = StructType()
    for column in table.columns:
        schema.add(column.name, _spark_type(column.type), column.nullable)
    return schema


def _spark_type(column_type: ColumnType) -> DataType:
    if column_type.name == "decimal":
        return DecimalType(column_type.precision, column_type.scale)
    return _SPARK[column_type.name]


def record_batches(
    table: TableDescriptor, schema: pa.Schema, data: NDArray[np.uint8], stops: NDArray[np.int64]
) -> Iterator[pa.RecordBatch]:
    """Rows that follow each other in `data`, as the columns of a schema, which the table has."""
    starts = np.concatenate((np.zeros(1, np.int64), stops[:-1]))
    found = np.empty(len(stops), np.int64)
    versions(data, starts, stops, found)
    for version in np.unique(found).tolist():
        if version > table.schema_version:
            raise SchemaChanged(table.name)
        if version < 1:
            raise RowDamaged(table.name, f"it has schema version {version}")
        chosen = found == version
        own = (starts, stops) if chosen.all() else (starts[chosen], stops[chosen])
        rows = _Rows(table, version, data, *own)
        arrays = [rows.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Rows:
    """Rows of one schema version."""

    def __init__(
        self,
        table: TableDescriptor,
        version: int,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
    ) -> None:
        self._table = table
        self._layout: RowLayout = layout_of(table.columns_at(version))
        self._numbers = {column.id: at for at, column in enumerate(self._layout.columns)}
        self._data = data
        self._starts = starts
        layout = self._layout
        count = layout.ends.size // 4
        bad = first_damaged(data, starts, stops, layout.ends_at, count, layout.data_at)
        if bad >= 0:
            raise RowDamaged(table.name, f"it has {stops[bad] - starts[bad]} bytes")

    def column(self, name: str) -> pa.Array:
        """A column of the table, for all rows."""
        column = self._table.column(name)
        assert column is not None
        number = self._numbers.get(column.id)
        if number is None:
            return _repeated(column, len(self._starts))
        nulls = np.empty(len(self._starts), np.bool_)
        has_nulls = null_flags(self._data, self._starts, number, nulls) > 0
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if has_nulls else None
        stored = self._layout.columns[number].type
        width, at = self._layout.forms[number].width, self._layout.offsets[number]
        if width is None:
            return self._texts(stored, at, valid)
        values = np.empty(len(self._starts) * width, np.uint8)
        fixed_values(self._data, self._starts, at, width, values)
        made = _fixed_array(column.type if stored.name == "decimal" else stored, values, valid)
        return made if stored.name == column.type.name else made.cast(_ARROW[column.type.name])

    def _texts(self, stored: ColumnType, number: int, valid: pa.Buffer | None) -> pa.Array:
        layout = self._layout
        stops = np.empty(len(self._starts) + 1, np.int32)
        total = text_stops(self._data, self._starts, layout.ends_at, number, stops)
        out = np.empty(total, np.uint8)
        texts(self._data, self._starts, layout.ends_at, layout.data_at, number, stops, out)
        buffers = [valid, pa.py_buffer(stops), pa.py_buffer(out)]
        return pa.Array.from_buffers(_ARROW[stored.name], len(self._starts), buffers)


def _fixed_array(
    column_type: ColumnType, values: NDArray[np.uint8], valid: pa.Buffer | None
) -> pa.Array:
    """Values of fixed width, as they are in rows."""
    name = column_type.name
    if name == "boolean":
        packed = np.packbits(values != 0, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [valid, pa.py_buffer(packed)])
    if name == "uuid":
        count = len(values) // 16
        stops = np.arange(count + 1, dtype=np.int32) * _UUID_CHARACTERS
        text = np.empty(count * _UUID_CHARACTERS, np.uint8)
        uuids(values, text)
        buffers = [valid, pa.py_buffer(stops), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), count, buffers)
    if name == "decimal":
        arrow = pa.decimal128(column_type.precision, column_type.scale)
    else:
        arrow = _ARROW[name]
    count = len(values) * 8 // arrow.bit_width
    made = pa.Array.from_buffers(arrow, count, [valid, pa.py_buffer(values)])
    if name == "time":
        # As in JSON: without zeros at the end of whole seconds.
        return pc.replace_substring_regex(made.cast(pa.string()), r"\.000000$", "")
    return made


def _repeated(column: Column, count: int) -> pa.Array:
    """The default of a column that rows do not have."""
    default: Any = column.default
    if default is None:
        return pa.nulls(count, _arrow_type(column.type))
    form = form_of(column.type)
    packed = np.frombuffer(form.pack(default), np.uint8)
    if form.width is None:
        value = bytes(packed) if column.type.name == "bytes" else str(default)
        return pa.repeat(pa.scalar(value, _ARROW[column.type.name]), count)
    return pa.repeat(_fixed_array(column.type, packed, None)[0], count)


def _arrow_type(column_type: ColumnType) -> pa.DataType:
    if column_type.name == "decimal":
        return pa.decimal128(column_type.precision, column_type.scale)
    if column_type.name == "boolean":
        return pa.bool_()
    return pa.string() if column_type.name in {"time", "uuid"} else _ARROW[column_type.name]
