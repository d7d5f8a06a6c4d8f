"""A segment file: its header, its footer, and everything that is not one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.checksum import crc32c
from lithify.errors import DamagedFile, InvalidInput, NotASegment, UnsupportedVersion
from lithify.fs import MemoryFileSystem
from lithify.log.segments.frame import NewEntry
from lithify.log.segments.segment_file import (
    FOOTER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    SegmentWriter,
    read_blocks,
    read_footer,
    read_header,
)

if TYPE_CHECKING:
    from lithify.fs import FileSystem

HEADER = SegmentHeader(3, 40, 1_700_000_000_000, "topic", bytes(range(12)))
PATH = "/seg"


def append(writer: SegmentWriter, position: int, time_ms: int, body: bytes = b"body") -> None:
    writer.append([NewEntry(body, time_ms)], position, synced=0)


def write(fs: FileSystem, data: bytes) -> None:
    with fs.open_append(PATH) as file:
        file.truncate(0)
        file.write(data)


def sealed(fs: FileSystem, count: int = 3) -> bytes:
    writer = SegmentWriter.create(fs, PATH, HEADER)
    for number in range(count):
        append(writer, 40 + 2 * number, 1000 - number)
    writer.seal()
    writer.file.close()
    with fs.open_read(PATH) as file:
        return file.pread(file.size(), 0)


def read_all(fs: FileSystem) -> None:
    with fs.open_read(PATH) as file:
        read_header(file)
        read_blocks(file, read_footer(file))


def test_header_and_footer_read_back() -> None:
    fs = MemoryFileSystem()
    data = sealed(fs)
    with fs.open_read(PATH) as file:
        assert read_header(file) == HEADER
        footer = read_footer(file)
        blocks = read_blocks(file, footer)
    assert (footer.segment_id, footer.entries) == (3, 3)
    assert (footer.first_position, footer.last_position) == (40, 44)
    assert (footer.time_min, footer.time_max) == (998, 1000)
    assert footer.file_bytes == len(data)
    assert footer.frame_bytes == 3 * 36
    assert blocks.row(0) == (40, SEGMENT_HEADER_BYTES)


def test_a_segment_without_entries_can_be_sealed() -> None:
    fs = MemoryFileSystem()
    assert len(sealed(fs, 0)) == SEGMENT_HEADER_BYTES + FOOTER_BYTES
    with fs.open_read(PATH) as file:
        footer = read_footer(file)
        assert len(read_blocks(file, footer)) == 0
    assert (footer.entries, footer.first_position, footer.last_position) == (0, -1, -1)
    assert (footer.time_min, footer.time_max) == (0, 0)


@pytest.mark.parametrize("kind", ["", "nine long", "töpic"])
def test_a_kind_must_fit_into_the_header(kind: str) -> None:
    fs = MemoryFileSystem()
    header = SegmentHeader(1, 0, 0, kind, bytes(12))
    with pytest.raises(InvalidInput, match=r"log kind '.*' must have 1 to 8 ASCII characters"):
        SegmentWriter.create(fs, PATH, header)
    assert not fs.exists(PATH)


@pytest.mark.parametrize(
    "data", [b"", b"LITH", b"PAR1" + bytes(100), b"\x7fELF" + bytes(200), bytes(64)]
)
def test_some_other_file_is_no_segment(data: bytes) -> None:
    fs = MemoryFileSystem()
    write(fs, data)
    with fs.open_read(PATH) as file, pytest.raises(NotASegment, match="/seg at byte 0: begins"):
        read_header(file)


def test_a_newer_version_is_named_not_guessed_at() -> None:
    fs = MemoryFileSystem()
    data = bytearray(HEADER.to_bytes())
    data[8:10] = (2).to_bytes(2, "little")
    data[60:] = crc32c(data[:60]).to_bytes(4, "little")
    write(fs, bytes(data))
    text = "/seg has format version 2, this build reads up to 1"
    with fs.open_read(PATH) as file, pytest.raises(UnsupportedVersion, match=text):
        read_header(file)


def test_every_flipped_bit_of_header_blocks_and_footer_is_refused() -> None:
    fs = MemoryFileSystem()
    data = sealed(fs)
    frames_end = SEGMENT_HEADER_BYTES + 3 * 36
    for offset in [*range(SEGMENT_HEADER_BYTES), *range(frames_end, len(data))]:
        for bit in range(8):
            fs.flip(PATH, offset, 1 << bit)
            with pytest.raises((DamagedFile, NotASegment)):
                read_all(fs)
            fs.flip(PATH, offset, 1 << bit)


@pytest.mark.parametrize("change", [-1, -FOOTER_BYTES, 1])
def test_a_footer_counts_the_bytes_of_its_file(change: int) -> None:
    fs = MemoryFileSystem()
    data = sealed(fs)
    write(fs, data[:change] if change < 0 else b"x" + data)
    with fs.open_read(PATH) as file, pytest.raises(DamagedFile, match=r"footer"):
        read_footer(file)


def test_a_leftover_of_the_same_name_is_overwritten() -> None:
    fs = MemoryFileSystem()
    write(fs, b"left by a crash" * 100)
    SegmentWriter.create(fs, PATH, HEADER).file.close()
    assert fs.stat(PATH).size == SEGMENT_HEADER_BYTES


def test_a_writer_rolls_back_to_a_mark() -> None:
    fs = MemoryFileSystem()
    expected = sealed(fs, 2)
    writer = SegmentWriter.create(fs, PATH, HEADER)
    append(writer, 40, 1000)
    mark = writer.mark()
    append(writer, 50, 5, bytes(70_000))
    append(writer, 51, 9000)
    writer.rewind(mark)
    writer.file.truncate(writer.end)
    assert writer.mark() == mark
    append(writer, 42, 999)
    writer.seal()
    with fs.open_read(PATH) as file:
        assert file.pread(file.size(), 0) == expected
