"""Dead segments are dropped, sparse ones merged, and what is live stays readable meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.planning.plan import SegmentStats
from lithify.compaction.policies.built_in import plan_whole_dead
from lithify.compaction.policies.merge_sparse_neighbours import plan_neighbours
from lithify.compaction.policies.packing import Limits
from lithify.errors import DamagedFrame, RunFailed
from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.log.manifest import SegmentRef
from lithify.log.segments.segment_file import read_header
from lithify.raft.compaction.group_compaction import RunWanted
from lithify.raft.compaction.segments_port import compactable, segment_stats
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.compaction.write_merged_segments import SOURCES_MAX
from lithify.raft.errors import EntriesLost, EntryDeleted
from lithify.raft.storage.file_names import segment_name
from lithify.raft.storage.group_segments import IndexSpan
from lithify.raft.storage.live_state import LiveState
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.unit.raft.stored import DIRECTORY, GROUP, Member, entry

if TYPE_CHECKING:
    from pathlib import Path


def span(number: int, first: int, last: int) -> IndexSpan:
    """A segment that holds each index of its range, ten bytes each."""
    count = last - first + 1
    ref = SegmentRef(number, segment_name(number), first, last, count, 10 * count, sealed=True)
    return IndexSpan(ref, first, last)


SPANS = [span(1, 1, 5), span(2, 6, 10), span(3, 11, 15), span(4, 16, 20)]


@pytest.mark.parametrize(
    ("snapshot", "live", "dropped"),
    [
        (20, [], [1, 2, 3]),  # plain truncation, but never the newest
        (15, [7], [1, 3]),
        (15, [5, 6, 11], []),
        (14, [], [1, 2]),  # 3 has an entry above the snapshot
        (4, [], []),
        (0, [], []),
    ],
)
def test_segments_without_a_live_index_are_dropped(
    snapshot: int, live: list[int], dropped: list[int]
) -> None:
    state = LiveState(snapshot, LiveSet.from_iterable(live))
    plan = plan_whole_dead(segment_stats(compactable(SPANS, snapshot), state), Limits(1000, 5))
    assert [found.segment for found in plan.dropped] == dropped


def merges(*live: int, limits: tuple[int, int] = (5, 1000), size: int = 10) -> list[list[int]]:
    """The segments after a merge of neighbours with five entries each, some of them live."""
    segments = [
        SegmentStats(number, 5 * number, 5 * number + 4, 5, 50, count, count * size)
        for number, count in enumerate(live, 1)
    ]
    entries_max, bytes_max = limits
    plan = plan_neighbours(segments, Limits(bytes_max, entries_max, sources_max=SOURCES_MAX))
    return [list(group.sources) for group in plan.groups]


def test_neighbours_that_fit_into_one_are_merged() -> None:
    assert merges(2, 3, 5) == [[1, 2]]
    assert merges(2, 2, 2) == [[1, 2], [3]]
    assert merges(3, 3) == []
    assert merges(5, 1, 4, 5) == [[2, 3]]


def test_a_single_segment_is_rewritten_if_more_than_half_is_dead() -> None:
    assert merges(2, 4) == [[1]]
    assert merges(3, 4) == []
    assert merges(3, size=8) == [[1]], "24 of 50 bytes"


def test_segments_without_live_entries_separate_nothing() -> None:
    assert merges(2, 0, 0, 3) == [[1, 4]]


def test_a_segment_larger_than_a_group_is_skipped() -> None:
    assert merges(1, 4, 1, limits=(3, 1000)) == [[1], [3]]
    assert merges(1, 4, 1, limits=(5, 35)) == [[1], [3]]


def test_a_merge_has_at_most_eight_sources() -> None:
    found = merges(*[1] * 20, limits=(100, 1000))
    assert [len(numbers) for numbers in found] == [8, 8, 4]


def test_live_entries_are_merged_and_stay_readable() -> None:
    member = Member(MemoryFileSystem()).fill(26).snapshot(22, [2, 9, 12, 21])
    assert member.files == [1, 2, 3, 4, 5]
    outcome = member.compact()
    assert member.spans == [(1, 2, 12), (5, 21, 25)]
    assert (member.files, member.links) == ([1, 5], [2, 3])
    assert outcome.removed == [segment_name(4)]
    assert outcome.gone == [segment_name(2), segment_name(3)]
    with member.fs.open_read(f"{DIRECTORY}/{segment_name(1)}") as file:
        header = read_header(file)
    assert (header.segment_id, header.first_position, header.kind) == (1, 2, "raftlive")
    member.check()
    with pytest.raises(EntryDeleted):
        member.log.read([3])


def test_the_newest_segment_is_not_merged_and_may_grow() -> None:
    member = Member(MemoryFileSystem()).fill(14).snapshot(13, [4, 8])
    member.compactor.request(RunWanted())
    job = member.compactor.next_job()
    assert job is not None
    member.fill(16)
    outcome = job()
    member.fill(18)
    member.compactor.done(outcome)
    assert member.spans == [(1, 4, 8), (3, 11, 15), (4, 16, 17)]
    member.check()


def test_reads_continue_while_files_are_replaced() -> None:
    member = Member(MemoryFileSystem()).fill(26).snapshot(22, [2, 9, 12, 21])
    plan = member.log.plan([2, 9, 12])
    member.compactor.request(RunWanted())
    job = member.compactor.next_job()
    assert job is not None
    outcome = job()
    assert member.spans[:3] == [(1, 1, 5), (2, 6, 10), (3, 11, 15)], "it was not told yet"
    member.check()
    assert plan.run() == [entry(2), entry(9), entry(12)]
    member.compactor.done(outcome)
    member.check()
    assert plan.run() == [entry(2), entry(9), entry(12)]


def test_only_the_part_of_a_segment_that_counts_is_merged() -> None:
    """Entries that were overwritten before they were committed never come back."""
    member = Member(MemoryFileSystem()).fill(9).fill(14, term=2, first=4).fill(20)
    assert member.spans == [(1, 1, 3), (3, 4, 8), (4, 9, 13), (5, 14, 18), (6, 19, 19)]
    member.snapshot(15, [2, 5, 6, 13])
    member.compact()
    assert member.spans[0] == (1, 2, 13)
    assert member.log.read([2, 5, 6, 13]) == [entry(2), entry(5, 2), entry(6, 2), entry(13, 2)]
    again = Member(member.disk.kill_clone())
    assert again.spans == member.spans
    again.check()


def test_unreferenced_files_are_deleted_by_the_next_run() -> None:
    member = Member(MemoryFileSystem()).fill(17)
    fs = FaultyFileSystem(member.fs, [Fault("remove", "*", kind="EIO")])
    member.compactor.named._fs = fs
    member.snapshot(15, [])
    assert isinstance(member.compact(merge=False).failure, OSError)
    assert (member.spans, member.files) == ([(4, 16, 16)], [1, 2, 3, 4])
    member.compact(merge=False)
    member.compact(merge=False)
    assert member.files == [number for number, _, _ in member.spans]


def test_links_are_removed_a_minute_later() -> None:
    member = Member(MemoryFileSystem(), GroupCompactionSettings(after_drops=None))
    member.fill(26).snapshot(22, [2, 9, 12, 21]).compact()
    assert member.links == [2, 3]
    member.clock.advance(59)
    assert member.compactor.next_job() is None
    member.clock.advance(2)
    job = member.compactor.next_job()
    assert job is not None
    member.compactor.done(job())
    assert member.links == []
    assert member.compactor.next_job() is None
    member.check()


def test_links_are_kept_until_the_merge_is_applied_also_if_the_clock_is_set_back() -> None:
    clock = ManualClock()
    member = Member(MemoryFileSystem(clock=clock), GroupCompactionSettings(after_drops=None))
    member.fill(26).snapshot(22, [2, 9, 12, 21])
    member.compactor.request(RunWanted())
    job = member.compactor.next_job()
    assert job is not None
    clock.jump(-3600)
    outcome = job()
    # Readers still look for the entries where they were.
    member.check()
    member.compactor.done(outcome)
    member.check()


def test_links_are_removed_at_the_next_start_because_their_numbers_may_be_given_out() -> None:
    fs = MemoryFileSystem()
    member = Member(fs).fill(6).write(21).snapshot(16, [2, 7, 12]).roll()
    member.fill(19, term=2, first=17).compact()
    assert (member.spans, member.links) == ([(1, 2, 12), (4, 17, 18)], [2])
    member.write(19, term=3, first=17)
    again = Member(fs.kill_clone())
    assert (again.spans, again.files, again.links) == ([(1, 2, 12)], [1], [])
    again = Member(again.disk.kill_clone())
    again.roll().check()
    assert again.spans == [(1, 2, 12), (3, 17, 18)], "nothing is appended to a merged segment"


def test_a_missing_live_index_is_reported_as_lost_and_nothing_changes() -> None:
    member = Member(MemoryFileSystem()).fill(26).snapshot(22, [2, 9, 12, 21])
    member.compact()
    before = member.spans
    member.fill(32)
    member.snapshot(26, [2, 4, 9, 12, 21])
    failure = member.compact().failure
    assert isinstance(failure, EntriesLost)
    assert (failure.group, failure.index) == (GROUP, 4)
    assert member.spans[:2] == before
    assert not [name for name in member.fs.list(DIRECTORY) if "compacting" in name]


def test_a_damaged_entry_is_found_when_it_is_copied_and_not_spread() -> None:
    """[H6] A copy that took CRCs over unchecked would make damage look like what was written."""
    fs = MemoryFileSystem()
    member = Member(fs).fill(26).snapshot(22, [2, 9, 12, 21])
    path = f"{DIRECTORY}/{segment_name(2)}"
    with fs.open_read(path) as file:
        at = file.pread(file.size(), 0).index(b"value 9")
    fs.flip(path, at)
    failure = member.compact().failure
    assert isinstance(failure, DamagedFrame)
    assert member.files == [1, 2, 3, 5], "the sources are as they were"
    assert not [name for name in fs.list(DIRECTORY) if "compacting" in name]


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO", "SHORT"])
def test_the_run_after_a_failed_one_succeeds(kind: str) -> None:
    """[H4] Such as a target that is there already, with a part of another run in it."""
    for nth in range(1, 100):
        disk = MemoryFileSystem()
        Member(disk).fill(26).snapshot(22, [2, 9, 12, 21]).storage.close()
        fs = FaultyFileSystem(disk.kill_clone(), [])
        member = Member(fs)
        fs.add(Fault("mutating", "*", nth, count=2, kind=kind))
        if member.compact().failure is None:
            break
        member.check()
        fs.clear()
        member.snapshot(24, [9, 12, 21])
        member.compact()
        member.compact()
        member.check()
        assert [last for _, _, last in member.spans] == [12, 25]
        assert member.files == [number for number, _, _ in member.spans]
    assert nth > 12


def test_a_merge_that_is_half_done_is_finished_before_anything_is_dropped() -> None:
    """The merged file has the place of the oldest segment, and has entries of its neighbours."""
    disk = MemoryFileSystem()
    fs = FaultyFileSystem(disk, [])
    member = Member(fs).fill(26).snapshot(22, [2, 9, 12, 21])
    # The second link cannot be made, now and when it is tried again at once.
    fs.add(Fault("symlink", "*0003.link", count=2, kind="ENOSPC"))
    assert isinstance(member.compact().failure, RunFailed)
    assert member.links == [2]
    member.snapshot(24, [9, 12, 21])
    job = member.compactor.next_job()
    assert job is not None
    member.compactor.done(job())
    assert member.spans[:2] == [(1, 2, 12), (5, 21, 25)]
    member.compact()
    member.check()


def test_a_read_of_an_index_that_died_after_the_plan_fails() -> None:
    """[H7] Whether its segment was dropped or merged: that is no error of a file."""
    member = Member(MemoryFileSystem()).fill(26).snapshot(22, [2, 9, 12, 21])
    dropped, merged = member.log.plan([16]), member.log.plan([8])
    member.compact()
    for plan, index in ((dropped, 16), (merged, 8)):
        with pytest.raises(EntryDeleted) as gone:
            plan.run()
        assert gone.value.index == index


def test_a_segment_merged_during_a_read_is_found_again() -> None:
    """[H7] The reader had decided on a file, which was removed before it could be opened."""
    member = Member(MemoryFileSystem()).fill(26).snapshot(22, [2, 9, 12, 21])
    segments = member.log.segments
    spans = segments.spans
    member.compact()
    after, segments.spans = segments.spans, spans
    opened = segments.plan

    def plan(indexes: list[int]) -> list[tuple[SegmentRef, list[int]]]:
        found = opened(indexes)
        segments.spans = after
        return found

    segments.plan = plan  # type: ignore[method-assign,assignment]
    assert segments.read([16]) == {}


def test_a_directory_can_be_moved_while_links_are_in_it(tmp_path: Path) -> None:
    """[H8] Links name a file of their own directory."""
    fs = LocalFileSystem()
    member = Member(fs, root=f"{tmp_path}/old").fill(26).snapshot(22, [2, 9, 12, 21])
    member.compact()
    assert member.links == [2, 3]
    member.storage.close()
    os.rename(tmp_path / "old", tmp_path / "new")
    directory = f"{tmp_path}/new/groups/{GROUP}"
    merged = fs.open_read(f"{directory}/{segment_name(1)}").pread(10_000, 0)
    for number in (2, 3):
        with fs.open_read(f"{directory}/{segment_name(number)}") as file:
            assert file.pread(10_000, 0) == merged
