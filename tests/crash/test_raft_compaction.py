"""A crash at every operation of phases 1 and 3, and at every operation of the recovery after it.

The log has entries that were overwritten, segments that are dead, others that are sparse, and a
newest one. Whatever is left of a compaction, after a power cut or a kill, the next start finds:

1. every live index of the snapshot, with its term and payload;
2. everything above the snapshot, without a gap;
3. no `.compacting`, no `.link`, no link, no temporary file;
4. the newest segment as it was;
5. segments that do not overlap, one for each file and one file for each;
6. live indexes at or below the snapshot;
7. nothing that another compaction would have left: it ends with no more bytes than any other;
8. a history that can be read, with the report of the run if the run had come to its end.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from lithify.fs import MemoryFileSystem, read_file
from lithify.log.file_names import HISTORY
from lithify.raft.compaction import write_merged_segments
from lithify.raft.compaction.segments_port import compactable
from lithify.raft.storage.file_names import parse_segment, segment_name
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.unit.raft.stored import DIRECTORY, Member, entry

if TYPE_CHECKING:
    from collections.abc import Iterator

SNAPSHOT = 38
LIVE = [2, 5, 6, 13, 15, 16, 35]
"""Segments 1, 3 and 4 are merged into one, 5 and 9 into another; 6, 7 and 8 are dead."""
LAST = 41
NEWEST = 10


def prepared() -> MemoryFileSystem:
    """Of segment 1 only a part counts; 2 was overwritten."""
    disk = MemoryFileSystem()
    member = Member(disk).fill(9).fill(14, term=2, first=4).fill(LAST + 1).snapshot(SNAPSHOT, LIVE)
    assert member.files == [1, *range(3, NEWEST + 1)]
    return disk.kill_clone()


def newest(fs: MemoryFileSystem) -> bytes:
    return read_file(fs, f"{DIRECTORY}/{segment_name(NEWEST)}")


def check(disk: MemoryFileSystem, before: bytes) -> Member:
    member = Member(disk)
    log = member.log
    assert (log.snapshot_index, list(log.state.live)) == (SNAPSHOT, LIVE)  # 6
    expected = [entry(i, 2 if 4 <= i < 14 else 1) for i in LIVE]
    assert log.read(LIVE) == expected  # 1
    above = list(range(SNAPSHOT + 1, LAST + 1))
    assert log.entries(SNAPSHOT + 1, LAST + 1, 2**40) == [entry(i) for i in above]  # 2
    assert log.last_index == LAST
    others = ("snapshots", "checkpoints", HISTORY)
    names = [name for name in disk.list(DIRECTORY) if name not in others]
    assert all(parse_segment(name) for name in names)  # 3
    assert member.links == []
    assert newest(disk) == before  # 4
    spans = log.segments.spans
    assert [span.ref.name for span in spans] == names  # 5
    assert all(a.first <= a.last < b.first for a, b in pairwise(spans))
    return member


def check_history(member: Member) -> None:
    """The reports are of runs that came to their end, the newest of one that found nothing left."""
    reports = member.compactor.history.newest(10)
    assert {report.result for report in reports} <= {"done"}
    assert member.compactor.status().state == "SUCCESS"


def crashes(disk: MemoryFileSystem, what: str) -> Iterator[tuple[MemoryFileSystem, str]]:
    """(disk, how) as it is after a crash at each operation of a compaction."""
    for kind in ("CRASH", "CRASH_AFTER"):
        nth, done = 0, False
        while not done:
            nth += 1
            running = disk.kill_clone()
            fs = FaultyFileSystem(running, [])
            member = Member(fs)
            fs.add(Fault("mutating", "*", nth, kind=kind))
            try:
                assert member.compact(merge=what != "phase 1").failure is None
                done = True
            except PowerCut:
                pass
            for seed in range(3):
                yield running.crash_clone(Random(seed)), f"{what}: {kind} {nth}, seed {seed}"
            yield running.kill_clone(), f"{what}: {kind} {nth}, killed"


def reopened(disk: MemoryFileSystem) -> Iterator[MemoryFileSystem]:
    """Disks after a crash at each operation of the start."""
    nth = 1
    while True:
        starting = disk.kill_clone()
        try:
            Member(FaultyFileSystem(starting, [Fault("mutating", "*", nth, kind="CRASH")]))
        except PowerCut:
            yield starting.crash_clone(Random(nth))
            nth += 1
        else:
            return


@pytest.mark.parametrize(
    "what", ["phase 1", "phase 3", "phase 3 in two threads", "phase 3 in portions"]
)
def test_a_crash_at_every_operation(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "phase 3 in two threads":
        monkeypatch.setattr(write_merged_segments, "ALONE_BYTES_MAX", 0)
    if what == "phase 3 in portions":
        monkeypatch.setattr(write_merged_segments, "PORTION_BYTES", 1)
    disk = prepared()
    before = newest(disk)
    count = 0
    for found, how in crashes(disk, what):
        try:
            member = check(found.kill_clone(), before)
            member.compact()
            member.check()
            assert member.plan().plan.is_empty  # 7
            spans = compactable(member.log.segments.spans, SNAPSHOT)
            assert sum(span.ref.entries for span in spans) <= 2 * len(LIVE)
            check_history(member)  # 8
        except BaseException as error:
            error.add_note(how)
            raise
        count += 1
    assert count >= (40 if what == "phase 1" else 200)


@pytest.mark.parametrize("what", ["phase 1", "phase 3"])
def test_a_crash_at_every_operation_of_the_recovery(what: str) -> None:
    disk = prepared()
    before = newest(disk)
    seen = set()
    for found, how in crashes(disk, what):
        state = tuple(
            (name, stat.is_symlink, stat.size, stat.links)
            for name in found.list(DIRECTORY)
            for stat in [found.stat(f"{DIRECTORY}/{name}")]
        )
        if state in seen:
            continue
        seen.add(state)
        for number, again in enumerate(reopened(found), 1):
            try:
                check(again, before)
            except BaseException as error:
                error.add_note(f"{how}, then at operation {number} of the start")
                raise
    assert len(seen) >= 3


@pytest.mark.parametrize("kind", ["CRASH", "CRASH_AFTER"])
def test_a_file_of_overwritten_entries_never_reappears_beside_a_merged_one(kind: str) -> None:
    """Segment 2 was overwritten by 3. Back again, it would hide what was merged into 1."""
    live = [2, 5, 6]
    for nth in range(1, 40):
        disk = MemoryFileSystem()
        fs = FaultyFileSystem(disk, [])
        member = Member(fs).fill(9).fill(14, term=2, first=4).snapshot(8, live)
        assert member.files == [1, 3, 4]
        # That 2 was removed is not durable: nothing has synced the directory since.
        fs.add(Fault("mutating", "*", nth, kind=kind))
        try:
            member.compact()
            return
        except PowerCut:
            pass
        for seed in range(12):
            again = Member(disk.crash_clone(Random(seed)))
            assert again.log.read(live) == [entry(2), entry(5, 2), entry(6, 2)]
    pytest.fail("it never came to its end")
