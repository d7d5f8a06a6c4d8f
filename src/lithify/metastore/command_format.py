"""The bytes of the metastore's commands. Pure; queries and replies are in `query_format.py`.

Numbers are little-endian. A command, and so an entry of the log, begins with its kind, 1 byte; a
later version of a command gets another kind.

    TRANSACTION  2  compares   2  operations   2  operations otherwise
                 of each compare: 1  condition   2  length of the key   key
                     REVISION and REVISION_AT_MOST: 8  the revision; VALUE: 16  digest of the value
                     RANGE_UNCHANGED: 8  the revision   2  length of the end   end; the key is the
                         start; TIME_BELOW: 8  the time
                 of each operation: 1  kind   2  length of a   4  length of b   8  number   a   b
                     PUT           a is the key, b the value, the number its lease, 0 for none
                     DELETE        a is the key; the rest is empty and 0
                     DELETE_RANGE  a is the start, b the end, the number the maximum of keys
    GRANT        8  time to live in milliseconds
    KEEP         8  lease
    REVOKE       8  lease
    EXPIRE       8  lease   8  generation
    TIME         nothing
    TIME_REACHED 8  timestamp that the time is to have reached
    COMPACT      8  revision, the new floor
    REWRITE      8  place   8  revision   2  values
                 of each value: as an operation PUT
    COMPACT_IF_UNCHANGED  8  revision   8  since   the prefix of the keys that must be unchanged

A digest is that of `raft/kv/format.py`: values with equal digests are equal.

A command that exceeds a limit, or has bytes after its end, cannot be parsed: `ProtocolError`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from lithify.errors import InvalidInput, ProtocolError
from lithify.metastore.transaction import (
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Condition,
    Delete,
    DeleteRange,
    Put,
)
from lithify.raft.kv.format import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.metastore.transaction import Compare, Operation, Transaction

__all__ = [
    "COMMAND_BYTES_MAX",
    "COMPARED_RANGES_MAX",
    "DELETE",
    "DELETED_KEYS_MAX",
    "DELETED_RANGES_MAX",
    "EXPIRE",
    "KIND_AND_NUMBER",
    "NUMBER",
    "PUT",
    "TTL_MS_MAX",
    "CommandKind",
    "OperationKind",
    "ParsedCompare",
    "ParsedOperation",
    "encode_compact",
    "encode_compact_if_unchanged",
    "encode_delete_below",
    "encode_expire",
    "encode_grant",
    "encode_keep",
    "encode_put_below",
    "encode_revoke",
    "encode_rewrite",
    "encode_time",
    "encode_time_reached",
    "encode_transaction",
    "parse_compact_if_unchanged",
    "parse_numbers",
    "parse_rewrite",
    "parse_transaction",
    "values_of",
]

COMMAND_BYTES_MAX = 2**22 + 2**16
"""The keys and values of the largest transaction, and the heads of its parts. A REWRITE may have a
few bytes more, so that every transaction can be rewritten."""
DELETED_KEYS_MAX = 4096
"""Keys that the DELETE_RANGEs of a transaction delete: 16 MiB of the longest keys, which fit into
one reply to a watcher."""
DELETED_RANGES_MAX = 16
"""Each of them searches the keys, in the thread that all groups share."""
COMPARED_RANGES_MAX = 16
"""Each of them searches the changes above its revision."""
TTL_MS_MAX = 2**40

TRANSACTION = struct.Struct("<BHHH")
COMPARE = struct.Struct("<BH")
RANGE = struct.Struct("<QH")
OPERATION = struct.Struct("<BHIQ")
NUMBER = struct.Struct("<Q")
KIND_AND_NUMBER = struct.Struct("<BQ")
EXPIRE = struct.Struct("<BQQ")
REWRITE = struct.Struct("<BQQH")
_BELOW = struct.Struct("<BHHHBHQ")
"""A TRANSACTION with one operation, and a compare TIME_BELOW."""
_DIGEST_BYTES = 16


class CommandKind(IntEnum):
    """The kind of a command."""

    TRANSACTION = 1
    GRANT = 2
    KEEP = 3
    REVOKE = 4
    EXPIRE = 5
    TIME = 6
    COMPACT = 7
    REWRITE = 8
    COMPACT_IF_UNCHANGED = 9
    TIME_REACHED = 10


class OperationKind(IntEnum):
    """The kind of an operation of a transaction."""

    PUT = 1
    DELETE = 2
    DELETE_RANGE = 3


# As plain numbers: comparing with a member of an `IntEnum` takes ten times as long.
PUT = int(OperationKind.PUT)
DELETE = int(OperationKind.DELETE)
_DELETE_RANGE = int(OperationKind.DELETE_RANGE)
_TRANSACTION = int(CommandKind.TRANSACTION)
_ABSENT = int(Condition.ABSENT)
_PRESENT = int(Condition.PRESENT)
_VALUE = int(Condition.VALUE)
_RANGE_UNCHANGED = int(Condition.RANGE_UNCHANGED)
_TIME_BELOW = int(Condition.TIME_BELOW)

ParsedCompare = tuple[int, bytes, int | bytes | tuple[int, bytes]]
"""Condition, key, and the revision, the digest, the time, or (revision, end) of a range."""
ParsedOperation = tuple[int, bytes, bytes, int]
"""Kind, a, b and number; see the module."""
ParsedTransaction = tuple[list[ParsedCompare], list[ParsedOperation], list[ParsedOperation]]


def encode_transaction(transaction: Transaction) -> bytes:
    """A transaction."""
    compares, then, otherwise = transaction.compares, transaction.then, transaction.otherwise
    ranges = [each for each in (*then, *otherwise) if isinstance(each, DeleteRange)]
    deleted = sum(each.keys_max for each in ranges)
    if len(ranges) > DELETED_RANGES_MAX:
        what = f"transaction deletes {len(ranges)} ranges"
        raise InvalidInput(f"{what}, at most {DELETED_RANGES_MAX} can be deleted")
    compared = sum(each.condition == Condition.RANGE_UNCHANGED for each in compares)
    if compared > COMPARED_RANGES_MAX:
        what = f"transaction compares {compared} ranges"
        raise InvalidInput(f"{what}, at most {COMPARED_RANGES_MAX} can be compared")
    if deleted > DELETED_KEYS_MAX:
        what = f"ranges of a transaction delete up to {deleted} keys"
        raise InvalidInput(f"{what}, at most {DELETED_KEYS_MAX} can be deleted")
    head = TRANSACTION.pack(CommandKind.TRANSACTION, len(compares), len(then), len(otherwise))
    parts = [head, *map(_compare, compares), *map(_operation, then), *map(_operation, otherwise)]
    return b"".join(parts)


def encode_put_below(time: int, key: bytes, value: bytes) -> bytes:
    """The transaction that puts a value if its time is below a limit, without its objects."""
    return _BELOW.pack(_TRANSACTION, 1, 1, 0, _TIME_BELOW, 0, time) + _encoded(PUT, key, value, 0)


def encode_delete_below(time: int, key: bytes) -> bytes:
    """The same for a deletion."""
    head = _BELOW.pack(_TRANSACTION, 1, 1, 0, _TIME_BELOW, 0, time)
    return head + _encoded(DELETE, key, b"", 0)


def _compare(compare: Compare) -> bytes:
    operand = b""
    if compare.condition == Condition.VALUE:
        operand = digest_of(compare.value)
    elif compare.condition in {Condition.REVISION, Condition.REVISION_AT_MOST}:
        operand = NUMBER.pack(compare.revision)
    elif compare.condition == Condition.RANGE_UNCHANGED:
        operand = RANGE.pack(compare.revision, len(compare.end)) + compare.end
    elif compare.condition == Condition.TIME_BELOW:
        operand = NUMBER.pack(compare.time)
    return COMPARE.pack(compare.condition, len(compare.key)) + compare.key + operand


def _operation(operation: Operation) -> bytes:
    if isinstance(operation, Put):
        return _encoded(PUT, operation.key, operation.value, operation.lease)
    if isinstance(operation, Delete):
        return _encoded(DELETE, operation.key, b"", 0)
    return _encoded(_DELETE_RANGE, operation.start, operation.end, operation.keys_max)


def _encoded(kind: int, a: bytes, b: bytes, number: int) -> bytes:
    return OPERATION.pack(kind, len(a), len(b), number) + a + b


def encode_grant(ttl_ms: int) -> bytes:
    """Grant a lease."""
    if not 1 <= ttl_ms <= TTL_MS_MAX:
        raise InvalidInput(f"ttl_ms is {ttl_ms}, must be from 1 to {TTL_MS_MAX}")
    return KIND_AND_NUMBER.pack(CommandKind.GRANT, ttl_ms)


def encode_keep(lease: int) -> bytes:
    """Start the time to live of a lease again."""
    return _numbered(CommandKind.KEEP, "lease", lease)


def encode_revoke(lease: int) -> bytes:
    """End a lease."""
    return _numbered(CommandKind.REVOKE, "lease", lease)


def encode_expire(lease: int, generation: int) -> bytes:
    """End a lease if it still has this generation."""
    return EXPIRE.pack(CommandKind.EXPIRE, lease, generation)


def encode_time() -> bytes:
    """Advance the time."""
    return bytes((CommandKind.TIME,))


def encode_time_reached(time: int) -> bytes:
    """Advance the time to a timestamp at least."""
    return _numbered(CommandKind.TIME_REACHED, "time", time)


def encode_compact(revision: int) -> bytes:
    """Raise the floor."""
    return _numbered(CommandKind.COMPACT, "revision", revision)


def encode_compact_if_unchanged(revision: int, prefix: bytes, since: int) -> bytes:
    """Raise the floor, unless a key with this prefix was put after a revision."""
    _check_number("revision", revision)
    _check_number("revision", since)
    kind = CommandKind.COMPACT_IF_UNCHANGED
    return EXPIRE.pack(kind, revision, since) + prefix


def encode_rewrite(place: int, revision: int, values: Sequence[tuple[bytes, bytes, int]]) -> bytes:
    """Write values of a revision again, if they are still at this place: (key, value, lease)."""
    head = REWRITE.pack(CommandKind.REWRITE, place, revision, len(values))
    return head + b"".join(_encoded(PUT, *each) for each in values)


def _numbered(kind: int, what: str, number: int) -> bytes:
    _check_number(what, number)
    return KIND_AND_NUMBER.pack(kind, number)


def _check_number(what: str, number: int) -> None:
    if not 0 <= number < 2**63:
        raise InvalidInput(f"{what} {number} must be from 0 to 2**63 - 1")


def parse_transaction(command: bytes) -> ParsedTransaction:
    """The parts of a TRANSACTION."""
    try:
        _, compares, then, otherwise = TRANSACTION.unpack_from(command)
        if compares + then + otherwise > OPERATIONS_MAX:
            _refuse("transaction", command)
        at, ranges = TRANSACTION.size, 0
        first: list[ParsedCompare] = []
        for _ in range(compares):
            condition, length = COMPARE.unpack_from(command, at)
            at += COMPARE.size
            end = at + length
            key = command[at:end]
            at = end
            if condition <= _PRESENT:
                first.append((condition, key, 0))
            elif condition < _VALUE or condition == _TIME_BELOW:
                first.append((condition, key, NUMBER.unpack_from(command, at)[0]))
                at += NUMBER.size
            elif condition == _RANGE_UNCHANGED:
                revision, end_bytes = RANGE.unpack_from(command, at)
                at += RANGE.size + end_bytes
                ranges += 1
                first.append((condition, key, (revision, command[at - end_bytes : at])))
                if end_bytes > KEY_BYTES_MAX or ranges > COMPARED_RANGES_MAX:
                    _refuse("compare", command)
            else:
                at += _DIGEST_BYTES
                first.append((condition, key, command[end:at]))
            if length > KEY_BYTES_MAX or condition > _TIME_BELOW:
                _refuse("compare", command)
        second, at = _parse_operations(command, at, then)
        third: list[ParsedOperation] = []
        if otherwise:
            third, at = _parse_operations(command, at, otherwise)
    except struct.error:
        _refuse("transaction", command)
    if _DELETE_RANGE in {each[0] for each in (*second, *third)}:
        _check_deleted_keys((*second, *third), command)
    # Only a slice can end early without an error; then the offset is above the length.
    if at != len(command) or at > COMMAND_BYTES_MAX:
        _refuse("transaction", command)
    return first, second, third


def _parse_operations(command: bytes, at: int, count: int) -> tuple[list[ParsedOperation], int]:
    operations: list[ParsedOperation] = []
    for _ in range(count):
        kind, a_bytes, b_bytes, number = OPERATION.unpack_from(command, at)
        at += OPERATION.size
        middle = at + a_bytes
        end = middle + b_bytes
        operations.append((kind, command[at:middle], command[middle:end], number))
        at = end
        if a_bytes > KEY_BYTES_MAX or b_bytes > VALUE_BYTES_MAX:
            _refuse("operation", command)
        if kind != PUT:
            _check_deletion(kind, b_bytes, number, command)
    return operations, at


def _check_deletion(kind: int, b_bytes: int, number: int, command: bytes) -> None:
    if kind == DELETE:
        valid = not b_bytes and not number
    else:
        valid = kind == _DELETE_RANGE and b_bytes <= KEY_BYTES_MAX
        valid = valid and 1 <= number <= OPERATIONS_MAX
    if not valid:
        _refuse("operation", command)


def _check_deleted_keys(operations: Iterable[ParsedOperation], command: bytes) -> None:
    keys = [each[3] for each in operations if each[0] == _DELETE_RANGE]
    if sum(keys) > DELETED_KEYS_MAX or len(keys) > DELETED_RANGES_MAX:
        _refuse("transaction", command)


def parse_numbers(layout: struct.Struct, command: bytes) -> tuple[int, ...]:
    """The numbers of a command that has nothing else: after the kind."""
    if len(command) != layout.size:
        _refuse("command", command)
    return layout.unpack(command)[1:]


def parse_compact_if_unchanged(command: bytes) -> tuple[int, int, bytes]:
    """(revision, since, prefix)."""
    if not 0 <= len(command) - EXPIRE.size <= KEY_BYTES_MAX:
        _refuse("command", command)
    _, revision, since = EXPIRE.unpack_from(command)
    return revision, since, command[EXPIRE.size :]


def parse_rewrite(command: bytes) -> tuple[int, int, list[ParsedOperation]]:
    """(place, revision, values) of a REWRITE."""
    try:
        _, place, revision, count = REWRITE.unpack_from(command)
        if count > OPERATIONS_MAX:
            _refuse("rewrite", command)
        values, at = _parse_operations(command, REWRITE.size, count)
    except struct.error:
        _refuse("rewrite", command)
    too_long = at > COMMAND_BYTES_MAX + REWRITE.size
    if at != len(command) or too_long or any(each[0] != PUT for each in values):
        _refuse("rewrite", command)
    return place, revision, values


def values_of(command: bytes, *, otherwise: bool) -> dict[bytes, bytes]:
    """The values in an entry, by key: those of a REWRITE, or of one branch of a TRANSACTION."""
    if command[0] == CommandKind.REWRITE:
        operations = parse_rewrite(command)[2]
    else:
        _, then, other = parse_transaction(command)
        operations = other if otherwise else then
    return {key: value for kind, key, value, _ in operations if kind == PUT}


def _refuse(what: str, data: bytes) -> NoReturn:
    raise ProtocolError(f"a {what} of {len(data)} bytes cannot be parsed")
