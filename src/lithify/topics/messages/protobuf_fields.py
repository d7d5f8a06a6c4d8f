"""Compiled loops that parse protobuf fields and locate the metadata in an entry.

`walk` parses the fields of any message of the protocol, driven by a table from `table_of`. The
table is indexed by tag (field number << 3 | wire type) and has for each field: the flags that its
presence sets, the column that receives its number, and how to handle its bytes:

| `NOTHING` | do not check them; a number goes to the column |
| `PAIR` | check that they are a KeyValue |
| `KEYS` | check that they are an EncryptionKeys |
| `SPAN` | store their begin in the column and their end in the next one |

As in protobuf, a tag that is not in the table is skipped, also a known field with another wire
type, and the last of several values counts. A group is malformed: no message of the protocol has
one.

The input may be hostile, and compiled code has no bounds checks. Memory safety rests on these
rules: each function gets a range `at..stop` inside the array, never reads at or after `stop`, and
compares a length with `stop - at` before it adds the length to anything. All numbers are int64; a
uint64 of the protocol is kept as its two's complement.

Pure. For all compiled loops over messages.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit

__all__ = [
    "BYTES",
    "KEYS",
    "NOTHING",
    "NUMBER",
    "PAIR",
    "SPAN",
    "collect_numbers",
    "find_metadata",
    "table_of",
    "u32_of",
    "varint",
    "walk",
]

NUMBER, BYTES = 0, 2
"""Wire types."""

NOTHING, PAIR, KEYS, SPAN = range(4)

_TAGS = 35 << 3


def table_of(
    *fields: tuple[int, int, int, int, int],
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """A table for `walk` of (field number, wire type, flags, column or -1, handling)."""
    table = np.zeros((_TAGS, 3), dtype=np.int64)
    table[:, 1] = -1
    for number, wire, *meaning in fields:
        table[number << 3 | wire] = meaning
    return table


@njit(nogil=True)
def u32_of(data, at):  # type: ignore[no-untyped-def]
    """The big-endian uint32 at `at`, the protocol's encoding of a size."""
    return (
        np.int64(data[at]) << 24
        | np.int64(data[at + 1]) << 16
        | np.int64(data[at + 2]) << 8
        | np.int64(data[at + 3])
    )


@njit(nogil=True)
def varint(data, at, stop, bytes_max):  # type: ignore[no-untyped-def]
    """(number, offset after it); the offset is -1 if the varint is too long or cut off."""
    value, shift = np.int64(0), np.int64(0)
    limit = min(stop, at + bytes_max)
    while at < limit:
        byte = np.int64(data[at])
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return value, np.int64(-1)


@njit(nogil=True)
def _field(data, at, stop):  # type: ignore[no-untyped-def]
    """(tag, number or begin of the bytes, offset after the field or -1 if malformed)."""
    tag, at = varint(data, at, stop, 5)
    wire = tag & 7
    if at < 0 or tag < 8 or tag >> 32 != 0:
        return tag, np.int64(0), np.int64(-1)
    if wire == NUMBER:
        value, at = varint(data, at, stop, 10)
        return tag, value, at
    length = np.int64(-1)
    if wire == BYTES:
        length, at = varint(data, at, stop, 5)
    elif wire == 1:
        length = np.int64(8)
    elif wire == 5:
        length = np.int64(4)
    if at < 0 or length < 0 or length > stop - at:
        return tag, np.int64(0), np.int64(-1)
    return tag, at, at + length


@njit(nogil=True)
def _is_pair(data, at, stop):  # type: ignore[no-untyped-def]
    """Whether the range is a KeyValue: it has the strings of fields 1 and 2."""
    seen = 0
    while at < stop:
        tag, _, at = _field(data, at, stop)
        if at < 0:
            return False
        if tag == (1 << 3 | BYTES):
            seen |= 1
        elif tag == (2 << 3 | BYTES):
            seen |= 2
    return seen == 3


@njit(nogil=True)
def _is_keys(data, at, stop):  # type: ignore[no-untyped-def]
    """Whether the range is an EncryptionKeys: a KeyValue with nested KeyValues in field 3.

    Not recursive: numba crashes when it loads a recursive function from its cache.
    """
    if not _is_pair(data, at, stop):
        return False
    while at < stop:
        tag, begin, at = _field(data, at, stop)
        if tag == (3 << 3 | BYTES) and not _is_pair(data, begin, at):
            return False
    return True


@njit(nogil=True)
def walk(data, at, stop, table, rows, row):  # type: ignore[no-untyped-def]
    """Parse the fields of a message into one row; the flags of all fields, -1 if malformed."""
    flags = np.int64(0)
    while at < stop:
        tag, value, at = _field(data, at, stop)
        if at < 0:
            return np.int64(-1)
        if tag >= _TAGS:
            continue
        flags |= table[tag, 0]
        column = table[tag, 1]
        handling = table[tag, 2]
        if column >= 0:
            rows[column, row] = value
            if handling == SPAN:
                rows[column + 1, row] = at
        elif handling == PAIR:
            if not _is_pair(data, value, at):
                return np.int64(-1)
        elif handling == KEYS and not _is_keys(data, value, at):
            return np.int64(-1)
    return flags


@njit(nogil=True)
def collect_numbers(data, at, stop, number):  # type: ignore[no-untyped-def]
    """All values of a repeated number, packed or not. `walk` has validated the message."""
    values = np.empty(stop - at, dtype=np.int64)
    count = 0
    while at < stop:
        tag, value, at = _field(data, at, stop)
        if tag == (number << 3 | NUMBER):
            values[count] = value
            count += 1
        elif tag == (number << 3 | BYTES):
            item = value
            while item < at:
                value, item = varint(data, item, at, 10)
                if item < 0:
                    return values[:0]
                values[count] = value
                count += 1
    return values[:count]


@njit(nogil=True)
def find_metadata(data, at, stop):  # type: ignore[no-untyped-def]
    """(begin of the metadata, end of the metadata and begin of the payload), -1 if malformed."""
    if stop - at >= 6 and data[at] == 0x0E and data[at + 1] == 0x02:
        at += 6 + min(u32_of(data, at + 2), stop - at - 6)
    if stop - at >= 6 and data[at] == 0x0E and data[at + 1] == 0x01:
        at += 6
    if stop - at < 4 or u32_of(data, at) > stop - at - 4:
        return np.int64(-1), np.int64(-1)
    return at + 4, at + 4 + u32_of(data, at)
