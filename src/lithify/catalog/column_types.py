"""The types of columns: their text, the values that they accept, and which ones widen them. Pure.

    boolean int8 int16 int32 int64 float32 float64 date time timestamp uuid
    string string(LENGTH) bytes bytes(LENGTH)      without a length there is no limit
    decimal(PRECISION,SCALE)

A default is a JSON value: a number, a boolean, or text; bytes are hexadecimal, times in ISO 8601.

A type may be changed to a wider one only, which holds all values of the old one: int8 -> int16 ->
int32 -> int64, float32 -> float64, a longer string or bytes, a decimal of the same scale and
higher precision.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ColumnType"]

DECIMAL_PRECISION_MAX = 38
LENGTH_MAX = 2**31 - 1

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_FLOATS = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
_SIZED = ("string", "bytes")


def _time(text: str) -> time:
    parsed = time.fromisoformat(text)
    if parsed.tzinfo is not None:
        raise ValueError("a time of day has no offset")
    return parsed


def _timestamp(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    # An offset must not lead out of the years 1 to 9999.
    return parsed if parsed.tzinfo is None else parsed.astimezone(UTC)


_PARSED: dict[str, Callable[[str], object]] = {
    "bytes": bytes.fromhex,
    "date": date.fromisoformat,
    "decimal": Decimal,
    "string": str.encode,
    "time": _time,
    "timestamp": _timestamp,
    "uuid": UUID,
}
_TEXT = re.compile(r"([a-z]+\d*)(?:\((\d{1,10})(?:, *(\d{1,10}))?\))?")


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type; `length` is 0 for no limit, and that of other types."""

    name: str
    length: int = 0
    precision: int = 0
    scale: int = 0

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """Parse the text of a type; raises `ValueError`."""
        match = _TEXT.fullmatch(text)
        name, first, second = match.groups() if match else ("", None, None)
        if name in _SIZED and second is None:
            length = int(first or 0)
            if length <= LENGTH_MAX and first != "0":
                return cls(name, length=length)
        elif name == "decimal" and first is not None:
            precision, scale = int(first), int(second or 0)
            if scale <= precision and 1 <= precision <= DECIMAL_PRECISION_MAX:
                return cls(name, precision=precision, scale=scale)
        elif first is None and (name in {*_INTEGERS, *_FLOATS, *_PARSED, "boolean"} - {"decimal"}):
            return cls(name)
        raise ValueError(
            f"type {text!r} must be boolean, int8, int16, int32, int64, float32, float64, date, "
            "time, timestamp, uuid, string, string(LENGTH), bytes, bytes(LENGTH) or "
            f"decimal(PRECISION,SCALE) with a precision up to {DECIMAL_PRECISION_MAX}"
        )

    def __str__(self) -> str:
        if self.length:
            return f"{self.name}({self.length})"
        return f"decimal({self.precision},{self.scale})" if self.precision else self.name

    def widens(self, old: ColumnType) -> bool:
        """Does this type hold all values of the old one?"""
        if self.name in _INTEGERS and old.name in _INTEGERS:
            return _INTEGERS[self.name] >= _INTEGERS[old.name]
        if self.name == "float64" and old.name == "float32":
            return True
        if self.name != old.name:
            return False
        if self.name in _SIZED:
            return not self.length or 0 < old.length <= self.length
        return self.scale == old.scale and self.precision >= old.precision

    def accepts(self, value: Any) -> bool:
        """Is it a value of this type, as JSON has it?"""
        if self.name == "boolean" or isinstance(value, bool):
            return self.name == "boolean" and isinstance(value, bool)
        if self.name in _INTEGERS:
            limit = 1 << _INTEGERS[self.name] - 1
            return isinstance(value, int) and -limit <= value < limit
        if self.name in _FLOATS:
            return isinstance(value, int | float) and abs(value) <= _FLOATS[self.name]
        return isinstance(value, str) and self._accepts_text(value)

    def _accepts_text(self, text: str) -> bool:
        try:
            parsed = _PARSED[self.name](text)
        except (ValueError, ArithmeticError):
            return False
        if isinstance(parsed, Decimal):
            return self._fits(parsed)
        value = parsed if self.name == "bytes" else text
        return not self.length or (isinstance(value, str | bytes) and len(value) <= self.length)

    def _fits(self, value: Decimal) -> bool:
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):  # infinite, or not a number
            return False
        before = max(len(digits) + exponent, 0) if any(digits) else 0
        return -exponent <= self.scale and before <= self.precision - self.scale
