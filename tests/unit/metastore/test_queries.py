"""Pages of a range and of changes: bounded, whole revisions, and together everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.metastore import queries
from lithify.metastore import query_format as replies
from lithify.metastore.command_format import encode_grant
from lithify.metastore.errors import RevisionNotReached
from lithify.metastore.transaction import Delete, DeleteRange, Put
from lithify.raft.machine import QueryRead
from tests.unit.metastore.store import Store

if TYPE_CHECKING:
    from lithify.metastore.metastore import KeyValue, Revision

BIG = 2**18


def all_rows(store: Store, revision: int = 0, rows_max: int = 0) -> list[KeyValue]:
    found: list[KeyValue] = []
    start = b""
    while True:
        page = store.range(start, b"", revision, rows_max)
        found += page.rows.rows
        if not page.next_start:
            return found
        start = page.next_start


def all_changes(store: Store, after: int) -> list[Revision]:
    found: list[Revision] = []
    while after < store.state.revision:
        page = store.changes(after)
        found += page.revisions
        after = page.through
    return found


def test_a_page_ends_when_it_is_large_enough() -> None:
    store = Store()
    for number in range(10):
        store.put(b"%d" % number, bytes(BIG))
    page = store.range()
    assert len(page.rows.rows) == replies.PAGE_BYTES_MAX // BIG
    assert (page.rows.more, page.next_start) == (True, b"4")
    assert [row.key for row in all_rows(store)] == [b"%d" % number for number in range(10)]
    changes = store.changes(0)
    assert [each.revision for each in changes.revisions] == [1, 2, 3, 4]
    assert changes.through == 4
    assert [each.revision for each in all_changes(store, 0)] == list(range(1, 11))


def test_a_revision_is_never_cut() -> None:
    store = Store()
    store.put(b"small", b"")
    store.run(*(Put(b"%d" % number, bytes(BIG * 3 // 4)) for number in range(20)))
    store.put(b"small", b"")
    found = all_changes(store, 0)
    assert [len(each.changes) for each in found] == [1, 20, 1]


def test_a_page_does_not_read_many_large_entries_for_small_values() -> None:
    store = Store()
    for number in range(10):
        rest = (Put(b"big", bytes(2**20)), Put(b"big2", bytes(2**20)))
        store.run(Put(b"%d" % number, b"small"), *rest)
    reading = store.machine.query(store.state, replies.encode_range(b"0", b"a"))
    assert isinstance(reading, QueryRead)
    assert reading.indexes == (1, 2, 3, 4)
    assert len(all_rows(store)) == 12


def test_a_page_ends_when_enough_keys_were_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "EXAMINED_MAX", 3)
    store = Store()
    for number in range(9):
        store.put(b"%d" % number, b"")
    store.run(DeleteRange(b"0", b"8"))
    first = store.range()
    assert (first.rows.rows, first.next_start) == ((), b"3")
    assert [row.key for row in all_rows(store)] == [b"8"]
    page = store.ask(replies.encode_changes(b"8", b"", 0))
    assert (replies.parse_changes(page).revisions, replies.parse_changes(page).through) == ((), 3)


def test_keys_that_share_an_entry_read_it_once() -> None:
    store = Store()
    store.run(Put(b"a", b"1"), Put(b"b", b"2"))
    store.put(b"c", b"3")
    reading = store.machine.query(store.state, replies.encode_range(b"", b""))
    assert isinstance(reading, QueryRead)
    assert reading.indexes == (1, 2)
    assert [row.value for row in store.range().rows.rows] == [b"1", b"2", b"3"]


def test_a_range_at_a_revision_is_what_was_visible_then() -> None:
    store = Store()
    store.run(Put(b"a", b"1"), Put(b"b", b"1"))
    store.run(Delete(b"a"), Put(b"c", b"2"))
    store.put(b"b", b"3")
    seen = [[(row.key, row.value) for row in all_rows(store, at, 1)] for at in (1, 2, 3, 0)]
    assert seen[0] == [(b"a", b"1"), (b"b", b"1")]
    assert seen[1] == [(b"b", b"1"), (b"c", b"2")]
    assert seen[2] == seen[3] == [(b"b", b"3"), (b"c", b"2")]
    with pytest.raises(RevisionNotReached, match=r"revision 4 .* newest one is 3"):
        store.range(revision=4)


def test_an_answer_is_of_the_moment_of_its_query() -> None:
    store = Store()
    store.put(b"a", b"1")
    reading = store.machine.query(store.state, replies.encode_changes(b"", b"", 0))
    rows = store.machine.query(store.state, replies.encode_range(b"", b""))
    store.put(b"a", b"2")
    store.rewrite(1)
    assert isinstance(reading, QueryRead)
    assert isinstance(rows, QueryRead)
    first = Store()
    first.put(b"a", b"1")
    for each in (reading, rows):
        answer = each.then([first.log[1]])
        assert isinstance(answer, bytes)
        assert replies.parse_reply(answer).number == 1


def test_there_are_no_changes_above_the_newest_revision() -> None:
    store = Store()
    store.put(b"a", b"1")
    assert store.changes(1).through == 1
    page = store.changes(7)
    assert (page.revisions, page.through, page.newest) == ((), 7, 1)


def test_leases_come_in_pages() -> None:
    store = Store()
    for _ in range(replies.PAGE_ROWS_MAX + 5):
        store.do(encode_grant(10))
    first = replies.parse_leases(store.ask(replies.encode_leases()))
    rest = replies.parse_leases(store.ask(replies.encode_leases(first[-1].id)))
    assert len(first) == replies.PAGE_ROWS_MAX
    assert [each.id for each in rest] == [1001, 1002, 1003, 1004, 1005]


def test_the_status_counts_what_is_retained() -> None:
    store = Store()
    store.run(Put(b"a", b"1"), Put(b"b", b"1"))
    store.delete(b"a")
    store.do(encode_grant(10))
    status = replies.parse_status(store.ask(replies.encode_status()))
    expected = replies.StoreStatus(
        revision=2, time=3, floor=0, keys=1, revisions=2, values=3, leases=1, unpurged=0
    )
    assert status == expected
    store.compact(2)
    assert replies.parse_status(store.ask(replies.encode_status())).unpurged == 2
    store.purge()
    status = replies.parse_status(store.ask(replies.encode_status()))
    assert (status.unpurged, status.values) == (0, 1)


def test_news_of_other_ranges_are_no_news() -> None:
    store = Store()
    before = store.put(b"b", b"1")
    store.put(b"a", b"1")
    store.run(Put(b"c", b"1"), Put(b"z", b"1"))
    state = store.state
    assert queries.has_no_news(state, b"b", b"c", before)
    assert not queries.has_no_news(state, b"b", b"c\0", before)
    assert not queries.has_no_news(state, b"b", b"", before)
    assert not queries.has_no_news(state, b"b", b"c", before - 1)
    store.delete(b"b")
    assert not queries.has_no_news(state, b"b", b"c", before)


def test_whether_there_are_news_is_left_to_a_query_if_they_are_compacted_or_many() -> None:
    store = Store()
    before = store.put(b"b", b"1")
    assert not queries.has_no_news(store.state, b"x", b"", before)
    store.run(*(Put(b"a%d" % number, b"1") for number in range(queries.NEWS_MAX)))
    assert queries.has_no_news(store.state, b"x", b"", before)
    last = store.put(b"a", b"1")
    assert not queries.has_no_news(store.state, b"x", b"", before)
    store.compact(last)
    store.put(b"a", b"2")
    assert not queries.has_no_news(store.state, b"x", b"", before)
    assert queries.has_no_news(store.state, b"x", b"", last)
