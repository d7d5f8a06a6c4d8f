"""Rows that do not fit the columns, and bytes that are no row."""

from __future__ import annotations

from typing import Any

import pytest

from lithify.catalog.column_types import ColumnType
from lithify.catalog.objects import Column, TableDescriptor
from lithify.tables.column_values import form_of
from lithify.tables.errors import InvalidRow, RowDamaged
from lithify.tables.keys import prefix_bounds, row_key, space_of
from lithify.tables.rows import (
    ROW_BYTES_MAX,
    check_key,
    check_row,
    decode_row,
    encode_row,
    schema_version_of,
)

TABLE = TableDescriptor(
    id=7,
    name="orders",
    zone_id=1,
    columns=(
        Column(1, "id", ColumnType("int32")),
        Column(2, "note", ColumnType("string"), nullable=True),
        Column(3, "count", ColumnType("int8"), default=1),
    ),
    key=(1,),
    partition_key=(1,),
    next_column_id=4,
)


def test_a_row_has_a_value_for_each_column() -> None:
    assert check_row(TABLE, {"id": 5}) == {"id": 5, "note": None, "count": 1}


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"id": 1, "colour": 2}, "it has no column colour"),
        ({"note": "n"}, "column id is missing"),
        ({"id": None}, "column id must not be null"),
        ({"id": 2**31}, "column id: 2147483648 is no int32"),
        ({"id": True}, "column id: True is no int32"),
        ({"id": 1, "note": "\ud800"}, r"column note: '\ud800' is no string"),
        ({"id": 1, "note": ["n"] * 100}, f"column note: {str(['n'] * 100)[:60]} is no string"),
        ({"id": 1, "count": None}, "column count must not be null"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidRow) as caught:
        check_row(TABLE, row)
    assert str(caught.value) == f"table orders: {rule}"


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ({}, "column id of the key is missing"),
        ({"id": 1, "note": "n"}, "its key has no column note"),
        ({"id": "1"}, "column id: '1' is no int32"),
    ],
)
def test_a_key_that_does_not_fit_is_refused(key: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidRow) as caught:
        check_key(TABLE, key)
    assert str(caught.value) == f"table orders: {rule}"


def test_a_row_that_is_too_large_is_refused() -> None:
    row = check_row(TABLE, {"id": 1, "note": "n" * ROW_BYTES_MAX})
    with pytest.raises(InvalidRow, match=f"at most {ROW_BYTES_MAX} fit"):
        encode_row(TABLE, row)
    empty = len(encode_row(TABLE, check_row(TABLE, {"id": 1, "note": ""})))
    row = check_row(TABLE, {"id": 1, "note": "n" * (ROW_BYTES_MAX - empty)})
    assert len(encode_row(TABLE, row)) == ROW_BYTES_MAX


def test_zero_may_have_any_exponent() -> None:
    decimal = form_of(ColumnType.parse("decimal(4,2)"))
    assert decimal.unpack(decimal.pack("0E+999999999")) == "0.00"


def test_bytes_that_are_no_row_are_damaged() -> None:
    stored = encode_row(TABLE, check_row(TABLE, {"id": 1, "note": "né"}))
    assert schema_version_of(stored) == 1
    assert schema_version_of(b"") == 0
    for size in range(len(stored)):
        with pytest.raises(RowDamaged, match="a row of table orders is damaged"):
            decode_row(TABLE, stored[:size])
    for damaged in (stored + b"\0", b"\2" + stored[1:], stored[:-1] + b"\xff"):
        with pytest.raises(RowDamaged):
            decode_row(TABLE, damaged)


def test_the_first_columns_of_a_key_bound_a_scan() -> None:
    start, end = prefix_bounds(TABLE.id, TABLE.columns[:1], (5,), nullable=False)
    assert start <= row_key(TABLE, {"id": 5}) < end
    assert not start <= row_key(TABLE, {"id": 6}) < end
    start, end = prefix_bounds(TABLE.id, TABLE.columns[:1], (), nullable=False)
    assert (start, end) == (space_of(7), space_of(8))
    start, end = prefix_bounds(TABLE.id, TABLE.columns[1:2], (None,), nullable=True)
    assert (start, end) == (space_of(7) + b"\0", space_of(7) + b"\1")
