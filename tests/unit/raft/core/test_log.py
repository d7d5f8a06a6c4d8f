"""The log as the core sees it: a stored part, a tail, and writes that are in progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.raft.core import Compacted, Config, MemoryStorage, SnapshotMeta, StorageAppend
from lithify.raft.core.log import RaftLog
from lithify.raft.entry import Entry

NOBODY = Config()


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(index, term, b"%d" % index) for index, term in enumerate(terms, first)]


class Disk:
    """A log over a storage whose writes are done when the test says so."""

    def __init__(self, *terms: int) -> None:
        self.storage = MemoryStorage(NOBODY)
        self.storage.write(StorageAppend(0, entries(1, *terms), None, None))
        self.log = RaftLog(self.storage)
        self.number = 0
        self.handed: dict[int, StorageAppend] = {}

    def hand_out(self) -> int:
        self.number += 1
        found, snapshot = self.log.next_append(self.number)
        self.handed[self.number] = StorageAppend(self.number, found, None, snapshot)
        return self.number

    def done(self, number: int) -> None:
        self.storage.write(self.handed[number])
        self.log.acknowledge(number)


def test_entries_are_readable_at_once_and_stable_when_the_storage_confirms() -> None:
    disk = Disk(1, 1)
    disk.log.append(entries(3, 2, 2))
    assert (disk.log.last_index, disk.log.last_term, disk.log.stable) == (4, 2, 2)
    assert [e.index for e in disk.log.entries(1, 5, 1 << 20)] == [1, 2, 3, 4]
    number = disk.hand_out()
    assert not disk.log.has_next_append
    disk.done(number)
    assert disk.log.stable == 4
    assert [e.term for e in disk.log.entries(1, 5, 1 << 20)] == [1, 1, 2, 2]


def test_one_acknowledgement_may_cover_several() -> None:
    disk = Disk()
    for index in range(1, 4):
        disk.log.append(entries(index, 1))
        disk.storage.write(disk.handed[disk.hand_out()])
    disk.log.acknowledge(3)
    assert disk.log.stable == 3


def test_a_late_acknowledgement_does_not_cover_entries_added_since() -> None:
    disk = Disk(1)
    disk.log.append(entries(2, 1, 1, 1))
    old = disk.hand_out()
    disk.log.cut(2)
    disk.log.append(entries(3, 2, 2))
    disk.done(old)
    assert disk.log.stable == 2, "entry 2 is what it was, 3 and 4 are not"
    new = disk.hand_out()
    assert [e.term for e in disk.handed[new].entries] == [2, 2]
    disk.done(new)
    assert disk.log.stable == 4
    assert [e.term for e in disk.storage.entries(1, 5, 1 << 20)] == [1, 1, 2, 2]


def test_the_same_entry_that_returns_is_written_again() -> None:
    # Term 1, then term 2, then term 1 again at the same index: only the third write counts.
    disk = Disk()
    numbers = []
    for term in (1, 2, 1):
        disk.log.cut(0)
        disk.log.append(entries(1, term))
        numbers.append(disk.hand_out())
    disk.done(numbers[0])
    assert disk.log.stable == 0
    disk.done(numbers[1])
    assert disk.log.stable == 0
    disk.done(numbers[2])
    assert disk.log.stable == 1


def test_cutting_durable_entries_makes_them_unstable() -> None:
    disk = Disk(1, 1, 1)
    disk.log.cut(1)
    assert (disk.log.last_index, disk.log.stable) == (1, 1)
    disk.log.append(entries(2, 2))
    assert disk.log.term(2) == 2
    disk.done(disk.hand_out())
    assert disk.storage.last_index() == 2


def test_nothing_is_applied_that_is_not_durable() -> None:
    disk = Disk(1)
    disk.log.append(entries(2, 1, 1))
    disk.log.commit_to(3)
    assert [e.index for e in disk.log.next_apply(1 << 20)] == [1]
    assert not disk.log.can_apply(1 << 20)
    disk.done(disk.hand_out())
    assert [e.index for e in disk.log.next_apply(1 << 20)] == [2, 3]


def test_applies_stop_at_the_limit_until_some_are_confirmed() -> None:
    disk = Disk(1, 1, 1)
    disk.log.commit_to(3)
    assert len(disk.log.next_apply(40)) == 1
    assert disk.log.can_apply(40)
    assert len(disk.log.next_apply(40)) == 1
    assert not disk.log.can_apply(40)
    disk.log.confirm_applied(1)
    assert disk.log.can_apply(40)
    disk.log.confirm_applied(2)
    assert disk.log.applied == 2


def test_a_snapshot_replaces_everything_when_it_is_durable() -> None:
    disk = Disk(1)
    disk.log.append(entries(2, 1, 1, 1))
    old = disk.hand_out()
    disk.log.restore(SnapshotMeta(3, 2, NOBODY))
    assert (disk.log.first_index, disk.log.last_index, disk.log.last_term) == (4, 3, 2)
    new = disk.hand_out()
    disk.done(old)
    assert (disk.log.stable, disk.log.last_index) == (3, 3), "the old tail is gone"
    assert not disk.log.can_apply(1 << 20)
    disk.done(new)
    assert (disk.log.applied, disk.log.installing) == (3, False)
    with pytest.raises(Compacted, match="index 2"):
        disk.log.term(2)


def test_reads_cross_from_the_stored_part_into_the_tail_within_the_limit() -> None:
    disk = Disk(1, 1)
    disk.log.append(entries(3, 1, 1))
    one = 33
    for limit, expected in ((1, [1]), (2 * one, [1, 2]), (3 * one, [1, 2, 3]), (5 * one, 4)):
        found = [e.index for e in disk.log.entries(1, 5, limit)]
        assert found == (expected if isinstance(expected, list) else [1, 2, 3, 4])


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.data())
def test_the_last_index_up_to_a_term_is_found_by_binary_search(
    steps: list[int], data: st.DataObject
) -> None:
    terms = [1 + sum(steps[: n + 1]) for n in range(len(steps))]
    stored = data.draw(st.integers(0, len(terms)))
    disk = Disk(*terms[:stored])
    disk.log.append(entries(stored + 1, *terms[stored:]))
    index = data.draw(st.integers(0, len(terms)))
    term = data.draw(st.integers(0, terms[-1] + 1))
    expected = max((i for i in range(1, index + 1) if terms[i - 1] <= term), default=0)
    assert disk.log.last_up_to_term(index, term) == expected
