"""The bytes of the key-value machine: commands, queries, replies, events. Pure.

Numbers are little-endian. A command, and so an entry of the log:

    0     1  kind
    1     2  length of the key, n
    3     n  key
    PUT        the value
    DELETE     nothing
    CAS        1  what is compared: 0 the key is absent, 1 its revision, 2 its value
              16  the revision (8 bytes, then zeros) or the digest of the value
                  the new value
    REWRITE    8  the index that has the value
                  the value, which must be equal to the one there; the key's revision stays
    WATCH      8  the known revision; the key is a prefix
                  the name of the watcher
    UNWATCH    nothing; the key is the name of the watcher

A query:

    GET        1  kind, then the key
    SCAN       1  kind, 4  maximum of rows, 2  length of the prefix, prefix, key to start after
                  the answer ends early, with the row that makes it `SCAN_BYTES_MAX` or more

A reply:

    0     1  outcome
    1     8  revision: of what was written, or of what is there instead, 0 if nothing
    9        the value, of a GET
    9        rows, of a SCAN: 8 revision, 2 length of the key, 4 length of the value, key, value

An event for a watcher:

    0     1  PUT or DELETE
    1     8  revision
    9     8  previous: the revision of the event before it. If that is not the last one received, an
             event was lost: watch again, from the last revision received
   17     2  length of the key, key, value

The revision of a key is the index of the command that set its value. A digest is the first 16 bytes
of SHA-256, which processors have an instruction for: values with equal digests are equal.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

from lithify.errors import InvalidInput, ProtocolError

__all__ = [
    "KEY_BYTES_MAX",
    "SCAN_BYTES_MAX",
    "SCAN_ROWS_MAX",
    "KvKind",
    "KvOutcome",
    "KvRow",
    "Reply",
    "WatchEvent",
    "compare_and_set",
    "delete",
    "digest_of",
    "encode_event",
    "encode_row",
    "get",
    "parse_event",
    "parse_key",
    "parse_reply",
    "parse_rows",
    "parse_scan",
    "put",
    "rewrite",
    "scan",
    "unwatch",
    "value_at",
    "watch",
]

KEY_BYTES_MAX = 2**16 - 1
SCAN_ROWS_MAX = 1000
SCAN_BYTES_MAX = 2**20
"""Of a page. A larger answer has several pages, each of its own moment."""

HEAD = struct.Struct("<BH")
INDEX = struct.Struct("<Q")
EXPECTED = struct.Struct("<B16s")
REPLY = struct.Struct("<BQ")
_SCAN = struct.Struct("<BIH")
_ROW = struct.Struct("<QHI")
_EVENT = struct.Struct("<BQQH")


class KvKind(IntEnum):
    """The kind of a command or query."""

    PUT = 1
    DELETE = 2
    CAS = 3
    REWRITE = 4
    WATCH = 5
    UNWATCH = 6
    GET = 16
    SCAN = 17


_BEFORE_VALUE = {KvKind.PUT: 0, KvKind.CAS: EXPECTED.size, KvKind.REWRITE: INDEX.size}
"""Bytes between the key and the value."""


class Compared(IntEnum):
    """What a CAS compares."""

    ABSENT = 0
    REVISION = 1
    VALUE = 2


class KvOutcome(IntEnum):
    """The outcome of a command or a read."""

    DONE = 0
    MISMATCH = 1
    """The key has another value than the expected one; nothing changed."""
    ABSENT = 2
    """There is no such key."""
    RESET = 3
    """Of a watch: keys were deleted since, or too much has changed. Discard what is known, and read
    everything; changes after the reply's revision follow."""
    INVALID = 4
    """The command cannot be parsed; nothing changed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a command or a GET."""

    outcome: KvOutcome
    revision: int
    value: bytes = b""

    def encode(self) -> bytes:
        """As bytes."""
        return REPLY.pack(self.outcome, self.revision) + self.value


@dataclass(frozen=True, slots=True)
class KvRow:
    """A key and its value."""

    key: bytes
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change of a key; without a value it was deleted."""

    key: bytes
    value: bytes | None
    revision: int
    previous: int


def digest_of(value: bytes) -> bytes:
    """The digest that the state keeps of a value."""
    return sha256(value).digest()[:16]


def _headed(kind: KvKind, key: bytes) -> bytes:
    if len(key) > KEY_BYTES_MAX:
        raise InvalidInput(f"a key of {len(key)} bytes; at most {KEY_BYTES_MAX} can be")
    return HEAD.pack(kind, len(key)) + key


def put(key: bytes, value: bytes) -> bytes:
    """Set the value of a key."""
    return _headed(KvKind.PUT, key) + value


def delete(key: bytes) -> bytes:
    """Delete a key."""
    return _headed(KvKind.DELETE, key)


def compare_and_set(key: bytes, value: bytes, expected: bytes | int | None) -> bytes:
    """Set the value of a key if it has the expected one: a value, a revision, or None if absent."""
    if expected is None:
        condition = EXPECTED.pack(Compared.ABSENT, b"")
    elif isinstance(expected, int):
        condition = EXPECTED.pack(Compared.REVISION, INDEX.pack(expected))
    else:
        condition = EXPECTED.pack(Compared.VALUE, digest_of(expected))
    return _headed(KvKind.CAS, key) + condition + value


def rewrite(key: bytes, index: int, value: bytes) -> bytes:
    """Write a key's value again at this command's index, if it is still at `index`."""
    return _headed(KvKind.REWRITE, key) + INDEX.pack(index) + value


def watch(prefix: bytes, watcher: bytes, known: int = 0) -> bytes:
    """Watch all changes of keys with a prefix, including those above a known revision.

    Of changes before this command only the last of each key is sent. A known revision above all
    others means that only future changes are sent.
    """
    return _headed(KvKind.WATCH, prefix) + INDEX.pack(known) + watcher


def unwatch(watcher: bytes) -> bytes:
    """Remove a watcher."""
    return _headed(KvKind.UNWATCH, watcher)


def get(key: bytes) -> bytes:
    """Read the value of a key."""
    return bytes((KvKind.GET,)) + key


def scan(prefix: bytes, rows_max: int = SCAN_ROWS_MAX, after: bytes = b"") -> bytes:
    """Read the keys with a prefix, ascending, above `after`."""
    if not 1 <= rows_max <= SCAN_ROWS_MAX:
        raise InvalidInput(f"{rows_max} rows asked for, 1 to {SCAN_ROWS_MAX} can be")
    return _SCAN.pack(KvKind.SCAN, rows_max, len(prefix)) + prefix + after


def parse_key(command: bytes) -> tuple[int, bytes, int]:
    """(kind, key, offset of the rest) of a command."""
    try:
        kind, length = HEAD.unpack_from(command)
    except struct.error:
        raise ProtocolError(f"a command of {len(command)} bytes") from None
    end = HEAD.size + length
    if end > len(command):
        raise ProtocolError(f"a command of {len(command)} bytes with a key of {length}")
    return kind, command[HEAD.size : end], end


def value_at(command: bytes) -> bytes:
    """The value in a PUT, CAS or REWRITE."""
    kind, length = HEAD.unpack_from(command)
    return command[HEAD.size + length + _BEFORE_VALUE[kind] :]


def parse_scan(query: bytes) -> tuple[int, bytes, bytes]:
    """(maximum of rows, prefix, key to start after) of a SCAN."""
    try:
        _, rows_max, length = _SCAN.unpack_from(query)
    except struct.error:
        raise ProtocolError(f"a scan of {len(query)} bytes") from None
    at = _SCAN.size + length
    if at > len(query) or not 1 <= rows_max <= SCAN_ROWS_MAX:
        raise ProtocolError(f"a scan for {rows_max} rows with a prefix of {length} bytes")
    return rows_max, query[_SCAN.size : at], query[at:]


def parse_reply(data: bytes) -> Reply:
    """The opposite of `Reply.encode`."""
    outcome, revision = REPLY.unpack_from(data)
    return Reply(KvOutcome(outcome), revision, data[REPLY.size :])


def encode_row(row: KvRow) -> bytes:
    """One row of the answer to a SCAN, as bytes."""
    return _ROW.pack(row.revision, len(row.key), len(row.value)) + row.key + row.value


def parse_rows(data: bytes) -> list[KvRow]:
    """The rows in the answer to a SCAN."""
    rows, at = [], REPLY.size
    while at < len(data):
        revision, key_bytes, value_bytes = _ROW.unpack_from(data, at)
        at += _ROW.size
        key = data[at : at + key_bytes]
        at += key_bytes
        rows.append(KvRow(key, data[at : at + value_bytes], revision))
        at += value_bytes
    return rows


def encode_event(event: WatchEvent) -> bytes:
    """An event as bytes."""
    kind = KvKind.DELETE if event.value is None else KvKind.PUT
    head = _EVENT.pack(kind, event.revision, event.previous, len(event.key))
    return head + event.key + (event.value or b"")


def parse_event(data: bytes) -> WatchEvent:
    """The opposite of `encode_event`."""
    kind, revision, previous, length = _EVENT.unpack_from(data)
    at = _EVENT.size + length
    value = data[at:] if kind == KvKind.PUT else None
    return WatchEvent(data[_EVENT.size : at], value, revision, previous)
