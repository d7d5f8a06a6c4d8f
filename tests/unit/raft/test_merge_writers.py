"""Two threads write the targets of one round: beside each other, when one fails, when it is ended.

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
from lithify.compaction.budget import Allowance, Budget
from lithify.errors import DamagedFrame, RunCancelled
from lithify.fs import Fault, FaultyFileSystem, LocalFileSystem, MemoryFileSystem, read_file
from lithify.liveset import LiveSet
from lithify.raft import compaction
from lithify.raft.compaction import compactable, plan_merges, run_measure, run_merges
from lithify.raft.entry import Entry
from lithify.raft.live_state import LiveState
from lithify.raft.names import segment_name
from lithify.raft.segment import SegmentAppender, SegmentFile, SegmentLimits
from lithify.raft.segments import GroupSegments
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.stored import DIRECTORY, GROUP, LIMITS, Member

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.fs import File

LIVE = [1, 2, 6, 7, 11, 12, 13, 16, 21, 22, 26]
MERGED = [(1, 1, 7), (3, 11, 16), (5, 21, 26), (8, 36, 40)]


@pytest.fixture(autouse=True)
def _two_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the round is."""
    monkeypatch.setattr(compaction, "ALONE_BYTES_MAX", 0)


class Meeting(MemoryFileSystem):
    """Whoever creates the first target waits until the second is there: neither is done yet."""

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

    monkeypatch.setattr(compaction, "ALONE_BYTES_MAX", 2**40)
    alone = MemoryFileSystem()
    prepared(alone).compact()
    assert files(beside) == files(alone)


def test_what_is_whole_is_put_in_place_when_another_thread_fails() -> None:
    fs = Meeting()
    member = prepared(fs)
    flip(fs, 2, b"value 6")
    failure = member.compact().failure
    assert isinstance(failure, DamagedFrame)
    assert failure.path.endswith(segment_name(2))
    assert (1, 1, 5) in member.spans
    assert (2, 6, 10) in member.spans, "the sources of the failed one are as they were"
    assert (3, 11, 16) in member.spans, "the other one was under way, and came to its end"
    assert leftovers(fs) == []
    whole = [index for index in LIVE if index not in (6, 7)]
    assert [entry.index for entry in member.log.read(whole)] == whole


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


def test_a_run_that_is_ended_anywhere_takes_back_what_it_has_not_finished() -> None:
    """Each thread is told when it asks next; what is whole by then counts."""
    seen = set()
    for nth in range(1, 50):
        asked = count(1)

        def stop(asked: count[int] = asked, nth: int = nth) -> None:
            if next(asked) >= nth:
                raise RunCancelled("it is enough")

        fs = MemoryFileSystem()
        member = prepared(fs)
        member.compact(merge=False)
        state, directory = member.log.state, member.own.directory
        spans = compactable(member.log.segments.spans, state)
        measured = run_measure(fs, directory, spans, state, LIMITS, lambda _: None)
        merges = plan_merges(measured, LIMITS)
        allowance = Allowance(Budget(), ManualClock(), stop)
        merged = run_merges(fs, directory, GROUP, merges, state, allowance)
        assert leftovers(fs) == []
        again = Member(fs.kill_clone())
        again.check()
        assert all((ref.id, ref.last_position) in [(1, 7), (3, 16), (5, 26)] for ref in merged.refs)
        seen.add(len(merged.refs))
        if merged.failure is None:
            break
        assert isinstance(merged.failure, RunCancelled)
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
    segments = GroupSegments(fs, directory, refs)
    measured = run_measure(fs, directory, segments.spans, state, limits, lambda _: None)
    merges = plan_merges(measured, limits)
    allowance = Allowance(Budget(), ManualClock())
    merged = run_merges(fs, directory, GROUP, merges, state, allowance)
    assert merged.failure is None
    assert len(merged.merges) >= 5
    for merge, ref in zip(merged.merges, merged.refs, strict=True):
        own = list(live.slice(merge.sources[0].span.first, merge.sources[-1].span.last + 1))
        file = SegmentFile(fs, directory, ref)
        assert list(file.read(own).values()) == [sized(index) for index in own]
        file.close()


def sized(index: int) -> Entry:
    """One of about a kibibyte, like no other."""
    return Entry(index, 1, b"%016d" % index * (50 + index % 30))
