"""Finds the winner of each key in one bucket of key index rows; compiled, pure.

All rows of a key are in the same bucket of every key index, so buckets are independent. For one
bucket, whose rows fit into the CPU's cache:

1. Walk the rows of all segments in position order. Skip rows that are already dead. Opaque rows
   stay; keyless rows stay or are dropped by the topic's setting.
2. Look up a keyed row in a hash table by its 128-bit hash. The new row supersedes the current
   winner if it comes later (order *publish*) or its event time is not smaller (order *event*).
   Otherwise the new row is superseded.
3. Drop a winner that is a tombstone if it was published at or before `tombstones_until_ms`, and any
   other winner if it was published at or before `keys_until_ms`.
4. The last chunk of a chunked message decides for all its chunks: a chunk is as live as the
   first last chunk after it with the same group and key. A chunk without one is *waiting*.

Invariant: a dead row stays dead, so a changed setting never restores a message.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.topics.compaction.key_index_flags import (
    CHUNK_LAST,
    CHUNK_PART,
    KEYLESS,
    OPAQUE,
    TOMBSTONE,
)

__all__ = [
    "DEAD_BEFORE",
    "EXPIRED",
    "KEYLESS_DROPPED",
    "LIVE",
    "SUPERSEDED",
    "TOMBSTONE_DROPPED",
    "WAITING",
    "judge_buckets",
]

LIVE, DEAD_BEFORE, SUPERSEDED, TOMBSTONE_DROPPED, KEYLESS_DROPPED, EXPIRED, WAITING = range(7)
"""Verdicts of a row."""

_EMPTY = np.int32(-1)


@njit(nogil=True)
def judge_buckets(  # type: ignore[no-untyped-def]
    high,
    low,
    flags,
    publish_ms,
    event_ms,
    group,
    starts,
    by_event_time,
    keep_keyless,
    tombstones_until_ms,
    keys_until_ms,
    liveness,
):
    """Compute `liveness` in place; on entry it has LIVE or DEAD_BEFORE for each row.

    Bucket b of segment s has the rows from `starts[s, b]` up to, but not including,
    `starts[s, b + 1]`. Segments are in position order.
    """
    buckets = starts.shape[1] - 1
    largest = 0
    for bucket in range(buckets):
        largest = max(largest, _table_size(starts, bucket))
    places = np.empty(largest, dtype=np.int32)
    for bucket in range(buckets):
        table = places[: _table_size(starts, bucket)]
        table[:] = _EMPTY
        parts = _find_winners(
            high, low, flags, event_ms, starts, bucket, by_event_time, keep_keyless, table, liveness
        )
        for winner in table:
            if winner != _EMPTY:
                _expire(winner, flags, publish_ms, tombstones_until_ms, keys_until_ms, liveness)
        if parts:
            _judge_parts(high, low, flags, group, starts, bucket, table, liveness)


@njit(nogil=True)
def _table_size(starts, bucket):  # type: ignore[no-untyped-def]
    """The least power of two that the rows of a bucket fill to at most half."""
    rows = 0
    for segment in range(starts.shape[0]):
        rows += starts[segment, bucket + 1] - starts[segment, bucket]
    size = 16
    while size < 2 * rows:
        size *= 2
    return size


@njit(nogil=True)
def _find_winners(  # type: ignore[no-untyped-def]
    high, low, flags, event_ms, starts, bucket, by_event_time, keep_keyless, table, liveness
):
    """Steps 1 and 2; returns the number of live chunks that are not the last."""
    parts = 0
    for segment in range(starts.shape[0]):
        for row in range(starts[segment, bucket], starts[segment, bucket + 1]):
            if liveness[row] != LIVE or flags[row] & OPAQUE:
                continue
            if flags[row] & KEYLESS:
                if not keep_keyless:
                    liveness[row] = KEYLESS_DROPPED
                continue
            if flags[row] & CHUNK_PART:
                parts += 1
                continue
            at = _key_slot(table, high, low, row)
            winner = table[at]
            if winner == _EMPTY:
                table[at] = row
            elif not by_event_time or event_ms[row] >= event_ms[winner]:
                liveness[winner] = SUPERSEDED
                table[at] = row
            else:
                liveness[row] = SUPERSEDED
    return parts


@njit(nogil=True)
def _expire(winner, flags, publish_ms, tombstones_until_ms, keys_until_ms, liveness):  # type: ignore[no-untyped-def]
    """Step 3 for one winner."""
    if flags[winner] & TOMBSTONE:
        if publish_ms[winner] <= tombstones_until_ms:
            liveness[winner] = TOMBSTONE_DROPPED
    elif publish_ms[winner] <= keys_until_ms:
        liveness[winner] = EXPIRED


@njit(nogil=True)
def _key_slot(table, high, low, row):  # type: ignore[no-untyped-def]
    """The table slot of a row's key, or the empty slot for it."""
    mask = np.uint64(table.size - 1)
    at = low[row] & mask
    while True:
        winner = table[at]
        if winner == _EMPTY or (high[winner] == high[row] and low[winner] == low[row]):
            return at
        at = (at + np.uint64(1)) & mask


@njit(nogil=True)
def _judge_parts(high, low, flags, group, starts, bucket, table, liveness):  # type: ignore[no-untyped-def]
    """Step 4. Walks backward, so the table has the first last chunk after each row."""
    table[:] = _EMPTY
    for segment in range(starts.shape[0] - 1, -1, -1):
        for row in range(starts[segment, bucket + 1] - 1, starts[segment, bucket] - 1, -1):
            if flags[row] & CHUNK_LAST and liveness[row] != DEAD_BEFORE:
                table[_message_slot(table, high, low, group, row)] = row
            elif flags[row] & CHUNK_PART and liveness[row] == LIVE:
                last = table[_message_slot(table, high, low, group, row)]
                liveness[row] = WAITING if last == _EMPTY else liveness[last]


@njit(nogil=True)
def _message_slot(table, high, low, group, row):  # type: ignore[no-untyped-def]
    """The table slot of a chunked message, or the empty slot for it."""
    mask = np.uint64(table.size - 1)
    at = (low[row] ^ group[row]) & mask
    while True:
        last = table[at]
        if last == _EMPTY or (
            group[last] == group[row] and high[last] == high[row] and low[last] == low[row]
        ):
            return at
        at = (at + np.uint64(1)) & mask
