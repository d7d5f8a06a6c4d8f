"""Compiled loops that locate the fields of messages, so that columns can be extracted. Pure.

`arrow_rows.py` is the only caller. `walk_frames` processes entry by entry and writes one row per
message: its numbers, and begin and end of its key, value, producer and metadata. It stops

1. when the rows are full, at the entry that does not fit (`FULL`);
2. at a compressed payload that must be decompressed (`PACKED`): any batch, and a single message if
   values are requested. The caller decompresses it and continues with `walk_plain`;
3. at a malformed entry (`BROKEN`).

A server marker is not a message and gets no row. An encrypted batch is one message, as it is for
any reader without the key.

Only `gather` and `decode_keys` copy bytes: they concatenate the bytes of one column.
`topics/messages/protobuf_fields.py` has the rules for memory safety.
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
"""Length of the array of numbers about a stop. `FULL`: the rows needed. `PACKED`: begin and end of
the payload, its codec and uncompressed size."""

COLUMNS = 15
POSITION, SLOT, PUBLISH, EVENT, SEQUENCE, EMPTY, BASE64 = range(7)
KEY, VALUE, PRODUCER, HEAD = 7, 9, 11, 13
"""Columns of a row. The last four are two columns each, begin and end; a missing key begins at -1.
`HEAD` is the message's own metadata, which has its properties."""

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
    _COMPACTED_OUT,
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
    compacted_out=_COMPACTED_OUT,
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
"""Values are requested, or the payload would not have been decompressed."""

# Numba copies each array argument field by field. In a function called for each message this takes
# longer than the rest.
_inlined = njit(nogil=True, inline="always")


@_inlined
def _put(flags, fields, at, stop, head, head_stop, rows, row):  # type: ignore[no-untyped-def]
    """Write the columns that an entry's metadata and a batch message's have in common."""
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
    """Write the rows of a batch's decompressed payload; their number, -1 if malformed."""
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
        if fields[_COMPACTED_OUT, 0] == 0:
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
    """Walk a batch with decompressed payload `source[begin:end]`; (rows written, stop reason)."""
    messages = np.int64(np.int32(fields[_MESSAGES, 0]))
    stamp = np.int64(_u64(data, at + 16))
    slots = np.empty(0, dtype=np.int64)
    if stamp & _FLAG_SHRUNK != 0:
        slots = collect_numbers(data, metadata, payload, BATCH_INDEXES)
    elif 0 <= messages <= (end - begin) // MESSAGE_BYTES_MIN:
        slots = np.arange(messages)
    else:
        # The payload is too small for this number of messages.
        return np.int64(0), BROKEN
    if slots.size > rows.shape[1] - row:
        pause[0] = slots.size
        return np.int64(0), FULL
    position = np.int64(_u64(data, at + 8))
    put = _walk_batch(source, begin, end, slots, position, fields, rows, row)
    return max(put, np.int64(0)), BROKEN if put < 0 else END


@njit(nogil=True)
def _walk_entry(data, at, plain, plain_bytes, values, fields, rows, row, pause):  # type: ignore[no-untyped-def]
    """Walk the entry whose frame begins at `at`; (rows written, stop reason).

    `plain[:plain_bytes]` is a decompressed payload; `plain_bytes` is negative before that.
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
        if plain_bytes < 0:
            pause[0], pause[1], pause[2] = payload, stop, codec
            pause[3] = fields[_SIZE, 0] & 0xFFFFFFFF
            return np.int64(0), PACKED
        source, begin, end = plain, np.int64(0), plain_bytes
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
    """Write the rows of the frames at `offsets[first:]`.

    Returns (number of the frame it stopped at, rows written, stop reason).
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
    """Write the rows of the entry at `offset` from its decompressed payload; (rows, reason)."""
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    return _walk_entry(data, offset, plain, plain.size, _VALUES, fields, rows, 0, pause)


@njit(nogil=True)
def gather(source, begins, stops, out):  # type: ignore[no-untyped-def]
    """Concatenate the byte ranges in `out`."""
    at = np.int64(0)
    for number in range(begins.size):
        begin, size = begins[number], stops[number] - begins[number]
        if size > 0:
            copy_bytes(out, at, source, begin, size)
            at += size


@njit(nogil=True)
def decode_keys(source, begins, stops, coded, out, offsets):  # type: ignore[no-untyped-def]
    """Concatenate keys, Base64 keys decoded; `offsets` receives the end of each."""
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
    """Count the properties of each message, which are the fields `tag` of its metadata."""
    none = np.empty((1, 1), dtype=np.int64)
    for number in range(begins.size):
        counts[number] = _pairs(source, begins[number], stops[number], tag, none, np.int64(-1))


@njit(nogil=True)
def span_pairs(source, begins, stops, tag, spans):  # type: ignore[no-untyped-def]
    """Locate the properties: four columns, begin and end of name and value."""
    at = np.int64(0)
    for number in range(begins.size):
        at += _pairs(source, begins[number], stops[number], tag, spans, at)


@njit(nogil=True)
def _pairs(source, at, stop, tag, spans, first):  # type: ignore[no-untyped-def]
    """Count the properties; write their spans from `first` on unless it is negative."""
    count = np.int64(0)
    while at < stop:
        number, begin, at = _field(source, at, stop)
        if number == tag:
            if first >= 0:
                walk(source, begin, at, _PAIR, spans, first + count)
            count += 1
    return count
