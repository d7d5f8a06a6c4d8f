"""Entries in memory: without gaps, and never two at one index."""

from __future__ import annotations

import pytest

from lithify.live_set import LiveSet
from lithify.raft.entry import Entry, make_entries
from lithify.raft.errors import GapInLog
from lithify.raft.storage.index_runs import IndexRuns
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.memtable import MemTable


def run(first: int, stop: int, term: int = 1) -> list[Entry]:
    return make_entries(first, term, [b"%d" % index for index in range(first, stop)], 0)


def test_entries_are_built_in_order() -> None:
    assert make_entries(7, 2, [b"a", b"b"], 1) == [Entry(7, 2, b"a", 1), Entry(8, 2, b"b", 1)]


def test_a_gap_is_refused_and_leaves_everything_as_it_was() -> None:
    table = MemTable("g")
    table.append(run(1, 4))
    with pytest.raises(GapInLog, match="5"):
        table.append(run(5, 6))
    with pytest.raises(GapInLog, match="6"):
        table.append([*run(4, 5), *run(6, 7)])
    assert (len(table), table.last, table.payload_bytes) == (3, 3, 3)


def test_overwritten_entries_are_truncated() -> None:
    table = MemTable("g")
    table.append(run(1, 10))
    table.append(run(4, 6, term=2))
    assert table.get_run(1, 6) == [*run(1, 4), *run(4, 6, term=2)]
    assert table.get_run(1, 7) == []
    assert (table.get(6), table.last, table.payload_bytes) == (None, 5, 5)


def test_a_snapshot_leaves_what_is_live_and_a_segment_takes_what_it_has() -> None:
    table = MemTable("g")
    table.append(run(1, 10))
    table.drop_dead(LiveState(6, LiveSet.from_iterable([2, 5])))
    assert [index for index in range(12) if table.get(index)] == [2, 5, 7, 8, 9]
    table.append(run(9, 10, term=2))
    moved = IndexRuns()
    moved.add(1, 9, 1, 0)
    table.flushed(moved)
    # The last one was overwritten after it was written to the segment.
    assert (len(table), table.first, table.last, table.payload_bytes) == (1, 9, 9, 1)
