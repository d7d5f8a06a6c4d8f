from __future__ import annotations

import pytest

from lithify.catalog.column_types import ColumnType

TEXTS = [
    "boolean", "int8", "int16", "int32", "int64", "float32", "float64", "date", "time",
    "timestamp", "uuid", "string", "string(1)", "bytes", "bytes(10)", "decimal(38,0)",
    "decimal(4,4)",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_type_is_its_text(text: str) -> None:
    assert str(ColumnType.parse(text)) == text


def test_a_decimal_without_a_scale_has_none() -> None:
    assert str(ColumnType.parse("decimal(5)")) == "decimal(5,0)"
    assert str(ColumnType.parse("decimal(5, 2)")) == "decimal(5,2)"


@pytest.mark.parametrize(
    "text",
    ["", "int", "int64(1)", "string(0)", "string(1,2)", "decimal", "decimal(0)", "decimal(39)",
     "decimal(2,3)", "boolean(1)", "string(9999999999)", "INT8", "int8 "],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be boolean, int8"):
        ColumnType.parse(text)


WIDER = [
    ("int8", "int16"), ("int16", "int32"), ("int32", "int64"), ("int8", "int64"),
    ("float32", "float64"), ("string(5)", "string(6)"), ("string(5)", "string"),
    ("bytes(5)", "bytes"), ("decimal(5,2)", "decimal(6,2)"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WIDER)
def test_a_wider_type_is_not_narrower(old: str, new: str) -> None:
    assert ColumnType.parse(new).widens(ColumnType.parse(old))
    assert not ColumnType.parse(old).widens(ColumnType.parse(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [("int32", "float64"), ("string", "bytes"), ("decimal(5,2)", "decimal(7,3)"),
     ("decimal(5,2)", "decimal(6,1)"), ("date", "timestamp"), ("int8", "boolean")],
)  # fmt: skip
def test_types_of_different_kinds_do_not_widen_each_other(old: str, new: str) -> None:
    assert not ColumnType.parse(new).widens(ColumnType.parse(old))
    assert not ColumnType.parse(old).widens(ColumnType.parse(new))


@pytest.mark.parametrize("text", TEXTS)
def test_a_type_widens_itself(text: str) -> None:
    assert ColumnType.parse(text).widens(ColumnType.parse(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("boolean", True), ("int8", -128), ("int8", 127), ("int64", 2**63 - 1), ("float32", 1),
        ("float64", 0.5), ("string(2)", "äö"), ("bytes(2)", "00ff"), ("date", "2026-01-31"),
        ("time", "12:30"), ("timestamp", "2026-01-31T12:30:00"), ("decimal(4,2)", "99.99"),
        ("decimal(4,2)", "-0.5"), ("decimal(2,2)", "0.25"), ("decimal(4,2)", "0E+999999999"),
        ("uuid", "12345678-1234-5678-1234-567812345678"),
    ],
)  # fmt: skip
def test_values_of_a_type(text: str, value: object) -> None:
    assert ColumnType.parse(text).accepts(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("boolean", 1), ("int8", True), ("int8", 128), ("int8", -129), ("int8", 1.0),
        ("int64", 2**63), ("float32", "1"), ("float64", float("nan")), ("float64", 10**400),
        ("float64", float("-inf")), ("float32", 1e39), ("string(2)", "abc"),
        ("bytes(2)", "0001ff"), ("bytes", "x"), ("date", "31.1.2026"), ("decimal(4,2)", "100"),
        ("decimal(4,2)", "0.125"), ("decimal(4,2)", "NaN"), ("decimal(4,2)", 1), ("uuid", "x"),
        ("string", 5), ("string", None), ("string", "\ud800"), ("time", "10:00+02:00"),
        ("timestamp", "0001-01-01T00:00:00+14:00"),
    ],
)  # fmt: skip
def test_values_of_other_types(text: str, value: object) -> None:
    assert not ColumnType.parse(text).accepts(value)
