"""A frame is its fields and nothing else, and no flipped bit gets through."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.errors import DamagedFrame, EntryTooLarge, InvalidInput, PositionOutOfRange
from lithify.log.segments.frame import (
    BODY_BYTES_MAX,
    FLAGS_MAX,
    HEADER,
    HEADER_BYTES,
    TAG_MAX,
    TIME_MS_MAX,
    LogEntry,
    check_fields,
    decode_frame,
    encode_header,
)
from lithify.positions import POSITION_MAX

ENTRIES = st.builds(
    LogEntry,
    position=st.integers(0, POSITION_MAX),
    time_ms=st.integers(0, TIME_MS_MAX),
    body=st.binary(max_size=300),
    flags=st.integers(0, FLAGS_MAX),
    tag=st.integers(0, TAG_MAX),
)


def frame(entry: LogEntry, synced: int = 0) -> bytes:
    fields = (entry.position, entry.time_ms, entry.flags, entry.tag, synced)
    return encode_header(entry.body, *fields) + entry.body


@settings(deadline=None)
@given(ENTRIES, st.integers(0, 2**32 - 1), st.binary(max_size=40), st.binary(max_size=40))
def test_a_frame_is_read_at_any_offset(
    entry: LogEntry, synced: int, before: bytes, behind: bytes
) -> None:
    data = before + frame(entry, synced) + behind
    assert decode_frame(data, len(before), "f") == entry
    assert len(frame(entry)) == entry.frame_bytes


def test_the_fields_are_at_the_offsets_of_the_format() -> None:
    data = frame(LogEntry(position=7, time_ms=1000, body=b"abc", flags=0x8001, tag=12), synced=99)
    _, length, position, stamp, tag, synced = HEADER.unpack_from(data)
    assert (length, position, stamp, tag, synced) == (3, 7, 1000 << 16 | 0x8001, 12, 99)
    assert data[HEADER_BYTES:] == b"abc"


def test_every_flipped_bit_of_a_frame_is_refused() -> None:
    data = frame(LogEntry(position=300, time_ms=1_700_000_000_000, body=b"stone", flags=1, tag=2))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFrame, match=r"CRC-32C does not match|reaches past the end"):
            decode_frame(damaged, 0, "f")


def test_zeros_are_no_frame() -> None:
    with pytest.raises(DamagedFrame, match="CRC-32C"):
        decode_frame(bytes(100), 0, "f")


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 4])
def test_a_frame_that_is_cut_short_is_refused(size: int) -> None:
    data = frame(LogEntry(position=1, time_ms=2, body=b"stone"))[:size]
    with pytest.raises(DamagedFrame, match=r"^x/y at byte 0: "):
        decode_frame(data, 0, "x/y")


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ((11, 0, 0, 0, 0), EntryTooLarge, "entry of 11 bytes is larger than the limit 10"),
        ((1, -1, 0, 0, 0), PositionOutOfRange, "position -1 is out of range, must be 0 … "),
        ((1, 2**63, 0, 0, 0), PositionOutOfRange, f"must be 0 … {POSITION_MAX}"),
        ((1, 0, -1, 0, 0), InvalidInput, "time -1 ms is out of range, must be 0 … "),
        ((1, 0, 2**47, 0, 0), InvalidInput, f"must be 0 … {TIME_MS_MAX}"),
        ((1, 0, 0, -1, 0), InvalidInput, "flags -1 are out of range, must be 0 … 65535"),
        ((1, 0, 0, 2**16, 0), InvalidInput, "flags 65536 are out of range"),
        ((1, 0, 0, 0, -1), InvalidInput, "tag -1 is out of range, must be 0 … "),
        ((1, 0, 0, 0, 2**32), InvalidInput, f"must be 0 … {TAG_MAX}"),
    ],
)
def test_values_out_of_range_of_a_frame_are_named(
    fields: tuple[int, int, int, int, int], error: type[InvalidInput], text: str
) -> None:
    with pytest.raises(error, match=text):
        check_fields(*fields, body_bytes_max=10)


def test_the_limits_themselves_are_allowed() -> None:
    check_fields(BODY_BYTES_MAX, POSITION_MAX, TIME_MS_MAX, FLAGS_MAX, TAG_MAX, BODY_BYTES_MAX)
    check_fields(0, 0, 0, 0, 0, BODY_BYTES_MAX)
