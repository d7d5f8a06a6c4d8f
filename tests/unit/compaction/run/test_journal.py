"""The journal: what a run has decided and done comes back as it was."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lithify.compaction.reports.report import Cause
from lithify.compaction.run.journal import Journal, Phase, RunRecord
from lithify.errors import DamagedFile, UnsupportedVersion, WriteFailed
from lithify.fs import MemoryFileSystem, read_file
from lithify.fs.checked_lines import encode_line
from lithify.log.manifest import DeadRef, SegmentRef
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut

DIRECTORY = "/data/log"
PATH = f"{DIRECTORY}/JOURNAL"
DEAD = DeadRef("000000000002-r1.dead", entries=3, frame_bytes=120, file_bytes=57, crc=0xFEEDBEEF)
SEGMENTS = tuple(
    SegmentRef(
        id=number,
        name=f"{number:012d}.seg",
        first_position=10 * number,
        last_position=10 * number + 9,
        entries=10,
        frame_bytes=1320,
        file_bytes=1488,
        time_min=1000,
        time_max=1009,
        sealed=True,
        dead=DEAD if number == 2 else None,
    )
    for number in range(1, 6)
)
TARGET = replace(SEGMENTS[1], name="000000000002-a1.seg", entries=7, dead=None)
RECORD = RunRecord(
    run_id="r1",
    policy="hybrid:all",
    trigger="lag",
    started_ms=1_700_000_000_000,
    as_of_ms=1_700_000_000_001,
    horizon=59,
    generation=17,
    in_view=True,
    judged=SEGMENTS,
    dropped=(1,),
    groups=((2, 3), (4,)),
    causes={Cause.SUPERSEDED: (3, 120), Cause.EXPIRED: (10, 1320)},
)


def new_journal() -> tuple[MemoryFileSystem, Journal]:
    fs = MemoryFileSystem()
    fs.mkdir(DIRECTORY)
    return fs, Journal(fs, DIRECTORY)


def test_without_a_file_there_is_no_unfinished_run() -> None:
    assert new_journal()[1].read() is None


def test_a_decision_is_read_back() -> None:
    _, journal = new_journal()
    journal.create(RECORD)
    assert journal.read() == RECORD


def test_facts_and_messages_are_read_back() -> None:
    _, journal = new_journal()
    parts = replace(SEGMENTS[0], dead=replace(DEAD, parts=4))
    record = replace(
        RECORD, judged=(parts,), messages=(500, 20), state={"last": [59, 3], "none": None}
    )
    journal.create(record)
    assert journal.read() == record


def test_recorded_steps_are_read_back() -> None:
    _, journal = new_journal()
    journal.create(RECORD)
    journal.copied(1, SEGMENTS[3])
    journal.copied(0, TARGET)
    copying = replace(RECORD, targets={1: SEGMENTS[3], 0: TARGET}, phase=Phase.COPY)
    assert journal.read() == copying
    journal.enter(Phase.COMMIT)
    assert journal.read() == replace(copying, phase=Phase.COMMIT)
    journal.enter(Phase.CLEANUP)
    assert journal.read() == replace(copying, phase=Phase.CLEANUP)


def test_a_group_that_is_copied_again_has_its_latest_target() -> None:
    _, journal = new_journal()
    journal.create(RECORD)
    journal.copied(0, TARGET)
    again = replace(TARGET, name="000000000002-a2.seg")
    journal.copied(0, again)
    record = journal.read()
    assert record is not None
    assert record.targets == {0: again}


def test_a_torn_step_is_ignored() -> None:
    fs, journal = new_journal()
    journal.create(RECORD)
    before = read_file(fs, PATH)
    journal.copied(0, TARGET)
    whole = read_file(fs, PATH)
    for size in range(len(before), len(whole) - 1):
        with fs.open_append(PATH) as file:
            file.truncate(0)
            file.write(whole[:size])
        assert journal.read() == RECORD


def test_a_step_after_one_that_failed_is_never_mixed_with_it() -> None:
    disk, _ = new_journal()
    fs = FaultyFileSystem(disk)
    journal = Journal(fs, DIRECTORY)
    journal.create(RECORD)
    fs.add(Fault("fsync", "*/JOURNAL", kind="EIO"))
    with pytest.raises(WriteFailed):
        journal.copied(0, TARGET)
    # The first fsync makes the truncation durable.
    fs.add(Fault("fsync", "*/JOURNAL", nth=2, kind="CRASH"))
    with pytest.raises(PowerCut):
        journal.enter(Phase.COMMIT)
    for seed in range(50):
        found = Journal(disk.crash_clone(random.Random(seed)), DIRECTORY).read()
        assert found is not None
        assert found.phase in (Phase.PREPARE, Phase.COMMIT)
        assert not found.targets


def test_each_step_reads_nothing_and_makes_the_file_durable_once() -> None:
    disk, _ = new_journal()
    fs = FaultyFileSystem(disk, record=True)
    journal = Journal(fs, DIRECTORY)
    journal.create(RECORD)
    before = len(fs.trace)
    journal.enter(Phase.COMMIT)
    journal.enter(Phase.CLEANUP)
    seen = [line.split()[0] for line in fs.trace[before:]]
    assert seen == ["open_append", "size", "write", "fsync", "size"] * 2


def test_the_end_of_a_run_removes_the_file() -> None:
    fs, journal = new_journal()
    journal.create(RECORD)
    journal.remove()
    assert not any(fs.crash_clone(random.Random(seed)).exists(PATH) for seed in range(8))
    journal.remove()
    assert journal.read() is None


@pytest.mark.parametrize("offset", [0, 30, -2])
def test_a_flipped_bit_is_damage(offset: int) -> None:
    fs, journal = new_journal()
    journal.create(RECORD)
    journal.copied(0, TARGET)
    fs.flip(PATH, offset % len(read_file(fs, PATH)))
    with pytest.raises(DamagedFile, match=PATH):
        journal.read()


def test_an_empty_journal_is_damage() -> None:
    fs, journal = new_journal()
    fs.open_append(PATH).close()
    with pytest.raises(DamagedFile, match="first line is not whole"):
        journal.read()


def test_a_journal_of_a_newer_version_is_not_understood() -> None:
    fs, journal = new_journal()
    with fs.open_append(PATH) as file:
        file.write(encode_line(RECORD.to_json().replace('"version":1', '"version":2')))
    with pytest.raises(UnsupportedVersion, match="version 2"):
        journal.read()
