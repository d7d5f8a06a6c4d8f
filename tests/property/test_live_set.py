"""The live set against Python's own sets.

Windows, blocks and rank steps are made tiny, so that sets of a few ranges cross many of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.live_set import LiveSet, LiveSetBuilder, live_set
from lithify.live_set import format as live_set_format

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX = 2**63 - 1

POSITION = st.one_of(
    st.integers(0, 70),
    st.integers(MAX - 70, MAX),
    st.sampled_from([2**8, 2**16, 2**31, 2**32, 2**62]).flatmap(
        lambda middle: st.integers(middle - 5, middle + 5)
    ),
    st.integers(0, MAX),
)
POSITIONS = st.lists(POSITION, max_size=60)
SETS = POSITIONS.map(set)
ANY_INTEGER = st.one_of(POSITION, st.integers(-(2**65), 2**65))


@pytest.fixture(autouse=True, scope="module")
def tiny_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_set, "_WINDOW_RANGES", 8)
        patch.setattr(live_set, "_RANK_RANGES", 3)
        patch.setattr(live_set_format, "BLOCK_RANGES", 4)
        yield


def live(positions: set[int]) -> LiveSet:
    return LiveSet.from_iterable(positions)


def check(result: LiveSet, expected: set[int]) -> None:
    """The set is right, and is what the same members give when made another way."""
    assert list(result) == sorted(expected)
    assert result == live(expected)
    assert hash(result) == hash(live(expected))
    assert result.extras.dtype == np.min_scalar_type(int(result.extras.max(initial=0)))
    stops = [stop for _, stop in result.ranges()]
    assert all(
        stop < start for stop, (start, _) in zip(stops, [*result.ranges()][1:], strict=False)
    )


@given(POSITIONS)
def test_every_way_to_make_one_agrees(positions: list[int]) -> None:
    members = set(positions)
    check(LiveSet.from_iterable(positions), members)
    check(LiveSet.from_array(np.array(positions, np.int64)), members)
    check(LiveSet.from_array(np.array(sorted(positions), np.uint64)), members)
    builder = LiveSetBuilder()
    for position in sorted(members):
        builder.append(position)
    check(builder.build(), members)


@given(st.lists(st.tuples(POSITION, st.integers(0, 9)), max_size=40))
def test_ranges_in_any_order(pairs: list[tuple[int, int]]) -> None:
    bounds = [(start, min(start + size, MAX + 1)) for start, size in pairs]
    starts, stops = np.array(bounds, np.uint64).reshape(-1, 2).T
    expected = {position for start, stop in bounds for position in range(start, stop)}
    check(LiveSet.from_ranges(starts, stops), expected)


@given(SETS, SETS)
def test_two_sets_together(left: set[int], right: set[int]) -> None:
    check(live(left) | live(right), left | right)
    check(live(left) - live(right), left - right)
    check(live(left) & live(right), left & right)
    assert live(left).is_subset(live(right)) == (left <= right)
    assert live(left & right).is_subset(live(right))


@given(SETS, ANY_INTEGER, ANY_INTEGER)
def test_questions_about_any_integers(members: set[int], start: int, stop: int) -> None:
    some = live(members)
    inside = {position for position in members if start <= position < stop}
    check(some.slice(start, stop), inside)
    check(some.floor(start), {position for position in members if position >= start})
    check(some.limit(start), {position for position in members if position <= start})
    assert some.count_in(start, stop) == len(inside)
    assert some.overlaps(start, stop) == bool(inside)
    assert some.rank(start) == sum(position < start for position in members)
    assert (start in some) == (start in members)


@given(SETS, st.lists(POSITION, max_size=20), st.integers(1, 30))
def test_members_one_by_one_and_many_at_once(
    members: set[int], others: list[int], size: int
) -> None:
    some, ordered = live(members), sorted(members)
    assert len(some) == len(members)
    assert bool(some) == bool(members)
    assert (some.first, some.last) == ((ordered[0], ordered[-1]) if ordered else (None, None))
    assert [some.select(index) for index in range(len(members))] == ordered
    asked = np.array(ordered + others, np.int64)
    assert some.contains_many(asked).tolist() == [p in members for p in asked.tolist()]
    chunks = [chunk.tolist() for chunk in some.chunks(size)]
    assert chunks == [ordered[at : at + size] for at in range(0, len(ordered), size)]


@given(SETS)
def test_bytes_are_decoded(members: set[int]) -> None:
    data = live(members).to_bytes()
    back = LiveSet.from_bytes(data)
    check(back, members)
    assert back.to_bytes() == data
