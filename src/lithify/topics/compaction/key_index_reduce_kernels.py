"""Drops rows of one segment that can never be live, whatever the settings; compiled, pure.

Only the winner among the rows of a key can be live, and within one order nothing but the order
decides the winner. So an index has one row per key in the segment instead of one per message.
Buckets are processed one by one, so that the hash table fits into the CPU's cache:

1. Walk the rows in position order. Keyless and opaque rows stay. A row supersedes the current
   winner of its key if it comes later (order *publish*) or its event time is not smaller (order
   *event*). Otherwise the row is superseded. Superseded rows are dropped.
2. A superseded last chunk of a message stays: earlier segments may have chunks of the message,
   which are live or dead with it.
3. A chunk belongs to the first last chunk after it with the same group and key. It is dropped if
   that one was superseded; it stays if that one was not, or is in another segment.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.topics.compaction.key_index_flags import CHUNK_LAST, CHUNK_PART, KEYLESS, OPAQUE

__all__ = ["reduce_rows"]

_DROPPED, _KEPT, _SUPERSEDED_LAST = np.uint8(0), np.uint8(1), np.uint8(2)
"""`_SUPERSEDED_LAST` marks a superseded last chunk; it becomes `_KEPT` at the end."""

_EMPTY = np.int64(-1)


@njit(nogil=True)
def reduce_rows(order, starts, high, low, flags, event_ms, group, by_event, keep):  # type: ignore[no-untyped-def]
    """Set `keep` of each row to 1 or 0; `order` and `starts` come from `bucket_order`."""
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
    """Steps 1 and 2; returns the number of chunks that are not the last."""
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
        winner = table[at]
        while winner != _EMPTY and (high[winner] != high[row] or low[winner] != low[row]):
            at = (at + np.uint64(1)) & mask
            winner = table[at]
        loser = winner
        if winner == _EMPTY or not by_event or event_ms[row] >= event_ms[winner]:
            table[at] = row
        else:
            loser = row
        if loser != _EMPTY:
            keep[loser] = _SUPERSEDED_LAST if flags[loser] & CHUNK_LAST else _DROPPED
    return parts


@njit(nogil=True)
def _drop_parts(rows, table, high, low, flags, group, keep):  # type: ignore[no-untyped-def]
    """Step 3. Walks backward, so the table has the first last chunk after each row."""
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
        elif last != _EMPTY and keep[last] == _SUPERSEDED_LAST:
            keep[row] = _DROPPED
