"""Drops rows of one segment that can never be live, whatever the settings; compiled, pure.

Of the rows of a key only the winner counts, and what wins depends on the topic's order alone. So an
index has a row for each key that its segment holds, not for each message. Bucket by bucket, so that
the table is in the CPU's cache:

1. Walk the rows in their order. Rows without a key and opaque ones stay. The winner so far of a key
   is superseded by a row that comes later (order *publish*) or whose event time is not smaller
   (order *event*); otherwise the new row is superseded. Superseded rows go.
2. The last chunk of a message stands for it and stays even if it is superseded: parts of the same
   message may be in an earlier segment, and share its fate.
3. A part belongs to the first last chunk of its group and key behind it. It goes if that one was
   superseded, and stays if that one was not or is in another segment.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.topics.compaction.key_index_flags import CHUNK_LAST, CHUNK_PART, KEYLESS, OPAQUE

__all__ = ["reduce_rows"]

_DROPPED, _KEPT, _LOST = np.uint8(0), np.uint8(1), np.uint8(2)
"""A lost row is a last chunk that was superseded; at the end it counts as kept."""

_EMPTY = np.int64(-1)


@njit(nogil=True)
def reduce_rows(order, starts, high, low, flags, event_ms, group, by_event, keep):  # type: ignore[no-untyped-def]
    """Set `keep` of each row to 1 or 0; `order` and `starts` are those of `bucket_order`."""
    largest = 1
    for bucket in range(starts.size - 1):
        largest = max(largest, starts[bucket + 1] - starts[bucket])
    table = np.empty(_table_size(largest), dtype=np.int64)
    for bucket in range(starts.size - 1):
        rows = order[starts[bucket] : starts[bucket + 1]]
        size = _table_size(rows.size)
        parts = _find_winners(rows, table[:size], high, low, flags, event_ms, by_event, keep)
        if parts:
            _drop_parts(rows, table[:size], high, low, flags, group, keep)
    for row in order:
        keep[row] = min(keep[row], _KEPT)


@njit(nogil=True)
def _table_size(rows):  # type: ignore[no-untyped-def]
    size = 16
    while size < 2 * rows:
        size *= 2
    return size


@njit(nogil=True)
def _find_winners(rows, table, high, low, flags, event_ms, by_event, keep):  # type: ignore[no-untyped-def]
    """Steps 1 and 2; the number of parts."""
    parts = 0
    table[:] = _EMPTY
    mask = np.uint64(table.size - 1)
    for row in rows:
        keep[row] = _KEPT
        if flags[row] & (KEYLESS | OPAQUE):
            continue
        if flags[row] & CHUNK_PART:
            parts += 1
            continue
        at = low[row] & mask
        best = table[at]
        while best != _EMPTY and (high[best] != high[row] or low[best] != low[row]):
            at = (at + np.uint64(1)) & mask
            best = table[at]
        loser = best
        if best == _EMPTY or not by_event or event_ms[row] >= event_ms[best]:
            table[at] = row
        else:
            loser = row
        if loser != _EMPTY:
            keep[loser] = _LOST if flags[loser] & CHUNK_LAST else _DROPPED
    return parts


@njit(nogil=True)
def _drop_parts(rows, table, high, low, flags, group, keep):  # type: ignore[no-untyped-def]
    """Step 3: from the end, so that the first last chunk behind a part is the one in the table."""
    table[:] = _EMPTY
    mask = np.uint64(table.size - 1)
    for number in range(rows.size - 1, -1, -1):
        row = rows[number]
        if flags[row] & (KEYLESS | OPAQUE) or not flags[row] & (CHUNK_PART | CHUNK_LAST):
            continue
        at = (low[row] ^ group[row]) & mask
        last = table[at]
        while last != _EMPTY and (
            group[last] != group[row] or high[last] != high[row] or low[last] != low[row]
        ):
            at = (at + np.uint64(1)) & mask
            last = table[at]
        if flags[row] & CHUNK_LAST:
            table[at] = row
        elif last != _EMPTY and keep[last] == _LOST:
            keep[row] = _DROPPED
