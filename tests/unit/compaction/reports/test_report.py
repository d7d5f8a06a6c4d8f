from __future__ import annotations

import errno
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.compaction.reports.report import Cause, History, Report
from lithify.errors import (
    DamagedFile,
    InvalidInput,
    InvalidSetting,
    UnsupportedVersion,
    WriteFailed,
)
from lithify.fs.atomic import read_file
from lithify.fs.local import LocalFileSystem
from lithify.fs.memory import MemoryFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.fs.base import File

PATH = "/log/history"

REPORT = Report(
    run_id="run-1",
    log="topics/orders",
    policy="all",
    trigger="periodic",
    started_ms=1_000,
    finished_ms=4_200,
    horizon=99,
    generation_before=4,
    generation_after=5,
    result="done",
    read_bytes=2048,
    read_entries=100,
    kept_entries=7,
    kept_bytes=512,
    dropped={Cause.SUPERSEDED: (90, 1400), Cause.TOMBSTONE: (3, 136)},
    retired_bytes=2048,
    reclaimed_bytes=0,
    seconds_by_phase={"index": 1.5, "rewrite": 1.25},
)


def run(number: int, reclaimed_bytes: int = 0) -> Report:
    return replace(REPORT, run_id=f"run-{number}", reclaimed_bytes=reclaimed_bytes)


def crc32c_bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def names(reports: list[Report]) -> list[str]:
    return [report.run_id for report in reports]


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir("/log")
    return fs


def fill(fs: MemoryFileSystem, count: int) -> list[int]:
    """Append `count` runs; where each line begins, and where the file ends."""
    history = History(fs, PATH)
    offsets = [0]
    for number in range(count):
        history.append(run(number))
        offsets.append(fs.stat(PATH).size)
    return offsets


def test_a_report_survives_json() -> None:
    assert Report.from_json(REPORT.to_json()) == REPORT
    failed = replace(REPORT, result="failed", error="disk\nfull: \udcff")
    assert "\n" not in failed.to_json()
    assert Report.from_json(failed.to_json().encode()) == failed


def test_json_that_is_no_report_is_refused_by_name() -> None:
    values = json.loads(REPORT.to_json())
    with pytest.raises(InvalidInput, match="h holds no report"):
        Report.from_json("[]", "h")
    with pytest.raises(InvalidInput, match="holds no report"):
        Report.from_json("{")
    with pytest.raises(InvalidInput, match="horizon"):
        Report.from_json(json.dumps({k: v for k, v in values.items() if k != "horizon"}))
    with pytest.raises(InvalidInput, match="boredom"):
        Report.from_json(json.dumps(values | {"dropped": {"boredom": [1, 2]}}))
    with pytest.raises(InvalidInput, match="unknown result 'great'"):
        Report.from_json(json.dumps(values | {"result": "great"}))


def test_a_report_of_a_newer_build_is_not_guessed_at() -> None:
    values = json.loads(REPORT.to_json()) | {"version": 2, "colour": "red"}
    with pytest.raises(UnsupportedVersion, match="version 2, this build reads up to 1"):
        Report.from_json(json.dumps(values))


def test_the_summary_is_one_line() -> None:
    assert REPORT.summary() == (
        "topics/orders: done in 3.2 s (periodic, all), generation 4 to 5, "
        "read 100 entries (2.0 KiB), kept 7 (512 B), dropped 90 superseded (1.4 KiB), "
        "dropped 3 tombstone (136 B), reclaimed 0 B of 2.0 KiB retired"
    )
    failed = Report("r", "l", "all", "admin", 0, 100, -1, 4, 4, "failed", "no\n space")
    assert failed.summary() == (
        "l: failed in 0.1 s (admin, all), read 0 entries (0 B), kept 0 (0 B), reclaimed 0 B: "
        "no space"
    )


def test_a_history_that_never_was_is_empty(fs: MemoryFileSystem) -> None:
    assert History(fs, PATH).newest(10) == []


def test_newest_first_and_at_most_the_limit(fs: MemoryFileSystem) -> None:
    fill(fs, 4)

    assert names(History(fs, PATH).newest(3)) == ["run-3", "run-2", "run-1"]
    assert History(fs, PATH).newest(0) == []
    with pytest.raises(InvalidInput, match="-1"):
        History(fs, PATH).newest(-1)


def test_a_line_is_a_crc_a_space_and_json(fs: MemoryFileSystem) -> None:
    fill(fs, 1)

    line = read_file(fs, PATH)

    text = line[9:-1]
    assert line == b"%08x %b\n" % (crc32c_bit_by_bit(text), text)
    assert text.startswith(b'{"version":1,"run_id":"run-0","log":"topics/orders",')
    assert json.loads(text)["dropped"] == {"superseded": [90, 1400], "tombstone": [3, 136]}


def test_a_run_reported_again_shows_its_latest_version_in_its_own_place(
    fs: MemoryFileSystem,
) -> None:
    history = History(fs, PATH)
    for number in range(3):
        history.append(run(number))

    history.append(run(1, reclaimed_bytes=77))

    assert history.newest(10) == [run(2), run(1, reclaimed_bytes=77), run(0)]


def test_a_local_file_keeps_reports_between_processes(tmp_path: Path) -> None:
    path = f"{tmp_path}/history"
    History(LocalFileSystem(), path).append(run(0))
    History(LocalFileSystem(), path).append(run(1))

    assert names(History(LocalFileSystem(), path).newest(5)) == ["run-1", "run-0"]


def test_a_torn_last_line_is_ignored_and_cut_by_the_next_append(fs: MemoryFileSystem) -> None:
    offsets = fill(fs, 3)
    whole = read_file(fs, PATH)
    for size in range(offsets[2] + 1, offsets[3]):
        with fs.open_append(PATH) as file:
            file.truncate(0)
            file.write(whole[:size])
        history = History(fs, PATH)
        assert names(history.newest(9)) == ["run-1", "run-0"]

        history.append(run(7))
        assert names(history.newest(9)) == ["run-7", "run-1", "run-0"]
        assert fs.stat(PATH).size == offsets[3]


def test_a_flipped_bit_is_reported_with_path_and_offset(fs: MemoryFileSystem) -> None:
    offsets = fill(fs, 3)
    the_last_newline = offsets[3] - 1
    for offset in range(the_last_newline):
        fs.flip(PATH, offset, 0x04)
        line = max(start for start in offsets if start <= offset)
        for touch in (
            lambda: History(fs, PATH).newest(1),
            lambda: History(fs, PATH).append(run(8)),
        ):
            with pytest.raises(DamagedFile) as caught:
                touch()
            assert (caught.value.path, caught.value.offset) == (PATH, line)
        fs.flip(PATH, offset, 0x04)
    assert names(History(fs, PATH).newest(9)) == ["run-2", "run-1", "run-0"]


def test_a_last_line_of_which_a_block_never_arrived_is_torn(fs: MemoryFileSystem) -> None:
    offsets = fill(fs, 3)
    whole = read_file(fs, PATH)
    with fs.open_append(PATH) as file:
        file.truncate(0)
        file.write(whole[: offsets[2]] + bytes(300) + whole[offsets[2] + 300 :])

    assert names(History(fs, PATH).newest(9)) == ["run-1", "run-0"]

    History(fs, PATH).append(run(7))
    assert names(History(fs, PATH).newest(9)) == ["run-7", "run-1", "run-0"]


def test_a_line_that_is_intact_and_no_report_is_damage(fs: MemoryFileSystem) -> None:
    offsets = fill(fs, 1)
    with fs.open_append(PATH) as file:
        file.write(b"%08x {}\n" % crc32c_bit_by_bit(b"{}"))

    with pytest.raises(DamagedFile, match="holds no report") as caught:
        History(fs, PATH).newest(1)
    assert caught.value.offset == offsets[1]


def test_the_file_is_rewritten_when_it_has_twice_as_many_lines_as_kept(
    fs: MemoryFileSystem,
) -> None:
    history = History(fs, PATH, keep=3)
    for number in range(6):
        history.append(run(number))
    assert read_file(fs, PATH).count(b"\n") == 6

    history.append(run(6))

    assert read_file(fs, PATH).count(b"\n") == 3
    assert names(history.newest(9)) == ["run-6", "run-5", "run-4"]


def test_a_rewrite_keeps_runs_and_not_versions(fs: MemoryFileSystem) -> None:
    history = History(fs, PATH, keep=2)
    history.append(run(0))
    for reclaimed_bytes in range(1, 5):
        history.append(run(1, reclaimed_bytes))

    assert history.newest(9) == [run(1, 4), run(0)]
    assert read_file(fs, PATH).count(b"\n") == 2


@pytest.mark.parametrize("keep", [0, -1, 10**6])
def test_keep_has_limits(fs: MemoryFileSystem, keep: int) -> None:
    with pytest.raises(InvalidSetting, match="keep"):
        History(fs, PATH, keep)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_loses_nothing_that_append_returned_from(
    fs: MemoryFileSystem, seed: int
) -> None:
    for number in range(8):
        History(fs, PATH, keep=3).append(run(number))
        fs = fs.crash_clone(random.Random(seed))
        assert names(History(fs, PATH, keep=3).newest(1)) == [f"run-{number}"]


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_after_a_line_without_fsync_tears_at_most_that_line(
    fs: MemoryFileSystem, seed: int
) -> None:
    fill(fs, 2)
    with fs.open_append(PATH) as file:
        file.write(line_of(run(2)))
    fs = fs.crash_clone(random.Random(seed))

    assert names(History(fs, PATH).newest(9))[-2:] == ["run-1", "run-0"]
    History(fs, PATH).append(run(3))
    assert names(History(fs, PATH).newest(1)) == ["run-3"]


@pytest.mark.parametrize("torn", ["half a line", "a line without its first block"])
def test_a_power_cut_while_a_torn_line_is_replaced_leaves_the_old_reports(
    fs: MemoryFileSystem, torn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fs, 2)
    line = line_of(replace(run(2), result="failed", error="a long story " * 20))
    with fs.open_append(PATH) as file:
        file.write(line[:-40] if torn == "half a line" else bytes(300) + line[300:])
        file.fsync()
        open_file = type(file)
    crashes: list[MemoryFileSystem] = []
    fsync = open_file.fsync

    def crash_before_fsync(self: File) -> None:
        crashes.extend(fs.crash_clone(random.Random(seed)) for seed in range(50))
        fsync(self)

    monkeypatch.setattr(open_file, "fsync", crash_before_fsync)
    History(fs, PATH).append(run(3))
    monkeypatch.undo()

    assert crashes
    for crashed in crashes:
        found = names(History(crashed, PATH).newest(9))
        assert found in (["run-1", "run-0"], ["run-3", "run-1", "run-0"])


@pytest.mark.parametrize("written", [0, 1, 300])
def test_a_full_disk_leaves_the_reports_as_they_were(written: int) -> None:
    first = len(line_of(run(0)))
    fs = MemoryFileSystem(capacity_bytes=first + written)
    fs.mkdir("/log")
    history = History(fs, PATH)
    history.append(run(0))

    with pytest.raises(WriteFailed) as caught:
        history.append(run(1))

    assert caught.value.cause.errno == errno.ENOSPC
    assert fs.stat(PATH).size == first
    assert history.newest(9) == [run(0)]


def line_of(report: Report) -> bytes:
    fs = MemoryFileSystem()
    History(fs, "/h").append(report)
    return read_file(fs, "/h")
