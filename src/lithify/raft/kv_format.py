"""What clients of the key-value machine say and hear: commands, queries, replies, events. Pure.

Numbers are little-endian. A command, and so an entry of the log:

    0     1  kind
    1     2  length of the key, n
    3     n  key
    PUT        the value
    DELETE     nothing
    CAS        1  what is compared: 0 the key is absent, 1 its revision, 2 its value
              16  the revision (8 bytes, then zeros) or the digest of the value
                  the new value
    REWRITE    8  the index where the value stands
                  the value, which must be the one that stands there; the key's revision stays
    WATCH      8  the revision that is known; the key is a prefix
                  the name of the watcher
    UNWATCH    nothing; the key is the name of the watcher

A query:

    GET        1  kind, then the key
    SCAN       1  kind, 4  rows at most, 2  length of the prefix, prefix, key to go on behind
                  the answer ends early, with the row that makes it `SCAN_BYTES_MAX` or more

A reply:

    0     1  outcome
    1     8  revision: of what was written, or of what is there instead, 0 if nothing
    9        the value, of a GET
    9        rows, of a SCAN: 8 revision, 2 length of the key, 4 length of the value, key, value

What a watcher is sent:

    0     1  PUT or DELETE
    1     8  revision
    9     8  previous: the revision of what was sent before it. If that is something else, something
             was lost: watch again, from the last revision that came
   17     2  length of the key, key, value

The revision of a key is the index of the command that gave it its value. A digest is the
first 16 bytes of SHA-256, which processors have an instruction for: values that have the same are
the same.
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
    "Kind",
    "Outcome",
    "Reply",
    "Row",
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
"""Of a page. What is larger comes in several, each as of its own moment."""

HEAD = struct.Struct("<BH")
INDEX = struct.Struct("<Q")
EXPECTED = struct.Struct("<B16s")
REPLY = struct.Struct("<BQ")
_SCAN = struct.Struct("<BIH")
_ROW = struct.Struct("<QHI")
_EVENT = struct.Struct("<BQQH")


class Kind(IntEnum):
    """Of commands and queries."""

    PUT = 1
    DELETE = 2
    CAS = 3
    REWRITE = 4
    WATCH = 5
    UNWATCH = 6
    GET = 16
    SCAN = 17


_BEFORE_VALUE = {Kind.PUT: 0, Kind.CAS: EXPECTED.size, Kind.REWRITE: INDEX.size}
"""Bytes between the key and the value."""


class Compared(IntEnum):
    """What a CAS looks at."""

    ABSENT = 0
    REVISION = 1
    VALUE = 2


class Outcome(IntEnum):
    """How a command or a read has ended."""

    DONE = 0
    MISMATCH = 1
    """The key has something else than was expected; nothing changed."""
    ABSENT = 2
    """There is no such key."""
    RESET = 3
    """Of a watch: keys were deleted since, or too much has changed. Forget what was known, and read
    all there is; what changes from the reply's revision on is sent."""
    INVALID = 4
    """Nobody could understand it; nothing changed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """To a command or a GET."""

    outcome: Outcome
    revision: int
    value: bytes = b""

    def encode(self) -> bytes:
        """As it is sent."""
        return REPLY.pack(self.outcome, self.revision) + self.value


@dataclass(frozen=True, slots=True)
class Row:
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
    """What the machine knows of a value."""
    return sha256(value).digest()[:16]


def _headed(kind: Kind, key: bytes) -> bytes:
    if len(key) > KEY_BYTES_MAX:
        raise InvalidInput(f"a key of {len(key)} bytes; at most {KEY_BYTES_MAX} can be")
    return HEAD.pack(kind, len(key)) + key


def put(key: bytes, value: bytes) -> bytes:
    """Let a key have a value."""
    return _headed(Kind.PUT, key) + value


def delete(key: bytes) -> bytes:
    """Let a key be no more."""
    return _headed(Kind.DELETE, key)


def compare_and_set(key: bytes, value: bytes, expected: bytes | int | None) -> bytes:
    """Let a key have a value if it has the expected one: a value, a revision, or None if absent."""
    if expected is None:
        condition = EXPECTED.pack(Compared.ABSENT, b"")
    elif isinstance(expected, int):
        condition = EXPECTED.pack(Compared.REVISION, INDEX.pack(expected))
    else:
        condition = EXPECTED.pack(Compared.VALUE, digest_of(expected))
    return _headed(Kind.CAS, key) + condition + value


def rewrite(key: bytes, index: int, value: bytes) -> bytes:
    """Let a key's value stand here, if it still stands at that index."""
    return _headed(Kind.REWRITE, key) + INDEX.pack(index) + value


def watch(prefix: bytes, watcher: bytes, known: int = 0) -> bytes:
    """Be told of all changes of keys with a prefix, also of those above a revision that is known.

    Of those before this command only the last of each key is told. Above all revisions, known
    means that only what comes from now on is.
    """
    return _headed(Kind.WATCH, prefix) + INDEX.pack(known) + watcher


def unwatch(watcher: bytes) -> bytes:
    """Be told no more."""
    return _headed(Kind.UNWATCH, watcher)


def get(key: bytes) -> bytes:
    """Ask for the value of a key."""
    return bytes((Kind.GET,)) + key


def scan(prefix: bytes, rows_max: int = SCAN_ROWS_MAX, after: bytes = b"") -> bytes:
    """Ask for the keys with a prefix, ascending; `after` is the last one that is known."""
    if not 1 <= rows_max <= SCAN_ROWS_MAX:
        raise InvalidInput(f"{rows_max} rows asked for, 1 to {SCAN_ROWS_MAX} can be")
    return _SCAN.pack(Kind.SCAN, rows_max, len(prefix)) + prefix + after


def parse_key(command: bytes) -> tuple[int, bytes, int]:
    """(kind, key, where the rest begins) of a command."""
    try:
        kind, length = HEAD.unpack_from(command)
    except struct.error:
        raise ProtocolError(f"a command of {len(command)} bytes") from None
    end = HEAD.size + length
    if end > len(command):
        raise ProtocolError(f"a command of {len(command)} bytes with a key of {length}")
    return kind, command[HEAD.size : end], end


def value_at(command: bytes) -> bytes:
    """The value that a PUT, CAS or REWRITE carries."""
    kind, length = HEAD.unpack_from(command)
    return command[HEAD.size + length + _BEFORE_VALUE[kind] :]


def parse_scan(query: bytes) -> tuple[int, bytes, bytes]:
    """(rows at most, prefix, key to go on behind) of a SCAN."""
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
    return Reply(Outcome(outcome), revision, data[REPLY.size :])


def encode_row(row: Row) -> bytes:
    """One row of the answer to a SCAN."""
    return _ROW.pack(row.revision, len(row.key), len(row.value)) + row.key + row.value


def parse_rows(data: bytes) -> list[Row]:
    """The answer to a SCAN."""
    rows, at = [], REPLY.size
    while at < len(data):
        revision, key_bytes, value_bytes = _ROW.unpack_from(data, at)
        at += _ROW.size
        key = data[at : at + key_bytes]
        at += key_bytes
        rows.append(Row(key, data[at : at + value_bytes], revision))
        at += value_bytes
    return rows


def encode_event(event: WatchEvent) -> bytes:
    """What a watcher is sent."""
    kind = Kind.DELETE if event.value is None else Kind.PUT
    head = _EVENT.pack(kind, event.revision, event.previous, len(event.key))
    return head + event.key + (event.value or b"")


def parse_event(data: bytes) -> WatchEvent:
    """The opposite of `encode_event`."""
    kind, revision, previous, length = _EVENT.unpack_from(data)
    at = _EVENT.size + length
    value = data[at:] if kind == Kind.PUT else None
    return WatchEvent(data[_EVENT.size : at], value, revision, previous)
