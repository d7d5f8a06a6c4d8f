"""A log without faults, and its errors for calls beyond the limits."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock
from lithify.errors import (
    EntryTooLarge,
    InvalidInput,
    LogClosed,
    LogLocked,
    PositionOutOfRange,
)
from lithify.events import Event, Published, Reclaimed, SegmentSealed
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.log.log import Log
from lithify.log.segments.frame import FLAG_TOMBSTONE, LogEntry
from lithify.positions import PACKED, POSITION_MAX, pack
from lithify.settings import Durability, LogSettings
from lithify.testing.faulty_fs import FaultyFileSystem
from tests.unit.log.helpers import DIRECTORY, LAZY, SMALL, contents, fill, open_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPEN_A_LOG = """
import sys
from lithify.fs import LocalFileSystem
from lithify.log.log import Log
Log.open(LocalFileSystem(), sys.argv[1], kind="test", owner="the child")
print("open", flush=True)
sys.stdin.read()
"""


# Appending


def test_appended_entries_are_read() -> None:
    log = open_log(MemoryFileSystem(), clock=ManualClock(5000))
    assert log.append(b"one").result() == 0
    assert log.append(b"", flags=FLAG_TOMBSTONE, tag=7, time_ms=3).result() == 1
    assert log.append_many([b"two", b"three"], tags=[1, 2]).result() == 3
    with log.snapshot() as snapshot:
        assert list(snapshot.read()) == [
            LogEntry(0, 5000, b"one"),
            LogEntry(1, 3, b"", FLAG_TOMBSTONE, 7),
            LogEntry(2, 5000, b"two", 0, 1),
            LogEntry(3, 5000, b"three", 0, 2),
        ]
    assert (log.last_position, log.next_position) == (3, 4)


def test_a_sealed_segment_says_which_flags_its_entries_have() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    log.append(b"one", flags=0x0100).result()
    log.append_many([b"two", b"three"], flags=[FLAG_TOMBSTONE, 0]).result()
    assert log.manifest.active.flags == 0, "it is not known before it is sealed"
    # What is found after a crash counts as what was appended.
    log = open_log(fs.kill_clone())
    log.append(b"four", flags=0x0200).result()
    log.roll()
    log.append_many([b"five"], flags=0x0400).result()
    log.roll()
    assert [ref.flags for ref in log.manifest.segments] == [0x0301, 0x0400, 0]


def test_empty_bodies_are_entries() -> None:
    fs = MemoryFileSystem()
    with open_log(fs) as log:
        log.append(b"").result()
        log.append_many([b""] * 40).result()
        assert contents(log) == dict.fromkeys(range(41), b"")
        assert len(log.manifest.segments) == 2
    with open_log(fs) as log:
        assert contents(log) == dict.fromkeys(range(41), b"")


def test_an_empty_batch_is_nothing() -> None:
    log = open_log(MemoryFileSystem())
    assert log.append_many([]).result() == -1
    fill(log, 3)
    assert log.append_many([]).result() == 2
    assert log.next_position == 3


def test_bodies_larger_than_a_piece_survive_everything(tmp_path: Path) -> None:
    fs, directory = LocalFileSystem(), str(tmp_path / "log")
    settings = LogSettings(segment_bytes_max=4 * 2**20)
    bodies = [bytes([n]) * size for n, size in enumerate([1, 2**20, 3 * 2**20, 0, 5 * 2**20, 7])]
    with Log.open(fs, directory, kind="test", settings=settings) as log:
        for body in bodies:
            log.append(body).result()
        log.append_many(bodies).result()
    with Log.open(fs, directory, kind="test", settings=settings) as log:
        assert contents(log) == dict(enumerate(bodies * 2))
        with log.snapshot() as snapshot:
            back = [entry.body for entry in snapshot.read_backward()]
    assert back == (bodies * 2)[::-1]


def test_a_segment_is_rolled_before_it_would_grow_too_large() -> None:
    events: list[Event] = []
    log = open_log(MemoryFileSystem(), events=events.append)
    fill(log, 8)
    assert events == [
        Published(DIRECTORY, 2, "roll"),
        SegmentSealed(DIRECTORY, "000000000001.seg", 7, 64 + 7 * 132 + 24 + 80),
    ]
    log.append(bytes(5000)).result()
    log.append(b"x").result()
    sizes = [segment.frame_bytes for segment in log.manifest.segments]
    assert sizes == [7 * 132, 132, 5032, 0], "what is too large for any segment has one to itself"


def test_an_empty_segment_is_not_rolled() -> None:
    log = open_log(MemoryFileSystem())
    log.roll()
    fill(log, 1)
    log.roll()
    log.roll()
    assert [segment.entries for segment in log.manifest.segments] == [1, 0]


def test_a_segment_is_rolled_when_it_is_old() -> None:
    clock = ManualClock()
    log = open_log(MemoryFileSystem(), replace(SMALL, segment_age_ms_max=1000), clock=clock)

    def segments() -> int:
        return len(log.manifest.segments)

    fill(log, 1)
    clock.advance(0.999)
    log.maintain()
    fill(log, 1)
    assert segments() == 1
    clock.advance(0.001)
    fill(log, 1)
    assert segments() == 2
    clock.advance(1)
    log.maintain()
    assert segments() == 3
    clock.advance(1)
    log.maintain()
    assert segments() == 3, "nothing is in it yet"


def test_an_interval_passes_between_two_fsyncs() -> None:
    fs, clock = FaultyFileSystem(MemoryFileSystem(), record=True), ManualClock()
    settings = replace(SMALL, durability=Durability.INTERVAL, sync_interval_ms=200)
    log = open_log(fs, settings, clock=clock)

    def fsyncs() -> int:
        return sum(line.startswith("fdatasync") for line in fs.trace)

    log.append(b"x").result()
    clock.advance(0.1)
    log.maintain()
    assert fsyncs() == 0
    clock.advance(0.125)
    log.maintain()
    assert fsyncs() == 1
    clock.advance(1)
    log.maintain()
    assert fsyncs() == 1, "nothing new"


def test_a_store_may_give_each_position_itself() -> None:
    log = open_log(MemoryFileSystem())
    log.append(b"a", position=10).result()
    log.append_many([b"b", b"c"], positions=[20, 30]).result()
    assert log.append(b"d").result() == 31
    assert list(contents(log)) == [10, 20, 30, 31]


def test_packed_positions_are_those_of_the_segment() -> None:
    fs = MemoryFileSystem()
    with open_log(fs, rule=PACKED) as log:
        fill(log, 9)
        assert log.next_position == pack(2, 2)
    with open_log(fs, rule=PACKED) as log:
        assert log.append(b"x").result() == pack(2, 2)
        log.roll()
        assert log.append_many([b"y", b"z"]).result() == pack(3, 1)
        expected = [*(pack(1, n) for n in range(7)), *(pack(2, n) for n in range(3))]
        assert list(contents(log)) == [*expected, pack(3, 0), pack(3, 1)]


# Bad input


def assert_refused(log: Log, call: Callable[[], object], error: type[Exception], text: str) -> None:
    before = (contents(log), log.next_position, log.active_bytes, log.manifest)
    with pytest.raises(error, match=text):
        call()
    assert (contents(log), log.next_position, log.active_bytes, log.manifest) == before


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"position": -1}, PositionOutOfRange, "position -1 is out of range"),
        ({"position": 4}, PositionOutOfRange, "position 4 is out of range, must be 5 or higher"),
        ({"position": 2**63}, PositionOutOfRange, f"must be 0 … {POSITION_MAX}"),
        ({"time_ms": -1}, InvalidInput, "time -1 ms is out of range"),
        ({"flags": 2**16}, InvalidInput, "flags 65536 are out of range"),
        ({"tag": 2**32}, InvalidInput, "tag 4294967296 is out of range"),
    ],
)
def test_bad_fields_are_refused_and_change_nothing(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    log = open_log(MemoryFileSystem())
    fill(log, 5)
    assert_refused(log, lambda: log.append(b"x", **given), error, text)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"positions": [4, 5]}, PositionOutOfRange, "position 4 is out of range, must be 5 or"),
        ({"positions": [7, 6]}, PositionOutOfRange, "position 6 is out of range, must be above 7"),
        ({"positions": [5]}, InvalidInput, "positions: 1 values for 2 bodies"),
        ({"flags": [0, -1]}, InvalidInput, "flags must be from 0 to 65535, found -1"),
    ],
)
def test_a_bad_batch_is_refused_whole(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    log = open_log(MemoryFileSystem())
    fill(log, 5)
    assert_refused(log, lambda: log.append_many([b"x", b"y"], **given), error, text)


def test_a_body_above_the_limit_is_refused() -> None:
    log = open_log(MemoryFileSystem(), replace(SMALL, entry_bytes_max=10))
    text = "entry of 11 bytes is larger than the limit 10"
    assert_refused(log, lambda: log.append(bytes(11)), EntryTooLarge, text)
    assert_refused(log, lambda: log.append_many([b"", bytes(11)]), EntryTooLarge, text)
    assert log.append(bytes(10)).result() == 0


def test_no_position_follows_the_last() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    log.append(b"the last", position=POSITION_MAX).result()
    text = f"position {2**63} is out of range, must be {POSITION_MAX} or lower"
    assert_refused(log, lambda: log.append(b"x"), PositionOutOfRange, text)
    assert_refused(log, lambda: log.append_many([b"x"]), PositionOutOfRange, text)
    assert_refused(log, log.roll, PositionOutOfRange, text)
    log.close()
    with open_log(fs) as log:
        assert contents(log) == {POSITION_MAX: b"the last"}


def test_a_packed_position_belongs_to_its_segment() -> None:
    log = open_log(MemoryFileSystem(), rule=PACKED)
    text = f"position {pack(5, 0)} is out of range, must be {pack(2, 0) - 1} or lower"
    assert_refused(log, lambda: log.append(b"x", position=pack(5, 0)), PositionOutOfRange, text)
    positions = [pack(1, 3), pack(1, 4), pack(2, 0)]
    assert log.append_many([b"a", b"b", b"c"], positions=positions).result() == pack(2, 0)
    assert [segment.entries for segment in log.manifest.segments] == [2, 0]
    assert list(contents(log)) == positions


@pytest.mark.parametrize("kind", ["", "much too long", "tøpic"])
def test_a_kind_that_fits_no_header_is_refused(kind: str) -> None:
    fs = MemoryFileSystem()
    with pytest.raises(InvalidInput, match=r"log kind .* must have 1 to 8 ASCII characters"):
        Log.open(fs, DIRECTORY, kind=kind)
    with open_log(fs) as log:
        assert log.append(b"x").result() == 0


# One writer


def test_a_second_writer_gets_the_pid_of_the_first() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    with pytest.raises(LogLocked, match=r"^/log is open for writing by the test$"):
        open_log(fs)
    log.close()
    open_log(fs).close()


def test_another_process_gets_the_pid_of_the_first(tmp_path: Path) -> None:
    directory = str(tmp_path / "log")
    command = [sys.executable, "-c", OPEN_A_LOG, directory]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(LogLocked, match=f"{directory} is open for writing by the child"):
            Log.open(LocalFileSystem(), directory, kind="test")
        child.kill()
    with Log.open(LocalFileSystem(), directory, kind="test") as log:
        assert log.append(b"x").result() == 0


# The end


@pytest.mark.parametrize("end", [Log.close, Log.abandon])
def test_a_closed_log_raises_log_closed(end: Callable[[Log], None]) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 15)
    log.drop_head(7)
    end(log)
    end(log)
    log.close()
    calls: list[Callable[[], object]] = [
        lambda: log.append(b"x"),
        lambda: log.append_many([b"x"]),
        log.sync,
        log.roll,
        log.maintain,
        log.reclaim,
        lambda: log.drop_head(14),
        lambda: log.publish(lambda m: m, "never"),
        lambda: contents(log),
    ]
    before = fs.list(DIRECTORY)
    for call in calls:
        with pytest.raises(LogClosed, match="/log is closed"):
            call()
    assert fs.list(DIRECTORY) == before


def test_closing_makes_everything_durable_in_every_mode() -> None:
    for durability in Durability:
        fs = MemoryFileSystem()
        with open_log(fs, replace(SMALL, durability=durability)) as log:
            log.append(b"x")
        path = f"{DIRECTORY}/000000000001.seg"
        assert fs.file(path).durable == fs.file(path).content
        with open_log(fs) as log:
            assert contents(log) == {0: b"x"}


# Segments that go


def test_whole_segments_go_from_the_head_and_the_active_one_stays() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs, LAZY)
    fill(log, 21)
    assert log.drop_head(6) == ()
    assert log.manifest.dropped == -1
    assert [segment.id for segment in log.drop_head(7)] == [1]
    assert log.manifest.dropped == 6
    assert [segment.id for segment in log.drop_head(10**6)] == [2]
    assert list(contents(log)) == list(range(14, 21))
    assert sorted(r.name for r in log.manifest.retired) == ["000000000001.seg", "000000000002.seg"]
    paced: list[int] = []
    sizes = [1092, 1092]
    assert log.reclaim(paced.append) == Reclaimed(DIRECTORY, 2, sum(sizes))
    assert paced == sizes
    assert fs.list(DIRECTORY) == ["000000000003.seg", "LOCK", "MANIFEST"]
    assert open_log(fs.kill_clone(), LAZY).manifest.dropped == 13


def test_a_segment_in_the_view_stays_on_disk_when_the_log_drops_it() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, 14)
    log.publish(lambda m: replace(m, view=m.segments[:1], horizon=6), "view")
    log.drop_head(7)
    assert log.manifest.retired == ()
    assert list(contents(log)) == list(range(7, 14))
    assert list(contents(log, compacted=True)) == list(range(14))
    log.publish(lambda m: replace(m, view=()), "no view")
    assert log.reclaim().files == 1
    assert list(contents(log, compacted=True)) == list(range(7, 14))
