"""The bytes of the metastore's machine, version 1, as they were first written. They never change.

`python -m tests.golden.test_metastore_golden` writes the file if it is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lithify.metastore import command_format as kv
from lithify.metastore import query_format as replies
from lithify.metastore.machine import MetastoreMachine
from lithify.metastore.metastore import KeyValue, Lease
from lithify.metastore.purge import Superfluous
from lithify.metastore.transaction import (
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Put,
    Transaction,
)
from lithify.raft.machine import Meta
from tests.golden.named_bytes import named_bytes

if TYPE_CHECKING:
    from lithify.metastore.state import MetastoreState

GOLDEN = Path(__file__).parent / "metastore_v1.txt"

TRANSACTION = Transaction(
    (
        Compare(b"a", Condition.ABSENT),
        Compare(b"b", Condition.PRESENT),
        Compare(b"c", Condition.REVISION, 258),
        Compare(b"d", Condition.REVISION_AT_MOST, 259),
        Compare(b"e", Condition.VALUE, value=b"value"),
    ),
    (Put(b"key", b"value", 772), Delete(b"gone")),
    (DeleteRange(b"a", b"b", 5),),
)
RANGES = Transaction(
    (
        Compare(b"a", Condition.RANGE_UNCHANGED, 258, end=b"bc"),
        Compare(b"", Condition.TIME_BELOW, time=2**40),
    )
)
REVISION = (258, 2**40, [(b"key", b"value"), (b"gone", None)])


def commands() -> dict[str, bytes]:
    """One of each kind."""
    return {
        "transaction": kv.encode_transaction(TRANSACTION),
        "ranges": kv.encode_transaction(RANGES),
        "grant": kv.encode_grant(10_000),
        "keep": kv.encode_keep(258),
        "revoke": kv.encode_revoke(258),
        "expire": kv.encode_expire(258, 3),
        "time": kv.encode_time(),
        "time-reached": kv.encode_time_reached(2**40),
        "compact": kv.encode_compact(258),
        "compact_if_unchanged": kv.encode_compact_if_unchanged(258, b"hold/", 772),
        "rewrite": kv.encode_rewrite(772, 258, [(b"key", b"value", 3)]),
    }


def state() -> MetastoreState:
    machine = MetastoreMachine()
    made = machine.init()
    missing = Compare(b"a", Condition.ABSENT)
    for index, command in enumerate(
        (
            kv.encode_grant(10_000),
            kv.encode_transaction(Transaction((), (Put(b"a", b"one", 1), Put(b"bb", b"two")))),
            kv.encode_transaction(Transaction((missing,), (), (Put(b"bb", b"three"),))),
            kv.encode_transaction(Transaction((), (Delete(b"bb"), Put(b"ccc", b"")))),
            kv.encode_rewrite(2, 2, [(b"a", b"one", 1), (b"bb", b"two", 0)]),
            kv.encode_transaction(Transaction((), (Put(b"a", b"new"),))),
            kv.encode_compact(3),
        ),
        1,
    ):
        made = machine.apply(Meta(index, 1, 1000 + index), command, made)[0]
    machine.purge(made, 100)
    return made


def written() -> str:
    row = KeyValue(b"key", b"value", 258, 2**40, 3)
    status = replies.StoreStatus(1, 2, 3, 4, 5, 6, 7, 8)
    lines = commands() | {
        "get": replies.encode_get(b"key", 258),
        "range": replies.encode_range(b"a", b"bc", 258, 10),
        "changes": replies.encode_changes(b"a", b"bc", 258, 10, 1000),
        "leases": replies.encode_leases(258),
        "status": replies.encode_status(),
        "at-time": replies.encode_at_time(2**40),
        "reply": replies.REPLY.pack(0, replies.HELD | replies.CHANGED, 258, 2**40),
        "row": replies.encode_row(row),
        "next-start": replies.encode_next_start(b"next"),
        "revision": replies.encode_revision(*REVISION),
        "lease-rows": replies.encode_lease_rows([Lease(258, 10_000, 3)]),
        "count": replies.encode_superfluous_query(258, 259, 3),
        "superfluous": replies.encode_superfluous(Superfluous(1, 2, 3, 4, 259, 6)),
        "store-status": replies.encode_store_status(status),
    }
    for number, piece in enumerate(MetastoreMachine().save(state())):
        lines[f"piece-{number:02}"] = piece
    return "".join(f"{name} {data.hex()}\n" for name, data in lines.items())


def test_version_1_is_still_written() -> None:
    assert written() == GOLDEN.read_text()


def test_commands_of_version_1_are_still_understood() -> None:
    found = named_bytes(GOLDEN)
    compares, then, otherwise = kv.parse_transaction(found["transaction"])
    assert [key for _, key, _ in compares] == [b"a", b"b", b"c", b"d", b"e"]
    assert [operand for _, _, operand in compares][2:4] == [258, 259]
    assert then == [(1, b"key", b"value", 772), (2, b"gone", b"", 0)]
    assert otherwise == [(3, b"a", b"b", 5)]
    compares, _, _ = kv.parse_transaction(found["ranges"])
    assert compares == [(5, b"a", (258, b"bc")), (6, b"", 2**40)]
    assert kv.parse_rewrite(found["rewrite"]) == (772, 258, [(1, b"key", b"value", 3)])
    assert kv.parse_numbers(kv.EXPIRE, found["expire"]) == (258, 3)
    assert kv.parse_compact_if_unchanged(found["compact_if_unchanged"]) == (258, 772, b"hold/")
    for name, number in (("grant", 10_000), ("keep", 258), ("revoke", 258), ("compact", 258)):
        assert kv.parse_numbers(kv.KIND_AND_NUMBER, found[name]) == (number,)


def test_a_state_of_version_1_is_still_read() -> None:
    machine, expected = MetastoreMachine(), state()
    pieces = [data for name, data in named_bytes(GOLDEN).items() if name.startswith("piece-")]
    loaded = machine.load(pieces)
    assert loaded.keys.rows == expected.keys.rows
    assert loaded.leases == expected.leases
    assert (loaded.revision, loaded.floor, loaded.purged) == (6, 3, 3)
    assert loaded.time == expected.time
    assert list(loaded.revisions.numbers) == [2, 3, 4, 6]
    assert list(loaded.revisions.times) == list(expected.revisions.times)
    assert list(machine.live_indexes(loaded)) == list(machine.live_indexes(expected)) == [4, 5, 6]


if __name__ == "__main__" and not GOLDEN.exists():
    GOLDEN.write_text(written())
