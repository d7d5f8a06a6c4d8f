"""Copying live frames: what is copied, what is read for it, and what damage does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.compaction.limits.budget import Allowance, Budget
from lithify.compaction.rewrite.copy_frames import measure_live
from lithify.compaction.rewrite.rewrite import RewriteTask, live_of, rewrite
from lithify.errors import Corrupt, DamagedFrame, MissingFile, PlanStale
from lithify.fs import MemoryFileSystem, read_file
from lithify.live_set import LiveSet
from lithify.log.dead_set.dead_set import DeadSet
from lithify.log.open_segments import OpenSegment
from lithify.log.segments.block_index import BLOCK_BYTES
from lithify.log.segments.frame import HEADER_BYTES, decode_frame
from lithify.log.segments.scan import PIECE_BYTES
from lithify.log.segments.segment_file import read_header
from tests.unit.compaction.logs import (
    DIRECTORY,
    body_of,
    compactor_of,
    contents,
    fill,
    open_log,
    sealed,
    strays,
    with_dead,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lithify.compaction.rewrite.rewrite import Rewriting
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef

TARGET = "000000000001-aa.seg"
KIB = 1024


class Noted(Allowance):
    """Remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__(Budget(), ManualClock())
        self.noted_reads: list[int] = []
        self.noted_writes: list[int] = []

    def read(self, size_bytes: int) -> None:
        self.noted_reads.append(size_bytes)

    def write(self, size_bytes: int) -> None:
        self.noted_writes.append(size_bytes)


def copy(
    fs: FileSystem,
    sources: Sequence[SegmentRef],
    target: str = TARGET,
    rewriting: Rewriting | None = None,
) -> tuple[SegmentRef, list[int], list[int]]:
    """(target, bytes of each read, bytes of each write)"""
    task = RewriteTask(fs, DIRECTORY, tuple(sources), target, created_ms=77, rewriting=rewriting)
    noted = Noted()
    return rewrite(task, noted), noted.noted_reads, noted.noted_writes


def frames_of(fs: FileSystem, segment: SegmentRef) -> dict[int, bytes]:
    """The bytes of each frame of a segment, by position."""
    opened = OpenSegment(fs, DIRECTORY, segment)
    with opened.file:
        data = read_file(fs, f"{DIRECTORY}/{segment.name}")[: opened.frames_end]
    found, at = {}, 64
    while at < len(data):
        entry = decode_frame(data, at, segment.name)
        found[entry.position] = data[at : at + entry.frame_bytes]
        at += entry.frame_bytes
    return found


def offset_of(fs: FileSystem, segment: SegmentRef, position: int) -> int:
    frames = frames_of(fs, segment)
    return 64 + sum(len(frame) for at, frame in frames.items() if at < position)


def sealed_segment(
    fs: FileSystem, sizes: Sequence[int], at: Sequence[int] | None = None
) -> SegmentRef:
    log = open_log(fs)
    bodies = [bytes([size % 251]) * size for size in sizes]
    count = len(sizes)
    log.append_many(
        bodies,
        time_ms=[5000 + 3 * (n % 7) for n in range(count)],
        flags=[n % 65_536 for n in range(count)],
        tags=[n * 1_000_003 % 2**32 for n in range(count)],
        positions=at,
    )
    log.roll()
    (segment,) = sealed(log)
    log.close()
    return segment


# --- what is copied -------------------------------------------------------------------------


def test_frames_are_copied_byte_for_byte() -> None:
    fs = MemoryFileSystem()
    source = sealed_segment(fs, [0, 1, 50, 3, 0, 700, 20], at=[4, 5, 9, 10, 11, 40, 41])
    target, _, writes = copy(fs, [with_dead(fs, source, {5, 10, 41})])
    before, after = frames_of(fs, source), frames_of(fs, target)
    assert after == {position: before[position] for position in (4, 9, 11, 40)}
    assert sum(writes) == target.frame_bytes == sum(map(len, after.values()))


def test_the_target_says_what_is_in_it() -> None:
    fs = MemoryFileSystem()
    source = sealed_segment(fs, [10] * 8)
    target, _, _ = copy(fs, [with_dead(fs, source, {0, 6, 7})])
    with (
        fs.open_read(f"{DIRECTORY}/{TARGET}") as file,
        fs.open_read(f"{DIRECTORY}/{source.name}") as old,
    ):
        assert read_header(file) == replace(read_header(old), created_ms=77)
        assert target.file_bytes == file.size()
    assert (target.id, target.first_position, target.last_position) == (1, 0, 5)
    assert (target.entries, target.frame_bytes) == (5, 5 * 42)
    assert (target.time_min, target.time_max) == (5003, 5015)
    assert target.sealed
    assert target.dead is None


def test_several_sources_become_one_target() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=3)
    first, second, third = sealed(log)
    sources = [with_dead(fs, first, range(5)), second, with_dead(fs, third, range(21, 30))]
    target, _, _ = copy(fs, sources)
    assert list(frames_of(fs, target)) == [*range(5, 20), 20]
    assert (target.id, target.first_position, target.last_position) == (1, 0, 20)


def test_frames_larger_than_a_piece_are_copied() -> None:
    fs = MemoryFileSystem()
    large = 2 * PIECE_BYTES + 12_345
    source = sealed_segment(fs, [10, large, 20, PIECE_BYTES, large, 30, PIECE_BYTES - 32, 40])
    target, _, _ = copy(fs, [with_dead(fs, source, {0, 3, 4})])
    before, after = frames_of(fs, source), frames_of(fs, target)
    assert after == {position: before[position] for position in (1, 2, 5, 6, 7)}


def test_a_new_attempt_uses_another_name_than_an_earlier_one() -> None:
    fs = MemoryFileSystem()
    segment = sealed_segment(fs, [10, 20])
    first, _, _ = copy(fs, [segment])
    before = read_file(fs, f"{DIRECTORY}/{first.name}")
    second, _, _ = copy(fs, [segment])
    assert first.name == TARGET
    assert second.name.startswith("000000000001-aa")
    assert second.name != first.name
    assert read_file(fs, f"{DIRECTORY}/{first.name}") == before
    assert frames_of(fs, second) == frames_of(fs, first)


def test_the_target_is_durable_but_for_its_name() -> None:
    fs = MemoryFileSystem()
    source = sealed_segment(fs, [10] * 20)
    target, _, _ = copy(fs, [source])
    fs.sync_dir(DIRECTORY)
    left = fs.kill_clone()
    assert frames_of(left, target) == frames_of(fs, source)


@given(st.data())
def test_the_measured_bytes_are_the_copied_bytes(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 40, 300, 40_000, 70_000]), min_size=1))
    steps = data.draw(
        st.lists(st.integers(1, 4), min_size=len(sizes), max_size=len(sizes)), "steps"
    )
    at = [sum(steps[: n + 1]) for n in range(len(steps))]
    live = data.draw(st.sets(st.sampled_from(at), min_size=1), "live")
    fs = MemoryFileSystem()
    source = sealed_segment(fs, sizes, at)
    measured = measure_live(fs, DIRECTORY, source, LiveSet.from_iterable(live))
    target, _, _ = copy(fs, [with_dead(fs, source, set(at) - live)])
    assert measured == (target.entries, target.frame_bytes)
    assert frames_of(fs, target).keys() == live


def test_live_is_what_no_dead_set_names() -> None:
    fs = MemoryFileSystem()
    source = sealed_segment(fs, [1, 2, 3], at=[5, 7, 9])
    nothing = DeadSet(LiveSet.empty())
    assert set(live_of(source, nothing)) == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
    seventh = DeadSet(LiveSet.from_iterable([7]))
    assert set(live_of(source, seventh)) == set(range(10)) - {7}


# --- what is read ---------------------------------------------------------------------------


def large_segment(fs: FileSystem) -> SegmentRef:
    """2 MiB in frames of 1 KiB: 64 of them are a block."""
    return sealed_segment(fs, [KIB - HEADER_BYTES] * 2048)


def test_only_the_block_with_a_live_entry_is_read() -> None:
    fs = MemoryFileSystem()
    source = large_segment(fs)
    target, reads, writes = copy(fs, [with_dead(fs, source, set(range(2048)) - {1000})])
    assert list(frames_of(fs, target)) == [1000]
    assert reads == [BLOCK_BYTES]
    assert writes == [KIB]


def test_everything_live_is_read_once_in_large_pieces() -> None:
    fs = MemoryFileSystem()
    source = large_segment(fs)
    _, reads, _ = copy(fs, [source])
    assert sum(reads) == source.frame_bytes
    assert max(reads) == PIECE_BYTES


@pytest.mark.parametrize(
    ("second", "reads"),
    [
        (64 * 4, [5 * BLOCK_BYTES]),  # three blocks between: 192 KiB are read over
        (64 * 5, [6 * BLOCK_BYTES]),  # four blocks between: just 256 KiB
        (64 * 6, [BLOCK_BYTES, BLOCK_BYTES]),  # five: two reads are cheaper
    ],
)
def test_small_gaps_are_read_over_and_large_ones_are_not(second: int, reads: list[int]) -> None:
    fs = MemoryFileSystem()
    source = large_segment(fs)
    _, found, writes = copy(fs, [with_dead(fs, source, set(range(2048)) - {0, second})])
    assert found == reads
    assert sum(writes) == 2 * KIB


def test_a_source_with_nothing_live_is_not_read() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=2)
    first, second = sealed(log)
    target, reads, _ = copy(fs, [with_dead(fs, first, range(10)), second])
    assert reads == [second.frame_bytes]
    assert list(frames_of(fs, target)) == list(range(10, 20))


# --- damage ---------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_live_frame_is_an_error_that_says_where() -> None:
    fs = MemoryFileSystem()
    source = sealed_segment(fs, [100] * 10)
    at = offset_of(fs, source, 6)
    fs.flip(f"{DIRECTORY}/{source.name}", at + HEADER_BYTES + 50)
    with pytest.raises(DamagedFrame, match="CRC-32C") as raised:
        copy(fs, [with_dead(fs, source, {2, 5})])
    assert (raised.value.path, raised.value.offset) == (f"{DIRECTORY}/{source.name}", at)
    assert raised.value.after == 5


def test_a_flipped_bit_in_a_live_frame_stops_the_run_and_changes_nothing() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=3)
    segment = sealed(log)[1]
    fs.flip(f"{DIRECTORY}/{segment.name}", offset_of(fs, segment, 14) + 40)
    before, files = log.manifest, fs.list(DIRECTORY)
    compactor = compactor_of(log, fs, range(0, 30, 2))
    with pytest.raises(DamagedFrame):
        compactor.run()
    assert log.manifest == before
    assert set(fs.list(DIRECTORY)) - {"HISTORY"} == set(files)
    (report,) = compactor.history.newest(1)
    assert report.result == "failed"
    assert report.error is not None
    assert segment.name in report.error


def test_a_flipped_bit_in_the_body_of_a_dead_frame_is_dropped_with_it() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=1)
    (segment,) = sealed(log)
    fs.flip(f"{DIRECTORY}/{segment.name}", offset_of(fs, segment, 5) + 40)
    compactor_of(log, fs, set(range(10)) - {5}).run()
    assert contents(log) == {at: body_of(at) for at in range(10) if at != 5}


@pytest.mark.parametrize("bit", range(32))
def test_a_flipped_bit_in_the_length_of_a_dead_frame_is_an_error_and_no_loss(bit: int) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=1)
    (segment,) = sealed(log)
    at = offset_of(fs, segment, 5)
    fs.flip(f"{DIRECTORY}/{segment.name}", at + 4 + bit // 8, 1 << bit % 8)
    before = log.manifest
    with pytest.raises(DamagedFrame) as raised:
        compactor_of(log, fs, set(range(10)) - {5}).run()
    assert (raised.value.offset, raised.value.after) == (at, 4)
    assert log.manifest == before
    assert not strays(fs, log)


def test_no_flipped_bit_anywhere_makes_a_wrong_copy() -> None:
    """Each byte of a source in turn: the copy is right or the error is loud."""
    fs = MemoryFileSystem()
    source = with_dead(fs, sealed_segment(fs, [3, 0, 9, 5, 0, 2, 8]), {0, 2, 3, 6})
    expected = frames_of(fs, copy(fs, [source])[0])
    path = f"{DIRECTORY}/{source.name}"
    unseen = 0
    for offset in range(source.file_bytes):
        fs.flip(path, offset, 1 << offset % 8)
        name = f"000000000001-a{offset}.seg"
        try:
            target, _, _ = copy(fs, [source], name)
        except Corrupt:
            pass
        else:
            unseen += 1
            assert frames_of(fs, target) == expected, f"byte {offset}"
        fs.flip(path, offset, 1 << offset % 8)
    # All that may go unseen is in the four dead frames: everything but their lengths.
    assert unseen <= 4 * (HEADER_BYTES - 4) + 3 + 9 + 5 + 8


@pytest.mark.parametrize("dead", [{3}, {1, 3}])
def test_a_dead_set_that_names_missing_entries_is_stale(dead: Iterable[int]) -> None:
    fs = MemoryFileSystem()
    source = sealed_segment(fs, [10, 20, 30], at=[0, 1, 5])
    with pytest.raises(PlanStale, match=source.name):
        copy(fs, [with_dead(fs, source, dead)])


def test_a_source_that_is_not_there_is_an_error_that_names_it() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=2)
    first, second = sealed(log)
    fs.remove(f"{DIRECTORY}/{second.name}")
    with pytest.raises(MissingFile, match=second.name):
        copy(fs, [first, second])


def test_the_room_for_one_source_serves_the_next_and_a_large_entry_does_not_make_it_large() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    for sizes in ([300, 6 * PIECE_BYTES, 20], [40] * 9, [KIB] * 3000):
        log.append_many([bytes([size % 251]) * size for size in sizes], time_ms=[1] * len(sizes))
        log.roll()
    sources = sealed(log)
    log.close()
    target, reads, _ = copy(fs, sources)
    expected = {at: frame for source in sources for at, frame in frames_of(fs, source).items()}
    assert frames_of(fs, target) == expected
    assert max(reads) > PIECE_BYTES
    assert sum(reads[-4:]) == sources[2].frame_bytes
    assert max(reads[-4:]) <= PIECE_BYTES
