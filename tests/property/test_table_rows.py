"""Rows and keys of tables: what is written is read, and bytes are ordered as values are."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.catalog.catalog import Catalog
from lithify.catalog.column_types import ColumnType
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.tables import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CreateTable,
    DropColumns,
)
from lithify.catalog.objects import IndexDescriptor, TableDescriptor
from lithify.tables.column_values import form_of
from lithify.tables.keys import index_entry_key, partition_of, primary_key, row_key
from lithify.tables.rows import check_row, decode_row, encode_row

TYPES = [
    "boolean",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "date",
    "time",
    "timestamp",
    "uuid",
    "string",
    "bytes",
    "decimal(38,0)",
    "decimal(20,7)",
]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    **{
        f"int{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for bits in (8, 16, 32, 64)
    },
    "float32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "date": st.dates().map(date.isoformat),
    "time": st.times().map(time.isoformat),
    "timestamp": st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    "uuid": st.uuids().map(str),
    "string": st.text(st.characters(codec="utf-8") | st.just("\0"), max_size=5),
    "bytes": (st.binary(max_size=5) | st.lists(st.sampled_from(b"\0\1\xff"), max_size=4)).map(
        lambda data: bytes(data).hex()
    ),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1).map(str),
    "decimal(20,7)": st.decimals(-(10**13) + 1, 10**13 - 1, places=7).map(str),
}


def comparable(name: str, value: Any) -> Any:
    """The value as Python orders it."""
    if name == "bytes":
        return bytes.fromhex(value)
    if name == "uuid":
        return UUID(value).int
    if name.startswith("decimal"):
        return Decimal(value)
    if name == "timestamp":
        return datetime.fromisoformat(value)
    return value


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_keys_have_the_order_of_the_values(name: str, data: st.DataObject) -> None:
    column_type = ColumnType.parse(name)
    one, other = data.draw(st.tuples(VALUES[name], VALUES[name]))
    assert column_type.accepts(one)
    ordered = form_of(column_type).ordered
    first, second = comparable(name, one), comparable(name, other)
    assert (ordered(one) < ordered(other)) == (first < second)
    assert (ordered(one) == ordered(other)) == (first == second)


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_a_value_in_a_row_is_read_as_it_was_written(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name])
    form = form_of(ColumnType.parse(name))
    packed = form.pack(value)
    assert form.width in {None, len(packed)}
    assert comparable(name, form.unpack(packed)) == comparable(name, value)


@given(pairs=st.lists(st.tuples(VALUES["string"], VALUES["bytes"]), min_size=2, max_size=2))
def test_the_first_column_of_a_key_decides(pairs: list[tuple[str, str]]) -> None:
    text, data = form_of(ColumnType("string")).ordered, form_of(ColumnType("bytes")).ordered
    keys = [text(one) + data(other) for one, other in pairs]
    values = [(one, bytes.fromhex(other)) for one, other in pairs]
    assert (keys[0] < keys[1]) == (values[0] < values[1])


def executed(catalog: Catalog, command: Any) -> Catalog:
    plan = plan_batch(catalog, [command])
    assert plan is not None
    return plan.catalog


class Evolving:
    """A table whose columns change, with the rows that were written in between."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        initial = plan_batch(Catalog(), initial_commands())
        assert initial is not None
        create = CreateTable("t", (ColumnDefinition("k", "int64"),), ("k",))
        self.catalog = executed(initial.catalog, create)
        self.names = 0
        self.rows: list[tuple[bytes, dict[str, Any]]] = []

    @property
    def table(self) -> TableDescriptor:
        found = self.catalog.table("t")
        assert found is not None
        return found

    def write(self) -> None:
        row = {"k": self.data.draw(VALUES["int64"])}
        for column in self.table.columns:
            if column.name != "k" and self.data.draw(st.booleans()):
                row[column.name] = self.data.draw(VALUES[str(column.type)])
        checked = check_row(self.table, row)
        self.rows.append((encode_row(self.table, checked), dict(checked)))

    def add_column(self) -> None:
        name = self.data.draw(st.sampled_from("abcd"))
        if self.table.column(name) is not None:
            self.drop_column(name)
            return
        text = self.data.draw(st.sampled_from(TYPES[:-2]))
        default = self.data.draw(st.none() | VALUES[text])
        column = ColumnDefinition(name, text, default is None, default)
        self.catalog = executed(self.catalog, AddColumns("t", (column,)))
        for _, row in self.rows:
            row[name] = default

    def drop_column(self, name: str) -> None:
        self.catalog = executed(self.catalog, DropColumns("t", (name,)))
        for _, row in self.rows:
            del row[name]

    def widen(self) -> None:
        for column in self.table.columns:
            if column.type.name in {"int8", "int16", "int32"}:
                self.catalog = executed(self.catalog, AlterColumn("t", column.name, type="int64"))
                return

    def check(self) -> None:
        for stored, expected in self.rows:
            found = decode_row(self.table, stored)
            assert found.keys() == expected.keys()
            for column in self.table.columns:
                one, other = found[column.name], expected[column.name]
                if one is None or other is None:
                    assert one is other
                    continue
                assert comparable(column.type.name, one) == comparable(column.type.name, other)


@given(data=st.data())
def test_rows_of_all_schema_versions_are_read(data: st.DataObject) -> None:
    table = Evolving(data)
    steps = [table.write, table.add_column, table.widen]
    for step in data.draw(st.lists(st.sampled_from(steps), max_size=12)):
        step()
        table.check()


def small_table(*columns: tuple[str, str], key: str, partition_key: str = "") -> TableDescriptor:
    initial = plan_batch(Catalog(), initial_commands())
    assert initial is not None
    definitions = tuple(ColumnDefinition(name, text, name == "n") for name, text in columns)
    create = CreateTable("t", definitions, tuple(key), tuple(partition_key))
    found = executed(initial.catalog, create).table("t")
    assert found is not None
    return found


@given(rows=st.lists(st.tuples(VALUES["int32"], VALUES["string"]), min_size=2, max_size=2))
def test_rows_are_ordered_by_their_keys_and_placed_by_a_part_of_it(
    rows: list[tuple[int, str]],
) -> None:
    table = small_table(("a", "int32"), ("b", "string"), key="ba", partition_key="b")
    made = [dict(zip("ab", row, strict=True)) for row in rows]
    keys = [row_key(table, row) for row in made]
    assert (keys[0] < keys[1]) == ((rows[0][1], rows[0][0]) < (rows[1][1], rows[1][0]))
    places = [partition_of(table, row, 7) for row in made]
    assert set(places) <= set(range(7))
    if rows[0][1] == rows[1][1]:
        assert places[0] == places[1]


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-2, 2)), max_size=6),
    unique=st.booleans(),
)
def test_index_entries_have_null_first_and_are_equal_only_if_unique(
    rows: list[tuple[int, int | None]], unique: bool
) -> None:
    table = small_table(("k", "int32"), ("n", "int32"), key="k")
    index = IndexDescriptor(9, table.id, "i", (2,), unique)
    entries: dict[bytes, tuple[int | None, int]] = {}
    for key, value in rows:
        entry = index_entry_key(table, index, {"k": key, "n": value})
        same = entries.setdefault(entry, (value, key))
        assert same == (value, key) or (unique and value is not None and same[0] == value)
    lowest = -3
    values = [lowest if value is None else value for _, (value, _) in sorted(entries.items())]
    assert values == sorted(values)
    assert primary_key(table, {"k": 1}) == struct.pack(">Q", 2**63 + 1)
