"""Mappings with few changes against a large one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.topics.definitions.edited_mapping import differences, with_entry, without_entry


class View(Mapping[str, int]):
    """A mapping that is no dict, and counts how often it is iterated."""

    def __init__(self, rows: dict[str, int]) -> None:
        self.rows = rows
        self.iterated = 0

    def __getitem__(self, key: str) -> int:
        return self.rows[key]

    def __iter__(self) -> Iterator[str]:
        self.iterated += 1
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


names = st.sampled_from("abcdef")
edits = st.lists(st.tuples(names, st.none() | st.integers(0, 3)))


@given(st.dictionaries(names, st.integers(0, 3)), edits)
def test_edits_of_a_view_give_what_they_give_of_a_dict(
    rows: dict[str, int], edits: list[tuple[str, int | None]]
) -> None:
    view = View(dict(rows))
    plain: Mapping[str, int] = dict(rows)
    edited: Mapping[str, int] = view
    for key, value in edits:
        plain = without_entry(plain, key) if value is None else with_entry(plain, key, value)
        edited = without_entry(edited, key) if value is None else with_entry(edited, key, value)
        assert dict(edited) == plain
        assert len(edited) == len(plain)
    assert view.rows == rows
    assert differences(view, edited) == differences(rows, plain)


def test_the_difference_to_a_view_is_found_without_reading_it() -> None:
    view = View({"a": 1, "b": 2})
    edited = without_entry(with_entry(with_entry(view, "c", 3), "a", 1), "b")
    assert differences(view, edited) == {"c": (None, 3), "b": (2, None)}
    assert not view.iterated


def test_a_removed_entry_is_not_found() -> None:
    edited = without_entry(View({"a": 1}), "a")
    with pytest.raises(KeyError):
        edited["a"]
    assert "a" not in edited
