"""Rows every 64 KiB, made one by one or many at once, found by position and by time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.log.segments.block_index import BLOCK_BYTES, ROW_BYTES, BlockIndex

FRAMES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(32, 2 * BLOCK_BYTES), st.integers(0, 50)),
    max_size=30,
)


def places(frames: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(position, offset, time) of frames given as (step, size, time)."""
    position, offset, rows = 0, 64, []
    for step, size, time_ms in frames:
        position += step
        rows.append((position, offset, time_ms))
        offset += size
    return rows


def index_of(rows: list[tuple[int, int, int]]) -> BlockIndex:
    index = BlockIndex()
    for row in rows:
        index.add(*row)
    return index


def add_many(index: BlockIndex, rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    index.add_many(columns[:, 0], columns[:, 1], columns[:, 2])


@settings(deadline=None)
@given(FRAMES, st.lists(st.integers(0, 30), max_size=4))
def test_one_by_one_or_many_at_once_gives_the_same_rows(
    frames: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    rows = places(frames)
    index, begin = BlockIndex(), 0
    for cut in [*sorted(cuts), len(rows)]:
        add_many(index, rows[begin:cut])
        begin = max(begin, cut)
    data = index_of(rows).to_bytes()
    assert index.to_bytes() == data
    assert len(data) == ROW_BYTES * len(index)
    assert BlockIndex.from_bytes(data).to_bytes() == data


@settings(deadline=None)
@given(FRAMES, st.integers(0, 160), st.integers(0, 60))
def test_a_search_begins_early_enough_and_never_a_block_too_early(
    frames: list[tuple[int, int, int]], position: int, time_ms: int
) -> None:
    rows = places(frames)
    index = index_of(rows)
    if not rows:
        assert len(index) == 0
        return
    _, offset = index.row(index.find_position(position))
    wanted = [at for place, at, _ in rows if place >= position]
    if wanted:
        assert offset <= wanted[0]
        passed = [at for place, at, _ in rows if offset < at and place < position]
        assert all(at < offset + BLOCK_BYTES for at in passed)
    _, offset = index.row(index.find_time(time_ms))
    late = [at for _, at, time in rows if time >= time_ms]
    assert not late or offset <= late[0]


def test_a_row_begins_where_64_kib_have_passed() -> None:
    index = BlockIndex()
    for number in range(5):
        index.add(number, 64 + number * BLOCK_BYTES // 2, 0)
    positions, offsets = index.arrays()
    assert positions.tolist() == [0, 2, 4]
    assert offsets.tolist() == [64, 64 + BLOCK_BYTES, 64 + 2 * BLOCK_BYTES]


def test_times_that_go_back_do_not_hide_an_earlier_late_frame() -> None:
    index = index_of([(0, 64, 900), (1, 64 + BLOCK_BYTES, 100), (2, 64 + 2 * BLOCK_BYTES, 100)])
    assert index.find_time(900) == 0
    assert index.find_time(901) == 2


@settings(deadline=None)
@given(FRAMES, FRAMES, FRAMES)
def test_a_truncated_index_continues_as_if_nothing_had_followed(
    before: list[tuple[int, int, int]],
    dropped: list[tuple[int, int, int]],
    behind: list[tuple[int, int, int]],
) -> None:
    kept = places(before)
    index = index_of(kept)
    mark = index.mark()
    for row in places([*before, *dropped])[len(before) :]:
        index.add(*row)
    full = index.to_bytes()
    cut = index.cut(mark)
    for row in places([*before, *behind])[len(before) :]:
        cut.add(*row)
    assert cut.to_bytes() == index_of(places([*before, *behind])).to_bytes()
    assert index.to_bytes() == full, "those who search the old one are not disturbed"
