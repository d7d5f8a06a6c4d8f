"""Compiled loops that read many values of a saved state (`bulk_read.py`). Pure.

`select` chooses the keys of a range that have a value at a revision, and the places of the values.
`collect` copies the values out of entries. Both trust nothing in an entry but its CRC, which the
scan of the frames has checked: each length is compared with the end of the entry.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import _u32, copy_bytes

__all__ = ["BROKEN", "DONE", "FULL", "GROUP_MAX", "MISSING", "collect", "select"]

DONE, FULL, BROKEN, MISSING = range(4)
"""Why `collect` stopped."""
GROUP_MAX = 1024
"""Values of one entry."""

_FRAME_HEADER_BYTES = 32
_ENVELOPE_BYTES = 8
"""Before each command in an entry (`raft/commands.py`)."""
_TRANSACTION, _REWRITE, _PUT = 1, 8, 1
_VALUE, _RANGE_UNCHANGED = 4, 5
_PRESENT = 1
_TRANSACTION_BYTES, _REWRITE_BYTES, _OPERATION_BYTES = 7, 19, 15
_COMPARE_BYTES, _RANGE_BYTES, _DIGEST_BYTES, _NUMBER_BYTES = 3, 10, 16, 8
_TOMBSTONE = 2**32 - 1


@njit(nogil=True)
def _u16(data, at):  # type: ignore[no-untyped-def]
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@njit(nogil=True)
def _is_below(keys, start, stop, bound):  # type: ignore[no-untyped-def]
    """Is a key below a bound?"""
    size = stop - start
    for at in range(min(size, len(bound))):
        if keys[start + at] != bound[at]:
            return keys[start + at] < bound[at]
    return size < len(bound)


@njit(nogil=True)
def select(  # type: ignore[no-untyped-def]
    keys,
    key_stops,
    row_counts,
    row_revisions,
    row_bytes,
    numbers,
    places,
    change_stops,
    otherwise,
    changed,
    revision,
    low,
    high,
):
    """The values of the keys in [low, high) at a revision: (place, key number, branch), total.

    In the order of revisions, and of the changes of each.
    """
    count = len(row_counts)
    newest = np.zeros(len(key_stops), np.int64)
    found = 0
    total = np.int64(0)
    row = np.int64(0)
    for key in range(count):
        rows = np.int64(row_counts[key])
        if rows == 0:
            break
        start = key_stops[key - 1] if key else np.int64(0)
        stop = key_stops[key]
        inside = not _is_below(keys, start, stop, low)
        if inside and len(high):
            inside = _is_below(keys, start, stop, high)
        if inside:
            last = row + rows - 1
            while last >= row and row_revisions[last] > revision:
                last -= 1
            if last >= row and row_bytes[last] != _TOMBSTONE:
                newest[key] = row_revisions[last]
                total += row_bytes[last]
                found += 1
        row += rows
    chosen = np.empty((3, found), np.int64)
    at = 0
    for each in range(len(numbers)):
        number = numbers[each]
        if number > revision or at == found:
            break
        for change in range(change_stops[each - 1] if each else 0, change_stops[each]):
            if newest[changed[change]] == number:
                chosen[0, at] = places[each]
                chosen[1, at] = changed[change]
                chosen[2, at] = otherwise[each]
                at += 1
    return chosen[:, :at], found, total


@njit(nogil=True)
def _after_compares(data, at, stop, count):  # type: ignore[no-untyped-def]
    """The offset after compares; above `stop` if the entry is malformed."""
    for _ in range(count):
        if at + _COMPARE_BYTES > stop:
            return stop + 1
        condition = data[at]
        at += _COMPARE_BYTES + _u16(data, at + 1)
        if condition == _RANGE_UNCHANGED:
            if at + _RANGE_BYTES > stop:
                return stop + 1
            at += _RANGE_BYTES + _u16(data, at + 8)
        elif condition == _VALUE:
            at += _DIGEST_BYTES
        elif condition > _PRESENT:
            at += _NUMBER_BYTES
    return at


@njit(nogil=True)
def _operations(data, start, stop, branch):  # type: ignore[no-untyped-def]
    """(offset of the operations of a branch, their number); above `stop` if it is malformed."""
    if stop - start >= _REWRITE_BYTES and data[start] == _REWRITE:
        return start + _REWRITE_BYTES, _u16(data, start + 17)
    if stop - start < _TRANSACTION_BYTES or data[start] != _TRANSACTION:
        return stop + 1, np.int64(0)
    then, others = _u16(data, start + 3), _u16(data, start + 5)
    at = _after_compares(data, start + _TRANSACTION_BYTES, stop, _u16(data, start + 1))
    if branch == 0:
        return at, then
    for _ in range(then):
        if at + _OPERATION_BYTES > stop:
            return stop + 1, np.int64(0)
        at += _OPERATION_BYTES + _u16(data, at + 1) + np.int64(_u32(data, at + 3))
    return at, others


@njit(nogil=True)
def _same(keys, start, stop, data, at, size):  # type: ignore[no-untyped-def]
    if stop - start != size:
        return False
    each = 0
    while each < size and keys[start + each] == data[at + each]:
        each += 1
    return each == size


@njit(nogil=True)
def _find(data, at, count, stop, keys, key_stops, numbers, spans):  # type: ignore[no-untyped-def]
    """Find the values of keys among operations; False if the entry is malformed."""
    wanted = len(numbers)
    expected = 0
    for _ in range(count):
        if at + _OPERATION_BYTES > stop:
            return False
        kind, key_bytes = data[at], _u16(data, at + 1)
        value_bytes = np.int64(_u32(data, at + 3))
        at += _OPERATION_BYTES
        if at + key_bytes + value_bytes > stop:
            return False
        if kind == _PUT:
            for step in range(wanted):
                # Most often the keys are in the order of the operations.
                place = expected + step
                if place >= wanted:
                    place -= wanted
                key = numbers[place]
                start = key_stops[key - 1] if key else np.int64(0)
                if _same(keys, start, key_stops[key], data, at, key_bytes):
                    # A later operation on the same key replaces an earlier one.
                    spans[0, place] = at + key_bytes
                    spans[1, place] = value_bytes
                    expected = place + 1 if place + 1 < wanted else 0
                    break
        at += key_bytes + value_bytes
    return True


@njit(nogil=True)
def collect(  # type: ignore[no-untyped-def]
    data, offsets, positions, first, chosen, cursor, keys, key_stops, out, ends, filled
):
    """Copy the values of chosen keys out of frames, from the frame `first` on.

    `cursor` is the next chosen one, `filled` the values in `out`, each of which ends at its `ends`.
    Returns (status, frame at which it stopped, cursor, filled).
    """
    spans = np.empty((2, GROUP_MAX), np.int64)
    places = chosen[0]
    stop_at = len(places)
    at = ends[filled - 1] if filled else np.int64(0)
    frame = first
    while frame < len(offsets) and cursor < stop_at:
        position = positions[frame]
        if places[cursor] < position:
            return MISSING, frame, cursor, filled
        if places[cursor] > position:
            frame += 1
            continue
        last = cursor + 1
        # One entry has at most this number of values.
        while last < stop_at and places[last] == position and last - cursor < GROUP_MAX:
            last += 1
        begin = offsets[frame] + _FRAME_HEADER_BYTES
        end = begin + np.int64(_u32(data, offsets[frame] + 4))
        spans[0, : last - cursor] = -1
        start, count = _operations(data, begin + _ENVELOPE_BYTES, end, chosen[2, cursor])
        numbers = chosen[1, cursor:last]
        if not _find(data, start, count, end, keys, key_stops, numbers, spans):
            return BROKEN, frame, cursor, filled
        size = np.int64(0)
        for each in range(last - cursor):
            if spans[0, each] < 0:
                return MISSING, frame, cursor, filled
            size += spans[1, each]
        if filled + last - cursor > len(ends) or at + size > len(out):
            return FULL, frame, cursor, filled
        for each in range(last - cursor):
            copy_bytes(out, at, data, spans[0, each], spans[1, each])
            at += spans[1, each]
            ends[filled] = at
            filled += 1
        cursor = last
        frame += 1
    return DONE, frame, cursor, filled
