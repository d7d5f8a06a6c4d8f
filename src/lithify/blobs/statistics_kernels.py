"""How long the records of a blob store stay live if nothing more happens; compiled, pure.

The table of `validity.py`, asked for a time instead of at one. Of each blob the newest record and
the last put decide, as there:

| record | the last instant at which it is live |
|---|---|
| the put | the newest expiry, or the end of the retention of a newest that is a delete |
| the newest, a ttl or an undelete | that of the put; none if there is no put |
| the newest, a delete without a put | as the put's, or none is known while a replica needs it |
| the newest, a delete with a put | none is known: a run that drops the put keeps the delete |
| all others | none: it is over |

For one bucket of hashes, whose rows fit into the CPU's cache:

1. Walk the rows of all segments in position order. Those that are not dead already are looked up in
   a hash table, which has the newest row so far of each blob. The row takes its place, and what it
   says of itself, of the one before it and of the put is noted: the column each belongs to.
2. Walk them again and add each to its column.

Column 0 is what is over, column n the nth span of time from `as_of_ms` on, the last one everything
behind. A run that begins at the end of a span drops exactly what the columns up to it have.

Called by `statistics_tasks.py`.
"""

from __future__ import annotations

import numpy as np

from lithify.blobs.records import Kind
from lithify.compiled import njit

__all__ = ["add_up"]

_EMPTY = np.int64(-1)
_ROW_BITS = 32
"""A place of the table has as many bits of a hash above the number of its row."""
_ROW_MASK = (1 << _ROW_BITS) - 1
_PUT, _DELETE = int(Kind.PUT), int(Kind.DELETE)


@njit(nogil=True)
def add_up(  # type: ignore[no-untyped-def]
    high, low, kinds, times_ms, expiries_ms, lengths, dead, starts, held, terms, counts, sizes
):
    """Add the rows up into `counts` and `sizes`, a line a segment and a column a span of time.

    `starts[s, b]` is the first row of bucket b of segment s, `starts[s, b + 1]` the one behind its
    last; segments are in position order. Changes in segments that are `held` do not go. `terms` are
    (as_of_ms, retention_ms, span_ms).
    """
    largest = 0
    for bucket in range(starts.shape[1] - 1):
        largest = max(largest, _table_size(starts, bucket))
    table = np.empty(largest, dtype=np.int64)
    # Of each row the column it is counted in, and the put that it speaks of.
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
    """What the newest record of a blob, `row`, says; `before` is the one before it or -1."""
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
    """The column of the span of time that an instant is in."""
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
    """Make a row the newest of its blob; the one that was it, or -1."""
    mask = np.uint64(table.size - 1)
    at = low[row] & mask
    # Not the bits that chose the place, nor the sign: a place that is taken is never negative.
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
