"""The manifest reads back as it was written, or not at all."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.errors import DamagedFile, UnsupportedVersion
from lithify.fs import MemoryFileSystem
from lithify.log.manifest import (
    SEGMENT_COLUMNS,
    DeadRef,
    Manifest,
    Retired,
    SegmentRef,
    read_manifest,
    write_manifest,
)
from lithify.testing.faulty_fs import FaultyFileSystem

POSITION = st.integers(-1, 2**63 - 1)
COUNT = st.integers(0, 2**63)
NAME = st.text(max_size=20)
DEAD = st.builds(DeadRef, NAME, COUNT, COUNT, COUNT, st.integers(0, 2**32 - 1), parts=COUNT)
SEGMENT = st.builds(
    SegmentRef,
    COUNT,
    NAME,
    POSITION,
    POSITION,
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    st.booleans(),
    st.none() | DEAD,
    st.integers(0, 2**16 - 1),
)
SEGMENTS = st.lists(SEGMENT, min_size=1, max_size=4).map(tuple)
STATE = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=9)
)
MANIFEST = st.builds(
    Manifest,
    kind=st.text("abcdefgh", min_size=1, max_size=8),
    log_id=st.binary(min_size=12, max_size=12),
    generation=COUNT,
    next_segment_id=COUNT,
    segments=SEGMENTS,
    view=st.none() | SEGMENTS,
    horizon=POSITION,
    last_position=POSITION,
    synced_bytes=COUNT,
    retired=st.lists(st.builds(Retired, NAME, COUNT, COUNT), max_size=3).map(tuple),
    last_run=NAME,
    state=STATE,
    dropped=POSITION,
)

SMALL = Manifest("topic", bytes(12), 1, 2, (SegmentRef(1, "000000000001.seg", 0),))


@settings(deadline=None)
@given(MANIFEST)
def test_every_manifest_reads_back(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert Manifest.from_bytes(data, "m") == manifest
    assert Manifest.from_bytes(data, "m").to_bytes() == data


def test_every_flipped_bit_is_refused() -> None:
    data = SMALL.to_bytes()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamagedFile, UnsupportedVersion), match="d/MANIFEST"):
            Manifest.from_bytes(bytes(damaged), "d/MANIFEST")


@pytest.mark.parametrize("size", range(0, 300, 7))
def test_a_manifest_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(DamagedFile):
        Manifest.from_bytes(SMALL.to_bytes()[:size], "m")


def test_bytes_behind_the_end_are_refused() -> None:
    data = SMALL.to_bytes()
    length = len(data.partition(b"\n")[2])
    text = rf"has {length + 1} bytes after the first line, not {length}"
    with pytest.raises(DamagedFile, match=text):
        Manifest.from_bytes(data + b"\n", "m")


def test_a_newer_version_is_named() -> None:
    data = SMALL.to_bytes().replace(b"lithify manifest 1 ", b"lithify manifest 2 ")
    with pytest.raises(UnsupportedVersion, match="m has format version 2, this build reads up to"):
        Manifest.from_bytes(data, "m")


def test_some_other_file_is_refused_with_its_beginning() -> None:
    with pytest.raises(DamagedFile, match=r"begins with b'hello', not as a manifest"):
        Manifest.from_bytes(b"hello\nworld\n", "m")


def test_counts_of_live_data_leave_out_the_dead_set() -> None:
    segment = SegmentRef(1, "s", 0, 9, entries=10, frame_bytes=1000, file_bytes=1200, sealed=True)
    assert (segment.live_entries, segment.live_bytes) == (10, 1000)
    dead = replace(segment, dead=DeadRef("d", 4, 300, 50, 0))
    assert (dead.live_entries, dead.live_bytes) == (6, 700)


def test_a_segment_in_log_and_view_is_one_file() -> None:
    segment = SegmentRef(1, "s", 0, 9, 10, 1000, 1200, sealed=True)
    viewed = replace(segment, dead=DeadRef("d", 4, 300, 50, 0))
    active = SegmentRef(2, "a", 10)
    manifest = replace(SMALL, segments=(segment, active), view=(viewed,))
    assert manifest.sizes() == {"s": 1200, "a": 0, "d": 50}
    assert manifest.active is active


def test_names_are_durable_before_the_manifest_that_names_them() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    fs.mkdir("/d")
    write_manifest(fs, "/d", SMALL)
    assert read_manifest(fs, "/d") == SMALL
    steps = [line for line in fs.trace if line.startswith(("sync_dir", "rename", "fsync"))]
    assert steps == [
        "sync_dir /d",
        "fsync /d/MANIFEST.tmp",
        "rename /d/MANIFEST.tmp /d/MANIFEST",
        "sync_dir /d",
    ]


def test_a_row_has_the_fields_of_a_segment_in_their_order_and_all_of_them() -> None:
    assert tuple(field.name for field in fields(SegmentRef)) == (*SEGMENT_COLUMNS, "flags")
    row = SegmentRef(1, "a.seg", 0).to_row()
    with pytest.raises(ValueError, match="10 values"):
        SegmentRef.from_row(row[:-1])
    with pytest.raises(ValueError, match="13 values"):
        SegmentRef.from_row([*row, 1, 2])


def test_a_row_has_flags_only_if_there_are_some() -> None:
    dead = DeadRef("a.dead", 1, 10, 50, 7, parts=2)
    plain = SegmentRef(1, "a.seg", 0, 9, 10, 100, 300, 5, 6, sealed=True, dead=dead)
    flagged = replace(plain, flags=0x0801)
    assert flagged.to_row() == [*plain.to_row(), 0x0801]
    assert SegmentRef.from_row(plain.to_row()) == plain
    assert SegmentRef.from_row(flagged.to_row()) == flagged
