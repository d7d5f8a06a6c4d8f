"""Finds the winner of each key in one bucket of key index rows; compiled, pure.

The rows of a key are in the same bucket of every key index, so buckets are judged apart from each
other. For one bucket, whose rows fit into the CPU's cache:

1. Walk the rows of all segments in position order. One that is dead already is passed over, opaque
   ones stay, keyless ones as the topic says.
2. Look a keyed row up in a hash table by its 128 bits. The winner so far is replaced, and is
   superseded, if the new row comes later (order *publish*) or its event time is not smaller (order
   *event*); otherwise the new row is superseded.
3. A winner that is a tombstone goes once it was published at or before `tombstones_until_ms`,
   another one at or before `keys_until_ms`.
4. The parts of a chunked message share the fate of its last chunk, which alone stands for the key:
   the first one behind them of the same group and key. A part whose last chunk is not there is
   said to be waiting.

Invariant: a row that is dead stays dead, so that settings which change bring nothing back.
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
"""What becomes of a row."""

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
    verdicts,
):
    """Judge rows; `verdicts` has LIVE or DEAD_BEFORE for each and gets what becomes of it.

    `starts[s, b]` is the first row of bucket b of segment s, `starts[s, b + 1]` the one behind its
    last; segments are in position order.
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
            high, low, flags, event_ms, starts, bucket, by_event_time, keep_keyless, table, verdicts
        )
        for best in table:
            if best != _EMPTY:
                _let_go(best, flags, publish_ms, tombstones_until_ms, keys_until_ms, verdicts)
        if parts:
            _judge_parts(high, low, flags, group, starts, bucket, table, verdicts)


@njit(nogil=True)
def _table_size(starts, bucket):  # type: ignore[no-untyped-def]
    """A power of two of which the rows of a bucket fill at most half."""
    rows = 0
    for segment in range(starts.shape[0]):
        rows += starts[segment, bucket + 1] - starts[segment, bucket]
    size = 16
    while size < 2 * rows:
        size *= 2
    return size


@njit(nogil=True)
def _find_winners(  # type: ignore[no-untyped-def]
    high, low, flags, event_ms, starts, bucket, by_event_time, keep_keyless, table, verdicts
):
    """Steps 1 and 2; the number of chunks that stand for no key."""
    parts = 0
    for segment in range(starts.shape[0]):
        for row in range(starts[segment, bucket], starts[segment, bucket + 1]):
            if verdicts[row] != LIVE or flags[row] & OPAQUE:
                continue
            if flags[row] & KEYLESS:
                if not keep_keyless:
                    verdicts[row] = KEYLESS_DROPPED
                continue
            if flags[row] & CHUNK_PART:
                parts += 1
                continue
            at = _find(table, high, low, row)
            best = table[at]
            if best == _EMPTY:
                table[at] = row
            elif not by_event_time or event_ms[row] >= event_ms[best]:
                verdicts[best] = SUPERSEDED
                table[at] = row
            else:
                verdicts[row] = SUPERSEDED
    return parts


@njit(nogil=True)
def _let_go(best, flags, publish_ms, tombstones_until_ms, keys_until_ms, verdicts):  # type: ignore[no-untyped-def]
    """Step 3, for one winner."""
    if flags[best] & TOMBSTONE:
        if publish_ms[best] <= tombstones_until_ms:
            verdicts[best] = TOMBSTONE_DROPPED
    elif publish_ms[best] <= keys_until_ms:
        verdicts[best] = EXPIRED


@njit(nogil=True)
def _find(table, high, low, row):  # type: ignore[no-untyped-def]
    """The place of a row's key in the table, or the empty one where it belongs."""
    mask = np.uint64(table.size - 1)
    at = low[row] & mask
    while True:
        best = table[at]
        if best == _EMPTY or (high[best] == high[row] and low[best] == low[row]):
            return at
        at = (at + np.uint64(1)) & mask


@njit(nogil=True)
def _judge_parts(high, low, flags, group, starts, bucket, table, verdicts):  # type: ignore[no-untyped-def]
    """Step 4, backward: the last chunk met last is the first one behind a part."""
    table[:] = _EMPTY
    for segment in range(starts.shape[0] - 1, -1, -1):
        for row in range(starts[segment, bucket + 1] - 1, starts[segment, bucket] - 1, -1):
            if flags[row] & CHUNK_LAST and verdicts[row] != DEAD_BEFORE:
                table[_find_message(table, high, low, group, row)] = row
            elif flags[row] & CHUNK_PART and verdicts[row] == LIVE:
                last = table[_find_message(table, high, low, group, row)]
                verdicts[row] = WAITING if last == _EMPTY else verdicts[last]


@njit(nogil=True)
def _find_message(table, high, low, group, row):  # type: ignore[no-untyped-def]
    """The place of a chunked message in the table, or the empty one where it belongs."""
    mask = np.uint64(table.size - 1)
    at = (low[row] ^ group[row]) & mask
    while True:
        found = table[at]
        if found == _EMPTY or (
            group[found] == group[row] and high[found] == high[row] and low[found] == low[row]
        ):
            return at
        at = (at + np.uint64(1)) & mask
