"""Compiled loops that read protobuf fields, and find the metadata of an entry.

Fields are read by one walk for all messages. What a field means stands in a table, by tag (field
number << 3 | wire type), made by `table_of`: the flags its presence sets, the column its number
goes to, and how to look at its bytes:

| `NOTHING` | not at all; a number goes to the column |
| `PAIR` | they must be a KeyValue |
| `KEYS` | they must be an EncryptionKeys |
| `SPAN` | where they begin goes to the column, where they end to the one after it |

A tag that is not in the table is stepped over, also when only its wire type is unexpected: that is
protobuf's rule. The last of several values counts. Groups, which no message of the protocol has,
are malformed.

The bytes may be a stranger's and nothing here has the interpreter's checks. What keeps it safe:
each function is given a range `at..stop` that is inside the array, reads nothing at or after
`stop`, and compares a length with `stop - at` before it adds it to anything. All numbers are int64;
a uint64 of the protocol is kept as its two's complement.

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
    """A table for `walk` of (field number, wire type, flags, column or -1, how to look)."""
    table = np.zeros((_TAGS, 3), dtype=np.int64)
    table[:, 1] = -1
    for number, wire, *meaning in fields:
        table[number << 3 | wire] = meaning
    return table


@njit(nogil=True)
def u32_of(data, at):  # type: ignore[no-untyped-def]
    """A size as the protocol writes it: four bytes, big-endian."""
    return (
        np.int64(data[at]) << 24
        | np.int64(data[at + 1]) << 16
        | np.int64(data[at + 2]) << 8
        | np.int64(data[at + 3])
    )


@njit(nogil=True)
def varint(data, at, stop, bytes_max):  # type: ignore[no-untyped-def]
    """(number, what follows it), the latter -1 when it does not end in time."""
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
    """(tag, its number or where its bytes begin, what follows it), the last -1 if malformed."""
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
    """Whether this has the two strings of a KeyValue, fields 1 and 2."""
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
    """Whether this is an EncryptionKeys: a KeyValue by its fields, with more of them in field 3.

    Not one function that calls itself: numba crashes when it loads such a one from its cache.
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
    """Read a message's fields by its table into one row; the flags of all, or -1 if malformed."""
    flags = np.int64(0)
    while at < stop:
        tag, value, at = _field(data, at, stop)
        if at < 0:
            return np.int64(-1)
        if tag >= _TAGS:
            continue
        flags |= table[tag, 0]
        column = table[tag, 1]
        look = table[tag, 2]
        if column >= 0:
            rows[column, row] = value
            if look == SPAN:
                rows[column + 1, row] = at
        elif look == PAIR:
            if not _is_pair(data, value, at):
                return np.int64(-1)
        elif look == KEYS and not _is_keys(data, value, at):
            return np.int64(-1)
    return flags


@njit(nogil=True)
def collect_numbers(data, at, stop, number):  # type: ignore[no-untyped-def]
    """All values of a repeated number, packed or not, of a message that `walk` has read."""
    found = np.empty(stop - at, dtype=np.int64)
    count = 0
    while at < stop:
        tag, value, at = _field(data, at, stop)
        if tag == (number << 3 | NUMBER):
            found[count] = value
            count += 1
        elif tag == (number << 3 | BYTES):
            place = value
            while place < at:
                value, place = varint(data, place, at, 10)
                if place < 0:
                    return found[:0]
                found[count] = value
                count += 1
    return found[:count]


@njit(nogil=True)
def find_metadata(data, at, stop):  # type: ignore[no-untyped-def]
    """(where the metadata of an entry begins, where it ends and the payload begins), or -1, -1."""
    if stop - at >= 6 and data[at] == 0x0E and data[at + 1] == 0x02:
        at += 6 + min(u32_of(data, at + 2), stop - at - 6)
    if stop - at >= 6 and data[at] == 0x0E and data[at + 1] == 0x01:
        at += 6
    if stop - at < 4 or u32_of(data, at) > stop - at - 4:
        return np.int64(-1), np.int64(-1)
    return at + 4, at + 4 + u32_of(data, at)
