"""Entries that were read from segments, up to a size."""

from __future__ import annotations

from lithify.raft.entry import Entry
from lithify.raft.storage.recent_entries import (
    ENTRY_BYTES_MAX,
    OVERHEAD_BYTES,
    RecentEntries,
)

BYTES = 100


def entry(index: int, size: int = BYTES) -> Entry:
    return Entry(index, 1, bytes(size))


def kept(recent: RecentEntries, owner: object, indexes: range) -> list[int]:
    return [index for index in indexes if recent.get(owner, index) is not None]


def test_an_entry_is_found_by_its_owner_and_index() -> None:
    recent = RecentEntries()
    recent.put("one", [entry(1), entry(2)])
    assert recent.get("one", 2) == entry(2)
    assert recent.get("two", 2) is None
    assert recent.get("one", 3) is None


def test_the_one_that_was_not_used_for_longest_goes_first() -> None:
    recent = RecentEntries(3 * (BYTES + OVERHEAD_BYTES))
    recent.put("a", map(entry, (1, 2, 3)))
    assert recent.get("a", 1)
    recent.put("a", [entry(4), entry(4)])
    assert kept(recent, "a", range(1, 5)) == [1, 3, 4]


def test_the_size_counts_each_entry_once_and_what_goes() -> None:
    recent = RecentEntries(10 * (BYTES + OVERHEAD_BYTES))
    for number in range(100):
        recent.put("a", [entry(number), entry(number)])
    assert kept(recent, "a", range(100)) == list(range(90, 100))
    recent.put("a", [entry(1000, 9 * (BYTES + OVERHEAD_BYTES) - OVERHEAD_BYTES)])
    assert kept(recent, "a", range(2000)) == [99, 1000]


def test_a_large_entry_does_not_take_the_place_of_others() -> None:
    recent = RecentEntries()
    recent.put("a", [entry(1), entry(2, ENTRY_BYTES_MAX + 1)])
    assert kept(recent, "a", range(3)) == [1]
