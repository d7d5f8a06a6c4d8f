"""Frames come out of a file in pieces, whatever their size, and nothing bad comes with them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.errors import DamagedFrame
from lithify.fs import File, MemoryFileSystem
from lithify.log.segments import scan
from lithify.log.segments.frame import HEADER_BYTES, TIME_MS_MAX, LogEntry, encode_header
from lithify.log.segments.scan import PIECE_BYTES, Frames, ScanWindow, Window, scan_frames

START = 64


def file_of(entries: list[LogEntry], behind: bytes = b"") -> tuple[File, int]:
    """A file with these frames, and where they end."""
    frames = b"".join(
        encode_header(e.body, e.position, e.time_ms, e.flags, e.tag, 0) + e.body for e in entries
    )
    file = MemoryFileSystem().open_append("/f")
    file.write(bytes(START) + frames + behind)
    return file, START + len(frames)


def read(file: File, stop: int, after: int = -1) -> list[LogEntry]:
    return [e for frames in scan_frames(file, START, stop, after) for e in frames.entries()]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=12),
    piece=st.integers(HEADER_BYTES, 500),
    behind=st.binary(max_size=10),
)
def test_frames_of_all_sizes_come_out_of_pieces_of_any_size(
    sizes: list[int], piece: int, behind: bytes
) -> None:
    entries = [LogEntry(i, i, bytes([i]) * size, i, i) for i, size in enumerate(sizes)]
    file, stop = file_of(entries, behind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "PIECE_BYTES", piece)
        assert read(file, stop) == entries


@pytest.mark.parametrize("extra", [-HEADER_BYTES - 1, -HEADER_BYTES, -1, 0, 1, PIECE_BYTES * 2])
def test_a_frame_larger_than_a_piece_is_read_whole(extra: int) -> None:
    entries = [
        LogEntry(0, 0, b"a"),
        LogEntry(1, 0, b"b" * (PIECE_BYTES + extra)),
        LogEntry(2, 0, b"c"),
    ]
    file, stop = file_of(entries)
    assert read(file, stop) == entries


def test_the_columns_are_the_entries() -> None:
    entries = [
        LogEntry(3, TIME_MS_MAX, b"", 0xFFFF, 2**32 - 1),
        LogEntry(2**63 - 1, 0, b"body", 0, 0),
    ]
    file, stop = file_of(entries)
    (frames,) = scan_frames(file, START, stop, -1)
    assert len(frames) == 2
    assert frames.times().tolist() == [TIME_MS_MAX, 0]
    assert frames.flags().tolist() == [0xFFFF, 0]
    assert frames.tags().tolist() == [2**32 - 1, 0]
    assert frames.lengths().tolist() == [0, 4]
    assert frames.positions.tolist() == [3, 2**63 - 1]
    assert list(frames.entries()) == entries
    assert list(frames.select(slice(1, 2)).entries()) == entries[1:]


def test_entries_outlive_the_buffer_they_came_from() -> None:
    entries = [LogEntry(i, 0, bytes([i]) * 600_000) for i in range(4)]
    file, stop = file_of(entries)
    pieces = [list(frames.entries()) for frames in scan_frames(file, START, stop, -1)]
    assert len(pieces) > 1
    assert [entry for piece in pieces for entry in piece] == entries


def test_good_frames_come_before_the_error_that_names_the_bad_one() -> None:
    entries = [LogEntry(10 + i, 0, b"body") for i in range(4)]
    file, stop = file_of(entries)
    bad = START + 2 * entries[0].frame_bytes
    data = bytearray(file.pread(stop, 0))
    data[bad + HEADER_BYTES] ^= 1
    file.truncate(0)
    file.write(data)
    seen: list[Frames] = []
    text = rf"^/f at byte {bad}: CRC-32C does not match \(after position 11\)$"
    with pytest.raises(DamagedFrame, match=text):
        seen.extend(scan_frames(file, START, stop, -1))
    assert [len(frames) for frames in seen] == [2]


@pytest.mark.parametrize(
    ("after", "stop", "what"),
    [
        (0, 0, r"position does not ascend \(after position 0\)"),
        (-1, -1, r"frame reaches past the end \(after position 0\)"),
        (-1, 1, "file ends 1 bytes too early"),
    ],
)
def test_an_invalid_frame_is_described(after: int, stop: int, what: str) -> None:
    file, end = file_of([LogEntry(0, 0, b"x"), LogEntry(1, 0, b"y")])
    with pytest.raises(DamagedFrame, match=what):
        read(file, end + stop, after)


def test_an_impossible_length_is_described() -> None:
    file, end = file_of([])
    file.write(b"\xff" * 40)
    with pytest.raises(DamagedFrame, match="frame length is impossible"):
        read(file, end + 40)


def test_the_callback_is_called_before_each_read() -> None:
    file, stop = file_of([LogEntry(i, 0, bytes(400_000)) for i in range(4)])
    asked: list[int] = []
    pieces = ScanWindow(file, START, stop, asked.append)
    held = pieces.fill()
    assert asked == [PIECE_BYTES]
    assert held == PIECE_BYTES
    assert pieces.advance(held)
    assert pieces.fill() == stop - START - PIECE_BYTES
    assert sum(asked) == stop - START
    assert not pieces.advance(stop - START - PIECE_BYTES)


def test_a_window_serves_one_file_after_the_other() -> None:
    window = Window()
    for sizes in ([10, 20], [3 * PIECE_BYTES, 5], [400_000] * 4, [7]):
        file, stop = file_of([LogEntry(i, 0, bytes(size)) for i, size in enumerate(sizes)])
        asked: list[int] = []
        pieces = ScanWindow(file, START, stop, asked.append, window)
        assert pieces.buffer is window.buffer
        assert pieces.fill() == min(PIECE_BYTES, stop - START), "also after a frame that was larger"
        while pieces.advance(0):
            pieces.fill()
        assert sum(asked) == stop - START
