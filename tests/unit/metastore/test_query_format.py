"""Queries and replies as bytes."""

from __future__ import annotations

import pytest

from lithify.errors import InvalidInput, ProtocolError
from lithify.metastore import query_format as replies
from lithify.metastore.command_format import NUMBER
from lithify.metastore.errors import (
    LeaseFull,
    LeaseNotFound,
    RevisionCompacted,
    RevisionNotReached,
)
from lithify.metastore.metastore import Change, KeyValue, Lease, Outcome, Revision, Rows
from lithify.metastore.query_format import MetastoreOutcome, MetastoreReply
from lithify.metastore.transaction import KEY_BYTES_MAX


def reply(rest: bytes, flags: int = 0) -> MetastoreReply:
    return replies.parse_reply(replies.REPLY.pack(0, flags, 5, 9) + rest)


def test_queries_are_parsed_into_what_they_were_made_of() -> None:
    assert replies.parse_asked_get(replies.encode_get(b"key", 7)) == (7, b"key")
    asked = replies.parse_asked_range(replies.encode_range(b"a", b"bc", 7, 3))
    assert asked == replies.AskedRange(7, 3, b"a", b"bc")
    changes = replies.parse_asked_changes(replies.encode_changes(b"a", b"", 7, 3, 100))
    assert changes == replies.AskedChanges(7, 3, 100, b"a", b"")
    assert replies.parse_asked_leases(replies.encode_leases(7)) == 7


def test_pages_are_bounded_for_every_request() -> None:
    for rows in (0, 10**6):
        asked = replies.parse_asked_range(replies.encode_range(b"", b"", 0, rows))
        assert asked.rows_max == replies.PAGE_ROWS_MAX
    changes = replies.parse_asked_changes(replies.encode_changes(b"", b"", 0, 10**6, 10**9))
    assert (changes.revisions_max, changes.bytes_max) == (1000, 2**20)
    assert replies.parse_asked_changes(replies.encode_changes(b"", b"", 0, 0)).revisions_max == 1
    with pytest.raises(ProtocolError):
        replies.parse_asked_range(replies.encode_range(bytes(KEY_BYTES_MAX + 1), b""))


def test_rows_are_parsed_into_what_they_were_made_of() -> None:
    rows = KeyValue(b"a", b"1", 3, 4, 5), KeyValue(b"", b"", 2**63 - 1, 0)
    assert replies.parse_row(reply(replies.encode_row(rows[0]))) == rows[0]
    assert replies.parse_row(reply(b"")) is None
    data = replies.encode_next_start(b"next") + b"".join(map(replies.encode_row, rows))
    page = replies.parse_rows(reply(data))
    assert page.rows == Rows(5, 9, rows, more=True)
    assert page.next_start == b"next"
    assert not replies.parse_rows(reply(replies.encode_next_start(b""))).rows.more


def test_changes_are_parsed_into_what_they_were_made_of() -> None:
    data = NUMBER.pack(8)
    data += replies.encode_revision(3, 4, [(b"a", b"1"), (b"b", None), (b"c", b"")])
    data += replies.encode_revision(6, 7, [])
    page = replies.parse_changes(reply(data))
    changes = Change(b"a", b"1"), Change(b"b", None), Change(b"c", b"")
    assert page == replies.ChangesPage(5, 9, 8, (Revision(3, 4, changes), Revision(6, 7, ())))


def test_leases_and_numbers_are_parsed_into_what_they_were_made_of() -> None:
    leases = [Lease(1, 1000, 3), Lease(2**63 - 1, 1, 1)]
    assert replies.parse_leases(reply(replies.encode_lease_rows(leases))) == leases
    status = replies.StoreStatus(1, 2, 3, 4, 5, 6, 7, 8)
    assert replies.parse_status(reply(replies.encode_store_status(status))) == status
    flags = replies.HELD | replies.CHANGED
    assert replies.parse_outcome(reply(b"", flags)) == Outcome(True, 5, 9, changed=True)
    assert replies.parse_outcome(reply(b"")) == Outcome(False, 5, 9, changed=False)


def test_a_reply_that_ends_early_is_refused() -> None:
    row = replies.encode_row(KeyValue(b"a", b"1", 3, 4, 5))
    changes = NUMBER.pack(8) + replies.encode_revision(3, 4, [(b"a", b"1")])
    for size in range(1, len(row)):
        with pytest.raises(ProtocolError):
            replies.parse_row(reply(row[:size]))
    for size in set(range(len(changes))) - {NUMBER.size}:
        with pytest.raises(ProtocolError):
            replies.parse_changes(reply(changes[:size]))
    for data in (b"", bytes(17), b"\x63" + bytes(17)):
        with pytest.raises(ProtocolError):
            replies.parse_reply(data)
    with pytest.raises(ProtocolError):
        replies.parse_leases(reply(bytes(25)))


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (MetastoreOutcome.COMPACTED, RevisionCompacted(3, 5)),
        (MetastoreOutcome.NOT_REACHED, RevisionNotReached(3, 5)),
        (MetastoreOutcome.LEASE_NOT_FOUND, LeaseNotFound(5)),
        (MetastoreOutcome.LEASE_FULL, LeaseFull(5)),
        (MetastoreOutcome.INVALID, InvalidInput("the metastore cannot parse the request")),
    ],
)
def test_a_refusal_raises_its_error(outcome: MetastoreOutcome, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        replies.check_reply(MetastoreReply(outcome, 0, 5, 9), 3)
    assert str(raised.value) == str(error)


def test_a_reply_that_is_done_raises_nothing() -> None:
    replies.check_reply(reply(b""))
