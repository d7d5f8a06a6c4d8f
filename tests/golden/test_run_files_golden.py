"""The bytes of journal and history version 1, as they were first written. They never change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lithify.compaction.reports.report import Cause, History, Report
from lithify.compaction.run.journal import Journal, Phase, RunRecord
from lithify.fs import MemoryFileSystem, read_file
from lithify.log.manifest import DeadRef, SegmentRef

JOURNAL = Path(__file__).with_name("journal_v1.txt")
HISTORY = Path(__file__).with_name("history_v1.txt")

DEAD = DeadRef("000000000002-5f3a.dead", entries=3, frame_bytes=396, file_bytes=57, crc=4018101247)
FIRST = SegmentRef(
    1, "000000000001.seg", 0, 9, 10, 1320, 1488, 1700000000000, 1700000000009, sealed=True
)
SECOND = SegmentRef(
    2, "000000000002.seg", 10, 2**63 - 1, 10, 1320, 1488, 1700000000010, 1700000000019, True, DEAD
)
TARGET = SegmentRef(
    2, "000000000002-9c01.seg", 10, 19, 7, 924, 1092, 1700000000010, 1700000000019, sealed=True
)
RECORD = RunRecord(
    run_id="5f3a",
    policy="hybrid:stats",
    trigger="lag",
    started_ms=1700000000100,
    as_of_ms=1700000000100,
    horizon=2**63 - 1,
    generation=17,
    in_view=False,
    judged=(FIRST, SECOND),
    dropped=(1,),
    groups=((2,),),
    causes={Cause.SUPERSEDED: (10, 1320), Cause.TOMBSTONE: (3, 396)},
)
REPORT = Report(
    run_id="5f3a",
    log="data/orders",
    policy="hybrid:stats",
    trigger="lag",
    started_ms=1700000000100,
    finished_ms=1700000000350,
    horizon=19,
    generation_before=17,
    generation_after=18,
    result="done",
    read_bytes=924,
    read_entries=20,
    kept_entries=7,
    kept_bytes=924,
    dropped={Cause.SUPERSEDED: (10, 1320), Cause.TOMBSTONE: (3, 396)},
    retired_bytes=2976,
    seconds_by_phase={"PREPARE": 0.125, "COPY": 0.1},
)
FAILED = replace(REPORT, run_id="77e0", result="failed", error="disk on fire: 100 °C", dropped={})


def test_version_1_of_the_journal_is_still_written() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/log")
    journal = Journal(fs, "/log")
    journal.create(RECORD)
    journal.copied(0, TARGET)
    journal.enter(Phase.COMMIT)
    journal.enter(Phase.CLEANUP)
    assert read_file(fs, "/log/JOURNAL") == JOURNAL.read_bytes()


def test_version_1_of_the_journal_is_still_read() -> None:
    record = Journal(disk_with("/log/JOURNAL", JOURNAL), "/log").read()
    assert record == replace(RECORD, targets={0: TARGET}, phase=Phase.CLEANUP)


def test_version_1_of_the_history_is_still_written() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/log")
    history = History(fs, "/log/HISTORY")
    history.append(REPORT)
    history.append(FAILED)
    history.append(replace(REPORT, reclaimed_bytes=2976))
    assert read_file(fs, "/log/HISTORY") == HISTORY.read_bytes()


def test_version_1_of_the_history_is_still_read() -> None:
    history = History(disk_with("/log/HISTORY", HISTORY), "/log/HISTORY")
    assert history.newest(10) == [FAILED, replace(REPORT, reclaimed_bytes=2976)]


def disk_with(path: str, golden: Path) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.mkdir("/log")
    with fs.open_append(path) as file:
        file.write(golden.read_bytes())
    return fs
