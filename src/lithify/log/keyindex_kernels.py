"""Compiled loops over the rows of a key index: into buckets, and their CRCs. Pure."""

from __future__ import annotations

import numpy as np
from numba import njit

from lithify.log.kernels import crc32c_of

__all__ = ["bucket_crcs", "bucket_order"]

_BUCKETS = 256
_SHIFT = np.uint64(56)


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def bucket_crcs(data, starts, width):  # type: ignore[no-untyped-def]
    """The CRC-32C of each bucket of a column; `starts` has a number of rows before each."""
    crcs = np.empty(starts.size - 1, dtype=np.uint32)
    for bucket in range(crcs.size):
        begin = (starts[bucket] - starts[0]) * width
        crcs[bucket] = crc32c_of(data, begin, (starts[bucket + 1] - starts[0]) * width)
    return crcs
