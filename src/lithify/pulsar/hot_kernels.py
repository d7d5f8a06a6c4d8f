"""Compiled loops that read SEND frames, and batches.

`hot.py` says what these do and is the only caller. Everything here works on bytes that a stranger
sent, without the interpreter's checks. The rule that keeps it safe: each function is given a range
`at..stop` that is known to be inside the array, reads nothing at or after `stop`, and compares a
length with `stop - at` before it adds it to anything. All numbers are int64; a uint64 of the
protocol is kept as its two's complement.

Protobuf fields are read by one walk for all messages. What a field means stands in a table, by tag
(field number << 3 | wire type): the flags its presence sets, the column its number goes to, and
what to check inside of it. A tag that is not in the table is stepped over, also when only its wire
type is unexpected: that is protobuf's rule. The last of several values counts. Groups, which no
message of the protocol has, are malformed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lithify.log.batch import LARGE_BYTES
from lithify.log.kernels import crc32c_join, crc32c_of

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

END, NEED_MORE, FULL, NOT_A_SEND, OVER_LIMIT = range(5)
"""Why a scan stopped: at the given end; inside a frame; rows full; or in front of a frame."""

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
"""Presence of what a message must have; never leaves this file."""

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
    _TRUTH,  # where a bool waits for its end: of several, the last one counts
) = range(COLUMNS)

_NUMBER, _BYTES = 0, 2
_PAIR, _KEY = 1, 2
_TAGS = 35 << 3


def _table(
    *fields: tuple[int, int, int, int, int],
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Rows by tag (flags, column or -1, inner), of (field, wire type, flags, column, inner)."""
    table = np.zeros((_TAGS, 3), dtype=np.int64)
    table[:, 1] = -1
    for number, wire, *meaning in fields:
        table[number << 3 | wire] = meaning
    return table


_SEND = _table(
    (1, _NUMBER, _FIRST, PRODUCER_ID, 0),
    (2, _NUMBER, _SECOND, SEQUENCE_ID, 0),
    (3, _NUMBER, 0, NUM_MESSAGES, 0),
    (4, _NUMBER, UNUSUAL, -1, 0),
    (5, _NUMBER, UNUSUAL, -1, 0),
    (6, _NUMBER, 0, HIGHEST_SEQUENCE_ID, 0),
    (7, _NUMBER, 0, _TRUTH, 0),
    (8, _NUMBER, UNUSUAL, -1, 0),
    (9, _BYTES, UNUSUAL, -1, 0),
)
_METADATA = _table(
    (1, _BYTES, _FIRST, -1, 0),
    (2, _NUMBER, _SECOND, METADATA_SEQUENCE_ID, 0),
    (3, _NUMBER, _THIRD, PUBLISH_TIME, 0),
    (4, _BYTES, 0, -1, _PAIR),
    (6, _BYTES, KEYED, -1, 0),
    (8, _NUMBER, 0, COMPRESSION, 0),
    (9, _NUMBER, 0, UNCOMPRESSED_SIZE, 0),
    (11, _NUMBER, BATCH, NUM_IN_BATCH, 0),
    (13, _BYTES, ENCRYPTED, -1, _KEY),
    (19, _NUMBER, DELAYED, DELIVER_AT_TIME, 0),
    (20, _NUMBER, MARKER, -1, 0),
    (22, _NUMBER, UNUSUAL, -1, 0),
    (23, _NUMBER, UNUSUAL, -1, 0),
    (25, _NUMBER, 0, _TRUTH, 0),
    (29, _NUMBER, CHUNK_ID, -1, 0),
    (31, _NUMBER, UNUSUAL, -1, 0),
    (31, _BYTES, UNUSUAL, -1, 0),
)
_SINGLE = _table((1, _BYTES, 0, -1, _PAIR), (3, _NUMBER, _FIRST, 0, 0))

_COMPRESSION_MAX = 4


@njit(cache=True, nogil=True)
def _u32(data, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(data[at]) << 24
        | np.int64(data[at + 1]) << 16
        | np.int64(data[at + 2]) << 8
        | np.int64(data[at + 3])
    )


@njit(cache=True, nogil=True)
def _varint(data, at, stop, bytes_max):  # type: ignore[no-untyped-def]
    """(number, what follows it), the latter -1 when it does not end in time."""
    value, shift = np.int64(0), np.int64(0)
    limit = min(stop, at + bytes_max)
    while at < limit:
        byte = np.int64(data[at])
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return value, np.int64(-1)


@njit(cache=True, nogil=True)
def _field(data, at, stop):  # type: ignore[no-untyped-def]
    """(tag, its number or where its bytes begin, what follows it), the last -1 if malformed."""
    tag, at = _varint(data, at, stop, 5)
    wire = tag & 7
    if at < 0 or tag < 8 or tag >> 32 != 0:
        return tag, np.int64(0), np.int64(-1)
    if wire == _NUMBER:
        value, at = _varint(data, at, stop, 10)
        return tag, value, at
    length = np.int64(-1)
    if wire == _BYTES:
        length, at = _varint(data, at, stop, 5)
    elif wire == 1:
        length = np.int64(8)
    elif wire == 5:
        length = np.int64(4)
    if at < 0 or length < 0 or length > stop - at:
        return tag, np.int64(0), np.int64(-1)
    return tag, at, at + length


@njit(cache=True, nogil=True)
def _pair_ok(data, at, stop):  # type: ignore[no-untyped-def]
    """Whether this is a KeyValue: it has its two strings, fields 1 and 2."""
    seen = 0
    while at < stop:
        tag, _, at = _field(data, at, stop)
        if at < 0:
            return False
        if tag == (1 << 3 | _BYTES):
            seen |= 1
        elif tag == (2 << 3 | _BYTES):
            seen |= 2
    return seen == 3


@njit(cache=True, nogil=True)
def _key_ok(data, at, stop):  # type: ignore[no-untyped-def]
    """Whether this is an EncryptionKeys: a KeyValue by its fields, with more of them in field 3.

    Not one function that calls itself: numba crashes when it loads such a one from its cache.
    """
    if not _pair_ok(data, at, stop):
        return False
    while at < stop:
        tag, begin, at = _field(data, at, stop)
        if tag == (3 << 3 | _BYTES) and not _pair_ok(data, begin, at):
            return False
    return True


@njit(cache=True, nogil=True)
def _walk(data, at, stop, table, rows, row):  # type: ignore[no-untyped-def]
    """Read a message's fields by its table into one row; the flags of all, or -1 if malformed."""
    flags = np.int64(0)
    while at < stop:
        tag, value, at = _field(data, at, stop)
        if at < 0:
            return np.int64(-1)
        if tag >= _TAGS:
            continue
        flags |= table[tag, 0]
        if table[tag, 1] >= 0:
            rows[table[tag, 1], row] = value
        inner = table[tag, 2]
        if inner == _PAIR and not _pair_ok(data, value, at):
            return np.int64(-1)
        if inner == _KEY and not _key_ok(data, value, at):
            return np.int64(-1)
    return flags


@njit(cache=True, nogil=True)
def check_batch(data, start, stop, messages):  # type: ignore[no-untyped-def]
    """Whether `data[start:stop]` is exactly `messages` single messages, each well formed."""
    rows = np.zeros((1, 1), dtype=np.int64)
    at = start
    for _ in range(messages):
        if stop - at < 4:
            return False
        size = _u32(data, at)
        at += 4
        if size > stop - at:
            return False
        flags = _walk(data, at, at + size, _SINGLE, rows, 0)
        at += size
        payload = np.int64(np.int32(rows[0, 0]))
        if flags != _FIRST or payload < 0 or payload > stop - at:
            return False
        at += payload
    return at == stop and messages > 0


@njit(cache=True, nogil=True)
def _find_frame(data, at, stop, limit_bytes):  # type: ignore[no-untyped-def]
    """(END or why not, where the command ends, where the frame ends)."""
    why, command_stop, end = END, at, at
    if stop - at < 4:
        return NEED_MORE, command_stop, end
    end = at + 4 + _u32(data, at)
    if end - at > limit_bytes:
        why = OVER_LIMIT
    elif end - at < 8:
        why = NOT_A_SEND
    elif stop - at < 8:
        why = NEED_MORE
    else:
        command_stop = at + 8 + _u32(data, at + 4)
        if command_stop > end:
            why = NOT_A_SEND
        elif end > stop:
            why = NEED_MORE
        elif command_stop == end:
            why = NOT_A_SEND
    return why, command_stop, end


@njit(cache=True, nogil=True)
def _read_command(data, at, stop, rows, row):  # type: ignore[no-untyped-def]
    """Whether this is a BaseCommand with its type, SEND, then its CommandSend, and no more."""
    if stop - at < 3 or data[at] != 0x08 or data[at + 1] != 0x06 or data[at + 2] != 0x32:
        return False
    length, at = _varint(data, at + 3, stop, 5)
    if at < 0 or length != stop - at:
        return False
    rows[:, row] = 0
    rows[NUM_MESSAGES, row] = 1
    rows[NUM_IN_BATCH, row] = 1
    flags = _walk(data, at, stop, _SEND, rows, row)
    if flags < 0 or flags & _REQUIRED != _FIRST | _SECOND:
        return False
    rows[NUM_MESSAGES, row] = np.int32(rows[NUM_MESSAGES, row])
    rows[FLAGS, row] = flags & ~_REQUIRED
    if rows[_TRUTH, row] != 0:
        rows[FLAGS, row] |= CHUNK
        rows[_TRUTH, row] = 0
    return True


@njit(cache=True, nogil=True)
def _read_metadata(data, at, stop, rows, row):  # type: ignore[no-untyped-def]
    """The flags of the metadata size, metadata and payload at `at..stop`; fills in columns."""
    if stop - at < 4 or _u32(data, at) > stop - at - 4:
        return BAD_METADATA
    payload = at + 4 + _u32(data, at)
    rows[PAYLOAD_START, row] = payload
    flags = _walk(data, at + 4, payload, _METADATA, rows, row)
    if flags < 0 or flags & _REQUIRED != _REQUIRED:
        return BAD_METADATA
    flags &= ~_REQUIRED
    rows[NUM_IN_BATCH, row] = np.int32(rows[NUM_IN_BATCH, row])
    rows[UNCOMPRESSED_SIZE, row] &= 0xFFFFFFFF
    if rows[_TRUTH, row] != 0:
        flags |= NULL_VALUE
    # An enumerated number that protobuf does not know counts for it as absent.
    compression = rows[COMPRESSION, row]
    if compression < 0 or compression > _COMPRESSION_MAX:
        flags |= UNUSUAL
    if flags & BATCH:
        messages = rows[NUM_IN_BATCH, row]
        readable = compression == 0 and not flags & ENCRYPTED
        if messages < 1 or (readable and not check_batch(data, payload, stop, messages)):
            flags |= BAD_BATCH
    return flags


@njit(cache=True, nogil=True)
def scan_sends(data, start, stop, limit_bytes, rows):  # type: ignore[no-untyped-def]
    """Read SEND frames of `data[start:stop]`, a column of `rows` each, CRCs checked.

    Returns (count, where it stopped, why, whether all are of one producer and nothing is wrong
    with any).
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
            good = np.int64(crc32c_of(data, body, end)) == _u32(data, entry + 2)
            rows[CRC, row] = GOOD_CRC if good else BAD_CRC
            if good and end - entry >= LARGE_BYTES:
                front = crc32c_of(data, entry, body)
                rows[ENTRY_CRC, row] = crc32c_join(front, _u32(data, entry + 2), end - body)
        if rows[CRC, row] != BAD_CRC:
            rows[FLAGS, row] |= _read_metadata(data, body, end, rows, row)
        plain = (
            plain
            and rows[CRC, row] != BAD_CRC
            and rows[FLAGS, row] & _NOT_PLAIN == 0
            and rows[PRODUCER_ID, row] == rows[PRODUCER_ID, 0]
        )
        row += 1
        at = end
    return row, at, END, plain
