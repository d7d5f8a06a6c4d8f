"""Compiled loops over the rows of a key index: into buckets, by position, and their CRCs. Pure."""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import crc32c_of

__all__ = ["bucket_crcs", "bucket_order", "position_order", "sort_rows"]

_BUCKETS = 256
_SHIFT = np.uint64(56)

_DIGIT_BITS = 11
"""Of a number by which rows are sorted at a time: as many counts as fit into the CPU's cache."""
_DIGIT_MASK = np.uint64((1 << _DIGIT_BITS) - 1)


@njit(nogil=True)
def bucket_order(hash_high, keep):  # type: ignore[no-untyped-def]
    """Sort the rows to keep by bucket, those of a bucket in the order they have.

    Returns (numbers of the rows in their new order, first of each bucket and the end).
    """
    starts = np.zeros(_BUCKETS + 1, dtype=np.int64)
    for row in range(hash_high.size):
        if keep[row]:
            starts[np.int64(hash_high[row] >> _SHIFT) + 1] += 1
    for bucket in range(_BUCKETS):
        starts[bucket + 1] += starts[bucket]
    following = starts[:_BUCKETS].copy()
    order = np.empty(starts[_BUCKETS], dtype=np.int64)
    for row in range(hash_high.size):
        if keep[row]:
            into = np.int64(hash_high[row] >> _SHIFT)
            order[following[into]] = row
            following[into] += 1
    return order, starts


@njit(nogil=True)
def _digit(number, shift):  # type: ignore[no-untyped-def]
    return np.int64((np.uint64(number) >> np.uint64(shift)) & _DIGIT_MASK)


@njit(nogil=True)
def sort_rows(order, numbers):  # type: ignore[no-untyped-def]
    """Sort the numbers of rows by what `numbers` has for each; equal ones stay as they are.

    Digit by digit: a comparing sort takes five times as long. `order` is used up.
    """
    if order.size == 0:
        return order
    lowest, highest = np.int64(numbers[order[0]]), np.int64(numbers[order[0]])
    for row in order:
        lowest = min(lowest, np.int64(numbers[row]))
        highest = max(highest, np.int64(numbers[row]))
    other = np.empty_like(order)
    shift = 0
    while shift < 64 and np.uint64(highest - lowest) >> np.uint64(shift):
        places = np.zeros((1 << _DIGIT_BITS) + 1, dtype=np.int64)
        for row in order:
            places[_digit(numbers[row] - lowest, shift) + 1] += 1
        # Positions of several ledgers have the same digits in the middle.
        if places.max() < order.size:
            for digit in range(1 << _DIGIT_BITS):
                places[digit + 1] += places[digit]
            for row in order:
                digit = _digit(numbers[row] - lowest, shift)
                other[places[digit]] = row
                places[digit] += 1
            order, other = other, order
        shift += _DIGIT_BITS
    return order


@njit(nogil=True)
def position_order(rows, position, slot):  # type: ignore[no-untyped-def]
    """The numbers of these rows by position, and those of one position by slot."""
    return sort_rows(sort_rows(rows.copy(), slot), position)


@njit(nogil=True)
def bucket_crcs(data, starts, width):  # type: ignore[no-untyped-def]
    """The CRC-32C of each bucket of a column; `starts` has a number of rows before each."""
    crcs = np.empty(starts.size - 1, dtype=np.uint32)
    for bucket in range(crcs.size):
        begin = (starts[bucket] - starts[0]) * width
        crcs[bucket] = crc32c_of(data, begin, (starts[bucket + 1] - starts[0]) * width)
    return crcs
