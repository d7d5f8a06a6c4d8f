"""The bytes of the metastore's queries and replies. Pure; commands are in `command_format.py`.

Numbers are little-endian. A query begins with its kind, 1 byte:

    GET          8  revision, 0 for the newest   2  length of the key   key
    RANGE        8  revision   4  maximum of rows, 0 for no limit   2 and 2  lengths   start   end
    CHANGES      8  after   4  maximum of revisions   4  maximum of bytes   2 and 2   start   end
    LEASES       8  leases above this id
    STATUS       nothing
    AT_TIME      8  timestamp; answered with the revision that was the newest one then
    SUPERFLUOUS  8  floor   8 and 8  where to continue: revision, change; 0 for the first page

A reply:

    0     1  outcome
    1     1  flags: 1 all compares held, 2 a revision was made
    2     8  a number: the revision, or what the outcome names
   10     8  time of the store; of the revision, if one was made
   18        GET:      the row; nothing if the key is absent
             RANGE:    2  length of the key that the next page starts with, 0 if there is none, the
                       key, then rows
             CHANGES:  8  through: all revisions up to this one were sent; then revisions
             GRANT, KEEP, LEASES: leases: 8 id, 8 time to live in milliseconds, 8 generation
             STATUS:   8 bytes each of `StoreStatus`
             SUPERFLUOUS: 8 bytes each of `Superfluous`
    a row       2  length of the key   4  of the value   8  revision   8  timestamp   8  lease
                key   value
    a revision  8  revision   8  timestamp   4  changes; of each change
                2  length of the key   4  of the value, 2^32 - 1 for a deletion   key   value
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from lithify.errors import InvalidInput, ProtocolError
from lithify.metastore.command_format import KIND_AND_NUMBER, NUMBER
from lithify.metastore.errors import (
    LeaseFull,
    LeaseNotFound,
    RevisionCompacted,
    RevisionNotReached,
)
from lithify.metastore.metastore import Change, KeyValue, Lease, Outcome, Revision, Rows
from lithify.metastore.purge import Superfluous
from lithify.metastore.transaction import KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "CHANGED",
    "HELD",
    "PAGE_BYTES_MAX",
    "PAGE_ROWS_MAX",
    "REPLY",
    "AskedChanges",
    "AskedRange",
    "ChangesPage",
    "MetastoreOutcome",
    "MetastoreReply",
    "QueryKind",
    "RowsPage",
    "StoreStatus",
    "check_reply",
    "encode_at_time",
    "encode_changes",
    "encode_get",
    "encode_lease_rows",
    "encode_leases",
    "encode_next_start",
    "encode_range",
    "encode_revision",
    "encode_row",
    "encode_status",
    "encode_store_status",
    "encode_superfluous",
    "encode_superfluous_query",
    "parse_asked_changes",
    "parse_asked_get",
    "parse_asked_leases",
    "parse_asked_range",
    "parse_asked_superfluous",
    "parse_asked_time",
    "parse_changes",
    "parse_leases",
    "parse_outcome",
    "parse_reply",
    "parse_row",
    "parse_rows",
    "parse_status",
    "parse_superfluous",
    "parse_value",
]

PAGE_BYTES_MAX = 2**20
"""Of the rows or revisions of a reply, which ends with the one that reaches it."""
PAGE_ROWS_MAX = 1000
HELD = 1
CHANGED = 2

REPLY = struct.Struct("<BBQQ")
_LENGTH = struct.Struct("<H")
_LEASE = struct.Struct("<QQQ")
_GET = struct.Struct("<BQH")
_RANGE = struct.Struct("<BQIHH")
_CHANGES = struct.Struct("<BQIIHH")
_ROW = struct.Struct("<HIQQQ")
_REVISION = struct.Struct("<QQI")
_CHANGE = struct.Struct("<HI")
_STATUS = struct.Struct("<8Q")
_SUPERFLUOUS = struct.Struct("<6Q")
_ASKED_SUPERFLUOUS = struct.Struct("<BQQQ")
_DELETED = 2**32 - 1


class QueryKind(IntEnum):
    """The kind of a query."""

    GET = 16
    RANGE = 17
    CHANGES = 18
    LEASES = 19
    STATUS = 20
    SUPERFLUOUS = 21
    AT_TIME = 22


class MetastoreOutcome(IntEnum):
    """The outcome of a command or query. All but DONE changed nothing."""

    DONE = 0
    COMPACTED = 1
    """The number is the floor."""
    NOT_REACHED = 2
    """The number is the newest revision; of AT_TIME, the time of the store."""
    LEASE_NOT_FOUND = 3
    """The number is the lease."""
    LEASE_FULL = 4
    """The number is the lease."""
    INVALID = 5
    """It cannot be parsed."""


_DONE = bytes((MetastoreOutcome.DONE,))


@dataclass(frozen=True, slots=True)
class MetastoreReply:
    """A parsed reply; `rest` is what follows its head."""

    outcome: MetastoreOutcome
    flags: int
    number: int
    time: int
    rest: bytes = b""


@dataclass(frozen=True, slots=True)
class RowsPage:
    """A page of a range; the next page starts with `next_start`, if that is not empty."""

    rows: Rows
    next_start: bytes


@dataclass(frozen=True, slots=True)
class ChangesPage:
    """All revisions above the one asked for, up to `through`, that change the range."""

    newest: int
    """The newest revision when it was asked."""
    time: int
    """The time of the store then."""
    through: int
    revisions: tuple[Revision, ...]


@dataclass(frozen=True, slots=True)
class AskedRange:
    """A parsed RANGE."""

    revision: int
    rows_max: int
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class AskedChanges:
    """A parsed CHANGES."""

    after: int
    revisions_max: int
    bytes_max: int
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Numbers of the state of one member; purging is local, so they differ between members."""

    revision: int
    time: int
    floor: int
    keys: int
    """Keys that have a value."""
    revisions: int
    """Retained ones."""
    values: int
    """Retained values and tombstones."""
    leases: int
    unpurged: int
    """Revisions at or below the floor that a purge has not reached."""


# --- queries --------------------------------------------------------------------------------


def encode_get(key: bytes, revision: int = 0) -> bytes:
    """A key at a revision; 0 is the newest."""
    return _GET.pack(QueryKind.GET, revision, len(key)) + key


def encode_range(start: bytes, end: bytes, revision: int = 0, rows_max: int = 0) -> bytes:
    """The first rows of a range at a revision; 0 is the newest, or no limit."""
    rows_max = min(rows_max, PAGE_ROWS_MAX)
    return _RANGE.pack(QueryKind.RANGE, revision, rows_max, len(start), len(end)) + start + end


def encode_changes(
    start: bytes,
    end: bytes,
    after: int,
    revisions_max: int = PAGE_ROWS_MAX,
    bytes_max: int = PAGE_BYTES_MAX,
) -> bytes:
    """The first changes of a range above a revision."""
    head = QueryKind.CHANGES, after, revisions_max, bytes_max, len(start), len(end)
    return _CHANGES.pack(*head) + start + end


def encode_leases(after: int = 0) -> bytes:
    """The first leases above an id."""
    return KIND_AND_NUMBER.pack(QueryKind.LEASES, after)


def encode_at_time(time: int) -> bytes:
    """The newest revision at a time."""
    return KIND_AND_NUMBER.pack(QueryKind.AT_TIME, time)


def encode_status() -> bytes:
    """The numbers of the state."""
    return bytes((QueryKind.STATUS,))


def encode_superfluous_query(floor: int, revision: int = 0, change: int = 0) -> bytes:
    """Count what a purge would remove if the floor rose; continued at a change of a revision."""
    return _ASKED_SUPERFLUOUS.pack(QueryKind.SUPERFLUOUS, floor, revision, change)


def parse_asked_superfluous(query: bytes) -> tuple[int, int, int]:
    """(floor, revision, change)."""
    if len(query) != _ASKED_SUPERFLUOUS.size:
        _refuse("count", query)
    _, floor, revision, change = _ASKED_SUPERFLUOUS.unpack(query)
    return floor, revision, change


def parse_asked_get(query: bytes) -> tuple[int, bytes]:
    """(revision, key) of a GET."""
    _, revision, length = _unpack(_GET, query, "get")
    if len(query) != _GET.size + length:
        _refuse("get", query)
    return revision, query[_GET.size :]


def parse_asked_range(query: bytes) -> AskedRange:
    """The opposite of `encode_range`."""
    _, revision, rows_max, start_bytes, end_bytes = _unpack(_RANGE, query, "range")
    start, end = _bounds(query, _RANGE.size, start_bytes, end_bytes)
    return AskedRange(revision, min(rows_max or PAGE_ROWS_MAX, PAGE_ROWS_MAX), start, end)


def parse_asked_changes(query: bytes) -> AskedChanges:
    """The opposite of `encode_changes`."""
    _, after, revisions, size, start_bytes, end_bytes = _unpack(_CHANGES, query, "query of changes")
    start, end = _bounds(query, _CHANGES.size, start_bytes, end_bytes)
    revisions = max(1, min(revisions, PAGE_ROWS_MAX))
    return AskedChanges(after, revisions, min(size, PAGE_BYTES_MAX), start, end)


def parse_asked_time(query: bytes) -> int:
    """The opposite of `encode_at_time`."""
    if len(query) != KIND_AND_NUMBER.size:
        _refuse("query of a time", query)
    return int(KIND_AND_NUMBER.unpack(query)[1])


def parse_asked_leases(query: bytes) -> int:
    """The opposite of `encode_leases`."""
    if len(query) != KIND_AND_NUMBER.size:
        _refuse("query of leases", query)
    return int(KIND_AND_NUMBER.unpack(query)[1])


def _bounds(query: bytes, at: int, start_bytes: int, end_bytes: int) -> tuple[bytes, bytes]:
    if len(query) != at + start_bytes + end_bytes or max(start_bytes, end_bytes) > KEY_BYTES_MAX:
        _refuse("range", query)
    return query[at : at + start_bytes], query[at + start_bytes :]


def _unpack(layout: struct.Struct, data: bytes, what: str, at: int = 0) -> tuple[int, ...]:
    try:
        return layout.unpack_from(data, at)
    except struct.error:
        _refuse(what, data)


# --- replies --------------------------------------------------------------------------------


def parse_reply(data: bytes) -> MetastoreReply:
    """The opposite of what the machine replies; `check_reply` raises its error."""
    outcome, flags, number, time = _unpack(REPLY, data, "reply")
    try:
        named = MetastoreOutcome(outcome)
    except ValueError:
        _refuse("reply", data)
    return MetastoreReply(named, flags, number, time, data[REPLY.size :])


def check_reply(reply: MetastoreReply, revision: int = 0) -> None:
    """Raise the error of a reply to a request; `revision` is the one that it asked for."""
    match reply.outcome:
        case MetastoreOutcome.COMPACTED:
            raise RevisionCompacted(revision, reply.number)
        case MetastoreOutcome.NOT_REACHED:
            raise RevisionNotReached(revision, reply.number)
        case MetastoreOutcome.LEASE_NOT_FOUND:
            raise LeaseNotFound(reply.number)
        case MetastoreOutcome.LEASE_FULL:
            raise LeaseFull(reply.number)
        case MetastoreOutcome.INVALID:
            raise InvalidInput("the metastore cannot parse the request")


def parse_outcome(reply: MetastoreReply) -> Outcome:
    """The outcome of a transaction."""
    held, changed = bool(reply.flags & HELD), bool(reply.flags & CHANGED)
    return Outcome(held, reply.number, reply.time, changed)


def encode_row(row: KeyValue) -> bytes:
    """A row of a GET or RANGE."""
    lengths = len(row.key), len(row.value)
    return _ROW.pack(*lengths, row.revision, row.timestamp, row.lease) + row.key + row.value


def parse_row(reply: MetastoreReply) -> KeyValue | None:
    """The row of a GET."""
    found = _rows(reply.rest, 0)
    return found[0] if found else None


def parse_value(data: bytes) -> bytes | None:
    """The value in the reply to a GET of the newest revision; None if the key is absent.

    The same as `parse_row`, without objects for what is not used.
    """
    if data[:1] != _DONE:
        check_reply(parse_reply(data))
    if len(data) == REPLY.size:
        return None
    key_bytes, value_bytes, _, _, _ = _unpack(_ROW, data, "row", REPLY.size)
    start = REPLY.size + _ROW.size + key_bytes
    if len(data) != start + value_bytes:
        _refuse("row", data)
    return data[start:]


def encode_next_start(key: bytes) -> bytes:
    """What precedes the rows of a RANGE."""
    return _LENGTH.pack(len(key)) + key


def parse_rows(reply: MetastoreReply) -> RowsPage:
    """The page of a RANGE."""
    (length,) = _unpack(_LENGTH, reply.rest, "page")
    at = _LENGTH.size + length
    start = reply.rest[_LENGTH.size : at]
    rows = Rows(reply.number, reply.time, tuple(_rows(reply.rest, at)), bool(start))
    return RowsPage(rows, start)


def _rows(data: bytes, at: int) -> list[KeyValue]:
    rows = []
    while at < len(data):
        key_bytes, value_bytes, revision, timestamp, lease = _unpack(_ROW, data, "row", at)
        middle = at + _ROW.size + key_bytes
        end = middle + value_bytes
        key, value = data[middle - key_bytes : middle], data[middle:end]
        rows.append(KeyValue(key, value, revision, timestamp, lease))
        at = end
    if at != len(data):
        _refuse("row", data)
    return rows


def encode_revision(
    revision: int, timestamp: int, changes: Sequence[tuple[bytes, bytes | None]]
) -> bytes:
    """A revision of CHANGES; of (key, value or None)."""
    parts = [_REVISION.pack(revision, timestamp, len(changes))]
    for key, value in changes:
        parts += (_CHANGE.pack(len(key), _DELETED if value is None else len(value)), key)
        parts.append(value or b"")
    return b"".join(parts)


def parse_changes(reply: MetastoreReply) -> ChangesPage:
    """The page of CHANGES."""
    data = reply.rest
    (through,) = _unpack(NUMBER, data, "page")
    revisions, at = [], NUMBER.size
    while at < len(data):
        revision, timestamp, count = _unpack(_REVISION, data, "revision", at)
        at += _REVISION.size
        changes = []
        for _ in range(count):
            key_bytes, value_bytes = _unpack(_CHANGE, data, "change", at)
            middle = at + _CHANGE.size + key_bytes
            key, deleted = data[middle - key_bytes : middle], value_bytes == _DELETED
            at = middle if deleted else middle + value_bytes
            changes.append(Change(key, None if deleted else data[middle:at]))
        revisions.append(Revision(revision, timestamp, tuple(changes)))
    if at != len(data):
        _refuse("page", data)
    return ChangesPage(reply.number, reply.time, through, tuple(revisions))


def encode_lease_rows(leases: Iterable[Lease]) -> bytes:
    """Leases, as replies have them."""
    return b"".join(_LEASE.pack(each.id, each.ttl_ms, each.generation) for each in leases)


def parse_leases(reply: MetastoreReply) -> list[Lease]:
    """The leases of a GRANT, KEEP or LEASES."""
    if len(reply.rest) % _LEASE.size:
        _refuse("reply", reply.rest)
    return [Lease(*each) for each in _LEASE.iter_unpack(reply.rest)]


def encode_store_status(status: StoreStatus) -> bytes:
    """The rest of the reply to STATUS."""
    return _STATUS.pack(*astuple(status))


def parse_status(reply: MetastoreReply) -> StoreStatus:
    """The numbers of STATUS."""
    return StoreStatus(*_unpack(_STATUS, reply.rest, "status"))


def encode_superfluous(page: Superfluous) -> bytes:
    """The rest of the reply to SUPERFLUOUS."""
    return _SUPERFLUOUS.pack(*astuple(page))


def parse_superfluous(reply: MetastoreReply) -> Superfluous:
    """A page of the count."""
    return Superfluous(*_unpack(_SUPERFLUOUS, reply.rest, "count"))


def _refuse(what: str, data: bytes) -> NoReturn:
    raise ProtocolError(f"a {what} of {len(data)} bytes cannot be parsed")
