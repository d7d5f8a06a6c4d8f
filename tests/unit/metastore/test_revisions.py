"""Revisions in columns: found by number and by time, and removed when they have no values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.metastore import revisions as module
from lithify.metastore.revisions import RevisionColumns

if TYPE_CHECKING:
    import pytest


def columns(*rows: tuple[int, int, int, list[bytes]]) -> RevisionColumns:
    """Of number, time, values and keys; the first keys have the values."""
    made = RevisionColumns()
    for number, time, values, keys in rows:
        made.keys += keys
        made.has_value += bytes(int(place < values) for place in range(len(keys)))
        made.append(number, time, 10 * number, values, otherwise=number % 2 == 1)
    return made


def test_a_revision_is_found_by_number_and_by_time() -> None:
    made = columns((2, 20, 1, [b"a"]), (5, 50, 1, [b"b"]), (9, 90, 0, [b"a"]))
    assert [made.row(number) for number in (1, 2, 3, 5, 9, 10)] == [-1, 0, -1, 1, 2, -1]
    assert [made.row_above(number) for number in (0, 2, 4, 9)] == [0, 1, 1, 3]
    assert [made.newest_at(time) for time in (0, 19, 20, 49, 50, 100)] == [0, 0, 2, 2, 5, 9]


def test_a_revision_has_the_changes_that_were_added_with_it() -> None:
    made = columns((2, 20, 1, [b"a", b"b"]), (5, 50, 0, [b"c"]), (6, 60, 0, []))
    assert [list(made.changes(row)) for row in range(3)] == [
        [(b"a", 1), (b"b", 0)],
        [(b"c", 0)],
        [],
    ]


def test_revisions_without_values_are_removed_once_they_are_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FORGOTTEN_MIN", 2)
    made = columns(
        (2, 20, 1, [b"a", b"b"]),
        (3, 30, 0, [b"c"]),
        (4, 40, 0, []),
        (7, 70, 2, [b"d", b"e"]),
        (8, 80, 0, [b"f"]),
    )
    made.forget(1, 7)
    assert len(made) == 5
    made.forget(1, 7)
    assert len(made) == 5
    made.forget(1, 7)
    assert list(made.numbers) == [2, 7, 8]
    assert list(made.times) == [20, 70, 80]
    assert list(made.entry_bytes) == [20, 70, 80]
    assert list(made.values) == [1, 2, 0]
    assert list(made.otherwise) == [0, 1, 0]
    assert [list(made.changes(row)) for row in range(3)] == [
        [(b"a", 1), (b"b", 0)],
        [(b"d", 1), (b"e", 1)],
        [(b"f", 0)],
    ]
    made.keys.append(b"g")
    made.has_value.append(1)
    made.append(9, 90, 1, 1, otherwise=False)
    assert list(made.changes(3)) == [(b"g", 1)]
