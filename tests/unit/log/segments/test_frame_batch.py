"""Many bodies become the same frames as one by one, in pieces that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.checksum import crc32c
from lithify.errors import EntryTooLarge, InvalidInput, PositionOutOfRange
from lithify.log.segments.frame import encode_header
from lithify.log.segments.frame_batch import LARGE_BYTES, FrameBatch, Slices, size_of
from lithify.positions import POSITION_MAX

if TYPE_CHECKING:
    from lithify.checksum import Buffer


def batch_of(bodies: list[bytes], **given: Any) -> FrameBatch:
    """A batch with a limit of 1000 bytes a body."""
    times, flags, tags = (given.get(name, 0) for name in ("times", "flags", "tags"))
    return FrameBatch(bodies, times, flags, tags, given.get("positions"), 1000)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=90), max_size=15), st.integers(1, 500), st.integers(0, 9))
def test_pieces_fit_and_together_are_the_frames_one_by_one(
    bodies: list[bytes], room: int, synced: int
) -> None:
    rows = [(body, i + 5, i + 2, i + 3) for i, body in enumerate(bodies)]
    batch = batch_of(
        bodies,
        times=[row[1] for row in rows],
        flags=[row[2] for row in rows],
        tags=np.array([row[3] for row in rows], dtype=np.int64),
    )
    data, place = b"", 100
    while len(batch):
        size = batch.next_size
        piece = batch.take(room, place, POSITION_MAX, synced)
        assert piece.size == sum(map(len, piece.buffers)) <= max(room, size)
        assert piece.positions.tolist() == list(range(place, place + len(piece.positions)))
        assert piece.offsets[0] == 0
        data += b"".join(piece.buffers)
        place += len(piece.positions)
    assert place == 100 + len(bodies)
    assert data == b"".join(
        encode_header(body, 100 + i, time_ms, flags, tag, synced) + body
        for i, (body, time_ms, flags, tag) in enumerate(rows)
    )


def test_bodies_may_be_any_kind_of_bytes() -> None:
    bodies: list[Buffer] = [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]]
    piece = FrameBatch(bodies, 0, 0, 0, None, 10).take(1000, 0, POSITION_MAX, 0)
    (frames,) = piece.buffers
    assert [bytes(frames[at + 32 : at + 34]) for at in piece.offsets] == [b"ab", b"cd", b"ef"]


def slices_of(bodies: list[bytes], *, checked: bool) -> Slices:
    """The bodies, each behind something else, in one buffer, in a sequence of ranges."""
    stops = np.cumsum([3 + len(body) for body in bodies], dtype=np.int64)
    lengths = np.array([len(body) for body in bodies], dtype=np.int64)
    crcs = [crc32c(body) if checked else -1 for body in bodies]
    data = np.frombuffer(b"".join(b"..." + body for body in bodies), np.uint8)
    return Slices(data, stops - lengths, stops, np.array(crcs, dtype=np.int64))


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=90), st.just(bytes(LARGE_BYTES)), st.just(b"x" * 150_001)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 400_000),
    st.booleans(),
)
def test_slices_of_a_buffer_become_the_frames_of_bodies_small_or_large(
    bodies: list[bytes], room: int, checked: bool
) -> None:
    slices = slices_of(bodies, checked=checked)
    batch = FrameBatch(slices, 5, 6, 7, None, 200_000)
    data, place = b"", 100
    while len(batch):
        piece = batch.take(room, place, POSITION_MAX, 9)
        assert piece.size == sum(map(len, piece.buffers))
        data += b"".join(piece.buffers)
        place += len(piece.positions)
    assert data == b"".join(
        encode_header(body, 100 + i, 5, 6, 7, 9) + body for i, body in enumerate(bodies)
    )
    assert size_of(slices) == size_of(bodies) == sum(map(len, bodies))


def test_a_large_body_is_written_without_a_copy() -> None:
    slices = slices_of([bytes(LARGE_BYTES)], checked=True)
    header, body = FrameBatch(slices, 0, 0, 0, None, 2**20).take(2**20, 0, POSITION_MAX, 0).buffers
    assert len(header) == 32
    assert np.shares_memory(np.frombuffer(body, np.uint8), slices.data)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 11), (9, 12)])
def test_a_slice_outside_its_buffer_is_refused(start: int, stop: int) -> None:
    ranges = (np.array([number], dtype=np.int64) for number in (start, stop, -1))
    with pytest.raises(InvalidInput, match="bodies are not inside their buffer of 10 bytes"):
        FrameBatch(Slices(np.zeros(10, np.uint8), *ranges), 0, 0, 0, None, 1000)


def test_slices_need_a_stop_and_a_crc_each() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    with pytest.raises(InvalidInput, match="as many starts as stops and CRCs"):
        FrameBatch(Slices(np.zeros(10, np.uint8), two, two, one), 0, 0, 0, None, 1000)


@pytest.mark.parametrize("positions", [None, [7, 8, 9, 10]])
def test_a_piece_ends_at_the_last_position_of_its_segment(positions: list[int] | None) -> None:
    batch = batch_of([b"a", b"b", b"c", b"d"], positions=positions)
    assert batch.next_position == (positions[0] if positions else None)
    assert batch.take(1000, 7, 8, 0).positions.tolist() == [7, 8]
    assert len(batch) == 2


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"times": [1]}, InvalidInput, "times: 1 values for 2 bodies"),
        ({"flags": [1, 2, 3]}, InvalidInput, "flags: 3 values for 2 bodies"),
        ({"tags": [[1, 2]]}, InvalidInput, "tags: 1 values for 2 bodies"),
        ({"times": -1}, InvalidInput, r"times must be from 0 to \d+, found -1"),
        ({"times": [0, 2**47]}, InvalidInput, rf"times must be .* found 0…{2**47}"),
        ({"flags": 2**16}, InvalidInput, "flags must be from 0 to 65535, found 65536"),
        ({"tags": [0, 2**32]}, InvalidInput, "tags must be from 0 to 4294967295"),
        ({"tags": 2**70}, InvalidInput, "tags must be from 0 to 4294967295, found"),
        ({"positions": [1, 2**63]}, InvalidInput, "positions must be .* found"),
        ({"positions": [-1, 2]}, InvalidInput, "positions must be from 0 to"),
        ({"positions": [3, 3]}, PositionOutOfRange, "position 3 is out of range, must be above 3"),
        ({"positions": [9, 4]}, PositionOutOfRange, "position 4 is out of range, must be above 9"),
    ],
)
def test_bad_columns_are_named(given: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        batch_of([b"a", b"b"], **given)


def test_a_body_above_the_limit_is_refused() -> None:
    with pytest.raises(EntryTooLarge, match="entry of 1001 bytes is larger than the limit 1000"):
        batch_of([b"", bytes(1001)])
