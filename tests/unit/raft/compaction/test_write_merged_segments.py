"""Two threads write the targets of one portion: side by side, when one fails, when it is cancelled.

Segments have five entries. Of the first six, 1 and 2 are merged, 3 and 4, 5 and 6; 7 is dead and 8
the newest.
"""

from __future__ import annotations

import threading
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.policies.packing import Limits
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.compaction.run.control import RunControl
from lithify.compaction.run.journal import NoJournal
from lithify.errors import DamagedFrame, RunCancelled
from lithify.fs import LocalFileSystem, MemoryFileSystem, read_file
from lithify.live_set import LiveSet
from lithify.log.manifest import SegmentRef
from lithify.raft.compaction import write_merged_segments
from lithify.raft.compaction.group_compaction import RunWanted
from lithify.raft.compaction.segments_port import LiveIndexRule, NamedLog
from lithify.raft.compaction.write_merged_segments import MergeJobs, MergeTargets
from lithify.raft.entry import Entry
from lithify.raft.storage.file_names import segment_name
from lithify.raft.storage.group_segments import GroupSegments, IndexSpan
from lithify.raft.storage.live_state import LiveState
from lithify.raft.storage.segment_file import SegmentAppender, SegmentFile, SegmentLimits
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.stored import DIRECTORY, GROUP, Member

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.compaction.reports.report import Report
    from lithify.errors import LithifyError
    from lithify.fs import File

LIVE = [1, 2, 6, 7, 11, 12, 13, 16, 21, 22, 26]
MERGED = [(1, 1, 7), (3, 11, 16), (5, 21, 26), (8, 36, 40)]


@pytest.fixture(autouse=True)
def _two_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the portion is."""
    monkeypatch.setattr(write_merged_segments, "ALONE_BYTES_MAX", 0)


class Meeting(MemoryFileSystem):
    """The creation of the first target waits until the second is there: neither is done yet."""

    def __init__(self) -> None:
        super().__init__()
        self._meeting = threading.Barrier(2)
        self._created = count(1)
        self.threads: set[str] = set()

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        file = super().open_append(path, exclusive=exclusive, uncached=uncached)
        if path.endswith(".compacting") and next(self._created) <= 2:
            self.threads.add(threading.current_thread().name)
            self._meeting.wait(PROCESS_S_MAX)
        return file


def prepared(fs: MemoryFileSystem) -> Member:
    return Member(fs).fill(41).snapshot(35, LIVE)


def files(fs: MemoryFileSystem) -> dict[str, bytes]:
    """The segments, without those that are only a link to another."""
    paths = [f"{DIRECTORY}/{name}" for name in fs.list(DIRECTORY) if name.endswith(".segment")]
    return {path: read_file(fs, path) for path in paths if not fs.stat(path).is_symlink}


def leftovers(fs: MemoryFileSystem) -> list[str]:
    return [name for name in fs.list(DIRECTORY) if name.endswith((".compacting", ".link"))]


def flip(fs: MemoryFileSystem, number: int, value: bytes) -> None:
    path = f"{DIRECTORY}/{segment_name(number)}"
    fs.flip(path, read_file(fs, path).index(value))


def test_two_at_a_time_write_what_one_would_have_written(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Meeting()
    member = prepared(beside)
    outcome = member.compact()
    assert len(beside.threads) == 2
    assert member.spans == MERGED
    assert [ref.id for ref in outcome.refs] == [1, 3, 5]
    member.check()
    assert leftovers(beside) == []

    monkeypatch.setattr(write_merged_segments, "ALONE_BYTES_MAX", 2**40)
    alone = MemoryFileSystem()
    prepared(alone).compact()
    assert files(beside) == files(alone)


def test_a_damaged_segment_fails_its_run_and_keeps_no_other_from_being_merged() -> None:
    fs = Meeting()
    member = prepared(fs)
    flip(fs, 2, b"value 6")
    failure = member.compact().failure
    assert isinstance(failure, DamagedFrame)
    assert failure.path.endswith(segment_name(2))
    assert leftovers(fs) == []
    assert (2, 6, 10) in member.spans
    assert (3, 11, 15) in member.spans, "nothing of a run that fails is published"
    assert list(member.log.segments.damages.open) == [segment_name(2)]
    assert member.compact().failure is None
    assert member.spans[:4] == [(1, 1, 2), (2, 6, 10), (3, 11, 16), (5, 21, 26)]
    whole = [index for index in LIVE if index not in (6, 7)]
    assert [entry.index for entry in member.log.read(whole)] == whole
    assert "busy" in member.plan().plan.explain()


def test_if_both_fail_nothing_is_changed_and_no_other_merge_is_begun() -> None:
    fs = Meeting()
    member = prepared(fs)
    flip(fs, 2, b"value 6")
    flip(fs, 4, b"value 16")
    before = files(fs)
    assert isinstance(member.compact().failure, DamagedFrame)
    del before[f"{DIRECTORY}/{segment_name(7)}"]
    assert files(fs) == before
    assert leftovers(fs) == []


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO", "SHORT"])
def test_a_disk_that_fails_anywhere_leaves_everything_readable(kind: str) -> None:
    for nth in range(1, 200):
        disk = MemoryFileSystem()
        prepared(disk).storage.close()
        fs = FaultyFileSystem(disk.kill_clone(), [])
        member = Member(fs)
        fs.add(Fault("mutating", "*", nth, count=2, kind=kind))
        if member.compact().failure is None:
            break
        member.check()
        fs.clear()
        # The first only tidies up.
        member.compact()
        member.compact()
        assert member.spans == MERGED
        member.check()
    assert nth > 30


@pytest.mark.parametrize("alone_bytes", [0, 2**40])
def test_a_cancelled_run_rolls_back_what_it_has_not_published(
    alone_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Portions of one target each: what is published by then stays."""
    monkeypatch.setattr(write_merged_segments, "ALONE_BYTES_MAX", alone_bytes)
    monkeypatch.setattr(write_merged_segments, "PORTION_BYTES", 1)
    seen = set()
    for nth in range(1, 200):
        asked = count(1)

        def stop(*_: object, asked: count[int] = asked, nth: int = nth) -> None:
            if next(asked) >= nth:
                raise RunCancelled("it is enough")

        fs = MemoryFileSystem()
        member = prepared(fs)
        told: list[Report | LithifyError] = []
        member.compactor.request(RunWanted(control=RunControl(stop), ended=told.append))
        job = member.compactor.next_job()
        assert job is not None
        outcome = job()
        member.compactor.done(outcome)
        assert leftovers(fs) == []
        member.check()
        again = Member(fs.kill_clone())
        again.check()
        assert again.spans == member.spans
        assert all(
            (ref.id, ref.last_position) in [(1, 7), (3, 16), (5, 26)] for ref in outcome.refs
        )
        seen.add(len(outcome.refs))
        if outcome.failure is None:
            break
        assert told == [outcome.failure]
        assert isinstance(outcome.failure, RunCancelled)
        assert member.compactor.failure is None, "a cancelled run has not failed"
        for report in member.compactor.history.newest(1):
            assert report.result == "cancelled"
            assert bool(report.dropped) == bool(outcome.refs)
    assert {0, 3} <= seen


def test_threads_do_not_mix_up_what_they_copy(tmp_path: Path) -> None:
    fs, directory, limits = LocalFileSystem(), str(tmp_path), SegmentLimits(1024)
    last = 16 * limits.entries_max
    refs = []
    for number in range(1, 17):
        first = 1 + (number - 1) * limits.entries_max
        entries = [sized(index) for index in range(first, first + limits.entries_max)]
        appender = SegmentAppender.create(fs, directory, GROUP, number, first, limits)
        assert appender.append(entries) == limits.entries_max
        refs.append(appender.close())
    rng = Random(5)
    live = LiveSet.from_iterable(i for i in range(1, last + 1) if rng.random() < 0.3)
    state = LiveState(last, live)
    newest = IndexSpan(SegmentRef(17, segment_name(17), last + 1), last + 1, last + 1)
    named = NamedLog(fs, directory, GROUP)
    named.take([*GroupSegments(fs, directory, refs).spans, newest], (), state, last)
    named.begin()
    limits_of = Limits(limits.frame_bytes_max, limits.entries_max, sources_max=8)
    clock = ManualClock()
    compactor = Compactor(
        named,
        fs,
        LiveIndexRule(named, GROUP, limits_of),
        settings=RunSettings(limits_of, "neighbours", dead_sets=False),
        clock=clock,
        jobs=MergeJobs(),
        targets=MergeTargets(fs, named, GROUP, clock),
        journal=NoJournal(),
    )
    compactor.holds.place("snapshot", last)
    assert compactor.run().result == "done"
    gone, merged = named.published()
    assert len(merged) >= 5
    assert len(gone) + len(merged) == 16
    for ref in merged:
        own = list(live.slice(ref.first_position, ref.last_position + 1))
        file = SegmentFile(fs, directory, ref)
        assert list(file.read(own).values()) == [sized(index) for index in own]
        file.close()


def sized(index: int) -> Entry:
    """One of about a kibibyte, like no other."""
    return Entry(index, 1, b"%016d" % index * (50 + index % 30))
