"""A run beside writers, readers, retention and other runs, and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.limits.budget import Budget
from lithify.compaction.live_set_rules.rule_interface import GivenLiveSet
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.run.control import RunControl
from lithify.errors import PlanStale, RunCancelled, RunRefused
from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from tests.unit.compaction.logs import (
    DIRECTORY,
    Interrupted,
    body_of,
    compactor_of,
    contents,
    fill,
    open_log,
    positions,
    sealed,
    strays,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion, SegmentJudgement
    from lithify.compaction.run.compactor import Compactor
    from lithify.log.log import Log

EVEN = range(0, 10_000, 2)
ONE_GROUP_A_SEGMENT = Limits(target_bytes_max=5 * 132, target_entries_max=1000)


def new_log(segments: int = 4) -> tuple[MemoryFileSystem, Log]:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments)
    return fs, log


def interrupted(
    log: Log, fs: MemoryFileSystem, between: Callable[[Compactor], None]
) -> tuple[Compactor, Interrupted]:
    """A compactor of four groups that calls `between` before each."""
    jobs = Interrupted(lambda: between(compactor))
    compactor = compactor_of(log, fs, EVEN, limits=ONE_GROUP_A_SEGMENT, jobs=jobs)
    return compactor, jobs


# --- writers, readers, retention ------------------------------------------------------------


def test_appends_and_rolls_continue_while_a_run_copies() -> None:
    fs, log = new_log()
    appended: list[int] = []

    def append(_: Compactor) -> None:
        appended.append(log.append(b"meanwhile").result())
        log.roll()

    compactor, jobs = interrupted(log, fs, append)
    report = compactor.run()
    assert len(jobs.tasks) == 4
    assert report.horizon == 39
    expected = {at: body_of(at) for at in range(0, 40, 2)}
    assert contents(log) == expected | dict.fromkeys(appended, b"meanwhile")
    assert appended == [40, 41, 42, 43]
    log.close()
    assert contents(open_log(fs)) == expected | dict.fromkeys(appended, b"meanwhile")


def test_a_reader_of_the_old_generation_still_reads_everything_it_saw() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, EVEN)
    with log.snapshot("slow report") as snapshot:
        first = [entry.position for entry in snapshot.read(limit=5)]
        compactor.run()
        assert compactor.reclaim().files == 0
        rest = [entry.position for entry in snapshot.read(start=5)]
        assert first + rest == list(range(40))
        assert positions(log) == list(range(0, 40, 2))


def test_reclaim_waits_for_the_reader_and_names_it() -> None:
    fs, log = new_log()
    old = [segment.name for segment in sealed(log)]
    compactor = compactor_of(log, fs, EVEN)
    with log.snapshot("slow report"):
        compactor.run()
        assert compactor.reclaim().files == 0
        assert [pin.owner for pin in log.pins()] == ["slow report"]
        assert all(fs.exists(f"{DIRECTORY}/{name}") for name in old)
    done = compactor.reclaim()
    assert done.files == len(old)
    assert not any(fs.exists(f"{DIRECTORY}/{name}") for name in old)
    assert log.manifest.retired == ()


def test_a_reader_that_starts_after_the_run_blocks_no_deletion() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, EVEN)
    compactor.run()
    with log.snapshot("late"):
        assert compactor.reclaim().files == 4


def test_a_reader_continues_in_the_new_generation_with_gaps_but_no_repeats() -> None:
    fs, log = new_log()
    with log.snapshot("before") as snapshot:
        seen = [entry.position for entry in snapshot.read(limit=13)]
    compactor = compactor_of(log, fs, EVEN)
    compactor.run()
    compactor.reclaim()
    with log.snapshot("after") as snapshot:
        seen += [entry.position for entry in snapshot.read(start=seen[-1] + 1)]
    assert seen == [*range(13), *range(14, 40, 2)]


def test_a_segment_dropped_by_retention_while_a_run_copies_rolls_it_back() -> None:
    fs, log = new_log()
    retention = [10]

    def drop_head(_: Compactor) -> None:
        for before in retention:
            log.drop_head(before)

    compactor, _ = interrupted(log, fs, drop_head)
    with pytest.raises(PlanStale, match=r"000000000001\.seg was dropped"):
        compactor.run()
    assert positions(log) == list(range(10, 40))
    assert not strays(fs, log)
    (report,) = compactor.history.newest(9)
    assert report.result == "rolled back"
    assert report.dropped == {}
    retention.clear()
    assert compactor.run().result == "done"
    assert positions(log) == list(range(10, 40, 2))


def test_retention_does_not_disturb_a_run_that_did_not_judge_what_it_drops() -> None:
    fs, log = new_log()
    compactor_of(log, fs, EVEN, in_view=True).run()
    fill(log, 1)

    def drop_head() -> None:
        log.drop_head(before=40)

    jobs = Interrupted(drop_head)
    compactor = compactor_of(log, fs, EVEN, in_view=True, jobs=jobs)
    assert compactor.run().result == "done"
    assert positions(log) == list(range(40, 50))
    assert positions(log, compacted=True) == list(range(0, 50, 2))


# --- cancelling -----------------------------------------------------------------------------


@pytest.mark.parametrize("groups_before", [0, 2])
def test_a_run_cancelled_while_it_copies_leaves_the_log_as_it_was(groups_before: int) -> None:
    fs, log = new_log()
    before, files = log.manifest, fs.list(DIRECTORY)
    calls: list[int] = []

    control = RunControl()

    def cancel(_: Compactor) -> None:
        calls.append(1)
        if len(calls) > groups_before:
            control.cancel()

    compactor, _ = interrupted(log, fs, cancel)
    with pytest.raises(RunCancelled):
        compactor.run(control=control)
    assert len(calls) == groups_before + 1
    assert log.manifest == before
    assert set(fs.list(DIRECTORY)) - {"HISTORY"} == set(files)
    assert positions(log) == list(range(40))
    (report,) = compactor.history.newest(9)
    assert report.result == "cancelled"
    assert (report.generation_before, report.generation_after) == (before.generation,) * 2
    assert (report.dropped, report.retired_bytes) == ({}, 0)


class Impatient:
    """The run is cancelled while its rule still judges."""

    def __init__(self) -> None:
        self.control = RunControl()

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        self.control.cancel()
        return GivenLiveSet(LiveSet.from_iterable(EVEN)).judge(question)

    def facts(self) -> dict[str, object]:
        return {}


def test_a_run_cancelled_before_it_copies_publishes_nothing() -> None:
    fs, log = new_log()
    before = log.manifest
    rule = Impatient()
    compactor = compactor_of(log, fs, rule, policy="whole-dead")
    with pytest.raises(RunCancelled):
        compactor.run(control=rule.control)
    assert log.manifest == before
    assert strays(fs, log) == []


# --- budget ---------------------------------------------------------------------------------


def test_a_run_that_needs_more_scratch_space_than_it_may_use_is_refused() -> None:
    fs, log = new_log()
    before, files = log.manifest, fs.list(DIRECTORY)
    compactor = compactor_of(log, fs, EVEN, budget=Budget(scratch_bytes=1000))
    with pytest.raises(RunRefused, match="needs 2800 bytes") as raised:
        compactor.run()
    assert raised.value.limit == "scratch space"
    assert log.manifest == before
    assert fs.list(DIRECTORY) == files


def test_a_run_that_needs_more_than_the_disk_has_is_refused() -> None:
    fs = MemoryFileSystem(capacity_bytes=9500)
    log = open_log(fs)
    fill(log, 4)
    files = fs.list(DIRECTORY)
    with pytest.raises(RunRefused) as raised:
        compactor_of(log, fs, EVEN).run()
    assert raised.value.limit == "scratch space"
    assert fs.list(DIRECTORY) == files
    assert log.append(b"continues").result() == 40
    assert compactor_of(log, fs, []).run().result == "done"


def test_a_run_that_only_drops_needs_no_scratch_space() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, range(20, 40), budget=Budget(scratch_bytes=0), policy="stats")
    assert compactor.run().result == "done"
    assert positions(log) == list(range(20, 40))


@pytest.mark.parametrize("what", ["read_bytes_per_s", "write_bytes_per_s"])
def test_the_rates_of_the_budget_limit_the_run(what: str) -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=8, entries=16, body_bytes=1024 - 32)
    clock = ManualClock()
    rate = 16 << 10
    limits = Limits(target_bytes_max=16 << 10, target_entries_max=1000)
    budget = Budget(**{what: rate})
    compactor = compactor_of(log, fs, EVEN, clock=clock, budget=budget, limits=limits)
    begun = clock.monotonic_s()
    report = compactor.run()
    took_s = clock.monotonic_s() - begun
    # Of each segment, half is live, but all of it is one block and is read: once by the rule, which
    # measures what is live, and once by the rewrite.
    moved = (256 << 10) if what == "read_bytes_per_s" else (64 << 10)
    assert took_s == pytest.approx(moved / rate, rel=0.01)
    assert sum(report.seconds_by_phase.values()) == pytest.approx(took_s)
    assert positions(log) == list(range(0, 128, 2))


def test_retired_files_are_deleted_no_faster_than_the_budget_says() -> None:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments=8, entries=16, body_bytes=1024 - 32)
    clock = ManualClock()
    rate = 16 << 10
    compactor = compactor_of(log, fs, [], clock=clock, budget=Budget(delete_bytes_per_s=rate))
    compactor.run()
    begun = clock.monotonic_s()
    done = compactor.reclaim()
    assert done.bytes > 128 << 10
    assert clock.monotonic_s() - begun == pytest.approx((done.bytes - rate // 10) / rate, rel=0.01)
