"""When segments are merged without being asked, and that one compaction runs at a time."""

from __future__ import annotations

import pytest

from lithify.errors import InvalidSetting
from lithify.fs import MemoryFileSystem
from lithify.raft.compaction.settings import CompactionSettings
from tests.unit.raft.stored import Member

BY_CALL = {"after_drops": None}


def member(**settings: float | None) -> Member:
    """Seven segments, all entries live."""
    found = Member(MemoryFileSystem(), CompactionSettings(**{**BY_CALL, **settings}))  # type: ignore[arg-type]
    return found.fill(33).snapshot(30, range(1, 31))


def due(found: Member) -> bool:
    """Do what is due; was there a merge?"""
    merges = found.compactor.merges
    while (job := found.compactor.next_job()) is not None:
        found.compactor.done(job())
    found.check()
    return found.compactor.merges > merges


def test_nothing_is_merged_unless_somebody_asks() -> None:
    found = member()
    for index in (31, 32):
        found.snapshot(index, [1, 7])
        assert not due(found)
    found.compactor.ask(merge=True)
    assert due(found)
    assert found.spans == [(1, 1, 7), (7, 31, 32)]
    assert not due(found)


def test_after_so_many_runs_of_phase_1() -> None:
    found = member(after_drops=3)
    assert [due(found.snapshot(31 + n, [1, 7])) for n in range(2)] == [False, False]
    found.fill(40)
    assert [due(found.snapshot(33 + n, [1, 7])) for n in range(4)] == [True, False, False, True]


def test_when_a_share_of_the_entries_is_dead() -> None:
    found = member(dead_ratio=0.5)
    assert not due(found.snapshot(31, range(1, 26)))
    assert not due(found.snapshot(32, [*range(1, 11), 12, 14, 17, 19]))
    found.fill(40)
    assert due(found.snapshot(34, [1, 6, 7, 12, 14, 17, 19]))


def test_what_could_not_be_merged_is_no_reason_to_try_again() -> None:
    found = member(dead_ratio=0.3)
    scattered = [index for index in range(1, 31) if index % 5 in (0, 1, 2)]
    assert due(found.snapshot(31, scattered))
    assert found.compactor.merges == 1
    assert not due(found.snapshot(32, scattered)), "three of five are live in each, none fit"


def test_when_so_many_bytes_are_dead() -> None:
    found = member(dead_bytes=600)
    assert not due(found.snapshot(31, [index for index in range(1, 31) if index % 5]))
    assert due(found.snapshot(32, [index for index in range(1, 31) if index % 5 > 2]))


def test_every_so_often() -> None:
    found = member(interval_ms=10_000)
    assert not due(found)
    found.snapshot(31, [1, 7])
    assert not due(found)
    found.clock.advance(10)
    assert due(found)
    assert not due(found)


def test_one_at_a_time_and_once_more_if_the_snapshot_has_moved() -> None:
    found = member()
    found.snapshot(31, [1, 7, 30])
    job = found.compactor.next_job()
    assert job is not None
    found.compactor.ask(merge=True)
    assert found.compactor.next_job() is None
    outcome = job()
    found.snapshot(32, [30])
    found.compactor.done(outcome)
    assert due(found), "what was asked for meanwhile is done"
    assert found.spans == [(6, 30, 30), (7, 31, 32)]


def test_phase_1_is_done_again_if_the_snapshot_has_moved_meanwhile() -> None:
    found = member()
    found.compactor.ask(merge=True)
    job = found.compactor.next_job()
    assert job is not None
    found.snapshot(32, [30])
    found.compactor._drop_wanted = False
    found.compactor.done(job())
    assert not due(found)
    assert [number for number, _, _ in found.spans] == [6, 7]


def test_a_failure_is_not_tried_again_at_once() -> None:
    found = member()
    found.compactor.ask(merge=True)
    assert found.compactor.next_job() is not None
    found.compactor.done(OSError("the disk is gone"))
    assert str(found.compactor.failure) == "the disk is gone"
    assert found.compactor.next_job() is None
    found.snapshot(31, [1, 7])
    assert due(found), "it was asked for, and still is wanted"
    assert found.compactor.failure is None
    assert found.spans[0] == (1, 1, 7)


@pytest.mark.parametrize(
    ("name", "value"), [("after_drops", 0), ("dead_ratio", 1.5), ("interval_ms", 0)]
)
def test_settings_have_limits(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match=name):
        CompactionSettings(**{name: value})  # type: ignore[arg-type]
