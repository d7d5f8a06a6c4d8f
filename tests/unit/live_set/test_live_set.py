"""The live set, by example. `tests/property/test_live_set.py` compares it with Python's sets."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, PositionOutOfRange, UnsupportedVersion
from lithify.live_set import LiveSet, LiveSetBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

MAX = 2**63 - 1
SCATTERED = 10_000_000


def live(*positions: int) -> LiveSet:
    return LiveSet.from_iterable(positions)


def ranges(*pairs: tuple[int, int]) -> LiveSet:
    starts, stops = np.array(pairs, np.uint64).reshape(-1, 2).T
    return LiveSet.from_ranges(starts, stops)


def scattered(count: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ascending positions with gaps, no two adjacent."""
    return np.cumsum(np.random.default_rng(seed).integers(2, 400, count))


# Making one


def test_order_and_repetition_of_the_input_do_not_matter() -> None:
    assert list(live(7, 3, 4, 7, 3)) == [3, 4, 7]
    assert live(7, 3, 4, 7, 3) == live(3, 4, 7)
    assert LiveSet.from_array(np.array([9, 1, 9, 2], np.uint16)) == live(1, 2, 9)


def test_neighbours_become_one_range() -> None:
    assert list(live(5, 6, 7, 9).ranges()) == [(5, 8), (9, 10)]
    assert list(ranges((20, 30), (10, 20), (25, 27), (40, 40)).ranges()) == [(10, 30)]


def test_the_empty_set() -> None:
    empty = LiveSet()
    same = [LiveSet.empty(), live(), ranges(), LiveSet.from_range(8, 8), LiveSetBuilder().build()]
    assert all(other == empty for other in same)
    assert not empty
    assert (len(empty), empty.first, empty.last, list(empty)) == (0, None, None, [])
    assert list(empty.chunks(10)) == []
    assert not empty.contains_many(np.array([0, 1])).any()
    assert empty.rank(MAX) == 0
    assert empty | empty == empty - live(1) == empty & live(1) == empty.floor(0) == empty


def test_the_set_of_every_position() -> None:
    everything = LiveSet.from_range(0, 2**63)
    assert (everything.first, everything.last) == (0, MAX)
    assert everything.count_in(0, 2**63) == 2**63
    assert everything.select(MAX) == MAX
    assert MAX in everything
    assert 2**63 not in everything
    assert LiveSet.from_bytes(everything.to_bytes()) == everything
    assert list((everything - live(5, MAX)).ranges()) == [(0, 5), (6, MAX)]
    with pytest.raises(OverflowError):  # Python's limit, not ours
        len(everything)


@pytest.mark.parametrize(
    "make",
    [
        lambda: live(1, -1),
        lambda: live(2**63),
        lambda: LiveSet.from_array(np.array([2**63], np.uint64)),
        lambda: LiveSet.from_array(np.array([3, -4])),
        lambda: LiveSet.from_array(np.array([1.0])),
        lambda: LiveSet.from_array(np.array([[1]])),
        lambda: LiveSet.from_range(-1, 3),
        lambda: LiveSet.from_range(3, 2**63 + 1),
        lambda: LiveSet.from_range(3, 2),
        lambda: LiveSet.from_ranges(np.array([1, 5]), np.array([2, 4])),
        lambda: LiveSet.from_ranges(np.array([1, 5]), np.array([2])),
        lambda: live(1).contains_many(np.array([1.5])),
        lambda: live(1).select(1),
        lambda: live(1).select(-1),
        lambda: list(live(1).chunks(0)),
    ],
)
def test_invalid_values_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()


# The builder


def test_the_builder_extends_its_last_range() -> None:
    builder = LiveSetBuilder()
    for position in (0, 1, 2, 10):
        builder.append(position)
    builder.append_range(11, 20)
    builder.append_range(50, 50)
    builder.append_range(30, 2**63)
    assert list(builder.build().ranges()) == [(0, 3), (10, 20), (30, 2**63)]


def test_the_builder_refuses_to_go_back_and_names_both_positions() -> None:
    builder = LiveSetBuilder()
    builder.append_range(3, 8)
    with pytest.raises(InvalidInput, match=r"position 7 .* after 7"):
        builder.append(7)
    with pytest.raises(InvalidInput, match=r"position 2 .* after 7"):
        builder.append_range(2, 12)
    with pytest.raises(PositionOutOfRange):
        builder.append(-1)
    with pytest.raises(PositionOutOfRange):
        builder.append(2**63)
    assert list(builder.build()) == [3, 4, 5, 6, 7]


def test_the_builder_stops_at_the_highest_position() -> None:
    builder = LiveSetBuilder()
    builder.append(MAX)
    with pytest.raises(PositionOutOfRange):
        builder.append(MAX + 1)
    assert list(builder.build()) == [MAX]


def test_a_built_set_leaves_the_builder_empty() -> None:
    builder = LiveSetBuilder()
    builder.append(5)
    first = builder.build()
    builder.append(0)
    assert (list(first), list(builder.build())) == ([5], [0])


def test_the_builder_keeps_more_than_it_holds_back() -> None:
    builder = LiveSetBuilder()
    for position in range(0, 200_000, 2):
        builder.append(position)
    assert builder.build() == LiveSet.from_array(np.arange(0, 200_000, 2))


# Asking


def test_rank_and_select_are_opposites() -> None:
    some = ranges((5, 8), (100, 103), (MAX - 1, 2**63))
    members = [5, 6, 7, 100, 101, 102, MAX - 1, MAX]
    assert [some.select(index) for index in range(8)] == members
    assert [some.rank(position) for position in members] == list(range(8))
    assert (some.rank(-5), some.rank(50), some.rank(2**70)) == (0, 3, 8)
    assert (some.count_in(6, 101), some.count_in(101, 6), some.count_in(-9, 2**64)) == (3, 0, 8)


def test_overlaps_sees_half_open_ranges() -> None:
    some = ranges((5, 8))
    assert some.overlaps(7, 100)
    assert some.overlaps(0, 6)
    assert not some.overlaps(8, 100)
    assert not some.overlaps(0, 5)
    assert not some.overlaps(6, 6)


def test_membership_of_anything() -> None:
    some = live(5, 6, MAX)
    assert 5 in some
    assert np.int64(6) in some
    assert all(other not in some for other in (4, 7, -1, 2**80, "5", None, 5.0))
    asked = np.array([6, -(2**63), 5, 0, MAX, MAX - 1])
    assert some.contains_many(asked).tolist() == [True, False, True, False, True, False]
    beyond = np.array([5, 2**63, 2**64 - 1], np.uint64)
    assert some.contains_many(beyond).tolist() == [True, False, False]


def test_floor_and_limit_include_the_position_slice_is_half_open() -> None:
    some = ranges((5, 10), (20, 25))
    assert list(some.floor(8)) == [8, 9, 20, 21, 22, 23, 24]
    assert list(some.limit(20)) == [5, 6, 7, 8, 9, 20]
    assert list(some.slice(9, 21)) == [9, 20]
    assert some.floor(-3) == some.limit(2**70) == some
    assert some.limit(-1) == some.floor(2**63) == some.slice(7, 3) == LiveSet()


def test_a_small_slice_does_not_keep_the_large_set_in_memory() -> None:
    large = LiveSet.from_array(scattered(10_000, seed=3))
    small = large.slice(0, 1000)
    assert small
    assert small.nbytes < 1000
    assert small.starts.base is None


def test_chunks_do_not_follow_ranges() -> None:
    some = ranges((0, 5), (10, 12), (2**62, 2**62 + 3))
    assert [chunk.tolist() for chunk in some.chunks(4)] == [
        [0, 1, 2, 3],
        [4, 10, 11, 2**62],
        [2**62 + 1, 2**62 + 2],
    ]


def test_iterating_a_huge_set_begins_at_once() -> None:
    huge = LiveSet.from_range(3, 2**63)
    assert next(iter(huge)) == 3
    assert next(huge.chunks(3)).tolist() == [3, 4, 5]


def test_sets_are_values() -> None:
    some = live(1, 2, 9)
    assert hash(some) == hash(live(9, 2, 1))
    assert some != live(1, 2)
    assert some != {1, 2, 9}
    assert len({some, live(1, 2, 9), live(3)}) == 2
    assert pickle.loads(pickle.dumps(some)) == some
    with pytest.raises(ValueError, match="read-only"):
        some.starts[0] = 0
    assert repr(ranges((5, 25), (801, 900), (900, 901), (700, 701))) == (
        "LiveSet(3 ranges, 121 positions, 5…900)"
    )
    assert repr(LiveSet()) == "LiveSet(0 ranges, 0 positions)"


def test_a_set_is_not_the_array_it_was_made_from() -> None:
    source = np.array([1, 5, 9])
    some = LiveSet.from_array(source)
    source[0] = 7
    assert list(some) == [1, 5, 9]


# Putting two together


def test_union_difference_intersection() -> None:
    left, right = ranges((0, 10), (20, 30)), ranges((5, 20), (25, 26))
    assert list((left | right).ranges()) == [(0, 30)]
    assert list((left - right).ranges()) == [(0, 5), (20, 25), (26, 30)]
    assert list((left & right).ranges()) == [(5, 10), (25, 26)]


def test_a_subset_is_inside_range_by_range() -> None:
    some = ranges((0, 10), (20, 30), (MAX, 2**63))
    for inside in (live(), live(0), some, ranges((5, 10), (20, 21)), live(MAX)):
        assert inside.is_subset(some)
    for outside in (live(10), ranges((5, 11)), ranges((9, 20)), live(9, 15), ranges((25, 31))):
        assert not outside.is_subset(some)
    assert not ranges((1, 3)).is_subset(ranges((2, 9)))
    assert not live(1).is_subset(live())


def test_windows_of_a_large_set_leave_no_seams() -> None:
    left, right = scattered(200_000, seed=1), scattered(150_000, seed=2)
    a, b = LiveSet.from_array(left), LiveSet.from_array(right)
    for result, expected in (
        (a | b, np.union1d(left, right)),
        (a - b, np.setdiff1d(left, right)),
        (a & b, np.intersect1d(left, right)),
    ):
        assert np.array_equal(np.concatenate(list(result.chunks(70_000))), expected)
        assert result == LiveSet.from_array(expected)
    hull = LiveSet.from_range(0, int(left[-1]) + 1)
    assert (hull - a) | a == hull


# Bytes


def sealed(body: bytes) -> bytes:
    """`body` with the CRC that makes it look whole."""
    return body + struct.pack("<I", crc32c(body))


def header(count: int, positions: int, *, version: int = 1, zero: int = 0) -> bytes:
    return struct.pack("<4sHHQQ", b"LSET", version, zero, count, positions)


def test_the_bytes_are_as_documented() -> None:
    block = struct.pack("<QBB", 5, 2, 1) + struct.pack("<H", 300) + bytes([1, 0])
    assert ranges((5, 7), (308, 309)).to_bytes() == sealed(header(2, 3) + block)


def test_no_flipped_bit_gives_a_set() -> None:
    data = ranges((5, 8), (1000, 90_000), (2**40, 2**40 + 1)).to_bytes()
    for bit in range(len(data) * 8):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFile):
            LiveSet.from_bytes(bad)


def test_no_prefix_and_no_longer_file_gives_a_set() -> None:
    data = ranges((5, 8), (1000, 90_000)).to_bytes()
    for bad in [data[:size] for size in range(len(data))] + [data + b"\0"]:
        with pytest.raises(DamagedFile, match=r"^some\.dead at byte "):
            LiveSet.from_bytes(bad, "some.dead")


def test_a_newer_version_is_not_called_damaged() -> None:
    with pytest.raises(UnsupportedVersion, match=r"some\.dead has format version 2"):
        LiveSet.from_bytes(sealed(header(0, 0, version=2)), "some.dead")


def block(first: int, gaps: list[int], extras: list[int]) -> bytes:
    count = len(extras)
    return struct.pack(f"<QBB{count - 1}Q{count}Q", first, 8, 8, *gaps, *extras)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (header(0, 0, zero=1), "reserved"),
        (header(0, 1), "has 0 positions, its header says 1"),
        (header(1, 2) + block(5, [], [0]), "has 1 positions, its header says 2"),
        (header(0, 0) + block(5, [], [0]), "after the last"),
        (header(1, 1), "before its last block"),
        (header(2**60, 1) + block(5, [], [0]), "after the end of the file"),
        (header(2, 2) + block(5, [], [0]), "after the end of the file"),
        (header(1, 1) + struct.pack("<QBBB", 5, 1, 3, 0), "widths"),
        (header(1, 1) + struct.pack("<QBB", 5, 0, 1) + b"\0", "widths"),
        (header(1, 1) + block(2**63, [], [0]), "beyond"),
        (header(1, 2) + block(MAX, [], [1]), "beyond"),
        (header(1, 2**64 - 1) + block(5, [], [2**64 - 2]), "beyond"),
        (header(2, 2) + block(5, [2**64 - 1], [0, 0]), "beyond"),
        (header(2, 2) + block(5, [MAX], [0, 0]), "beyond"),
        (header(2, 2) + block(5, [MAX - 2], [0, 0]), "beyond"),
        (header(2, 2) + block(MAX, [MAX], [0, 0]), "beyond"),
        (header(3, 3) + block(0, [MAX - 2, MAX - 2], [0, 0, 0]), "beyond"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_a_right_crc_does_not_make_wrong_bytes_right(body: bytes, what: str) -> None:
    with pytest.raises(DamagedFile, match=what):
        LiveSet.from_bytes(sealed(body))


@pytest.mark.parametrize(
    ("second", "good"), [(9000, True), (8192, False), (8191, False), (0, False)]
)
def test_blocks_must_ascend_and_not_touch(second: int, good: bool) -> None:
    # The first block holds 0, 2, … 8190 and 8191.
    first = block(0, [0] * 4095, [0] * 4095 + [1])
    data = sealed(header(4097, 4098) + first + block(second, [], [0]))
    if good:
        assert LiveSet.from_bytes(data).last == 9000
    else:
        with pytest.raises(DamagedFile, match="the one before ends at 8191"):
            LiveSet.from_bytes(data)


def test_bytes_of_a_large_set_are_decoded() -> None:
    some = LiveSet.from_array(scattered(100_000, seed=4)) | ranges((2**50, 2**50 + 5000))
    data = some.to_bytes()
    assert LiveSet.from_bytes(memoryview(data)) == some
    assert len(data) < 320_000  # a gap needs 2 bytes, an extra 1; the block with the long jump more


# Size


def test_ten_million_scattered_positions_are_small_and_fast_to_query() -> None:
    positions = scattered(SCATTERED, seed=5)
    some = LiveSet.from_array(positions)
    assert len(some) == SCATTERED
    assert some.nbytes < 150_000_000
    asked = positions[::1000]
    assert some.contains_many(asked).all()
    assert not some.contains_many(asked + 1).any()
    assert int(positions[1234]) in some
    assert some.rank(int(positions[7_654_321])) == 7_654_321
    assert some.select(7_654_321) == positions[7_654_321]


# Not getrusage: its peak is inherited from the process that started this one.
PEAK = """
import re, pathlib, numpy as np
from lithify.live_set import LiveSet
def peak_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024
positions = np.arange(0, 20_000_000, 2)
before = peak_bytes()
live = LiveSet.from_array(positions)
print(peak_bytes() - before)
"""


@pytest.mark.slow
def test_the_peak_while_building_is_little_more_than_the_set() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, check=True, text=True)
    assert 80_000_000 < int(done.stdout) < 150_000_000
