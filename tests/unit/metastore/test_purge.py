"""What is removed below the floor, and what stays visible above it."""

from __future__ import annotations

from random import Random

import pytest

from lithify.metastore import revisions
from lithify.metastore.key_histories import ROW
from lithify.metastore.purge import Superfluous, count_superfluous
from lithify.metastore.transaction import Delete, Put
from tests.unit.metastore.store import Store


def retained(store: Store, key: bytes = b"a") -> list[int]:
    rows = ROW.iter_unpack(store.state.keys.rows.get(key, b""))
    return [row[0] for row in rows]


def written(history: str) -> Store:
    """A store with one change a character: v a value of key a, d its deletion, - of another key."""
    store = Store()
    for step in history:
        if step == "v":
            store.put(b"a", b"v")
        elif step == "d":
            store.delete(b"a")
        else:
            store.put(b"other", b"")
    return store


@pytest.mark.parametrize(
    ("history", "floor", "expected"),
    [
        # The newest revision at or below the floor is visible above it.
        ("vv-", 3, [2]),
        ("vv--v", 3, [2, 5]),
        ("v--", 1, [1]),
        # The next revision hides it at floor + 1 and later.
        ("vv-v", 3, [4]),
        ("vvv", 2, [3]),
        ("vvvd", 3, [4]),
        # A tombstone is visible nowhere.
        ("vd-", 3, []),
        ("vd", 2, []),
        ("vdv", 2, [3]),
        ("vd-v", 3, [4]),
        # Above the floor nothing goes.
        ("vvdv", 1, [2, 3, 4]),
        ("-vdv", 1, [2, 3, 4]),
    ],
)
def test_revisions_visible_above_the_floor_stay(
    history: str, floor: int, expected: list[int]
) -> None:
    for changes_max in (1, 100):
        store = written(history)
        store.compact(floor)
        store.purge(changes_max)
        assert retained(store) == expected


def test_a_deletion_just_above_the_floor_goes_when_the_floor_was_raised() -> None:
    store = written("vvd--")
    store.compact(2)
    store.purge()
    assert retained(store) == [3]
    store.compact(3)
    store.purge()
    assert retained(store) == []


def test_a_floor_that_rises_during_a_purge_is_reached_in_the_end() -> None:
    store = Store()
    for _ in range(2):
        store.run(*(Put(b"%d" % number, b"") for number in range(5)))
    store.run(*(Delete(b"%d" % number) for number in range(5)))
    store.put(b"other", b"")
    store.compact(2)
    for _ in range(12):
        assert not store.machine.purge(store.state, 1).finished
    store.compact(3)
    store.purge(1)
    assert store.state.keys.rows.keys() == {b"other"}


def test_a_batch_examines_no_more_than_it_may() -> None:
    store = Store()
    store.run(*(Put(b"%d" % number, b"") for number in range(10)))
    store.run(*(Put(b"%d" % number, b"") for number in range(10)))
    store.compact(2)
    batches = []
    while True:
        batches.append(store.machine.purge(store.state, 7))
        if batches[-1].finished:
            break
    assert [each.examined for each in batches] == [7, 7, 6]
    assert sum(each.removed for each in batches) == 10
    assert store.machine.purge(store.state, 7).examined == 0


def test_a_revision_is_live_while_one_of_its_values_is_retained() -> None:
    store = Store()
    store.run(Put(b"a", b""), Put(b"b", b""))
    store.put(b"a", b"")
    store.compact(2)
    store.purge()
    assert store.live == [1, 2]
    store.put(b"b", b"")
    store.compact(4)
    store.purge()
    assert store.live == [2, 4]


def test_columns_shrink_and_the_purge_continues_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revisions, "FORGOTTEN_MIN", 10)
    store = Store()
    for number in range(200):
        store.put(b"%d" % (number % 3), b"%d" % number)
        if number % 7 == 6:
            store.compact(store.state.revision - 3)
            store.machine.purge(store.state, 5)
    store.purge()
    assert len(store.state.revisions) < 40
    store.trim()
    assert [row.value for row in store.range().rows.rows] == [b"198", b"199", b"197"]
    assert [each.changes[0].value for each in store.changes(store.state.floor).revisions][-1] == (
        b"199"
    )


def test_a_purge_continues_after_a_snapshot() -> None:
    store = written("vvvvv")
    store.compact(4)
    store.machine.purge(store.state, 2)
    store.state = store.machine.load(list(store.machine.save(store.state)))
    store.purge(1)
    assert retained(store) == [5]
    assert store.live == [5]


def test_revisions_that_only_deleted_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "FORGOTTEN_MIN", 5)
    store = Store()
    store.run(*(Put(b"%d" % number, b"") for number in range(10)))
    for number in range(10):
        store.delete(b"%d" % number)
    store.compact(store.state.revision)
    store.purge()
    assert len(store.state.revisions) == 0
    assert store.put(b"0", b"") == store.index
    assert store.keys() == [b"0"]


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_counts_the_changes_that_a_purge_removes(seed: int) -> None:
    rng, store = Random(seed), Store()
    for _ in range(60):
        keys = rng.sample((b"a", b"b", b"c", b"d"), rng.choice((1, 1, 3)))
        store.run(*(rng.choice((Put(key, b"v" * rng.randrange(9)), Delete(key))) for key in keys))
        if rng.random() < 0.2:
            floor = rng.randint(store.state.floor, store.state.revision)
            page, counted = Superfluous(), 0
            while not counted or page.next_revision:
                at = page.next_revision, page.next_change
                page = page.plus(count_superfluous(store.state, floor, *at, 3))
                counted += 1
            before, rows = store.state.keys.row_count, store.readable()
            store.compact(floor)
            store.purge()
            assert page.values + page.tombstones == before - store.state.keys.row_count
            assert page.revisions == rows - store.readable()
