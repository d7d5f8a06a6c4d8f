"""Compiled loops that parse SEND frames and batches.

`frames.py` documents them and is the only caller. The input is untrusted, and compiled code has no
bounds checks: `topics/messages/protobuf_fields.py` has the rule that makes it safe, and the parser
that uses the tables below.
"""

from __future__ import annotations

import numpy as np

from lithify.compiled import njit
from lithify.log.segments.frame_batch import LARGE_BYTES
from lithify.log.segments.frame_kernels import crc32c_join, crc32c_of
from lithify.topics.messages.entry_flags import BATCH_MESSAGES_MAX
from lithify.topics.messages.message import PLAIN_BYTES_MAX
from lithify.topics.messages.protobuf_fields import (
    BYTES,
    KEYS,
    NUMBER,
    PAIR,
    table_of,
    u32_of,
    varint,
    walk,
)

__all__ = [
    "BAD_BATCH",
    "BAD_CRC",
    "BAD_METADATA",
    "BATCH",
    "CHUNK",
    "CHUNK_ID",
    "COLUMNS",
    "COMPRESSION",
    "CRC",
    "DELAYED",
    "DELIVER_AT_TIME",
    "ENCRYPTED",
    "END",
    "ENTRY_CRC",
    "ENTRY_START",
    "ENTRY_STOP",
    "FLAGS",
    "FRAME_START",
    "FULL",
    "GOOD_CRC",
    "HIGHEST_SEQUENCE_ID",
    "KEYED",
    "MARKER",
    "METADATA_SEQUENCE_ID",
    "NEED_MORE",
    "NOT_A_SEND",
    "NO_CRC",
    "NULL_VALUE",
    "NUM_IN_BATCH",
    "NUM_MESSAGES",
    "OVER_LIMIT",
    "PAYLOAD_START",
    "PRODUCER_ID",
    "PUBLISH_TIME",
    "SEQUENCE_ID",
    "UNCOMPRESSED_SIZE",
    "UNUSUAL",
    "check_batch",
    "scan_sends",
]

END, NEED_MORE, FULL, NOT_A_SEND, OVER_LIMIT, LARGE_BATCH = range(6)
"""Why a scan stopped, see `frames.Sends.why`."""

_METADATA_BYTES = 2**17
"""Limit for parsing in the event loop: many properties in larger metadata need more than 0.5 ms."""
_UNLIMITED = 2**62

NO_CRC, GOOD_CRC, BAD_CRC = range(3)

CHUNK = 1 << 0
UNUSUAL = 1 << 1
BATCH = 1 << 2
KEYED = 1 << 3
MARKER = 1 << 4
DELAYED = 1 << 5
ENCRYPTED = 1 << 6
NULL_VALUE = 1 << 7
CHUNK_ID = 1 << 8
BAD_METADATA = 1 << 9
BAD_BATCH = 1 << 10
_NOT_PLAIN = UNUSUAL | BAD_METADATA | BAD_BATCH
_FIRST, _SECOND, _THIRD = 1 << 20, 1 << 21, 1 << 22
_REQUIRED = _FIRST | _SECOND | _THIRD
"""Presence of required fields; internal to this file."""
_UNCHECKED = 1 << 23
"""A batch with too many messages to check now; internal to this file."""

COLUMNS = 18
(
    FRAME_START,
    ENTRY_START,
    PAYLOAD_START,
    ENTRY_STOP,
    PRODUCER_ID,
    SEQUENCE_ID,
    HIGHEST_SEQUENCE_ID,
    NUM_MESSAGES,
    CRC,
    FLAGS,
    PUBLISH_TIME,
    METADATA_SEQUENCE_ID,
    NUM_IN_BATCH,
    DELIVER_AT_TIME,
    COMPRESSION,
    UNCOMPRESSED_SIZE,
    ENTRY_CRC,
    _TRUTH,  # the value of a bool; of repeated fields the last one counts
) = range(COLUMNS)

_SEND = table_of(
    (1, NUMBER, _FIRST, PRODUCER_ID, 0),
    (2, NUMBER, _SECOND, SEQUENCE_ID, 0),
    (3, NUMBER, 0, NUM_MESSAGES, 0),
    (4, NUMBER, UNUSUAL, -1, 0),
    (5, NUMBER, UNUSUAL, -1, 0),
    (6, NUMBER, 0, HIGHEST_SEQUENCE_ID, 0),
    (7, NUMBER, 0, _TRUTH, 0),
    (8, NUMBER, UNUSUAL, -1, 0),
    (9, BYTES, UNUSUAL, -1, 0),
)
_METADATA = table_of(
    (1, BYTES, _FIRST, -1, 0),
    (2, NUMBER, _SECOND, METADATA_SEQUENCE_ID, 0),
    (3, NUMBER, _THIRD, PUBLISH_TIME, 0),
    (4, BYTES, 0, -1, PAIR),
    (6, BYTES, KEYED, -1, 0),
    (8, NUMBER, 0, COMPRESSION, 0),
    (9, NUMBER, 0, UNCOMPRESSED_SIZE, 0),
    (11, NUMBER, BATCH, NUM_IN_BATCH, 0),
    (13, BYTES, ENCRYPTED, -1, KEYS),
    (19, NUMBER, DELAYED, DELIVER_AT_TIME, 0),
    (20, NUMBER, MARKER, -1, 0),
    (22, NUMBER, UNUSUAL, -1, 0),
    (23, NUMBER, UNUSUAL, -1, 0),
    (25, NUMBER, 0, _TRUTH, 0),
    (29, NUMBER, CHUNK_ID, -1, 0),
    (31, NUMBER, UNUSUAL, -1, 0),
    (31, BYTES, UNUSUAL, -1, 0),
)
_SINGLE = table_of((1, BYTES, 0, -1, PAIR), (3, NUMBER, _FIRST, 0, 0))

_COMPRESSION_MAX = 4
_MESSAGE_BYTES_MIN = 6
"""Minimum of a message in a batch: its size (4) and a payload_size (2)."""
_RATIOS_MAX = np.array([1, 256, 1040, 2**16, 32], dtype=np.int64)
"""Maximum compression ratio, by CompressionType: an LZ4 match has 255 bytes per byte of its length,
a DEFLATE block 1032, a Zstandard block has 128 KiB of one byte in 4, a Snappy copy has 64 in 3.
Rounded up."""
_HEADER_BYTES = 64
"""Allowance for the headers and trailers around the blocks of a compressed payload."""


@njit(nogil=True)
def check_batch(data, start, stop, messages):  # type: ignore[no-untyped-def]
    """Whether `data[start:stop]` has exactly `messages` single messages, each well formed."""
    rows = np.zeros((1, 1), dtype=np.int64)
    at = start
    for _ in range(messages):
        if stop - at < 4:
            return False
        size = u32_of(data, at)
        at += 4
        if size > stop - at:
            return False
        flags = walk(data, at, at + size, _SINGLE, rows, 0)
        at += size
        payload = np.int64(np.int32(rows[0, 0]))
        if flags != _FIRST or payload < 0 or payload > stop - at:
            return False
        at += payload
    return at == stop and messages > 0


@njit(nogil=True)
def _may_hold(payload_bytes, compression, plain_bytes, messages):  # type: ignore[no-untyped-def]
    """Whether a compressed or encrypted payload is large enough for this number of messages.

    `plain_bytes` is the uncompressed size in the metadata; it is ignored without compression.
    """
    if compression == 0:
        plain_bytes = payload_bytes
    elif plain_bytes > (payload_bytes + _HEADER_BYTES) * _RATIOS_MAX[compression]:
        return False
    return plain_bytes <= PLAIN_BYTES_MAX and messages <= plain_bytes // _MESSAGE_BYTES_MIN


@njit(nogil=True)
def _find_frame(data, at, stop, limit_bytes):  # type: ignore[no-untyped-def]
    """Returns (END or the reason to stop, end of the command, end of the frame)."""
    why, command_stop, end = END, at, at
    if stop - at < 4:
        return NEED_MORE, command_stop, end
    end = at + 4 + u32_of(data, at)
    if end - at > limit_bytes:
        why = OVER_LIMIT
    elif end - at < 8:
        why = NOT_A_SEND
    elif stop - at < 8:
        why = NEED_MORE
    else:
        command_stop = at + 8 + u32_of(data, at + 4)
        if command_stop > end:
            why = NOT_A_SEND
        elif end > stop:
            why = NEED_MORE
        elif command_stop == end:
            why = NOT_A_SEND
    return why, command_stop, end


@njit(nogil=True)
def _read_command(data, at, stop, rows, row):  # type: ignore[no-untyped-def]
    """Parse a BaseCommand that has the type SEND, then a CommandSend, and no other field.

    Returns whether it is one; fills in the columns of `row`.
    """
    if stop - at < 3 or data[at] != 0x08 or data[at + 1] != 0x06 or data[at + 2] != 0x32:
        return False
    length, at = varint(data, at + 3, stop, 5)
    if at < 0 or length != stop - at:
        return False
    rows[:, row] = 0
    rows[NUM_MESSAGES, row] = 1
    rows[NUM_IN_BATCH, row] = 1
    flags = walk(data, at, stop, _SEND, rows, row)
    if flags < 0 or flags & _REQUIRED != _FIRST | _SECOND:
        return False
    rows[NUM_MESSAGES, row] = np.int32(rows[NUM_MESSAGES, row])
    rows[FLAGS, row] = flags & ~_REQUIRED
    if rows[_TRUTH, row] != 0:
        rows[FLAGS, row] |= CHUNK
        rows[_TRUTH, row] = 0
    return True


@njit(nogil=True)
def _read_metadata(data, at, stop, rows, row, messages_max):  # type: ignore[no-untyped-def]
    """Parse the metadata size, metadata and payload in `at..stop`; returns the row's flags."""
    if stop - at < 4 or u32_of(data, at) > stop - at - 4:
        return BAD_METADATA
    payload = at + 4 + u32_of(data, at)
    rows[PAYLOAD_START, row] = payload
    if payload - at > _METADATA_BYTES and messages_max < _UNLIMITED:
        return _UNCHECKED
    flags = walk(data, at + 4, payload, _METADATA, rows, row)
    if flags < 0 or flags & _REQUIRED != _REQUIRED:
        return BAD_METADATA
    flags &= ~_REQUIRED
    rows[NUM_IN_BATCH, row] = np.int32(rows[NUM_IN_BATCH, row])
    rows[UNCOMPRESSED_SIZE, row] &= 0xFFFFFFFF
    if rows[_TRUTH, row] != 0:
        flags |= NULL_VALUE
    # protobuf treats an unknown enum value as absent.
    compression = rows[COMPRESSION, row]
    if compression < 0 or compression > _COMPRESSION_MAX:
        return flags | UNUSUAL
    if flags & BATCH:
        messages = rows[NUM_IN_BATCH, row]
        if messages < 1 or messages > BATCH_MESSAGES_MAX:
            flags |= BAD_BATCH
        elif compression == 0 and not flags & ENCRYPTED:
            if messages > messages_max:
                flags |= _UNCHECKED
            elif not check_batch(data, payload, stop, messages):
                flags |= BAD_BATCH
        elif not _may_hold(stop - payload, compression, rows[UNCOMPRESSED_SIZE, row], messages):
            flags |= BAD_BATCH
    return flags


@njit(nogil=True)
def scan_sends(data, start, stop, limit_bytes, rows, messages_max):  # type: ignore[no-untyped-def]
    """Parse the SEND frames of `data[start:stop]` into the columns of `rows`, and check CRCs.

    Batches are checked up to a total of `messages_max` messages; with a limit below `_UNLIMITED`,
    large metadata are not parsed either. Returns (count, end of the scan, reason, plain); `plain`
    is that of `frames.Sends`.
    """
    at, row, plain = start, 0, True
    while at < stop:
        if row == rows.shape[1]:
            return row, at, FULL, plain
        why, entry, end = _find_frame(data, at, stop, limit_bytes)
        if why != END:
            return row, at, why, plain
        if not _read_command(data, at + 8, entry, rows, row):
            return row, at, NOT_A_SEND, plain
        rows[FRAME_START, row] = at
        rows[ENTRY_START, row] = entry
        rows[ENTRY_STOP, row] = end
        rows[PAYLOAD_START, row] = end
        rows[ENTRY_CRC, row] = -1
        body = entry
        if end - entry >= 6 and data[entry] == 0x0E and data[entry + 1] == 0x01:
            body = entry + 6
            good = np.int64(crc32c_of(data, body, end)) == u32_of(data, entry + 2)
            rows[CRC, row] = GOOD_CRC if good else BAD_CRC
            if good and end - entry >= LARGE_BYTES:
                front = crc32c_of(data, entry, body)
                rows[ENTRY_CRC, row] = crc32c_join(front, u32_of(data, entry + 2), end - body)
        if rows[CRC, row] != BAD_CRC:
            rows[FLAGS, row] |= _read_metadata(data, body, end, rows, row, messages_max)
            if rows[FLAGS, row] & _UNCHECKED:
                return row, at, FULL if row else LARGE_BATCH, plain
            if rows[FLAGS, row] & BATCH:
                # The count of a client may be negative, or larger than the batch.
                messages_max -= min(max(rows[NUM_IN_BATCH, row], 0), messages_max)
        plain = (
            plain
            and rows[CRC, row] != BAD_CRC
            and rows[FLAGS, row] & _NOT_PLAIN == 0
            and rows[PRODUCER_ID, row] == rows[PRODUCER_ID, 0]
        )
        row += 1
        at = end
    return row, at, END, plain
