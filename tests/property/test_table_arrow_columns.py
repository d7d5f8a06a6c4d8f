"""Rows as Arrow columns are the rows that are read one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from lithify.spark.tables.arrow_columns import record_batches, spark_schema
from lithify.tables.errors import RowDamaged, SchemaChanged
from lithify.tables.rows import decode_row, encode_row
from tests.property.test_table_rows import Evolving, small_table

PARSED: dict[str, Any] = {
    "bytes": bytes.fromhex,
    "date": date.fromisoformat,
    "decimal": Decimal,
    "timestamp": datetime.fromisoformat,
}


def as_arrow(name: str, value: Any) -> Any:
    """A JSON value as Arrow returns it."""
    if value is None:
        return None
    if name == "float32":
        return float(np.float32(value))
    return PARSED.get(name, lambda same: same)(value)


def in_utc(value: Any) -> Any:
    """Without a time zone of another kind."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def table_of(table: Any, rows: list[bytes], *names: str) -> pa.Table:
    whole = to_arrow_schema(spark_schema(table), timezone="UTC")
    schema = pa.schema([whole.field(name) for name in names or whole.names])
    stops = np.cumsum([len(row) for row in rows], dtype=np.int64)
    data = np.frombuffer(b"".join(rows), np.uint8)
    found = pa.Table.from_batches(record_batches(table, schema, data, stops), schema)
    found.validate(full=True)
    return found


@given(data=st.data())
def test_columns_have_the_values_of_the_rows_of_all_schema_versions(data: st.DataObject) -> None:
    evolving = Evolving(data)
    evolving.write()
    steps = [evolving.write, evolving.write, evolving.add_column, evolving.widen]
    for step in data.draw(st.lists(st.sampled_from(steps), max_size=12)):
        step()
    table = evolving.table
    types = {column.name: column.type.name for column in table.columns}
    rows = [stored for stored, _ in evolving.rows]
    expected = [
        {name: as_arrow(types[name], value) for name, value in decode_row(table, row).items()}
        for row in rows
    ]
    found = [
        {name: in_utc(value) for name, value in row.items()}
        for row in table_of(table, rows).to_pylist()
    ]
    # Rows of several versions are in the order of the versions.
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_only_requested_columns_are_read_in_their_order() -> None:
    table = small_table(("k", "int32"), ("n", "string"), ("t", "time"), key="k")
    rows = [
        encode_row(table, {"k": 1, "n": None, "t": "10:00:00"}),
        encode_row(table, {"k": 2, "n": "x", "t": "10:00:00.000100"}),
    ]
    assert table_of(table, rows, "t", "n").to_pylist() == [
        {"t": "10:00:00", "n": None},
        {"t": "10:00:00.000100", "n": "x"},
    ]


@given(at=st.integers(0, 40), byte=st.integers(0, 255))
def test_a_damaged_row_is_an_error_or_another_row(at: int, byte: int) -> None:
    table = small_table(("k", "int32"), ("n", "string"), ("b", "bytes"), key="k")
    row = bytearray(encode_row(table, {"k": 1, "n": "some text", "b": "00ff00"}))
    row[at % len(row)] = byte
    try:
        table_of(table, [bytes(row)])
    except (RowDamaged, SchemaChanged, pa.ArrowInvalid):
        return


def test_a_row_that_was_cut_is_damaged() -> None:
    table = small_table(("k", "int32"), ("n", "string"), key="k")
    row = encode_row(table, {"k": 1, "n": "some text"})
    for size in range(len(row)):
        with pytest.raises(RowDamaged):
            table_of(table, [row, row[:size]])
