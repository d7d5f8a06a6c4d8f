"""The bytes of segment and manifest version 1, as they were first written. They never change.

`python tests/golden/test_log_golden.py` writes files that are missing and leaves the others alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lithify.clock import ManualClock
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.log import Log
from lithify.log.manifest import DeadRef, Manifest, Retired, SegmentRef
from lithify.log.segments.frame import FLAG_TOMBSTONE, LogEntry, encode_header
from lithify.log.segments.scan import scan_frames
from lithify.log.segments.segment_file import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    SegmentWriter,
    read_blocks,
    read_footer,
    read_header,
)

HERE = Path(__file__).parent
SEALED = HERE / "segment_sealed_v1.bin"
ACTIVE = HERE / "segment_active_v1.bin"
MANIFEST = HERE / "manifest_v1.bin"

HEADER = SegmentHeader(1, 0, 1_700_000_000_000, "topic", bytes(range(12)))
ENTRIES = [
    LogEntry(0, 1_700_000_000_000, b"sediment"),
    LogEntry(1, 1_700_000_000_001, b"", flags=FLAG_TOMBSTONE, tag=7),
    LogEntry(40, 1_699_999_999_000, bytes(range(256)), flags=0xFF00, tag=2**32 - 1),
    LogEntry(41, 2**47 - 1, b"stone" * 14_000),
    LogEntry(42, 0, b"behind the first block"),
]
TAIL = [
    LogEntry(2**40, 1_700_000_100_000, b"one"),
    LogEntry(2**63 - 1, 1_700_000_100_000, b"the last position there is", flags=0x0100, tag=1),
]


def write_log() -> MemoryFileSystem:
    """A log with one sealed segment and an active one, each entry durable before the next."""
    fs = MemoryFileSystem()
    log = Log.open(
        fs, "/log", kind="topic", clock=ManualClock(), random_bytes=lambda n: bytes(range(n))
    )
    for entries in (ENTRIES, TAIL):
        log.roll()
        for e in entries:
            log.append(
                e.body, time_ms=e.time_ms, flags=e.flags, tag=e.tag, position=e.position
            ).result()
    log.abandon()
    return fs


def golden_manifest() -> Manifest:
    """Every field has a value of its own."""
    dead = DeadRef("000000000001-5f3a.dead", 3, 200, 57, 0xDEADBEEF)
    other = DeadRef("000000000001-6b00.dead", 1, 40, 55, 0x00000001)
    first = (1, "000000000001.seg", 0, 42, 5, 70_446, 70_638, 0, 2**47 - 1, True)
    return Manifest(
        kind="topic",
        log_id=bytes(range(12)),
        generation=12,
        next_segment_id=10,
        segments=(
            SegmentRef(*first, dead=dead),
            SegmentRef(8, "000000000008.seg", 43, 60, 18, 900, 1068, 5, 6, sealed=True),
            SegmentRef(9, "000000000009.seg", 61),
        ),
        view=(
            SegmentRef(7, "000000000007-5f3a.seg", 0, 10, 2, 80, 248, 1, 2, sealed=True),
            SegmentRef(*first, dead=other),
        ),
        horizon=42,
        last_position=63,
        synced_bytes=160,
        retired=(
            Retired("000000000002.seg", 4096, 11),
            Retired("000000000001-0001.dead", 55, 12),
        ),
        last_run="5f3a",
        state={"ledger": 3, "names": ["ä", "b"], "nested": {"deep": None}, "on": True},
    )


def entries_in(path: Path, end: int) -> list[LogEntry]:
    fs = MemoryFileSystem()
    with fs.open_append("/file") as file:
        file.write(path.read_bytes())
        frames = scan_frames(file, SEGMENT_HEADER_BYTES, end, -1)
        return [entry for piece in frames for entry in piece.entries()]


def encoded(entries: list[LogEntry]) -> bytes:
    """Frames whose writer knew everything before them to be durable."""
    data = b""
    for e in entries:
        synced = SEGMENT_HEADER_BYTES + len(data)
        data += encode_header(e.body, e.position, e.time_ms, e.flags, e.tag, synced) + e.body
    return data


def test_segments_of_version_1_are_still_written() -> None:
    fs = write_log()
    assert read_file(fs, "/log/000000000001.seg") == SEALED.read_bytes()
    assert read_file(fs, "/log/000000000002.seg") == ACTIVE.read_bytes()


def test_a_sealed_segment_of_version_1_is_still_read() -> None:
    data = SEALED.read_bytes()
    fs = MemoryFileSystem()
    with fs.open_append("/file") as file:
        file.write(data)
        header, footer = read_header(file), read_footer(file)
        blocks = read_blocks(file, footer)
    assert header == HEADER
    assert entries_in(SEALED, footer.frames_end) == ENTRIES
    assert (footer.entries, footer.first_position, footer.last_position) == (5, 0, 42)
    assert (footer.time_min, footer.time_max, footer.rows) == (0, 2**47 - 1, 2)
    frames = encoded(ENTRIES)
    assert header.to_bytes() + frames + blocks.to_bytes() + footer.to_bytes() == data

    writer = SegmentWriter.create(fs, "/again", header)
    sizes = [entry.frame_bytes for entry in ENTRIES]
    writer.append_many(
        frames,
        np.array([entry.position for entry in ENTRIES]),
        np.cumsum(sizes) - np.array(sizes),
        np.array([entry.time_ms for entry in ENTRIES]),
    )
    assert writer.seal() == footer
    assert read_file(fs, "/again") == data


def test_an_active_segment_of_version_1_is_still_read() -> None:
    data = ACTIVE.read_bytes()
    fs = MemoryFileSystem()
    with fs.open_append("/file") as file:
        file.write(data)
        header = read_header(file)
    assert header == SegmentHeader(2, 43, 1_700_000_000_000, "topic", bytes(range(12)))
    assert entries_in(ACTIVE, len(data)) == TAIL
    assert header.to_bytes() + encoded(TAIL) == data


def test_a_manifest_of_version_1_is_still_written_and_read() -> None:
    data = MANIFEST.read_bytes()
    assert golden_manifest().to_bytes() == data
    assert Manifest.from_bytes(data, str(MANIFEST)) == golden_manifest()
    assert Manifest.from_bytes(data, str(MANIFEST)).to_bytes() == data


def write_missing() -> None:
    fs = write_log()
    for path, data in [
        (SEALED, read_file(fs, "/log/000000000001.seg")),
        (ACTIVE, read_file(fs, "/log/000000000002.seg")),
        (MANIFEST, golden_manifest().to_bytes()),
    ]:
        if not path.exists():
            path.write_bytes(data)


if __name__ == "__main__":
    write_missing()
