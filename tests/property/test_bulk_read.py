"""Values read in bulk, out of a saved state and segments, are those that the store has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.fs import MemoryFileSystem
from lithify.metastore.bulk_read import (
    EntriesMissing,
    NotInState,
    StateDamaged,
    read_values,
    select_values,
)
from lithify.metastore.state_columns import read_columns
from lithify.metastore.transaction import Compare, Condition, Delete, Put, Transaction
from lithify.raft.commands import ENVELOPE
from lithify.raft.entry import Entry
from lithify.raft.storage.group_segments import IndexSpan
from lithify.raft.storage.segment_file import SegmentAppender, SegmentLimits
from lithify.raft.storage.segment_scan import scan_segments
from tests.unit.metastore.store import Store

if TYPE_CHECKING:
    from lithify.fs import FileSystem
    from lithify.metastore.bulk_read import SelectedValues

KEYS = [b"a", b"aa", b"ab", b"b", b"b\0", b"\xff"]
OPERATIONS = st.lists(
    st.builds(Put, st.sampled_from(KEYS), st.binary(max_size=3))
    | st.builds(Delete, st.sampled_from(KEYS)),
    min_size=1,
    max_size=4,
)
COMPARES = st.lists(
    st.sampled_from(
        [
            Compare(b"a", Condition.ABSENT),
            Compare(b"ab", Condition.PRESENT),
            Compare(b"b", Condition.REVISION, 1),
            Compare(b"", Condition.TIME_BELOW, time=2**62),
            Compare(b"a", Condition.VALUE, value=b"1"),
            Compare(b"a", Condition.RANGE_UNCHANGED, 1, end=b"b"),
        ]
    ),
    max_size=2,
)
TRANSACTIONS = st.builds(
    lambda compares, then, otherwise: Transaction(tuple(compares), tuple(then), tuple(otherwise)),
    COMPARES,
    OPERATIONS,
    OPERATIONS,
)


def written(store: Store, entries_max: int = 3) -> tuple[FileSystem, list[IndexSpan]]:
    """The log in segments."""
    fs = MemoryFileSystem()
    fs.mkdir("g")
    limits = SegmentLimits(entries_max)
    spans = []
    entries = [Entry(index, 1, ENVELOPE.pack(7) + command) for index, command in store.log.items()]
    for number, at in enumerate(range(0, len(entries), entries_max), 1):
        first = entries[at].index
        segment = SegmentAppender.create(fs, "g", "g", number, first, limits)
        segment.append(entries[at : at + entries_max])
        ref = segment.close()
        spans.append(IndexSpan(ref, ref.first_position, ref.last_position))
    return fs, spans


def values_in(
    selected: SelectedValues, fs: FileSystem, spans: list[IndexSpan]
) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for batch in read_values(selected, scan_segments(fs, "g", spans, selected.places)):
        data, stops = batch.data.tobytes(), batch.stops.tolist()
        starts = [0, *stops[:-1]]
        values = [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
        found |= dict(zip(selected.keys(batch.numbers), values, strict=True))
    return found


@given(data=st.data(), transactions=st.lists(TRANSACTIONS, min_size=1, max_size=12))
def test_all_values_of_a_range_at_a_revision_are_found(
    data: st.DataObject, transactions: list[Transaction]
) -> None:
    store = Store()
    for transaction in transactions:
        store.transact(transaction)
        if data.draw(st.booleans()) and store.state.live.live_set():
            store.rewrite(data.draw(st.sampled_from(list(store.state.live.live_set()))))
    if data.draw(st.booleans()) and store.state.revision > 1:
        store.compact(data.draw(st.integers(1, store.state.revision - 1)))
        if data.draw(st.booleans()):
            store.purge()
    columns = read_columns(store.machine.save(store.state))
    fs, spans = written(store)
    revision = data.draw(st.integers(store.state.floor + 1, max(store.state.revision, 1)))
    low, high = data.draw(st.sampled_from(KEYS)), data.draw(st.sampled_from([b"", *KEYS]))
    if revision > store.state.revision:
        return
    page = store.range(low, high, revision)
    expected = {row.key: row.value for row in page.rows.rows}
    assert not page.next_start
    selected = select_values(columns, revision, low, high)
    assert values_in(selected, fs, spans) == expected
    rest = selected.without({b"a"})
    assert values_in(rest, fs, spans).keys() == expected.keys() - {b"a"}


def filled() -> Store:
    store = Store()
    for number in range(5):
        store.put(b"%d" % number, b"value")
    return store


def test_a_revision_that_the_state_does_not_have_is_refused() -> None:
    store = filled()
    store.compact(2)
    columns = read_columns(store.machine.save(store.state))
    for revision in (2, 6):
        with pytest.raises(NotInState, match=r"of revisions 3 to 5 does not have"):
            select_values(columns, revision, b"", b"")


def test_an_entry_that_was_deleted_is_named() -> None:
    store = filled()
    columns = read_columns(store.machine.save(store.state))
    del store.log[3]
    fs, spans = written(store)
    with pytest.raises(EntriesMissing, match="entry 3 was deleted"):
        values_in(select_values(columns, 5, b"", b""), fs, spans)
    with pytest.raises(EntriesMissing, match="entry 5 was deleted"):
        values_in(select_values(columns, 5, b"4", b""), fs, spans[:1])


def test_an_entry_that_is_no_command_is_damage() -> None:
    for command in (b"", b"\1\0", b"\1\1\0\1\0\0\0\5", b"\1\0\0\1\0\0\0\1\1\0\xff\xff\0\0"):
        store = filled()
        columns = read_columns(store.machine.save(store.state))
        store.log[2] = command
        fs, spans = written(store)
        with pytest.raises((StateDamaged, EntriesMissing), match="entry 2"):
            values_in(select_values(columns, 5, b"", b""), fs, spans)


def test_an_overwritten_entry_of_an_older_segment_does_not_count() -> None:
    store = filled()
    columns = read_columns(store.machine.save(store.state))
    fs, spans = written(store, 5)
    old = Store()
    for number in range(5):
        old.put(b"%d" % number, b"other")
    stale = SegmentAppender.create(fs, "g", "g", 2, 1, SegmentLimits())
    stale.append([Entry(i, 1, ENVELOPE.pack(7) + each) for i, each in old.log.items()])
    whole = stale.close()
    split = [IndexSpan(whole, 1, 2), IndexSpan(spans[0].ref, 3, 5)]
    found = values_in(select_values(columns, 5, b"", b""), fs, split)
    assert [found[b"%d" % number] for number in range(5)] == [b"other"] * 2 + [b"value"] * 3


def test_large_values_are_in_several_batches() -> None:
    store = Store()
    for number in range(12):
        store.put(b"%02d" % number, bytes([number]) * 2**20)
    columns = read_columns(store.machine.save(store.state))
    fs, spans = written(store)
    selected = select_values(columns, 12, b"", b"")
    pieces = scan_segments(fs, "g", spans, selected.places)
    sizes = [
        (len(batch), np.unique(batch.data).tolist()) for batch in read_values(selected, pieces)
    ]
    assert sizes == [(8, list(range(8))), (4, list(range(8, 12)))]
