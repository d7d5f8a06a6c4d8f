"""Commands as bytes: what was encoded is parsed, all else is refused."""

from __future__ import annotations

import pytest

from lithify.errors import InvalidInput, ProtocolError
from lithify.metastore import command_format as commands
from lithify.metastore.transaction import (
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Put,
    Transaction,
)
from lithify.raft.kv.format import digest_of

FULL = Transaction(
    (
        Compare(b"a", Condition.ABSENT),
        Compare(b"", Condition.REVISION, 2**63 - 1),
        Compare(b"c", Condition.REVISION_AT_MOST, 5),
        Compare(b"d", Condition.VALUE, value=b"value"),
        Compare(b"e", Condition.PRESENT),
        Compare(b"f", Condition.RANGE_UNCHANGED, 5, end=b"g"),
        Compare(b"", Condition.TIME_BELOW, time=2**62),
    ),
    (Put(b"a", b"1", 7), Delete(b"b"), DeleteRange(b"c", b"", 3)),
    (Put(b"z", b""),),
)


def test_a_transaction_is_parsed_into_what_it_was_made_of() -> None:
    compares, then, otherwise = commands.parse_transaction(commands.encode_transaction(FULL))
    assert compares == [
        (Condition.ABSENT, b"a", 0),
        (Condition.REVISION, b"", 2**63 - 1),
        (Condition.REVISION_AT_MOST, b"c", 5),
        (Condition.VALUE, b"d", digest_of(b"value")),
        (Condition.PRESENT, b"e", 0),
        (Condition.RANGE_UNCHANGED, b"f", (5, b"g")),
        (Condition.TIME_BELOW, b"", 2**62),
    ]
    assert then == [
        (commands.OperationKind.PUT, b"a", b"1", 7),
        (commands.OperationKind.DELETE, b"b", b"", 0),
        (commands.OperationKind.DELETE_RANGE, b"c", b"", 3),
    ]
    assert otherwise == [(commands.OperationKind.PUT, b"z", b"", 0)]


def test_a_transaction_that_ends_early_or_late_is_refused() -> None:
    whole = commands.encode_transaction(FULL)
    for size in range(1, len(whole)):
        with pytest.raises(ProtocolError):
            commands.parse_transaction(whole[:size])
    with pytest.raises(ProtocolError, match=f"of {len(whole) + 1} bytes"):
        commands.parse_transaction(whole + b"\0")


def operation(kind: int, a: bytes, b: bytes, number: int) -> bytes:
    head = commands.TRANSACTION.pack(commands.CommandKind.TRANSACTION, 0, 1, 0)
    return head + commands.OPERATION.pack(kind, len(a), len(b), number) + a + b


@pytest.mark.parametrize(
    "command",
    [
        operation(0, b"a", b"", 0),
        operation(4, b"a", b"", 0),
        operation(1, bytes(KEY_BYTES_MAX + 1), b"", 0),
        operation(1, b"a", bytes(VALUE_BYTES_MAX + 1), 0),
        operation(2, b"a", b"value", 0),
        operation(2, b"a", b"", 1),
        operation(3, b"a", b"b", 0),
        operation(3, b"a", b"b", OPERATIONS_MAX + 1),
        operation(3, b"a", bytes(KEY_BYTES_MAX + 1), 1),
        commands.TRANSACTION.pack(1, OPERATIONS_MAX, 0, 1) + bytes(2**16),
        commands.TRANSACTION.pack(1, 1, 0, 0) + commands.COMPARE.pack(7, 1) + b"a" + bytes(16),
        commands.TRANSACTION.pack(1, 1, 0, 0) + commands.COMPARE.pack(0, 5000) + bytes(5000),
        commands.TRANSACTION.pack(1, 0, 5, 0)
        + 5 * (commands.OPERATION.pack(3, 0, 0, OPERATIONS_MAX)),
        commands.TRANSACTION.pack(1, 0, 17, 0) + 17 * commands.OPERATION.pack(3, 0, 0, 1),
        commands.TRANSACTION.pack(1, 0, 5, 0)
        + 5 * (commands.OPERATION.pack(1, 0, VALUE_BYTES_MAX, 0) + bytes(VALUE_BYTES_MAX)),
    ],
)
def test_a_transaction_beyond_a_limit_is_refused(command: bytes) -> None:
    with pytest.raises(ProtocolError):
        commands.parse_transaction(command)


def test_the_largest_keys_and_values_fit() -> None:
    put = Put(b"k" * KEY_BYTES_MAX, b"v" * VALUE_BYTES_MAX)
    command = commands.encode_transaction(Transaction((), (put,)))
    assert commands.values_of(command, otherwise=False) == {put.key: put.value}
    assert len(command) < commands.COMMAND_BYTES_MAX
    parts = commands.OPERATION.size * OPERATIONS_MAX + commands.TRANSACTION.size
    assert 2**22 + parts < commands.COMMAND_BYTES_MAX


def test_ranges_that_delete_too_many_keys_are_refused_by_the_limit() -> None:
    ranges = tuple(DeleteRange(b"%d" % number, b"") for number in range(5))
    commands.encode_transaction(Transaction((), ranges[:4]))
    with pytest.raises(InvalidInput, match="up to 5120 keys, at most 4096"):
        commands.encode_transaction(Transaction((), ranges))
    with pytest.raises(InvalidInput, match="17 ranges, at most 16"):
        commands.encode_transaction(Transaction((), (DeleteRange(b"", b"", 1),) * 17))


def test_a_rewrite_is_parsed_into_what_it_was_made_of() -> None:
    values = [(b"a", b"1", 0), (b"b", b"", 9)]
    command = commands.encode_rewrite(5, 3, values)
    assert commands.parse_rewrite(command) == (5, 3, [(1, *each) for each in values])
    for broken in (
        command[:-1],
        command + b"x",
        command[:5],
        command.replace(b"\1\1\0", b"\2\1\0"),
    ):
        with pytest.raises(ProtocolError):
            commands.parse_rewrite(broken)
    with pytest.raises(ProtocolError):
        commands.parse_rewrite(commands.REWRITE.pack(8, 1, 1, OPERATIONS_MAX + 1) + bytes(2**16))


def test_the_last_put_of_a_key_has_the_value_of_the_entry() -> None:
    then = Put(b"a", b"1"), Put(b"a", b"2"), Delete(b"b")
    command = commands.encode_transaction(Transaction((), then, (Put(b"a", b"3"),)))
    assert commands.values_of(command, otherwise=False) == {b"a": b"2"}
    assert commands.values_of(command, otherwise=True) == {b"a": b"3"}
    rewritten = commands.encode_rewrite(1, 1, [(b"a", b"4", 0)])
    assert commands.values_of(rewritten, otherwise=True) == {b"a": b"4"}


def test_numbers_out_of_range_are_refused_before_they_are_sent() -> None:
    for ttl_ms in (0, commands.TTL_MS_MAX + 1):
        with pytest.raises(InvalidInput, match="ttl_ms"):
            commands.encode_grant(ttl_ms)
    for number in (-1, 2**63):
        with pytest.raises(InvalidInput, match="lease"):
            commands.encode_keep(number)
        with pytest.raises(InvalidInput, match="revision"):
            commands.encode_compact(number)
