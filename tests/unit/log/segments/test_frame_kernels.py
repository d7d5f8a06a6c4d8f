"""The compiled loops and `log/segments/frame.py` say the same; so do the three ways to a CRC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.checksum import crc32c
from lithify.log.segments import frame_kernels
from lithify.log.segments.frame import (
    BODY_BYTES_MAX,
    FLAGS_MAX,
    HEADER_BYTES,
    TAG_MAX,
    TIME_MS_MAX,
    LogEntry,
    decode_frame,
    encode_header,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROWS = st.lists(
    st.tuples(
        st.binary(max_size=70),
        st.integers(1, 2**50),
        st.integers(0, TIME_MS_MAX),
        st.integers(0, FLAGS_MAX),
        st.integers(0, TAG_MAX),
    ),
    max_size=20,
)


def entries_of(rows: list[tuple[bytes, int, int, int, int]]) -> list[LogEntry]:
    place, entries = -1, []
    for body, step, time_ms, flags, tag in rows:
        place += step
        entries.append(LogEntry(place, time_ms, body, flags, tag))
    return entries


def by_hand(entries: Sequence[LogEntry], synced: int = 0) -> bytes:
    return b"".join(
        encode_header(e.body, e.position, e.time_ms, e.flags, e.tag, synced) + e.body
        for e in entries
    )


def plain(count: int, size: int = 10) -> list[LogEntry]:
    return [LogEntry(i, 1000 + i, bytes([i]) * size) for i in range(count)]


def array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8).copy()


def column(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def scan(data: bytes, after: int = -1, room: int = 100) -> tuple[list[int], list[int], int, int]:
    offsets, positions = np.zeros(room, np.int64), np.zeros(room, np.int64)
    count, at, why = frame_kernels.scan(array(data), 0, len(data), after, offsets, positions)
    return offsets[:count].tolist(), positions[:count].tolist(), int(at), int(why)


# CRC-32C


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=2000), st.integers(0, 40), st.integers(0, 40))
def test_all_ways_to_a_crc_agree(data: bytes, start: int, left: int) -> None:
    stop = max(start, len(data) - left)
    expected = crc32c(data[start:stop])
    assert int(frame_kernels.crc32c_of(array(data), start, min(stop, len(data)))) == expected
    assert int(frame_kernels.crc32c_portable(array(data), start, min(stop, len(data)))) == expected


@pytest.mark.parametrize("around", [0, 8, 191, 192, 193, 1536, 1537, 1_000_003])
def test_long_runs_agree_too(around: int) -> None:
    rng = np.random.default_rng(around)
    for size in range(max(0, around - 3), around + 30):
        data = rng.integers(0, 256, size, dtype=np.uint8)
        expected = crc32c(data.tobytes())
        assert int(frame_kernels.crc32c_of(data, 0, size)) == expected
        if size < 10_000:
            assert int(frame_kernels.crc32c_portable(data, 0, size)) == expected


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.sampled_from([0, 1, 65_537, 2**20]))
def test_crcs_of_two_runs_are_joined_whatever_their_lengths(
    first: bytes, second: bytes, more: int
) -> None:
    second += bytes(more)
    joined = frame_kernels.crc32c_join(crc32c(first), crc32c(second), len(second))
    assert int(joined) == crc32c(first + second)


def test_the_check_value_of_the_standard() -> None:
    assert int(frame_kernels.crc32c_of(array(b"123456789"), 0, 9)) == 0xE3069283
    assert int(frame_kernels.crc32c_portable(array(b"123456789"), 0, 9)) == 0xE3069283


# Encoding and scanning


@settings(deadline=None)
@given(ROWS, st.integers(0, 2**32 - 1))
def test_compiled_frames_are_those_of_the_format(
    rows: list[tuple[bytes, int, int, int, int]], synced: int
) -> None:
    entries = entries_of(rows)
    frames = array(b"".join(bytes(HEADER_BYTES) + e.body for e in entries))
    frame_kernels.fill_headers(
        frames,
        column([len(e.body) for e in entries]),
        column([e.position for e in entries]),
        column([e.time_ms << 16 | e.flags for e in entries]),
        column([e.tag for e in entries]),
        synced,
    )
    data = frames.tobytes()
    assert data == by_hand(entries, synced)
    offsets, positions, at, why = scan(data)
    assert (at, why) == (len(data), frame_kernels.END)
    assert positions == [e.position for e in entries]
    assert [decode_frame(data, offset, "f") for offset in offsets] == entries


def test_every_flipped_bit_of_a_frame_stops_the_scan_before_it() -> None:
    first, second, third = plain(3)
    begin, data = first.frame_bytes, by_hand([first, second, third])
    for bit in range(begin * 8, (begin + second.frame_bytes) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        offsets, _, at, why = scan(bytes(damaged))
        assert (offsets, at) == ([0], begin)
        assert why in {frame_kernels.BAD_CRC, frame_kernels.BAD_LENGTH, frame_kernels.NEED_MORE}


def test_a_scan_returns_why_it_stopped() -> None:
    data = by_hand(plain(3))
    size = len(data) // 3
    assert scan(b"") == ([], [], 0, frame_kernels.END)
    assert scan(data, room=2) == ([0, size], [0, 1], 2 * size, frame_kernels.FULL)
    for cut in (1, HEADER_BYTES - 1, HEADER_BYTES, size - 1):
        assert scan(data[: size + cut]) == ([0], [0], size, frame_kernels.NEED_MORE)
    long = bytearray(data)
    long[size + 4 : size + 8] = (BODY_BYTES_MAX + 1).to_bytes(4, "little")
    assert scan(bytes(long)) == ([0], [0], size, frame_kernels.BAD_LENGTH)
    assert scan(data, after=0) == ([], [], 0, frame_kernels.BAD_ORDER)
    repeated = by_hand([LogEntry(5, 0, b""), LogEntry(5, 0, b"")])
    assert scan(repeated) == ([0], [5], HEADER_BYTES, frame_kernels.BAD_ORDER)


# Gathering


def ranges(positions: set[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return column(sorted(positions)), column([p + 1 for p in sorted(positions)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=20))
def test_live_frames_are_gathered_as_they_are(rows: list[tuple[bytes, bool]]) -> None:
    entries = [LogEntry(i, 7 * i, body) for i, (body, _) in enumerate(rows)]
    live = [entry for entry, (_, keep) in zip(entries, rows, strict=True) if keep]
    data = array(by_hand(entries))
    starts, stops = ranges({entry.position for entry in live})
    offsets, positions = np.zeros(20, np.int64), np.zeros(20, np.int64)
    count, at, last, why = frame_kernels.choose(
        data, 0, data.size, -1, starts, stops, offsets, positions
    )
    assert (at, last, why) == (data.size, len(entries) - 1, frame_kernels.END)
    assert positions[:count].tolist() == [entry.position for entry in live]
    before = b"before"
    out = np.concatenate([array(before), np.zeros_like(data)])
    places, times = np.zeros(20, np.int64), np.zeros(20, np.int64)
    end = frame_kernels.collect(data, offsets[:count], out, len(before), places, times)
    assert out[:end].tobytes() == before + by_hand(live)
    taken = [decode_frame(out[:end].tobytes(), int(at), "f") for at in places[:count]]
    assert taken == live
    assert times[:count].tolist() == [entry.time_ms for entry in live]
    filled = end - len(before)
    counted, size, _, _, _ = frame_kernels.measure(data, 0, data.size, -1, starts, stops)
    assert (counted, size) == (count, filled)


def gather(
    data: NDArray[np.uint8], live: set[int], after: int = -1, room: int = 20
) -> tuple[bytes, int, int]:
    starts, stops = ranges(live)
    offsets, positions = np.zeros(room, np.int64), np.zeros(20, np.int64)
    count, at, _, why = frame_kernels.choose(
        data, 0, data.size, after, starts, stops, offsets, positions
    )
    out, places = np.zeros_like(data), np.zeros(20, np.int64)
    filled = frame_kernels.collect(data, offsets[:count], out, 0, places, positions)
    return out[:filled].tobytes(), int(at), int(why)


def test_a_damaged_live_frame_is_not_spread_and_a_dead_one_does_not_matter() -> None:
    entries = plain(3)
    size = entries[0].frame_bytes
    data = array(by_hand(entries))
    data[size + HEADER_BYTES] ^= 1
    assert gather(data, {0, 1, 2}) == (by_hand(entries[:1]), size, frame_kernels.BAD_CRC)
    assert gather(data, {0, 2}) == (by_hand(entries[::2]), 3 * size, frame_kernels.END)


def test_gathering_and_measuring_stop_like_scanning() -> None:
    entries = plain(3)
    size = entries[0].frame_bytes
    data = array(by_hand(entries))
    every = {0, 1, 2}
    long = data.copy()
    long[size + 4 : size + 8] = 255
    cases = [
        (data[: size + 5], -1, frame_kernels.NEED_MORE, size),
        (data[: size + HEADER_BYTES + 1], -1, frame_kernels.NEED_MORE, size),
        (long, -1, frame_kernels.BAD_LENGTH, size),
        (data, 0, frame_kernels.BAD_ORDER, 0),
    ]
    for damaged, after, why, at in cases:
        assert gather(damaged, every, after) == (by_hand(entries[: at // size]), at, why)
        measured = frame_kernels.measure(damaged, 0, damaged.size, after, *ranges(every))
        assert measured[:3] == (at // size, at, at)
        assert measured[4] == why
    assert gather(data, every, room=2) == (by_hand(entries[:2]), 2 * size, frame_kernels.FULL)


# Finding frames behind damage


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, 2**32 - 1), st.binary(max_size=100))
def test_an_intact_frame_is_found_among_rubbish(before: bytes, synced: int, behind: bytes) -> None:
    data = array(before + by_hand([LogEntry(9, 0, b"found")], synced) + behind)
    assert frame_kernels.resync(data, 0, data.size, 8) == (len(before), synced)
    assert frame_kernels.resync(data, 0, data.size, 9) == (-1, 0)
    assert frame_kernels.resync(data, len(before) + 1, data.size, 8) == (-1, 0)
