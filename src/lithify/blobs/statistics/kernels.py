"""How long the records of a blob store stay live if nothing more happens; compiled, pure.

The table of `blobs/record_fates.py`, solved for the time. The newest record and the last put of
each blob decide, as there:

| record | the last instant at which it is live |
|---|---|
| the put | the newest expiry, or the end of the retention of a newest that is a delete |
| the newest, a ttl or an undelete | that of the put; none if there is no put |
| the newest, a delete without a put | as the put's, or unknown while a replica needs it |
| the newest, a delete with a put | unknown: a run that drops the put keeps the delete |
| all others | none: it is dead |

For one bucket of hashes, whose rows fit into the CPU's cache:

1. Process the rows of all segments in position order, except dead ones. Look up each in a hash
   table, which has the newest row so far of each blob, and replace that row. Set the column of the
   row, of the one before it and of the put.
2. Process them again and add each to its column.

Column 0 is what is dead, column n the nth span of time from `as_of_ms` on, the last one everything
later. A run that begins at the end of a span drops exactly the columns up to it.

Called by `tasks.py`.
"""

from __future__ import annotations

import numpy as np

from lithify.blobs.records import BlobRecordKind
from lithify.compiled import njit

__all__ = ["add_up"]

_EMPTY = np.int64(-1)
_ROW_BITS = 32
"""A slot of the table holds some bits of a hash above the number of its row."""
_ROW_MASK = (1 << _ROW_BITS) - 1
_PUT, _DELETE = int(BlobRecordKind.PUT), int(BlobRecordKind.DELETE)


@njit(nogil=True)
def add_up(  # type: ignore[no-untyped-def]
    high, low, kinds, times_ms, expiries_ms, lengths, dead, starts, held, terms, counts, sizes
):
    """Add the rows to `counts` and `sizes`: one line per segment, one column per span of time.

    `starts[s, b]` is the first row of bucket b of segment s, `starts[s, b + 1]` the row after its
    last; segments are in position order. Changes in segments that are `held` are not dropped.
    `terms` are (as_of_ms, retention_ms, span_ms).
    """
    largest = 0
    for bucket in range(starts.shape[1] - 1):
        largest = max(largest, _table_size(starts, bucket))
    table = np.empty(largest, dtype=np.int64)
    # For each row, the column in which it is counted, and the put of its blob.
    columns, puts = np.zeros(high.size, dtype=np.uint16), np.empty(high.size, dtype=np.int32)
    for bucket in range(starts.shape[1] - 1):
        places = table[: _table_size(starts, bucket)]
        places[:] = _EMPTY
        for segment in range(starts.shape[0]):
            for row in range(starts[segment, bucket], starts[segment, bucket + 1]):
                if not dead[row]:
                    before = _replace(places, high, low, row)
                    until_ms = expiries_ms[row]
                    if kinds[row] == _DELETE:
                        until_ms = min(until_ms, times_ms[row] + terms[1])
                    column = _column_of(until_ms, terms, counts.shape[1])
                    lasts = held[segment]
                    _note(row, before, kinds, column, lasts, counts.shape[1] - 1, columns, puts)
        for segment in range(starts.shape[0]):
            for row in range(starts[segment, bucket], starts[segment, bucket + 1]):
                counts[segment, columns[row]] += 1
                sizes[segment, columns[row]] += lengths[row]


@njit(nogil=True)
def _note(row, before, kinds, column, lasts, never, columns, puts):  # type: ignore[no-untyped-def]
    """Apply `row`, the newest record of a blob so far; `before` is the one before it or -1."""
    if before >= 0:
        columns[before] = 0
    if kinds[row] == _PUT:
        if before >= 0 and puts[before] >= 0:
            columns[puts[before]] = 0
        puts[row] = row
        columns[row] = column
        return
    put = puts[before] if before >= 0 else -1
    puts[row] = put
    if put >= 0:
        columns[put] = column
    if kinds[row] == _DELETE:
        columns[row] = never if put >= 0 or lasts else column
    elif lasts:
        columns[row] = never
    elif put >= 0:
        columns[row] = column


@njit(nogil=True)
def _column_of(until_ms, terms, columns):  # type: ignore[no-untyped-def]
    """The column of the span of time that contains an instant."""
    later_ms, span_ms = until_ms - terms[0], terms[2]
    if later_ms < 0:
        return 0
    if later_ms >= (columns - 2) * span_ms:
        return columns - 1
    return later_ms // span_ms + 1


@njit(nogil=True)
def _table_size(starts, bucket):  # type: ignore[no-untyped-def]
    """A power of two of which the rows of a bucket fill at most two thirds."""
    rows = 0
    for segment in range(starts.shape[0]):
        rows += starts[segment, bucket + 1] - starts[segment, bucket]
    size = 16
    while 2 * size < 3 * rows:
        size *= 2
    return size


@njit(nogil=True)
def _replace(table, high, low, row):  # type: ignore[no-untyped-def]
    """Make a row the newest of its blob; returns the previous one, or -1."""
    mask = np.uint64(table.size - 1)
    at = low[row] & mask
    # Neither the bits that chose the slot nor the sign: an occupied slot is never negative.
    tag = np.int64(low[row] >> np.uint64(33)) << _ROW_BITS
    while True:
        found = table[at]
        if found == _EMPTY:
            table[at] = tag | row
            return -1
        if found & ~_ROW_MASK == tag:
            before = found & _ROW_MASK
            if high[before] == high[row] and low[before] == low[row]:
                table[at] = tag | row
                return before
        at = (at + np.uint64(1)) & mask
