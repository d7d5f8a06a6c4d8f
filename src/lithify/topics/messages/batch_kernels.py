"""Compiled loops that remove dead messages from batches.

`topics/compaction/shrink_batches.py` describes the operation and is the only caller. Entries come
from producers and are untrusted; `protobuf_fields.py` has the rules for memory safety. Unreadable
input yields a problem code, never a read out of bounds.

Shrinking a batch takes four steps:

1. `_read_metadata` finds the slots that are stored: all of them, or, in a batch that was shrunk
   before, those in `compacted_batch_indexes` (field 31).
2. `_find_ranges` walks the stored messages and collects the byte ranges of the slots to keep.
   Adjacent ranges are merged. Each slot to keep must be stored.
3. `_write_head` and `_shrink` write the new entry: metadata without fields 9 and 31, new values of
   these two, the ranges, then the CRCs of entry and frame.
4. `_is_valid` parses the new entry as steps 1 and 2 do and compares.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import copy_bytes, crc32c_of
from lithify.topics.messages.message import FLAG_SHRUNK
from lithify.topics.messages.protobuf_fields import (
    BYTES,
    NOTHING,
    NUMBER,
    PAIR,
    _field,
    collect_numbers,
    table_of,
    u32_of,
    walk,
)

__all__ = [
    "BAD_CHECK",
    "BAD_METADATA",
    "BAD_PAYLOAD",
    "BAD_SLOTS",
    "ENCRYPTED",
    "MISSING_SLOT",
    "OK",
    "PACKED",
    "classify",
    "entry_bytes_max",
    "keep_slots",
    "list_messages",
    "shrink_frames",
]

OK, BAD_METADATA, BAD_SLOTS, BAD_PAYLOAD, MISSING_SLOT, ENCRYPTED, BAD_CHECK, PACKED = range(8)
"""Problem codes. `PACKED` is no error: the payload must be decompressed first."""

_HEADER = 32
_FLAGS_HIGH = 17
"""Offset of the high byte of the flags in a frame header."""
_SHRUNK_HIGH = FLAG_SHRUNK >> 8

_FIELD_BYTES_MAX = 7
"""Two bytes for a field number below 2048, at most five for a 32-bit number."""

_CODEC, _SIZE, _MESSAGES, _FIELDS = range(4)
_HAS_KEYS, _HAS_SIZE = 1, 2
_NAME, _SEQUENCE, _TIME = 4, 8, 16
_REQUIRED = _NAME | _SEQUENCE | _TIME
_INDEXES = 31
_METADATA = table_of(
    (1, BYTES, _NAME, -1, NOTHING),
    (2, NUMBER, _SEQUENCE, -1, NOTHING),
    (3, NUMBER, _TIME, -1, NOTHING),
    (4, BYTES, 0, -1, PAIR),
    (8, NUMBER, 0, _CODEC, NOTHING),
    (9, NUMBER, _HAS_SIZE, _SIZE, NOTHING),
    (11, NUMBER, 0, _MESSAGES, NOTHING),
    (13, BYTES, _HAS_KEYS, -1, NOTHING),
)
_REPLACED = (9 << 3 | NUMBER, _INDEXES << 3 | NUMBER, _INDEXES << 3 | BYTES)

_VALUE_BYTES, _PLACEHOLDER = 0, 1
_HAS_VALUE_BYTES = 1
_SINGLE = table_of(
    (1, BYTES, 0, -1, PAIR),
    (3, NUMBER, _HAS_VALUE_BYTES, _VALUE_BYTES, NOTHING),
    (4, NUMBER, 0, _PLACEHOLDER, NOTHING),
)


@njit(nogil=True)
def _length(buffer, at):  # type: ignore[no-untyped-def]
    """The length of the body of the frame at `at`, little-endian."""
    return (
        np.int64(buffer[at + 4])
        | np.int64(buffer[at + 5]) << 8
        | np.int64(buffer[at + 6]) << 16
        | np.int64(buffer[at + 7]) << 24
    )


@njit(nogil=True)
def _put_u32(out, at, value):  # type: ignore[no-untyped-def]
    for byte in range(4):
        out[at + byte] = (value >> (24 - 8 * byte)) & 0xFF


@njit(nogil=True)
def _put_number(out, at, field, value):  # type: ignore[no-untyped-def]
    """Write a number field; the offset after it."""
    for each in (np.int64(field << 3 | NUMBER), np.int64(value)):
        left = each
        while left >= 0x80:
            out[at] = left & 0x7F | 0x80
            left >>= 7
            at += 1
        out[at] = left
        at += 1
    return at


@njit(nogil=True)
def _locate(data, begin, stop):  # type: ignore[no-untyped-def]
    """Offsets of (CRC or -1, metadata size, payload or -1 if malformed)."""
    at, crc = begin, np.int64(-1)
    if stop - at >= 6 and data[at] == 0x0E and data[at + 1] == 0x02:
        at += 6 + min(u32_of(data, at + 2), stop - at - 6)
    if stop - at >= 6 and data[at] == 0x0E and data[at + 1] == 0x01:
        crc = at + 2
        at += 6
    if stop - at < 4 or u32_of(data, at) > stop - at - 4:
        return crc, at, np.int64(-1)
    return crc, at, at + 4 + u32_of(data, at)


@njit(nogil=True)
def _read_metadata(data, at, stop, shrunk, slots_stop, fields):  # type: ignore[no-untyped-def]
    """(problem, stored slots) of the metadata in `at..stop`; fills in `fields`.

    If all slots are stored, only those below `slots_stop` are returned. The size in `fields` is -1
    if the metadata has none.
    """
    none = np.empty(0, dtype=np.int64)
    fields[:, 0] = 0
    flags = walk(data, at, stop, _METADATA, fields, 0)
    if flags < 0 or flags & _REQUIRED != _REQUIRED:
        return BAD_METADATA, none
    if flags & _HAS_KEYS:
        return ENCRYPTED, none
    fields[_SIZE, 0] = fields[_SIZE, 0] & 0xFFFFFFFF if flags & _HAS_SIZE else -1
    messages = np.int64(np.int32(fields[_MESSAGES, 0]))
    if messages < 1:
        return BAD_SLOTS, none
    if not shrunk:
        return OK, np.arange(min(messages, slots_stop))
    stored = collect_numbers(data, at, stop, _INDEXES)
    before = np.int64(-1)
    for slot in stored:
        if slot <= before or slot >= messages:
            return BAD_SLOTS, none
        before = slot
    return (OK if stored.size else BAD_SLOTS), stored


@njit(nogil=True)
def _message(data, at, stop, fields):  # type: ignore[no-untyped-def]
    """(end of the batch message at `at` or -1 if malformed, whether it is a placeholder)."""
    if stop - at < 4 or u32_of(data, at) > stop - at - 4:
        return np.int64(-1), False
    begin = at + 4 + u32_of(data, at)
    fields[_PLACEHOLDER, 0] = 0
    flags = walk(data, at + 4, begin, _SINGLE, fields, 0)
    size = np.int64(np.int32(fields[_VALUE_BYTES, 0]))
    if flags != _HAS_VALUE_BYTES or size < 0 or size > stop - begin:
        return np.int64(-1), False
    return begin + size, fields[_PLACEHOLDER, 0] != 0


@njit(nogil=True)
def _slots_in(words, first, slots):  # type: ignore[no-untyped-def]
    """The slots whose bits are set in a mask, in ascending order."""
    chosen = np.empty(slots, dtype=np.int64)
    count = 0
    for slot in range(slots):
        if (words[first + (slot >> 6)] >> np.uint64(slot & 63)) & np.uint64(1):
            chosen[count] = slot
            count += 1
    return chosen[:count]


@njit(nogil=True)
def _find_ranges(data, at, stop, stored, kept, begins, ends, fields):  # type: ignore[no-untyped-def]
    """(problem, number of ranges, bytes in them) of the messages whose slots are in `kept`."""
    matched, ranges, size = 0, 0, np.int64(0)
    for slot in stored:
        if matched == kept.size:
            break
        end, is_placeholder = _message(data, at, stop, fields)
        if end < 0:
            return BAD_PAYLOAD, 0, size
        if kept[matched] == slot:
            if is_placeholder:
                return MISSING_SLOT, 0, size
            if ranges and ends[ranges - 1] == at:
                ends[ranges - 1] = end
            else:
                begins[ranges] = at
                ends[ranges] = end
                ranges += 1
            size += end - at
            matched += 1
        at = end
    if matched < kept.size or not matched:
        return MISSING_SLOT, 0, size
    return OK, ranges, size


@njit(nogil=True)
def _write_head(out, at, data, begin, head, payload, kept, size):  # type: ignore[no-untyped-def]
    """Write an entry up to its payload; the offset of the payload.

    `size` is the value of field 9, -1 to omit the field.
    """
    start = at + head - begin
    copy_bytes(out, at, data, begin, head - begin)
    to = start + 4
    field = run = head + 4
    while field < payload:
        tag, _, end = _field(data, field, payload)
        if tag in _REPLACED:
            copy_bytes(out, to, data, run, field - run)
            to += field - run
            run = end
        field = end
    copy_bytes(out, to, data, run, payload - run)
    to += payload - run
    if size >= 0:
        to = _put_number(out, to, 9, size)
    for slot in kept:
        to = _put_number(out, to, _INDEXES, slot)
    _put_u32(out, start, to - start - 4)
    return to


@njit(nogil=True)
def _is_valid(data, begin, stop, kept, slots_stop, fields):  # type: ignore[no-untyped-def]
    """Whether `data[begin:stop]` is a batch of exactly the slots in `kept`.

    Checks an uncompressed payload; `keep_slots` has checked a compressed one.
    """
    _, head, payload = _locate(data, begin, stop)
    if payload < 0:
        return False
    shrunk = True
    problem, stored = _read_metadata(data, head + 4, payload, shrunk, slots_stop, fields)
    if problem != OK or not np.array_equal(stored, kept):
        return False
    return fields[_CODEC, 0] != 0 or _has_messages(data, payload, stop, kept.size, fields)


@njit(nogil=True)
def _has_messages(data, at, stop, messages, fields):  # type: ignore[no-untyped-def]
    """Whether `data[at:stop]` is exactly `messages` messages, none of them a placeholder."""
    for _ in range(messages):
        at, is_placeholder = _message(data, at, stop, fields)
        if at < 0 or is_placeholder:
            return False
    return at == stop


@njit(nogil=True)
def entry_bytes_max(length, slots):  # type: ignore[no-untyped-def]
    """Upper bound of the length of a shrunk entry, which lists its slots."""
    return length + (slots + 1) * _FIELD_BYTES_MAX


@njit(nogil=True)
def classify(buffer, offsets, rows, slots, starts, words, codecs, payloads, sizes):  # type: ignore[no-untyped-def]
    """Find codec, payload offset and uncompressed size of each frame with a row (not -1).

    The codec is also 0 for a frame that loses no message. Returns (first frame with a problem or
    -1, problem).
    """
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    for frame in range(offsets.size):
        codecs[frame] = 0
        if rows[frame] < 0:
            continue
        at, row = offsets[frame], rows[frame]
        stop = at + _HEADER + _length(buffer, at)
        _, head, payload = _locate(buffer, at + _HEADER, stop)
        if payload < 0:
            return frame, BAD_METADATA
        shrunk = buffer[at + _FLAGS_HIGH] & _SHRUNK_HIGH != 0
        problem, stored = _read_metadata(
            buffer, head + 4, payload, shrunk, np.int64(slots[row]), fields
        )
        if problem != OK:
            return frame, problem
        kept = _slots_in(words, starts[row], np.int64(slots[row]))
        if shrunk and np.array_equal(stored, kept):
            continue
        codecs[frame] = fields[_CODEC, 0]
        payloads[frame] = payload
        sizes[frame] = max(fields[_SIZE, 0], 0)
    return -1, OK


@njit(nogil=True)
def keep_slots(buffer, at, plain, slots, words, first, out):  # type: ignore[no-untyped-def]
    """Copy the retained messages of the frame at `at` from `plain` to `out`.

    `plain` is the decompressed payload.

    Returns (problem, bytes in `out`).
    """
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    stop = at + _HEADER + _length(buffer, at)
    _, head, payload = _locate(buffer, at + _HEADER, stop)
    shrunk = buffer[at + _FLAGS_HIGH] & _SHRUNK_HIGH != 0
    problem, stored = _read_metadata(buffer, head + 4, payload, shrunk, slots, fields)
    kept = _slots_in(words, first, slots)
    begins = np.empty(slots, dtype=np.int64)
    ends = np.empty(slots, dtype=np.int64)
    ranges = 0
    if problem == OK:
        problem, ranges, _ = _find_ranges(plain, 0, plain.size, stored, kept, begins, ends, fields)
    to = 0
    for row in range(ranges):
        copy_bytes(out, to, plain, begins[row], ends[row] - begins[row])
        to += ends[row] - begins[row]
    if problem == OK and not _has_messages(out, 0, to, kept.size, fields):
        problem = BAD_CHECK
    return problem, to


@njit(nogil=True)
def list_messages(plain, ends):  # type: ignore[no-untyped-def]
    """Fill `ends` with the end of each message, -end for placeholders; False if malformed."""
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    at = np.int64(0)
    for row in range(ends.size):
        at, is_placeholder = _message(plain, at, plain.size, fields)
        if at < 0:
            return False
        ends[row] = -at if is_placeholder else at
    return True


@njit(nogil=True)
def _seal(out, to, crc, start, end):  # type: ignore[no-untyped-def]
    """Complete the frame at `to..end`: the entry's CRC from `start` on, length, flag, frame CRC."""
    if crc >= 0:
        _put_u32(out, crc, np.int64(crc32c_of(out, start, end)))
    length = end - to - _HEADER
    for byte in range(4):
        out[to + 4 + byte] = (length >> 8 * byte) & 0xFF
    out[to + _FLAGS_HIGH] |= _SHRUNK_HIGH
    whole = np.int64(crc32c_of(out, to + 4, end))
    for byte in range(4):
        out[to + byte] = (whole >> 8 * byte) & 0xFF


@njit(nogil=True)
def _shrink(buffer, at, kept, slots, packed, plain_bytes, begins, ends, fields, out, to):  # type: ignore[no-untyped-def]
    """Write the frame at `at` with only the slots in `kept`; (problem, offset after it).

    `packed` is the new compressed payload and `plain_bytes` its uncompressed size. Without one
    `plain_bytes` is -1, and a compressed batch is the problem `PACKED`.
    """
    begin = at + _HEADER
    stop = begin + _length(buffer, at)
    crc, head, payload = _locate(buffer, begin, stop)
    if payload < 0:
        return BAD_METADATA, to
    shrunk = buffer[at + _FLAGS_HIGH] & _SHRUNK_HIGH != 0
    problem, stored = _read_metadata(buffer, head + 4, payload, shrunk, slots, fields)
    if problem != OK:
        return problem, to
    if shrunk and np.array_equal(stored, kept):
        copy_bytes(out, to, buffer, at, stop - at)
        return OK, to + stop - at
    has_size = fields[_SIZE, 0] >= 0 or fields[_CODEC, 0] != 0
    ranges = 0
    if plain_bytes < 0:
        problem = PACKED
        if fields[_CODEC, 0] == 0:
            problem, ranges, plain_bytes = _find_ranges(
                buffer, payload, stop, stored, kept, begins, ends, fields
            )
        if problem != OK:
            return problem, to
    copy_bytes(out, to, buffer, at, _HEADER)
    size = plain_bytes if has_size else np.int64(-1)
    end = _write_head(out, to + _HEADER, buffer, begin, head, payload, kept, size)
    copy_bytes(out, end, packed, 0, packed.size)
    end += packed.size
    for row in range(ranges):
        copy_bytes(out, end, buffer, begins[row], ends[row] - begins[row])
        end += ends[row] - begins[row]
    moved = to + _HEADER - begin
    _seal(out, to, crc + moved if crc >= 0 else crc, head + moved, end)
    if not _is_valid(out, to + _HEADER, end, kept, slots, fields):
        return BAD_CHECK, to
    return OK, end


@njit(nogil=True)
def shrink_frames(  # type: ignore[no-untyped-def]
    buffer, offsets, rows, slots, starts, words, packed, packed_starts, plain_sizes, out, places
):
    """Copy frames to `out`; a frame with a row (not -1) keeps only the slots of the row's mask.

    A frame whose `plain_sizes` is not -1 has its new compressed payload in
    `packed[packed_starts[frame]:packed_starts[frame + 1]]`. Fills `places` with the offset of each
    frame in `out`. Returns (bytes in `out`, first frame with a problem or -1, problem).
    """
    most = slots.max() if slots.size else np.uint32(0)
    begins = np.empty(most, dtype=np.int64)
    ends = np.empty(most, dtype=np.int64)
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    to = np.int64(0)
    for frame in range(offsets.size):
        at, row = offsets[frame], rows[frame]
        places[frame] = to
        if row < 0:
            size = _HEADER + _length(buffer, at)
            copy_bytes(out, to, buffer, at, size)
            to += size
            continue
        problem, to = _shrink(
            buffer,
            at,
            _slots_in(words, starts[row], np.int64(slots[row])),
            np.int64(slots[row]),
            packed[packed_starts[frame] : packed_starts[frame + 1]],
            plain_sizes[frame],
            begins,
            ends,
            fields,
            out,
            to,
        )
        if problem != OK:
            return to, frame, problem
    return to, -1, OK
