"""The revisions of keys: read at any revision, dropped oldest first."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from lithify.metastore.key_histories import ROW, ROW_COLUMNS, KeyHistories, KeyRow
from lithify.raft.kv.format import digest_of

DIGEST = digest_of(b"value")


def histories(*revisions: int) -> KeyHistories:
    made = KeyHistories()
    for revision in revisions:
        made.put(b"a", revision, 0, revision, DIGEST)
    return made


def test_a_row_has_the_bytes_that_its_columns_name() -> None:
    assert ROW.size == ROW_COLUMNS.itemsize == 36
    row = np.frombuffer(ROW.pack(5, 6, 7, DIGEST), ROW_COLUMNS)[0]
    assert (row["revision"], row["lease"], row["value_bytes"]) == (5, 6, 7)
    assert row["digest"].tobytes() == DIGEST


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_a_key_at_a_revision_is_what_the_last_change_until_then_made(count: int) -> None:
    numbers = [3 * each for each in range(1, count + 1)]
    made = histories(*numbers)
    for revision in range(3 * count + 5):
        expected = max((each for each in numbers if each <= revision), default=None)
        found = made.at(b"a", revision)
        assert (found and found.revision) == expected
        follows = next((each for each in numbers if each > revision), 0)
        exact = made.following(b"a", revision)
        assert (exact is not None) == (revision in numbers)
        assert exact is None or exact == (KeyRow(revision, 0, revision, DIGEST), follows)
    assert made.at(b"b", 5) is None
    assert made.following(b"b", 5) is None


def test_a_deleted_key_is_absent_from_its_deletion_on() -> None:
    made = histories(1, 3)
    made.delete(b"a", 5)
    assert b"a" not in made.newest
    assert [made.at(b"a", revision) is None for revision in (0, 1, 4, 5, 9)] == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert made.last(b"a").is_tombstone
    made.put(b"a", 7, 0, 0, DIGEST)
    assert made.newest == {b"a": 7}


def test_rows_are_dropped_oldest_first_and_a_key_without_rows_is_gone() -> None:
    made = histories(1, 3, 5)
    assert [row.revision for row in made.drop_through(b"a", 3)] == [1, 3]
    assert made.drop_through(b"a", 4) == []
    assert made.row_count == 1
    made.delete(b"a", 7)
    assert [row.is_tombstone for row in made.drop_through(b"a", 7)] == [False, True]
    assert (made.rows, made.newest, made.row_count) == ({}, {}, 0)
    assert made.drop_through(b"a", 9) == []
    assert list(made.range(b"", b"")) == []


def test_ranges_are_ordered_and_know_which_keys_have_a_value() -> None:
    made = KeyHistories()
    for number, key in enumerate([b"c", b"a", b"b", b"d"], 1):
        made.put(key, number, 0, 0, DIGEST)
    made.delete(b"b", 9)
    assert list(made.range(b"a", b"d")) == [b"a", b"b", b"c"]
    assert list(made.present(b"a", b"d")) == [b"a", b"c"]


def test_loaded_rows_are_what_was_saved() -> None:
    rng = Random(5)
    made = KeyHistories()
    for revision in range(1, 500):
        key = b"%d" % rng.randrange(60)
        if key in made.newest and rng.random() < 0.3:
            made.delete(key, revision)
        else:
            made.put(key, revision, rng.randrange(3), revision, DIGEST)
    keys = list(made.rows)
    counts = np.array([len(made.rows[key]) // ROW.size for key in keys])
    rows = np.frombuffer(b"".join(made.rows.values()), ROW_COLUMNS)
    loaded = KeyHistories.load(keys, counts, rows)
    assert loaded.rows == made.rows
    assert loaded.newest == made.newest
    assert loaded.row_count == made.row_count
    assert loaded.leases() == made.leases()
    assert list(loaded.range(b"", b"")) == sorted(made.rows)
    loaded.put(b"7", 600, 0, 0, DIGEST)
    assert loaded.last(b"7").revision == 600


def test_nothing_is_loaded_as_nothing() -> None:
    loaded = KeyHistories.load([], np.empty(0, np.int64), np.empty(0, ROW_COLUMNS))
    assert (loaded.rows, loaded.newest, list(loaded.range(b"", b""))) == ({}, {}, [])
