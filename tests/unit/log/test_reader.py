"""Snapshots: what a reader sees, and the errors for wrong files."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.errors import DamagedFile, DamagedFrame, MissingFile, NotASegment
from lithify.fs import MemoryFileSystem
from lithify.log.open_segments import OpenSegments
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import FaultyFileSystem
from tests.unit.log.helpers import (
    DIRECTORY,
    SMALL,
    contents,
    fill,
    open_log,
    write_dead_set,
)

if TYPE_CHECKING:
    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.log.manifest import DeadRef, SegmentRef


def publish_dead_set(fs: FileSystem, log: Log, number: int, positions: set[int]) -> DeadRef:
    """Declare positions of the log's segment `number` dead."""
    old = log.manifest.segments[number]
    dead = write_dead_set(fs, old.id, "r1", positions, 132 * len(positions))
    new = replace(old, dead=dead)
    log.publish(
        lambda m: replace(m, segments=tuple(new if s == old else s for s in m.segments)), "dead"
    )
    return dead


def test_a_snapshot_stays_what_it_was() -> None:
    log = open_log(MemoryFileSystem())
    fill(log, 5)
    with log.snapshot() as snapshot:
        fill(log, 30)
        log.drop_head(25)
        log.reclaim()
        assert [entry.position for entry in snapshot.read()] == [0, 1, 2, 3, 4]
        assert [entry.position for entry in snapshot.read_backward()] == [4, 3, 2, 1, 0]
        assert snapshot.last_position == 4
        assert snapshot.find(5) is None
    assert min(contents(log)) > 4


def test_records_that_are_not_durable_are_invisible() -> None:
    log = open_log(MemoryFileSystem())
    pending = log.append(b"soon")
    assert contents(log) == {}
    assert log.last_position == -1
    pending.result()
    assert contents(log) == {0: b"soon"}


def test_reading_may_begin_in_a_gap_and_at_either_end() -> None:
    log = open_log(MemoryFileSystem())
    log.append_many([b"a", b"b", b"c"], positions=[10, 20, 30]).result()
    log.roll()
    log.append(b"d", position=40).result()
    with log.snapshot() as snapshot:
        assert [entry.position for entry in snapshot.read(11)] == [20, 30, 40]
        assert [entry.position for entry in snapshot.read(31)] == [40]
        assert [entry.position for entry in snapshot.read(41)] == []
        assert [entry.position for entry in snapshot.read(limit=2)] == [10, 20]
        assert [entry.position for entry in snapshot.read(limit=0)] == []
        assert [entry.position for entry in snapshot.read_backward(39)] == [30, 20, 10]
        assert [entry.position for entry in snapshot.read_backward(9)] == []
        assert snapshot.find(0) == 10
        assert snapshot.find(40) == 40


def test_a_time_is_found_though_times_go_back_and_forth() -> None:
    log = open_log(MemoryFileSystem())
    log.append_many([b""] * 4, time_ms=[100, 500, 300, 400]).result()
    log.roll()
    log.append_many([b""] * 2, time_ms=[200, 600]).result()
    with log.snapshot() as snapshot:
        found = {time_ms: snapshot.find_time(time_ms) for time_ms in (0, 101, 500, 501, 601)}
    assert found == {0: 0, 101: 1, 500: 1, 501: 5, 601: None}


def test_dead_entries_are_skipped_in_both_directions() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    publish_dead_set(fs, log, 0, {0, 3, 6})
    alive = [p for p in range(14) if p not in {0, 3, 6}]
    with log.snapshot() as snapshot:
        assert [entry.position for entry in snapshot.read()] == alive
        assert [entry.position for entry in snapshot.read_backward()] == alive[::-1]
        assert snapshot.find(3) == 4
        assert snapshot.find_time(0) == 1


def test_a_compacted_read_continues_from_the_view_into_the_log() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 16)
    sealed = log.manifest.segments[:2]
    dead = write_dead_set(fs, sealed[0].id, "r1", range(1, 7), 6 * 132)
    view = (replace(sealed[0], dead=dead), sealed[1])
    horizon = 9
    log.publish(lambda m: replace(m, view=view, horizon=horizon), "view")
    assert list(contents(log, compacted=True)) == [0, *range(7, 16)]
    assert list(contents(log)) == list(range(16))
    with log.snapshot() as snapshot:
        assert snapshot.find(1, compacted=True) == 7
        back = [entry.position for entry in snapshot.read_backward(8, compacted=True)]
        assert back == [8, 7, 0]
    log.drop_head(14)
    assert list(contents(log, compacted=True)) == [0, 7, 8, 9, 14, 15]


@pytest.mark.parametrize(
    ("through", "trimmed", "expected"),
    [
        (None, 0, [0, 9, *range(12, 16)]),
        (99, 0, [0, 9, *range(12, 16)]),  # never above the horizon
        (5, 0, [0, *range(6, 16)]),
        (0, 0, [0, *range(1, 16)]),
        (-1, 0, list(range(16))),
        (5, 8, [0, *range(8, 16)]),  # the log begins later: the view up to there
        (9, 8, [0, 9, *range(10, 16)]),
        (5, 12, [0, 9, *range(12, 16)]),
    ],
)
def test_a_reader_may_request_less_of_the_view(
    through: int | None, trimmed: int, expected: list[int]
) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    for _ in range(4):
        log.append_many([b"x"] * 4).result()
        log.roll()
    first, _, third = log.manifest.segments[:3]
    dead = (
        write_dead_set(fs, first.id, "v", {1, 2, 3}, 3 * 33),
        write_dead_set(fs, third.id, "v", {8, 10, 11}, 3 * 33),
    )
    view = (replace(first, dead=dead[0]), replace(third, dead=dead[1]))
    log.publish(lambda m: replace(m, view=view, horizon=11), "view")
    log.drop_head(trimmed)
    with log.snapshot() as snapshot:
        found = [entry.position for entry in snapshot.read(compacted=True, through=through)]
        assert found == expected
        later = [e.position for e in snapshot.read(7, compacted=True, through=through)]
        assert later == [position for position in expected if position >= 7]
        spans = snapshot.spans(compacted=True, through=through)
        assert [span.high for span in spans] == sorted(span.high for span in spans)


def test_an_entry_is_found_by_its_position() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, LogSettings(segment_bytes_max=2**20))
    # Each is a block of its own.
    bodies = [bytes([number]) * 70_000 for number in range(4)]
    log.append_many(bodies, positions=[10, 20, 30, 40]).result()
    log.roll()
    log.append(b"last", position=50).result()
    publish_dead_set(fs, log, 0, {20})
    with log.snapshot() as snapshot:
        found = [snapshot.get(position) for position in (10, 30, 40, 50)]
        assert [entry.body for entry in found if entry] == [*bodies[:1], *bodies[2:], b"last"]
        gone = (0, 9, 11, 20, 45, 51)
        assert [snapshot.get(position) for position in gone] == [None] * len(gone)


def test_a_walk_begins_with_the_segment_that_has_its_position() -> None:
    log = open_log(MemoryFileSystem())
    fill(log, 21)
    log.roll()
    first, second, third, active = log.manifest.segments
    view = (first, third)
    log.publish(lambda m: replace(m, view=view, horizon=third.last_position), "view")
    with log.snapshot() as snapshot:

        def met(start: int, *, compacted: bool) -> list[int]:
            return [span.ref.id for span in snapshot.spans(start, compacted=compacted)]

        assert met(0, compacted=False) == [first.id, second.id, third.id, active.id]
        assert met(second.last_position, compacted=False) == [second.id, third.id, active.id]
        assert met(third.last_position + 1, compacted=False) == [active.id]
        assert met(second.first_position, compacted=True) == [third.id]
        assert met(third.last_position + 1, compacted=True) == []
        log.append(b"above").result()
    with log.snapshot() as snapshot:
        assert met(second.first_position, compacted=True) == [third.id, active.id]
        assert met(third.last_position + 1, compacted=True) == [active.id]


# Dead sets in memory


def test_a_dead_set_is_cached_for_all_readers_while_it_is_used() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    log = open_log(fs)
    fill(log, 14)
    dead = publish_dead_set(fs, log, 0, {1, 2})

    def reads_of_it() -> int:
        before = len(fs.trace)
        assert list(contents(log)) == [0, *range(3, 14)]
        return sum(line.endswith(dead.name) for line in fs.trace[before:] if "open" in line)

    assert reads_of_it() == 1
    assert reads_of_it() == 0
    log.maintain()
    assert reads_of_it() == 0, "it was asked for since the maintenance before"
    log.maintain()
    log.maintain()
    assert reads_of_it() == 1
    log._segments.forget(dead.name)
    assert reads_of_it() == 1


def test_dead_sets_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 28)
    dead = [publish_dead_set(fs, log, number, {7 * number}) for number in range(3)]
    cache = OpenSegments(fs, DIRECTORY, 1)
    one_bytes = cache.dead_set(dead[0]).nbytes
    monkeypatch.setattr("lithify.log.open_segments.DEAD_BYTES_MAX", 2 * one_bytes)
    for ref in dead:
        cache.dead_set(ref)
    assert list(cache._dead) == [dead[1].name, dead[2].name], "the one used longest ago is gone"
    monkeypatch.setattr("lithify.log.open_segments.DEAD_BYTES_MAX", 0)
    assert list(cache.dead_set(dead[0]).entries) == [0]
    assert not cache._dead


# Files that are not what they should be


def test_a_missing_published_file_is_an_error() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    name = log.manifest.segments[0].name
    fs.remove(f"{DIRECTORY}/{name}")
    text = f"/log/{name} at byte 0: missing, but /log/MANIFEST names it"
    with pytest.raises(MissingFile, match=re.escape(text)):
        contents(log)


def test_a_missing_or_damaged_dead_set_is_an_error() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    path = f"{DIRECTORY}/{publish_dead_set(fs, log, 0, {1}).name}"
    fs.flip(path, 5)
    with pytest.raises(DamagedFile, match="is not the dead set the manifest names"):
        contents(log)
    fs.remove(path)
    with pytest.raises(MissingFile, match="missing, but /log/MANIFEST names it"):
        contents(log)


def test_a_damaged_frame_is_never_skipped() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    name = log.manifest.segments[0].name
    fs.flip(f"{DIRECTORY}/{name}", 64 + 132 + 40)
    seen: list[int] = []
    with log.snapshot() as snapshot, pytest.raises(DamagedFrame, match=r"after position 0\)"):
        seen.extend(entry.position for entry in snapshot.read())
    assert seen == [0]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (b"some other file" * 10, NotASegment, "begins with b'some oth', a segment with"),
        (None, DamagedFile, "is segment 2, not 1"),
    ],
)
def test_a_foreign_file_in_the_place_of_a_segment_is_refused(
    change: bytes | None, error: type[Exception], text: str
) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 21)
    first, second = (f"{DIRECTORY}/{s.name}" for s in log.manifest.segments[:2])
    with fs.open_read(second) as file:
        data = change or file.pread(file.size(), 0)
    with fs.open_append(first) as file:
        file.truncate(0)
        file.write(data)
    with pytest.raises(error, match=text):
        contents(log)


def test_a_footer_that_contradicts_the_manifest_is_refused() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    old = log.manifest.segments[0]
    wrong = replace(old, entries=old.entries + 1)
    log.publish(lambda m: replace(m, segments=(wrong, *m.segments[1:])), "wrong")
    with pytest.raises(DamagedFile, match="footer and manifest disagree"):
        contents(log)


# Open files


def opened(fs: FaultyFileSystem) -> int:
    return sum(line.startswith("open_read") and line.endswith(".seg") for line in fs.trace)


def test_open_files_are_bounded_and_used_again() -> None:
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk, record=True)
    log = open_log(fs, LogSettings(segment_bytes_max=1024, open_files_max=3))
    fill(log, 70)
    assert len(log.manifest.segments) == 10
    for _ in range(3):
        assert list(contents(log)) == list(range(70))
    files = [disk.file(f"{DIRECTORY}/{s.name}") for s in log.manifest.segments]
    assert sum(file.opens for file in files) <= 3 + 1, "three to read and one to append"
    before = opened(fs)
    for _ in range(5):
        with log.snapshot() as snapshot:
            assert snapshot.find(65) == 65
    assert opened(fs) == before
    log.close()
    assert [file.opens for file in files] == [0] * 10


def test_a_segment_in_use_is_not_closed_under_its_reader() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 21)
    refs: tuple[SegmentRef, ...] = log.manifest.segments[:3]
    cache = OpenSegments(fs, DIRECTORY, 1)
    with ExitStack() as stack:
        used = [stack.enter_context(cache.use(ref)) for ref in refs[:2]]
        cache.forget(refs[0].name)
        cache.close()
        assert [segment.file.size() for segment in used] == [ref.file_bytes for ref in refs[:2]]
    for segment in used:
        with pytest.raises(OSError, match="Bad file descriptor"):
            segment.file.size()


def test_a_walk_needs_no_settings_of_its_writer() -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        fill(log, 30)
    with open_log(fs, replace(SMALL, segment_bytes_max=10_000, open_files_max=1)) as log:
        assert list(contents(log)) == list(range(30))
