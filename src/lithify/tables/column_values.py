"""A value of a column in its three forms: as JSON, in a row, in an ordered key. Pure.

The JSON value is what users give and get (`catalog/column_types.py`). Reading returns the canonical
form: UUIDs and bytes in lower case, timestamps in UTC with offset, decimals with all their places.

    type               in a row                              in a key
    boolean            1  0 or 1                             1
    int8 to int64      1, 2, 4, 8                            8  with the sign flipped
    float32, float64   4, 8                                  8  see below
    date               4  days since 1970                    8  as an integer
    time               8  microseconds                       8  as an integer
    timestamp          8  microseconds since 1970 in UTC     8  as an integer
    uuid               16                                    16
    decimal            16  the unscaled integer              16 with the sign flipped
    string, bytes      as they are; strings in UTF-8         escaped, then two zero bytes

Numbers are little-endian in a row. In a key they are big-endian, so that the order of the bytes is
that of the values; a type that is widened keeps its bytes there. The sign bit of a float is flipped
if it is positive, otherwise all bits are. Minus zero is stored as zero. In a string or in bytes a
zero byte becomes 00 FF.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.catalog.column_types import ColumnType

__all__ = ["ValueForm", "form_of", "ordered_bytes"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_DECIMAL_SIGN = 1 << 127
_KEY_NUMBER = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")


class ValueForm(NamedTuple):
    """The forms of the values of a type; `width` is None for strings and bytes.

    What is packed must be a value that the type accepts.
    """

    width: int | None
    pack: Callable[[Any], bytes]
    """JSON value to the bytes in a row."""
    unpack: Callable[[bytes], Any]
    ordered: Callable[[Any], bytes]
    """JSON value to the bytes in a key."""


def form_of(column_type: ColumnType) -> ValueForm:
    """The forms of a type."""
    if column_type.name == "decimal":
        return _decimal(column_type.scale)
    return _FORMS[column_type.name]


def ordered_bytes(column_type: ColumnType, key: bytes, start: int) -> int:
    """The length of the value of a type in a key, where it begins."""
    width = form_of(column_type).width
    if width is not None:
        return width if width in (1, 16) and column_type.name != "int8" else 8
    at = key.index(b"\0", start)
    while key[at + 1 : at + 2] == b"\xff":
        at = key.index(b"\0", at + 2)
    return at + 2 - start


def _integer(layout: str) -> ValueForm:
    packed = struct.Struct(layout)
    return ValueForm(
        packed.size, packed.pack, lambda data: packed.unpack(data)[0], _ordered_integer
    )


def _ordered_integer(value: int) -> bytes:
    return _KEY_NUMBER.pack(value + _SIGN)


def _float(layout: str) -> ValueForm:
    packed = struct.Struct(layout)

    def pack(value: float) -> bytes:
        return packed.pack(value or 0.0)

    def unpack(data: bytes) -> float:
        return float(packed.unpack(data)[0])

    def ordered(value: float) -> bytes:
        # A float32 has the order of the value that is stored.
        (bits,) = _KEY_NUMBER.unpack(_DOUBLE.pack(unpack(pack(value))))
        return _KEY_NUMBER.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))

    return ValueForm(packed.size, pack, unpack, ordered)


def _counted(layout: str, count: Callable[[str], int], describe: Callable[[int], str]) -> ValueForm:
    """Of values that are a number of units."""
    packed = struct.Struct(layout)
    return ValueForm(
        packed.size,
        lambda text: packed.pack(count(text)),
        lambda data: describe(packed.unpack(data)[0]),
        lambda text: _ordered_integer(count(text)),
    )


def _days(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH_DAY


def _describe_days(days: int) -> str:
    return date.fromordinal(days + _EPOCH_DAY).isoformat()


def _time_of_day(text: str) -> int:
    at = time.fromisoformat(text)
    return ((at.hour * 60 + at.minute) * 60 + at.second) * 1_000_000 + at.microsecond


def _describe_time(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).time().isoformat()


def _instant(text: str) -> int:
    at = datetime.fromisoformat(text)
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _describe_instant(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()


def _decimal(scale: int) -> ValueForm:
    def unscaled(text: str) -> int:
        number: int
        sign, digits, exponent = Decimal(text).as_tuple()
        assert isinstance(exponent, int)
        number = int("".join(map(str, digits)))
        # Zero may have any exponent; others have no more places than the scale.
        number *= 10 ** (exponent + scale) if number else 0
        return -number if sign else number

    def pack(text: str) -> bytes:
        return unscaled(text).to_bytes(16, "little", signed=True)

    def unpack(data: bytes) -> str:
        number = int.from_bytes(data, "little", signed=True)
        digits = tuple(map(int, str(abs(number))))
        return format(Decimal((int(number < 0), digits, -scale)), "f")

    def ordered(text: str) -> bytes:
        return (unscaled(text) + _DECIMAL_SIGN).to_bytes(16, "big")

    return ValueForm(16, pack, unpack, ordered)


def _escaped(data: bytes) -> bytes:
    return data.replace(b"\0", b"\0\xff") + b"\0\0"


_FORMS = {
    "boolean": ValueForm(
        1, lambda value: bytes((value,)), lambda data: data != b"\0", lambda value: bytes((value,))
    ),
    "int8": _integer("<b"),
    "int16": _integer("<h"),
    "int32": _integer("<i"),
    "int64": _integer("<q"),
    "float32": _float("<f"),
    "float64": _float("<d"),
    "date": _counted("<i", _days, _describe_days),
    "time": _counted("<q", _time_of_day, _describe_time),
    "timestamp": _counted("<q", _instant, _describe_instant),
    "uuid": ValueForm(
        16,
        lambda text: UUID(text).bytes,
        lambda data: str(UUID(bytes=data)),
        lambda text: UUID(text).bytes,
    ),
    "string": ValueForm(None, str.encode, bytes.decode, lambda text: _escaped(text.encode())),
    "bytes": ValueForm(None, bytes.fromhex, bytes.hex, lambda text: _escaped(bytes.fromhex(text))),
}
