"""Compiled loops that turn the frames of a segment into key index rows. Pure.

`build_key_index.py` describes the rows and is the only caller. `index_frames` processes entry by
entry:

1. Locate the metadata and parse its fields. An entry with unreadable metadata is opaque. A marker
   is counted and gets no row.
2. A single message gets one row. Its value is empty if the metadata says null, or by its size: the
   uncompressed size from the metadata of a compressed payload, the payload less the 16 bytes of
   the cipher's tag of an encrypted one.
3. A batch gets one row per message. At a compressed batch the loop returns; the caller
   decompresses the payload and continues with `index_plain`. An encrypted or malformed batch is
   opaque, and rows that were already written for it are discarded.

`topics/messages/protobuf_fields.py` has the rules for memory safety.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_kernels import _u32, _u64
from lithify.topics.compaction.key_index_flags import (
    CHUNK_LAST,
    CHUNK_PART,
    KEYLESS,
    OPAQUE,
    TOMBSTONE,
)
from lithify.topics.messages.key_siphash import decode_base64, key_words, sip128
from lithify.topics.messages.message import FLAG_SHRUNK
from lithify.topics.messages.message_fields import (
    BATCH,
    BATCH_INDEXES,
    CHUNK_ID,
    CODEC_MAX,
    ENCRYPTED,
    FIRST,
    KEYED,
    MARKER,
    MESSAGE_BYTES_MIN,
    REQUIRED,
    UUID,
    metadata_table,
    single_table,
)
from lithify.topics.messages.protobuf_fields import collect_numbers, find_metadata, u32_of, walk

__all__ = [
    "BATCH_MESSAGES_MAX",
    "COLUMNS",
    "END",
    "FULL",
    "MARKERS",
    "MESSAGES",
    "OPAQUES",
    "PACKED",
    "PAUSE",
    "STATE",
    "index_frames",
    "index_plain",
    "new_state",
]

END, FULL, PACKED = range(3)
"""Why a loop stopped. `FULL`: the rows are full, and the state has the number of rows needed.
`PACKED`: at a compressed batch, and the state has begin and end of its payload, codec and
uncompressed size."""

STATE = 9
MESSAGES, MARKERS, OPAQUES, PAUSE, _WORD = 0, 1, 2, 3, 7
"""Offsets in the state: three counters, four numbers about a stop, the two `key_words`."""


COLUMNS = 10
(
    _HASH_HIGH,
    _HASH_LOW,
    _POSITION,
    _SLOT,
    _SLOTS,
    _LENGTH,
    _FLAGS,
    _PUBLISH_MS,
    _EVENT_MS,
    _GROUP_HASH,
) = range(COLUMNS)
"""The columns of a row, in the order of `lithify.log.key_index.key_index.COLUMNS`.

All int64; hashes keep their bits. All columns are in one array: for a tuple of arrays numba counts
references per array, which took ten times as long as the rest.
"""


def new_state(log_id: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The state of the loops over one segment: one array, because each argument costs time."""
    state = np.zeros(STATE, dtype=np.int64)
    state[_WORD : _WORD + 2] = np.array(key_words(log_id)).view(np.int64)
    return state


_FIELDS = 15
(
    _PUBLISH,
    _EVENT,
    _KEY,
    _KEY_STOP,
    _BASE64,
    _NULL_KEY,
    _NULL_VALUE,
    _SIZE,  # of an entry: uncompressed payload size; of a batch message: payload size
    _CODEC,
    _MESSAGES,
    _GROUP,
    _GROUP_STOP,
    _CHUNKS,
    _CHUNK,
    _COMPACTED_OUT,
) = range(_FIELDS)

_METADATA = metadata_table(
    publish_time=_PUBLISH,
    partition_key=_KEY,
    compression=_CODEC,
    uncompressed_size=_SIZE,
    num_messages_in_batch=_MESSAGES,
    event_time=_EVENT,
    partition_key_b64_encoded=_BASE64,
    null_value=_NULL_VALUE,
    uuid=_GROUP,
    num_chunks_from_msg=_CHUNKS,
    chunk_id=_CHUNK,
    null_partition_key=_NULL_KEY,
)
_SINGLE = single_table(
    partition_key=_KEY,
    payload_size=_SIZE,
    compacted_out=_COMPACTED_OUT,
    event_time=_EVENT,
    partition_key_b64_encoded=_BASE64,
    null_value=_NULL_VALUE,
    null_partition_key=_NULL_KEY,
)

_HEADER_BYTES = 32
_CIPHER_TAG_BYTES = 16
BATCH_MESSAGES_MAX = 2**20
"""Limit of messages in an indexed batch. A few kilobytes of zstd can hold 40 million messages,
whose rows take 3 GiB. A million rows take 80 MiB, and clients batch some thousand messages."""
_TIME_MAX = 2**63 - 1


# Numba copies each array argument field by field, a third of the time of a function called for each
# message. For the same reason `spark/arrow_kernels.py` has its own walk over entries and messages:
# a shared one with the table as an argument took 5 to 14 % longer, even inlined.
_inlined = njit(nogil=True, inline="always")


@njit(nogil=True)
def _time(value):  # type: ignore[no-untyped-def]
    """Convert uint64 milliseconds to int64, with saturation."""
    return value if value >= 0 else np.int64(_TIME_MAX)


@njit(nogil=True)
def _spread(rows, row, position):  # type: ignore[no-untyped-def]
    """Set the hash of a row without a key: its position, mixed to spread over the buckets."""
    word = np.uint64(position) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ word >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
    rows[_HASH_HIGH, row] = word ^ word >> np.uint64(32)
    rows[_HASH_LOW, row] = np.uint64(position)


@_inlined
def _hash_key(data, keyed, fields, rows, row, scratch, state):  # type: ignore[no-untyped-def]
    """Set the hash of the key in `fields`; returns 0, or KEYLESS without a key."""
    if not keyed or fields[_NULL_KEY, 0] != 0:
        _spread(rows, row, rows[_POSITION, row])
        return KEYLESS
    start, stop = fields[_KEY, 0], fields[_KEY_STOP, 0]
    count = np.int64(-1)
    if fields[_BASE64, 0] != 0:
        count = decode_base64(data, start, stop, scratch)
    if count >= 0:
        high, low = sip128(scratch, 0, count, np.uint64(state[_WORD]), np.uint64(state[_WORD + 1]))
    else:
        high, low = sip128(data, start, stop, np.uint64(state[_WORD]), np.uint64(state[_WORD + 1]))
    rows[_HASH_HIGH, row] = high
    rows[_HASH_LOW, row] = low
    return 0


@_inlined
def _put_opaque(rows, row, position, frame_bytes, publish_ms, event_ms, messages, state):  # type: ignore[no-untyped-def]
    rows[_POSITION, row] = position
    rows[_SLOT, row] = -1
    rows[_SLOTS, row] = 1
    rows[_LENGTH, row] = frame_bytes
    rows[_FLAGS, row] = OPAQUE
    rows[_PUBLISH_MS, row] = _time(publish_ms)
    rows[_EVENT_MS, row] = _time(event_ms)
    rows[_GROUP_HASH, row] = np.uint64(max(messages, 0))
    _spread(rows, row, position)
    state[MESSAGES] += 1
    state[OPAQUES] += 1


@njit(nogil=True)
def _chunk_flags(flags, fields):  # type: ignore[no-untyped-def]
    """The chunk flags of a single message: 0, CHUNK_PART, CHUNK_LAST, or -1 if inconsistent."""
    chunks = np.int64(np.int32(fields[_CHUNKS, 0]))
    if chunks <= 1:
        return 0
    number = np.int64(np.int32(fields[_CHUNK, 0]))
    if not flags & CHUNK_ID or not flags & UUID or number < 0 or number >= chunks:
        return -1
    return CHUNK_LAST if number == chunks - 1 else CHUNK_PART


@njit(nogil=True)
def _is_empty(flags, fields, payload_bytes):  # type: ignore[no-untyped-def]
    """Whether a single message has no value."""
    if fields[_NULL_VALUE, 0] != 0:
        return True
    if 0 < fields[_CODEC, 0] <= CODEC_MAX:
        return fields[_SIZE, 0] & 0xFFFFFFFF == 0
    return payload_bytes == 0 or (flags & ENCRYPTED != 0 and payload_bytes == _CIPHER_TAG_BYTES)


@_inlined
def _index_single(data, flags, fields, at, stop, payload, rows, row, scratch, state):  # type: ignore[no-untyped-def]
    """Write the row of an entry that is one message."""
    position = np.int64(_u64(data, at + 8))
    chunk = _chunk_flags(flags, fields)
    if chunk < 0:
        publish_ms, event_ms = fields[_PUBLISH, 0], fields[_EVENT, 0]
        _put_opaque(rows, row, position, stop - at, publish_ms, event_ms, 0, state)
        return
    rows[_POSITION, row] = position
    rows[_SLOT, row] = -1
    rows[_SLOTS, row] = 1
    rows[_LENGTH, row] = stop - at
    rows[_PUBLISH_MS, row] = _time(fields[_PUBLISH, 0])
    rows[_EVENT_MS, row] = _time(fields[_EVENT, 0])
    rows[_GROUP_HASH, row] = np.uint64(0)
    keyed = flags & KEYED != 0
    row_flags = chunk | _hash_key(data, keyed, fields, rows, row, scratch, state)
    if chunk:
        group, _ = sip128(
            data,
            fields[_GROUP, 0],
            fields[_GROUP_STOP, 0],
            np.uint64(state[_WORD]),
            np.uint64(state[_WORD + 1]),
        )
        rows[_GROUP_HASH, row] = group
        # A chunk has a part of the value, so its size does not tell whether the value is empty.
        if fields[_NULL_VALUE, 0] != 0:
            row_flags |= TOMBSTONE
    elif _is_empty(flags, fields, stop - payload):
        row_flags |= TOMBSTONE
    rows[_FLAGS, row] = row_flags
    state[MESSAGES] += 1


@njit(nogil=True)
def _slots_of(data, metadata, payload, shrunk, messages):  # type: ignore[no-untyped-def]
    """The slots that a batch holds; empty if the list of a shrunk batch is inconsistent."""
    if not shrunk:
        return np.arange(messages)
    slots = collect_numbers(data, metadata, payload, BATCH_INDEXES)
    before = np.int64(-1)
    for slot in slots:
        if slot <= before or slot >= messages:
            return slots[:0]
        before = slot
    return slots


@_inlined
def _index_message(plain, at, stop, slot, fields, rows, row, scratch, state):  # type: ignore[no-untyped-def]
    """Index the batch message at `at`; (offset of the next or -1 if malformed, rows written)."""
    if stop - at < 4 or u32_of(plain, at) > stop - at - 4:
        return np.int64(-1), 0
    begin = at + 4 + u32_of(plain, at)
    fields[:, 0] = 0
    flags = walk(plain, at + 4, begin, _SINGLE, fields, 0)
    size = np.int64(np.int32(fields[_SIZE, 0]))
    if flags < 0 or not flags & FIRST or size < 0 or size > stop - begin:
        return np.int64(-1), 0
    if fields[_COMPACTED_OUT, 0] != 0:
        return begin + size, 0
    row_flags = _hash_key(plain, flags & KEYED != 0, fields, rows, row, scratch, state)
    if size == 0 or fields[_NULL_VALUE, 0] != 0:
        row_flags |= TOMBSTONE
    rows[_SLOT, row] = slot
    rows[_FLAGS, row] = row_flags
    rows[_EVENT_MS, row] = _time(fields[_EVENT, 0])
    return begin + size, 1


@njit(nogil=True)
def _index_payload(  # type: ignore[no-untyped-def]
    plain, start, stop, slots, position, publish_ms, frame_bytes, rows, row, scratch, state
):
    """Write the rows of a batch's decompressed payload; their number, -1 if malformed.

    The length of a row is the message's share of the frame: its end less the end of the previous
    message, both scaled from payload to frame. The bytes of a placeholder count for the next
    message and any remainder for the last, so the lengths add up to the frame.
    """
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    first, at, before = row, start, np.int64(0)
    for number in range(slots.size):
        rows[_POSITION, row] = position
        at, put = _index_message(plain, at, stop, slots[number], fields, rows, row, scratch, state)
        if at < 0:
            return np.int64(-1)
        if put:
            until = frame_bytes * (at - start) // (stop - start)
            rows[_LENGTH, row] = until - before
            rows[_PUBLISH_MS, row] = publish_ms
            rows[_GROUP_HASH, row] = np.uint64(0)
            row += 1
            before = until
    if row > first:
        rows[_LENGTH, row - 1] += frame_bytes - before
    # Placeholders count as slots: such a batch is never wholly live, so readers get a mask.
    rows[_SLOTS, first:row] = slots.size
    return row - first


@njit(nogil=True)
def _index_batch(  # type: ignore[no-untyped-def]
    data, at, stop, metadata, payload, plain, plain_bytes, fields, rows, row, scratch, state
):
    """Index an unencrypted batch; (rows written or -1 if malformed, why it stopped)."""
    messages, codec = np.int64(np.int32(fields[_MESSAGES, 0])), fields[_CODEC, 0]
    if messages < 1 or codec < 0 or codec > CODEC_MAX:
        return np.int64(-1), END
    source, begin, end = data, payload, stop
    if codec:
        if plain_bytes < 0:
            state[PAUSE], state[PAUSE + 1] = payload, stop
            state[PAUSE + 2], state[PAUSE + 3] = codec, fields[_SIZE, 0] & 0xFFFFFFFF
            return np.int64(0), PACKED
        source, begin, end = plain, np.int64(0), plain_bytes
    stamp = np.int64(_u64(data, at + 16))
    shrunk = stamp & FLAG_SHRUNK != 0
    # Bounded by the payload size: the count in the metadata is untrusted.
    room = min((end - begin) // MESSAGE_BYTES_MIN, BATCH_MESSAGES_MAX)
    if not shrunk and messages > room:
        return np.int64(-1), END
    slots = _slots_of(data, metadata, payload, shrunk, messages)
    if slots.size == 0 or end == begin:
        return np.int64(-1), END
    if slots.size > rows.shape[1] - row:
        state[PAUSE] = slots.size
        return np.int64(0), FULL
    position, publish_ms = np.int64(_u64(data, at + 8)), _time(fields[_PUBLISH, 0])
    put = _index_payload(
        source, begin, end, slots, position, publish_ms, stop - at, rows, row, scratch, state
    )
    return put, END


@_inlined
def _index_entry(data, at, plain, plain_bytes, fields, rows, row, scratch, state):  # type: ignore[no-untyped-def]
    """Index the entry whose frame begins at `at`; (rows written, why it stopped).

    `plain[:plain_bytes]` is the decompressed payload; `plain_bytes` is negative before that.
    """
    stop = at + _HEADER_BYTES + np.int64(_u32(data, at + 4))
    position = np.int64(_u64(data, at + 8))
    metadata, payload = find_metadata(data, at + _HEADER_BYTES, stop)
    fields[:, 0] = 0
    flags = np.int64(-1)
    if metadata >= 0:
        flags = walk(data, metadata, payload, _METADATA, fields, 0)
    if flags < 0 or flags & REQUIRED != REQUIRED:
        time_ms = np.int64(_u64(data, at + 16)) >> 16
        _put_opaque(rows, row, position, stop - at, time_ms, 0, 0, state)
        return np.int64(1), END
    if flags & MARKER:
        state[MESSAGES] += 1
        state[MARKERS] += 1
        return np.int64(0), END
    if not flags & BATCH:
        _index_single(data, flags, fields, at, stop, payload, rows, row, scratch, state)
        return np.int64(1), END
    put, why = np.int64(-1), END
    if not flags & ENCRYPTED:
        put, why = _index_batch(
            data,
            at,
            stop,
            metadata,
            payload,
            plain,
            plain_bytes,
            fields,
            rows,
            row,
            scratch,
            state,
        )
    if put < 0:
        publish_ms, event_ms = fields[_PUBLISH, 0], fields[_EVENT, 0]
        messages = np.int64(np.int32(fields[_MESSAGES, 0]))
        _put_opaque(rows, row, position, stop - at, publish_ms, event_ms, messages, state)
        return np.int64(1), END
    state[MESSAGES] += put
    return put, why


@njit(nogil=True)
def index_frames(data, offsets, first, rows, row, scratch, state):  # type: ignore[no-untyped-def]
    """Write the rows of the frames at `offsets[first:]`, starting at `row`.

    `scratch` is as large as `data`. Returns (number of the frame it stopped at, row after the last
    one written, why it stopped).
    """
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    for number in range(first, offsets.size):
        if row >= rows.shape[1]:
            state[PAUSE] = 1
            return number, row, FULL
        put, why = _index_entry(
            data,
            offsets[number],
            data,
            np.int64(-1),
            fields,
            rows,
            row,
            scratch,
            state,
        )
        if why != END:
            return number, row, why
        row += put
    return offsets.size, row, END


@njit(nogil=True)
def index_plain(data, offset, plain, plain_bytes, rows, row, scratch, state):  # type: ignore[no-untyped-def]
    """Write the rows of the batch at `offset` from its decompressed payload `plain[:plain_bytes]`.

    A `plain_bytes` of 0 means decompression failed. Returns (row after the last one written, why).
    """
    fields = np.zeros((_FIELDS, 1), dtype=np.int64)
    if row >= rows.shape[1]:
        state[PAUSE] = 1
        return row, FULL
    put, why = _index_entry(data, offset, plain, plain_bytes, fields, rows, row, scratch, state)
    return row + put, why
