"""Compiled loops that cut the values of columns out of many rows (`arrow_columns.py`). Pure.

The bytes of a row are in `lithify/tables/rows.py`. `first_damaged` compares every length with the
end of its row; the others rely on that.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import _u32, copy_bytes

__all__ = [
    "first_damaged",
    "fixed_values",
    "null_flags",
    "text_stops",
    "texts",
    "uuids",
    "versions",
]


@njit(nogil=True)
def versions(data, starts, stops, out):  # type: ignore[no-untyped-def]
    """The schema version of each row; 0 if it is too short."""
    for row in range(len(starts)):
        at = starts[row]
        out[row] = np.int64(_u32(data, at)) if at + 4 <= stops[row] else 0


@njit(nogil=True)
def first_damaged(data, starts, stops, ends_at, texts_of, data_at):  # type: ignore[no-untyped-def]
    """The first row that does not have the lengths that it says; -1 if all have."""
    for row in range(len(starts)):
        start, size = starts[row], stops[row] - starts[row]
        if size < data_at:
            return row
        end = np.int64(0)
        for each in range(texts_of):
            following = np.int64(_u32(data, start + ends_at + 4 * each))
            if following < end:
                return row
            end = following
        if data_at + end != size:
            return row
    return -1


@njit(nogil=True)
def null_flags(data, starts, column, out):  # type: ignore[no-untyped-def]
    """Is the value of a column null? Returns the number of these."""
    at, bit = 4 + (column >> 3), column & 7
    found = 0
    for row in range(len(starts)):
        is_null = data[starts[row] + at] >> bit & 1
        out[row] = is_null
        found += is_null
    return found


@njit(nogil=True)
def fixed_values(data, starts, at, width, out):  # type: ignore[no-untyped-def]
    """The bytes of a column of fixed width."""
    for row in range(len(starts)):
        begin, to = starts[row] + at, row * width
        for each in range(width):
            out[to + each] = data[begin + each]


@njit(nogil=True)
def text_stops(data, starts, ends_at, number, out):  # type: ignore[no-untyped-def]
    """Where each string of a column ends, if all follow each other; the first of `out` is 0."""
    total = np.int64(0)
    out[0] = 0
    for row in range(len(starts)):
        at = starts[row] + ends_at + 4 * number
        begin = np.int64(_u32(data, at - 4)) if number else np.int64(0)
        total += np.int64(_u32(data, at)) - begin
        out[row + 1] = total
    return total


@njit(nogil=True)
def texts(data, starts, ends_at, data_at, number, stops, out):  # type: ignore[no-untyped-def]
    """The bytes of these strings."""
    for row in range(len(starts)):
        at = starts[row] + ends_at + 4 * number
        begin = np.int64(_u32(data, at - 4)) if number else np.int64(0)
        size = np.int64(stops[row + 1]) - np.int64(stops[row])
        copy_bytes(out, np.int64(stops[row]), data, starts[row] + data_at + begin, size)


@njit(nogil=True)
def uuids(data, out):  # type: ignore[no-untyped-def]
    """UUIDs as texts of 36 characters."""
    to = 0
    for at in range(len(data)):
        if at & 15 in (4, 6, 8, 10):
            out[to] = 45
            to += 1
        for shift in (4, 0):
            half = np.int64(data[at]) >> shift & 15
            out[to] = half + (48 if half < 10 else 87)
            to += 1
