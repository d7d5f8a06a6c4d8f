"""Compiled loops that find where the fields of messages stand, to cut columns out. Pure.

`arrow_rows.py` is the only caller. `walk_frames` goes from entry to entry and puts a row for each
message: its numbers, and where its key, value, producer and metadata begin and end. It stops

1. when the rows are full, at the entry that does not fit (`FULL`);
2. at a payload that is compressed and has to be opened (`PACKED`): any batch, and a single message
   whose value is wanted. The caller opens it and goes on with `walk_plain`;
3. at an entry that is not as it says (`BROKEN`).

A server marker is no message and gets no row. A batch that is encrypted is one message, as it is to
everybody without the key.

Nothing is copied here but by `gather`, which puts the bytes of one column side by side. The rule
that keeps reads inside the array is that of `topics/messages/protobuf_fields.py`.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import _u32, _u64, copy_bytes
from lithify.topics.messages.key_siphash import decode_base64
from lithify.topics.messages.message_fields import (
    BATCH,
    BATCH_INDEXES,
    CODEC_MAX,
    ENCRYPTED,
    FIRST,
    KEYED,
    MARKER,
    MESSAGE_BYTES_MIN,
    REQUIRED,
    metadata_table,
    single_table,
)
from lithify.topics.messages.protobuf_fields import (
    BYTES,
    SPAN,
    _field,
    collect_numbers,
    find_metadata,
    table_of,
    u32_of,
    walk,
)

__all__ = [
    "BROKEN",
    "COLUMNS",
    "EMPTY",
    "END",
    "EVENT",
    "FULL",
    "HEAD",
    "KEY",
    "PACKED",
    "PAUSE",
    "POSITION",
    "PRODUCER",
    "PUBLISH",
    "SEQUENCE",
    "SLOT",
    "VALUE",
    "count_pairs",
    "decode_keys",
    "gather",
    "span_pairs",
    "walk_frames",
    "walk_plain",
]

END, FULL, PACKED, BROKEN = range(4)
"""Why a loop stopped."""

PAUSE = 4
"""Numbers about a pause. `FULL`: the rows that are needed. `PACKED`: where the payload begins and
ends, its codec, and its size when it is opened."""

COLUMNS = 15
POSITION, SLOT, PUBLISH, EVENT, SEQUENCE, EMPTY, BASE64 = range(7)
KEY, VALUE, PRODUCER, HEAD = 7, 9, 11, 13
"""Columns of rows. The last four are two each, where it begins and where it ends; a key that is not
there begins at -1. `HEAD` is the message's own metadata, in which its properties stand."""

_FIELDS = 14
(
    _PUBLISH,
    _EVENT,
    _SEQUENCE,
    _KEY,
    _KEY_STOP,
    _BASE64,
    _NULL_KEY,
    _NULL_VALUE,
    _SIZE,
    _CODEC,
    _MESSAGES,
    _PRODUCER,
    _PRODUCER_STOP,
    _OUT,
) = range(_FIELDS)

_METADATA = metadata_table(
    producer_name=_PRODUCER,
    sequence_id=_SEQUENCE,
    publish_time=_PUBLISH,
    partition_key=_KEY,
    compression=_CODEC,
    uncompressed_size=_SIZE,
    num_messages_in_batch=_MESSAGES,
    event_time=_EVENT,
    partition_key_b64_encoded=_BASE64,
    null_value=_NULL_VALUE,
    null_partition_key=_NULL_KEY,
)
_SINGLE = single_table(
    partition_key=_KEY,
    payload_size=_SIZE,
    compacted_out=_OUT,
    event_time=_EVENT,
    partition_key_b64_encoded=_BASE64,
    sequence_id=_SEQUENCE,
    null_value=_NULL_VALUE,
    null_partition_key=_NULL_KEY,
)
_PAIR_KEY, _PAIR_VALUE = 0, 2
_PAIR = table_of((1, BYTES, 0, _PAIR_KEY, SPAN), (2, BYTES, 0, _PAIR_VALUE, SPAN))

_HEADER_BYTES = 32
_FLAG_SHRUNK = 0x0400
_VALUES = True
"""What is opened is wanted."""

# An array that is handed to a function is copied field by field, which takes longer than the rest
# where that is done for each message.
_inlined = njit(nogil=True, inline="always")


@_inlined
def _put(flags, fields, at, stop, head, head_stop, rows, row):  # type: ignore[no-untyped-def]
    """What is the same in an entry's metadata and in that of a message in a batch."""
    rows[EVENT, row] = fields[_EVENT, 0]
    rows[SEQUENCE, row] = fields[_SEQUENCE, 0]
    rows[BASE64, row] = fields[_BASE64, 0]
    keyed = flags & KEYED != 0 and fields[_NULL_KEY, 0] == 0
    rows[KEY, row] = fields[_KEY, 0] if keyed else -1
    rows[KEY + 1, row] = fields[_KEY_STOP, 0] if keyed else -1
    rows[EMPTY, row] = 1 if stop == at or fields[_NULL_VALUE, 0] != 0 else 0
    rows[VALUE, row] = at
    rows[VALUE + 1, row] = stop
    rows[HEAD, row] = head
    rows[HEAD + 1, row] = head_stop


@njit(nogil=True)
def _walk_batch(source, at, stop, slots, position, outer, rows, row):  # type: ignore[no-untyped-def]
    """Put the rows of a batch's opened payload; how many, -1 if it is not as it says."""
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    first = row
    for number in range(slots.size):
        if stop - at < 4 or u32_of(source, at) > stop - at - 4:
            return np.int64(-1)
        begin = at + 4 + u32_of(source, at)
        fields[:, 0] = 0
        flags = walk(source, at + 4, begin, _SINGLE, fields, 0)
        size = np.int64(np.int32(fields[_SIZE, 0]))
        if flags < 0 or not flags & FIRST or size < 0 or size > stop - begin:
            return np.int64(-1)
        if fields[_OUT, 0] == 0:
            _put(flags, fields, begin, begin + size, at + 4, begin, rows, row)
            rows[POSITION, row] = position
            rows[SLOT, row] = slots[number]
            rows[PUBLISH, row] = outer[_PUBLISH, 0]
            rows[PRODUCER, row] = outer[_PRODUCER, 0]
            rows[PRODUCER + 1, row] = outer[_PRODUCER_STOP, 0]
            row += 1
        at = begin + size
    return row - first


@njit(nogil=True)
def _walk_slots(data, at, metadata, payload, source, begin, end, fields, rows, row, pause):  # type: ignore[no-untyped-def]
    """(rows put, why it stopped) of a batch whose opened payload is `source[begin:end]`."""
    messages = np.int64(np.int32(fields[_MESSAGES, 0]))
    stamp = np.int64(_u64(data, at + 16))
    slots = np.empty(0, dtype=np.int64)
    if stamp & _FLAG_SHRUNK != 0:
        slots = collect_numbers(data, metadata, payload, BATCH_INDEXES)
    elif 0 <= messages <= (end - begin) // MESSAGE_BYTES_MIN:
        slots = np.arange(messages)
    else:
        # There is no room for so many, whatever the metadata says.
        return np.int64(0), BROKEN
    if slots.size > rows.shape[1] - row:
        pause[0] = slots.size
        return np.int64(0), FULL
    position = np.int64(_u64(data, at + 8))
    put = _walk_batch(source, begin, end, slots, position, fields, rows, row)
    return max(put, np.int64(0)), BROKEN if put < 0 else END


@njit(nogil=True)
def _walk_entry(data, at, plain, opened, values, fields, rows, row, pause):  # type: ignore[no-untyped-def]
    """(rows put, why it stopped) of the entry whose frame begins at `at`.

    A payload that was compressed is `plain[:opened]`; it is not yet there if `opened` is negative.
    """
    stop = at + _HEADER_BYTES + np.int64(_u32(data, at + 4))
    metadata, payload = find_metadata(data, at + _HEADER_BYTES, stop)
    fields[:, 0] = 0
    flags = np.int64(-1)
    if metadata >= 0:
        flags = walk(data, metadata, payload, _METADATA, fields, 0)
    if flags < 0 or flags & REQUIRED != REQUIRED:
        return np.int64(0), BROKEN
    if flags & MARKER:
        return np.int64(0), END
    batch = flags & BATCH != 0 and flags & ENCRYPTED == 0
    codec = fields[_CODEC, 0] if flags & ENCRYPTED == 0 else 0
    source, begin, end = data, payload, stop
    if 0 < codec <= CODEC_MAX and (batch or values):
        if opened < 0:
            pause[0], pause[1], pause[2] = payload, stop, codec
            pause[3] = fields[_SIZE, 0] & 0xFFFFFFFF
            return np.int64(0), PACKED
        source, begin, end = plain, np.int64(0), opened
    if batch:
        return _walk_slots(
            data, at, metadata, payload, source, begin, end, fields, rows, row, pause
        )
    _put(flags, fields, begin, end, metadata, payload, rows, row)
    rows[POSITION, row] = np.int64(_u64(data, at + 8))
    rows[SLOT, row] = -1
    rows[PUBLISH, row] = fields[_PUBLISH, 0]
    rows[PRODUCER, row] = fields[_PRODUCER, 0]
    rows[PRODUCER + 1, row] = fields[_PRODUCER_STOP, 0]
    return np.int64(1), END


@njit(nogil=True)
def walk_frames(data, offsets, first, values, rows, pause):  # type: ignore[no-untyped-def]
    """Put the rows of the frames at `offsets` from number `first` on.

    Returns (number of the frame it stopped at, rows put, why it stopped).
    """
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    row = np.int64(0)
    for number in range(first, offsets.size):
        if row >= rows.shape[1]:
            pause[0] = 1
            return number, row, FULL
        put, why = _walk_entry(
            data, offsets[number], data, np.int64(-1), values, fields, rows, row, pause
        )
        if why != END:
            return number, row, why
        row += put
    return offsets.size, row, END


@njit(nogil=True)
def walk_plain(data, offset, plain, rows, pause):  # type: ignore[no-untyped-def]
    """Put the rows of the entry at `offset`, whose payload is `plain` when opened: (rows, why)."""
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    return _walk_entry(data, offset, plain, plain.size, _VALUES, fields, rows, 0, pause)


@njit(nogil=True)
def gather(source, begins, stops, out):  # type: ignore[no-untyped-def]
    """Copy the bytes from each `begin` up to its `stop`, side by side."""
    at = np.int64(0)
    for number in range(begins.size):
        begin, size = begins[number], stops[number] - begins[number]
        if size > 0:
            copy_bytes(out, at, source, begin, size)
            at += size


@njit(nogil=True)
def decode_keys(source, begins, stops, coded, out, offsets):  # type: ignore[no-untyped-def]
    """Copy keys as `gather` does, those that are base64 decoded; `offsets` gets where each ends."""
    at = np.int64(0)
    for number in range(begins.size):
        begin, stop = begins[number], stops[number]
        count = np.int64(-1)
        if coded[number] != 0 and begin >= 0:
            count = decode_base64(source, begin, stop, out[at:])
        if count < 0:
            count = max(stop - begin, np.int64(0))
            copy_bytes(out, at, source, begin, count)
        at += count
        offsets[number + 1] = at


@njit(nogil=True)
def count_pairs(source, begins, stops, tag, counts):  # type: ignore[no-untyped-def]
    """How many properties the metadata of each message has, in its field `tag`."""
    none = np.empty((1, 1), dtype=np.int64)
    for number in range(begins.size):
        counts[number] = _pairs(source, begins[number], stops[number], tag, none, np.int64(-1))


@njit(nogil=True)
def span_pairs(source, begins, stops, tag, spans):  # type: ignore[no-untyped-def]
    """Where name and value of each property stand: four columns, begin and end of both."""
    at = np.int64(0)
    for number in range(begins.size):
        at += _pairs(source, begins[number], stops[number], tag, spans, at)


@njit(nogil=True)
def _pairs(source, at, stop, tag, spans, first):  # type: ignore[no-untyped-def]
    """How many there are; their spans are put from `first` on, unless that is negative."""
    found = np.int64(0)
    while at < stop:
        number, begin, at = _field(source, at, stop)
        if number == tag:
            if first >= 0:
                walk(source, begin, at, _PAIR, spans, first + found)
            found += 1
    return found
