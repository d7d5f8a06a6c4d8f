"""Compiled loops over key index rows: sort by bucket or position, and compute CRCs. Pure."""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import crc32c_of

__all__ = ["bucket_crcs", "bucket_order", "position_order", "sort_rows"]

_BUCKETS = 256
_SHIFT = np.uint64(56)

_DIGIT_BITS = 11
"""Bits of a radix sort digit: the counts of all digits fit into the CPU's cache."""
_DIGIT_MASK = np.uint64((1 << _DIGIT_BITS) - 1)


@njit(nogil=True)
def bucket_order(hash_high, keep):  # type: ignore[no-untyped-def]
    """Sort the rows to keep by bucket; stable within a bucket.

    Returns (row numbers in the new order, first row of each bucket and the end).
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
    """Sort row numbers by the value that `numbers` has for each; stable.

    Radix sort: five times faster than a comparison sort. `order` is overwritten.
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
        # Positions of several ledgers share their middle digits.
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
    """Sort row numbers by position, then by slot."""
    return sort_rows(sort_rows(rows.copy(), slot), position)


@njit(nogil=True)
def bucket_crcs(data, starts, width):  # type: ignore[no-untyped-def]
    """The CRC-32C of each bucket of a column; `starts` has the first row of each bucket."""
    crcs = np.empty(starts.size - 1, dtype=np.uint32)
    for bucket in range(crcs.size):
        begin = (starts[bucket] - starts[0]) * width
        crcs[bucket] = crc32c_of(data, begin, (starts[bucket + 1] - starts[0]) * width)
    return crcs
