"""When segments are merged without being asked, and that one compaction runs at a time."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import structlog

from lithify.compaction.limits.latencies import Latencies
from lithify.compaction.limits.one_run_per_disk import DiskGate, find_gate_directory
from lithify.compaction.limits.pace_by_latency import PaceSettings
from lithify.compaction.reports.report import Report
from lithify.compaction.run.compactor import DryRun
from lithify.compaction.run.control import RunControl
from lithify.compaction.scheduling.triggers import Observation, Trigger
from lithify.errors import (
    InvalidSetting,
    LithifyError,
    LogClosed,
    RunCancelled,
    RunFailed,
    RunRefused,
    RunSuspended,
)
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.fs.checked_lines import encode_line
from lithify.log.file_names import HISTORY
from lithify.raft.compaction import write_merged_segments
from lithify.raft.compaction.group_compaction import CompactionOutcome, GroupCompaction, RunWanted
from lithify.raft.compaction.settings import GroupCompactionSettings
from tests.unit.raft.stored import LIMITS, Member

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.compaction.limits.one_run_per_disk import DiskTurn
    from lithify.events import OrphanRemoved
    from lithify.log.manifest import Manifest

BY_CALL = {"after_drops": None}


def member(**settings: float | None) -> Member:
    """Seven segments, all entries live."""
    found = Member(MemoryFileSystem(), GroupCompactionSettings(**{**BY_CALL, **settings}))  # type: ignore[arg-type]
    return found.fill(33).snapshot(30, range(1, 31))


def due(found: Member) -> bool:
    """Do what is due, as the queue of a node would ask for it; was there a merge?"""
    merges = found.compactor.merges
    while (job := found.compactor.next_job()) is not None:
        found.compactor.done(job())
        if found.compactor.observe().reached:
            found.compactor.request(RunWanted(Trigger.THRESHOLD))
    found.check()
    return found.compactor.merges > merges


def test_nothing_is_merged_without_a_request() -> None:
    found = member()
    for index in (31, 32):
        found.snapshot(index, [1, 7])
        assert not due(found)
    found.compactor.request(RunWanted())
    assert due(found)
    assert found.spans == [(1, 1, 7), (7, 31, 32)]
    assert not due(found)


def test_a_merge_after_enough_runs_of_phase_1() -> None:
    found = member(after_drops=3)
    assert [due(found.snapshot(31 + n, [1, 7])) for n in range(2)] == [False, False]
    found.fill(40)
    assert [due(found.snapshot(33 + n, [1, 7])) for n in range(4)] == [True, False, False, True]


def test_a_merge_when_a_share_of_the_entries_is_dead() -> None:
    found = member(dead_ratio=0.5)
    assert not due(found.snapshot(31, range(1, 26)))
    assert not due(found.snapshot(32, [*range(1, 11), 12, 14, 17, 19]))
    found.fill(40)
    assert due(found.snapshot(34, [1, 6, 7, 12, 14, 17, 19]))


def test_segments_that_could_not_be_merged_trigger_no_retry() -> None:
    found = member(dead_ratio=0.3)
    scattered = [index for index in range(1, 31) if index % 5 in (0, 1, 2)]
    assert due(found.snapshot(31, scattered))
    assert found.compactor.merges == 1
    assert not due(found.snapshot(32, scattered)), "three of five are live in each, none fit"


def test_a_merge_when_enough_bytes_are_dead() -> None:
    found = member(dead_bytes=600)
    assert not due(found.snapshot(31, [index for index in range(1, 31) if index % 5]))
    assert due(found.snapshot(32, [index for index in range(1, 31) if index % 5 > 2]))


def test_a_merge_at_each_interval() -> None:
    found = member(interval_ms=10_000)
    assert found.compactor.observe() == Observation(period_ms=10_000)


def test_one_job_at_a_time_and_another_if_the_snapshot_has_moved() -> None:
    found = member()
    found.snapshot(31, [1, 7, 30])
    job = found.compactor.next_job()
    assert job is not None
    found.compactor.request(RunWanted())
    assert found.compactor.next_job() is None
    outcome = job()
    found.snapshot(32, [30])
    found.compactor.done(outcome)
    assert due(found), "what was asked for meanwhile is done"
    assert found.spans == [(6, 30, 30), (7, 31, 32)]


def test_phase_1_is_repeated_if_the_snapshot_has_moved() -> None:
    found = member()
    found.compactor.request(RunWanted())
    job = found.compactor.next_job()
    assert job is not None
    found.snapshot(32, [30])
    found.compactor._drop_wanted = False
    found.compactor.done(job())
    assert not due(found)
    assert [number for number, _, _ in found.spans] == [6, 7]


def test_a_failure_is_not_retried_at_once() -> None:
    found = member()
    found.compactor.request(RunWanted())
    assert found.compactor.next_job() is not None
    found.compactor.done(OSError("the disk is gone"))
    assert str(found.compactor.failure) == "the disk is gone"
    assert found.compactor.next_job() is None
    found.snapshot(31, [1, 7])
    assert not due(found), "the caller was answered"
    found.compactor.request(RunWanted())
    assert due(found)
    assert found.compactor.failure is None
    assert found.spans[0] == (1, 1, 7)


def test_a_request_that_waits_for_a_job_that_fails_is_carried_out() -> None:
    found, ended = member(), list[Report | LithifyError]()
    found.snapshot(31, [1, 7, 30])
    job = found.compactor.next_job()
    assert job is not None
    found.compactor.request(RunWanted(ended=ended.append))
    outcome = job()
    assert isinstance(outcome, CompactionOutcome)
    outcome.failure = OSError("a file cannot be removed")
    found.compactor.done(outcome)
    assert due(found)
    assert [type(each) for each in ended] == [Report]


def test_waiting_requests_end_with_the_error_of_the_failed_cleanup() -> None:
    found, ended = member(), list[object]()
    found.compactor.request(RunWanted())
    assert found.compactor.next_job() is not None
    found.compactor.done(OSError("the disk is gone"))
    found.compactor.request(RunWanted(ended=ended.append))
    found.compactor.plan(ended.append)
    assert found.compactor.next_job() is not None
    found.compactor.done(OSError("the disk is still gone"))
    assert [type(each) for each in ended] == [RunFailed, RunFailed]
    assert "the disk is still gone" in str(ended[0])
    assert found.compactor.next_job() is None, "it is not retried at once"


@pytest.mark.parametrize(
    ("name", "value"), [("after_drops", 0), ("dead_ratio", 1.5), ("interval_ms", 0)]
)
def test_settings_have_limits(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match=name):
        GroupCompactionSettings(**{name: value})  # type: ignore[arg-type]


# --- runs of the kernel -------------------------------------------------------------------------


def sparse() -> Member:
    """Of seven segments 3 and 5 are dead; 1, 2 and 4 fit into one."""
    found = Member(MemoryFileSystem(), GroupCompactionSettings(**BY_CALL))  # type: ignore[arg-type]
    return found.fill(33).snapshot(31, [1, 7, 16, 17, 18, 26, 27, 28, 29, 30])


def test_a_dry_run_predicts_the_run_and_changes_nothing() -> None:
    found = sparse()
    found.compact(merge=False)
    before = found.spans
    dry = found.plan()
    assert found.spans == before
    assert [group.sources for group in dry.plan.groups] == [(1, 2, 4)]
    text = dry.explain()
    assert text.startswith("horizon 30, held by active segment (owner log); next: snapshot")
    assert "policy neighbours" in text
    assert not found.fs.exists(f"{found.own.directory}/HISTORY")
    report = found.compact().report
    assert report is not None
    assert report.result == "done"
    assert found.spans == [(1, 1, 18), (6, 26, 30), (7, 31, 32)]
    assert found.plan().declined is not None, "there is nothing left to gain"


def test_a_request_during_a_dry_run_or_a_run_gets_another_run() -> None:
    found, ended = sparse(), list[Report | LithifyError]()
    plans = list[DryRun | LithifyError]()
    found.compactor.plan(plans.append)
    job = found.compactor.next_job()
    assert job is not None
    found.compactor.request(RunWanted(ended=ended.append))
    assert found.compactor.next_job() is None
    found.compactor.done(job())
    assert len(plans) == 1
    job = found.compactor.next_job()
    assert job is not None
    found.compactor.request(RunWanted(ended=ended.append))
    assert found.compactor.next_job() is None
    assert not ended
    found.compactor.done(job())
    assert due(found)
    assert [each.result for each in ended if isinstance(each, Report)] == ["done", "nothing to do"]


def test_a_dry_run_has_what_phase_1_would_drop() -> None:
    dry = member().snapshot(31, [1, 7]).plan()
    assert [dropped.segment for dropped in dry.plan.dropped] == [3, 4, 5, 6]
    assert dry.plan.segments_freed == 5


def test_a_run_has_a_report_with_all_that_it_removed_which_survives_a_restart() -> None:
    found = sparse()
    report = found.compact().report
    assert report is not None
    assert (report.trigger, report.policy, report.log) == (
        "admin",
        "neighbours",
        found.own.directory,
    )
    assert (report.read_entries, report.kept_entries) == (30, 10)
    ((entries, size),) = report.dropped.values()
    assert entries == 20
    assert size > 0
    assert report.reclaimed_bytes > 0
    assert set(report.seconds_by_phase) == {"PREPARE", "COPY", "COMMIT", "CLEANUP"}
    assert found.compactor.status().state == "SUCCESS"
    again = Member(found.disk.kill_clone())
    assert again.compactor.history.newest(10) == [report]
    assert again.compactor.status().report == report


def flip(line: bytes) -> bytes:
    return line[:20] + bytes([line[20] ^ 1]) + line[21:]


def renumber(line: bytes) -> bytes:
    """As a later version would write it."""
    return encode_line(json.dumps(json.loads(line[9:]) | {"version": 99}))


@pytest.mark.parametrize("damage", [flip, renumber])
def test_a_history_that_cannot_be_used_is_set_aside_and_stops_no_run(
    damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    structlog.reset_defaults()
    found = sparse()
    assert found.compact().report is not None
    path = f"{found.own.directory}/{HISTORY}"
    damaged = b"".join(map(damage, read_file(found.fs, path).splitlines(keepends=True)))
    write_atomic(found.fs, path, damaged)
    again = Member(found.disk.kill_clone())
    caplog.clear()
    assert again.compactor.status().report is None
    report = again.fill(50).snapshot(48, [1, 40]).compact().report
    assert report is not None
    assert report.result == "done"
    assert again.compactor.history.newest(10) == [report]
    assert read_file(again.fs, f"{path}.damaged-1") == damaged
    (line,) = [each.getMessage() for each in caplog.records]
    assert "side file set aside" in line
    assert path in line
    # It is no file of the group, and stays.
    last = Member(again.disk.kill_clone())
    last.check()
    assert last.fs.exists(f"{path}.damaged-1")
    assert last.compactor.history.newest(10) == [report]


def test_a_run_with_nothing_to_do_has_a_reason_and_is_not_in_the_history() -> None:
    found = member()
    report = found.compact().report
    assert report is not None
    assert report.result == "nothing to do"
    assert report.declined is not None
    assert found.compactor.history.newest(10) == []
    assert found.compactor.status().report == report


def test_a_report_names_what_began_the_run() -> None:
    found = member(after_drops=1)
    assert due(found.snapshot(31, [1, 7]))
    assert found.compactor.history.newest(1)[0].trigger == "threshold"


def test_a_threshold_is_due_until_a_run_starts_and_again_after_it_failed() -> None:
    found = member(after_drops=2)
    assert not due(found)
    found.snapshot(31, [1, 7])
    job = found.compactor.next_job()
    assert job is not None
    found.compactor.done(job())
    assert found.compactor.observe().reached == "2 drops, threshold 2"
    found.compactor.request(RunWanted(Trigger.THRESHOLD))
    assert found.compactor.next_job() is not None
    assert not found.compactor.observe().reached
    found.compactor.done(OSError("the disk is gone"))
    assert "has failed" in found.compactor.observe().reached


def disk_of(found: Member) -> DiskTurn:
    """The disk, as another process has it that compacts."""
    gate = DiskGate(found.fs, find_gate_directory(found.fs, os.environ))
    return gate.enter(found.own.directory, "pid 7 compacts another log")


def test_without_a_queue_a_run_is_refused_while_the_disk_is_in_use_and_phase_1_is_not() -> None:
    found, told = member(), list[Report | LithifyError]()
    with disk_of(found):
        found.snapshot(31, [1, 7, 12])
        found.compactor.request(RunWanted(ended=told.append))
        assert not due(found)
        assert found.files == [1, 2, 3, 7], "what is dead goes at once"
        refused = told.pop()
        assert isinstance(refused, RunRefused)
        assert refused.waits_for == "disk: pid 7 compacts another log"
        assert found.compactor.failure is None
        found.snapshot(32, [1, 7])
        assert not due(found)
        assert found.files == [1, 2, 7]
    found.compactor.request(RunWanted(ended=told.append))
    assert due(found)
    assert isinstance(told.pop(), Report)
    assert found.spans == [(1, 1, 7), (7, 31, 32)]
    assert found.compactor.status().state == "SUCCESS"


def test_a_request_that_holds_the_disk_runs() -> None:
    found = sparse()
    with disk_of(found):
        found.compactor.request(RunWanted(control=RunControl(has_disk=True)))
        assert due(found)


def test_a_run_that_is_cancelled_before_the_worker_begins_it_does_nothing() -> None:
    found, told = sparse(), list[Report | LithifyError]()
    wanted = RunWanted(ended=told.append)
    found.compactor.request(wanted)
    job = found.compactor.next_job()
    assert job is not None
    wanted.control.cancel()
    found.compactor.done(job())
    assert isinstance(told.pop(), RunCancelled)
    assert found.compactor.failure is None
    found.check()


def test_progress_goes_through_all_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_merged_segments, "PORTION_BYTES", 1)
    found = Member(MemoryFileSystem(), GroupCompactionSettings(**BY_CALL))  # type: ignore[arg-type]
    found.fill(43).snapshot(41, [1, 2, 7, 8, 11, 12, 17, 18, 22, 27])
    seen: list[tuple[str, int, int]] = []
    told: list[Report | LithifyError] = []
    wanted = RunWanted(control=RunControl(lambda *step: seen.append(step)), ended=told.append)
    found.compactor.request(wanted)
    assert due(found)
    assert len(found.spans) == 4
    copied = [(done, total) for phase, done, total in seen if phase == "rewrite"]
    assert copied == sorted(copied), "it never goes back"
    assert len({total for _, total in copied}) == 1
    assert copied[-1][0] == copied[-1][1] > 0


def test_a_disk_with_little_room_is_compacted_in_small_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Member(MemoryFileSystem(), GroupCompactionSettings(**BY_CALL))  # type: ignore[arg-type]
    found.fill(43).snapshot(41, [1, 2, 7, 8, 11, 12, 17, 18, 22, 27])
    published: list[int] = []
    named = found.compactor.named
    publish = named.publish

    def counted(edit: Callable[[Manifest], Manifest], why: str) -> Manifest:
        published.append(1)
        return publish(edit, why)

    monkeypatch.setattr(named, "publish", counted)
    monkeypatch.setattr(found.disk, "free_bytes", lambda _: 500)
    assert found.compact().failure is None
    assert len(published) == 3
    found.check()


def test_a_run_is_refused_where_not_even_one_target_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sparse()
    monkeypatch.setattr(found.disk, "free_bytes", lambda _: 100)
    failure = found.compact().failure
    assert isinstance(failure, RunRefused)
    assert "needs" in str(failure)
    assert found.compactor.status().state == "ERROR"
    found.check()


def test_requests_to_a_closed_group_do_not_wait() -> None:
    found, told, plans = sparse(), list[Report | LithifyError](), list[DryRun | LithifyError]()
    found.compactor.request(RunWanted(ended=told.append))
    found.compactor.plan(plans.append)
    job = found.compactor.next_job()
    assert job is not None
    error = LogClosed("it is gone")
    found.compactor.close(error)
    assert (told, plans) == ([error], [error])
    found.compactor.done(job())
    found.compactor.request(RunWanted(ended=told.append))
    found.compactor.plan(plans.append)
    assert (told, plans) == ([error, error], [error, error])
    assert not due(found)


def test_closing_stops_a_run_that_is_about_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sparse()
    found.compactor.request(RunWanted())
    job = found.compactor.next_job()
    assert job is not None
    named = found.compactor.named
    sweep = named.sweep

    def closing() -> list[OrphanRemoved]:
        monkeypatch.setattr(named, "sweep", sweep)
        found.compactor.close(LogClosed("it is gone"))
        return sweep()

    monkeypatch.setattr(named, "sweep", closing)
    outcome = job()
    assert isinstance(outcome.failure, RunSuspended)
    assert outcome.report is None


def test_a_hold_keeps_segments_from_drops_and_runs_and_a_dry_run_names_it() -> None:
    found = member()
    with found.compactor.holds.place("index build", 12, "orders_by_date"):
        found.snapshot(31, [1, 7])
        found.compact()
        assert found.spans[:3] == [(1, 1, 7), (3, 11, 15), (4, 16, 20)]
        text = found.plan().explain()
        assert text.startswith("horizon 12, held by index build (owner orders_by_date)")
    found.compact()
    assert found.spans == [(1, 1, 7), (7, 31, 32)]


def test_a_hold_that_is_released_while_a_run_begins_binds_that_run() -> None:
    """A dead segment that the group still refers to must not lie inside a merged one."""
    found = member()
    hold = found.compactor.holds.place("index build", 7)
    found.snapshot(31, [7, 17, 27])
    found.compactor.request(RunWanted())
    job = found.compactor.next_job()
    assert job is not None
    hold.release()
    outcome = job()
    assert outcome.failure is None
    found.compactor.done(outcome)
    found.check()
    Member(found.disk.kill_clone()).check()
    found.compact()
    assert found.spans == [(2, 7, 27), (7, 31, 32)]
    Member(found.disk.kill_clone()).check()


def test_a_run_slows_down_while_appends_wait_and_recovers() -> None:
    latencies, rates = Latencies(), list[int | None]()
    found = sparse()
    pace = PaceSettings(bytes_per_s_min=2**20, bytes_per_s_max=2**26)
    settings = GroupCompactionSettings(after_drops=None, pace=pace)
    found.compactor = GroupCompaction(
        found.fs, found.own.directory, found.log, LIMITS, found.clock, settings, latencies
    )
    waits_s = iter([0.5] * 10 + [0.001] * 40)

    def watch(phase: str, *_: int) -> None:
        if phase != "rewrite":
            return
        for wait_s in waits_s:
            for _each in range(100):
                latencies.add(wait_s)
            found.clock.advance(0.5)
            found.compactor.pacing.adjust_rate()
            rates.append(found.compactor.pacing.rate.read())

    found.compactor.request(RunWanted(control=RunControl(watch)))
    assert due(found)
    assert rates[:10] == [max(2**26 >> n, 2**20) for n in range(1, 11)]
    assert rates[10:] == [min(2**20 + n * 2**21, 2**26) for n in range(1, 41)]
    assert found.compactor.pacing.rate.read() is None, "the run is over"
