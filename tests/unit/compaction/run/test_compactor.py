"""One run from horizon to report: what it does to the log, and what it says it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.live_set_rules.rule_interface import SegmentJudgement
from lithify.compaction.policies.built_in import POLICIES, Limits
from lithify.compaction.reports.report import Cause
from lithify.errors import DamagedFile, InvalidInput, PlanStale, WriteFailed
from lithify.events import Event, RunFinished, RunPhase, RunRecovered
from lithify.fs import MemoryFileSystem
from lithify.live_set import LiveSet
from lithify.testing.faulty_fs import Fault, FaultyFileSystem, PowerCut
from tests.unit.compaction.logs import (
    DIRECTORY,
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
    from collections.abc import Iterator

    from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion
    from lithify.log.log import Log

FRAME_BYTES = 132
EVEN = range(0, 1000, 2)


def new_log(segments: int = 4) -> tuple[MemoryFileSystem, Log]:
    fs = MemoryFileSystem()
    log = open_log(fs)
    fill(log, segments)
    return fs, log


# --- in place -------------------------------------------------------------------------------


def test_in_place_the_log_has_only_what_is_live() -> None:
    fs, log = new_log()
    log.append(b"still active").result()
    report = compactor_of(log, fs, EVEN).run()
    assert report.result == "done"
    expected = {at: body_of(at) for at in range(0, 40, 2)}
    assert contents(log) == expected | {40: b"still active"}
    assert len(log.manifest.segments) == 2
    assert log.manifest.horizon == report.horizon == 39
    assert log.manifest.last_run == report.run_id
    assert not strays(fs, log)
    log.close()
    assert contents(open_log(fs)) == expected | {40: b"still active"}


def test_positions_continue_where_they_were() -> None:
    fs, log = new_log()
    compactor_of(log, fs, []).run()
    assert positions(log) == []
    assert log.append(b"next").result() == 40


def test_the_whole_log_may_be_dead() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, [])
    report = compactor.run()
    assert (report.kept_entries, report.dropped) == (0, {Cause.UNREFERENCED: (40, 40 * 132)})
    assert len(log.manifest.segments) == 1
    compactor.reclaim()
    log.close()
    assert positions(open_log(fs)) == []


# --- in the view ----------------------------------------------------------------------------


def test_in_the_view_the_log_stays_and_the_view_has_what_is_live() -> None:
    fs, log = new_log()
    before = log.manifest.segments
    compactor_of(log, fs, EVEN, in_view=True).run()
    assert log.manifest.segments == before
    assert positions(log) == list(range(40))
    assert positions(log, compacted=True) == list(range(0, 40, 2))


def test_a_later_run_in_the_view_adds_what_was_sealed_since() -> None:
    fs, log = new_log()
    compactor_of(log, fs, EVEN, in_view=True).run()
    fill(log, segments=2)
    log.append(b"above the horizon").result()
    compactor_of(log, fs, range(0, 1000, 4), in_view=True).run()
    assert positions(log, compacted=True) == [*range(0, 60, 4), 60]
    assert positions(log) == list(range(61))
    assert not strays(fs, log)


def test_the_view_stays_when_the_head_of_the_log_is_dropped() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, EVEN, in_view=True, policy="whole-dead")
    compactor.run()
    log.drop_head(before=20)
    compactor.reclaim()
    assert positions(log) == list(range(20, 40))
    assert positions(log, compacted=True) == list(range(0, 40, 2))
    compactor_of(log, fs, range(0, 1000, 4), in_view=True).run()
    assert positions(log, compacted=True) == list(range(0, 40, 4))


# --- the horizon ----------------------------------------------------------------------------


def test_a_hold_keeps_the_horizon_back_and_is_named() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, [])
    with compactor.holds.place("snapshot", 19, owner="group 3"):
        assert [hold.name for hold in compactor.horizon().blocking] == ["snapshot"]
        explained = compactor.plan().explain()
        assert "horizon 19, held by snapshot (owner group 3)" in explained
        assert "next: active segment at 39" in explained
        assert compactor.run().horizon == 19
        assert positions(log) == list(range(20, 40))
        assert compactor.run().result == "nothing to do"
    assert compactor.run().horizon == 39
    assert positions(log) == []


def test_a_hold_inside_a_segment_keeps_the_whole_segment() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, [])
    with compactor.holds.place("transaction", 25):
        assert compactor.run().horizon == 19
    assert positions(log) == list(range(20, 40))


def test_the_active_segment_is_never_judged() -> None:
    fs, log = new_log(segments=0)
    log.append_many([b"a", b"b"]).result()
    compactor = compactor_of(log, fs, [])
    assert compactor.horizon().blocking[0].name == "active segment"
    assert compactor.run().result == "nothing to do"
    assert positions(log) == [0, 1]


# --- plans ----------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing() -> None:
    disk, log = new_log()
    log.close()
    fs = FaultyFileSystem(disk, record=True)
    log = open_log(fs)
    compactor = compactor_of(log, fs, EVEN)
    before, begun = log.manifest, len(fs.trace)
    plan = compactor.plan().plan
    operations = {line.split()[0] for line in fs.trace[begun:]}
    assert operations <= {"open_read", "size", "pread", "readinto"}
    assert log.manifest == before
    assert plan.bytes_read == 20 * FRAME_BYTES
    report = compactor.run()
    assert report.kept_bytes == plan.bytes_read


OPTIONS = {"hybrid": {"last_full_ms": 0, "now_ms": 10, "full_every_ms": 5}}


@pytest.mark.parametrize("in_view", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_readers_see_what_is_live_and_the_log_settles(
    policy: str, in_view: bool
) -> None:
    fs, log = new_log(segments=6)
    live = {*range(10), 14, 30, *range(40, 50, 2), 55, 59}  # One segment is dead, one whole.
    compactor = compactor_of(
        log, fs, live, policy=policy, options=OPTIONS.get(policy), in_view=in_view
    )
    for _ in range(10):
        report = compactor.run()
        compactor.reclaim()
        assert positions(log, compacted=in_view) == sorted(live)
        assert not strays(fs, log)
        if report.result == "nothing to do":
            break
    else:
        pytest.fail("there is always something to do")
    log.close()
    assert positions(open_log(fs), compacted=in_view) == sorted(live)


def test_an_unknown_policy_is_refused_and_changes_nothing() -> None:
    fs, log = new_log()
    before = fs.list(DIRECTORY)
    with pytest.raises(InvalidInput, match="policy"):
        compactor_of(log, fs, EVEN, policy="everything").run()
    assert set(fs.list(DIRECTORY)) - {"HISTORY"} == set(before)


def test_groups_stay_within_the_limits() -> None:
    fs, log = new_log(segments=6)
    limits = Limits(target_bytes_max=11 * FRAME_BYTES, target_entries_max=1000)
    compactor_of(log, fs, EVEN, limits=limits).run()
    assert [segment.entries for segment in sealed(log)] == [10, 10, 10]


# --- dead sets ------------------------------------------------------------------------------


def test_a_segment_that_is_kept_gets_a_dead_set_that_readers_obey() -> None:
    fs, log = new_log(segments=2)
    report = compactor_of(log, fs, EVEN, policy="whole-dead").run()
    assert report.result == "done"
    for segment in sealed(log):
        assert segment.dead is not None
        assert (segment.dead.entries, segment.live_entries) == (5, 5)
        assert segment.dead.frame_bytes == 5 * FRAME_BYTES
    assert positions(log) == list(range(0, 20, 2))
    log.close()
    assert positions(open_log(fs)) == list(range(0, 20, 2))


def test_a_later_dead_set_replaces_the_earlier_one() -> None:
    fs, log = new_log(segments=1)
    compactor_of(log, fs, EVEN, policy="whole-dead").run()
    (before,) = sealed(log)
    compactor = compactor_of(log, fs, [4], policy="whole-dead")
    report = compactor.run()
    assert report.dropped == {Cause.UNREFERENCED: (4, 4 * FRAME_BYTES)}
    assert positions(log) == [4]
    assert before.dead is not None
    assert before.dead.name in {retired.name for retired in log.manifest.retired}
    compactor.reclaim()
    assert not fs.exists(f"{DIRECTORY}/{before.dead.name}")


def test_a_rewrite_leaves_out_what_an_earlier_dead_set_names() -> None:
    fs, log = new_log(segments=2)
    compactor_of(log, fs, EVEN, policy="whole-dead").run()
    compactor_of(log, fs, EVEN, policy="all").run()
    (segment,) = sealed(log)
    assert (segment.entries, segment.dead) == (10, None)


def test_a_rule_that_revives_dead_entries_is_refused() -> None:
    fs, log = new_log(segments=1)
    compactor_of(log, fs, EVEN, policy="whole-dead").run()
    before = log.manifest
    with pytest.raises(InvalidInput, match=r"brings back dead entries of 000000000001\.seg"):
        compactor_of(log, fs, range(10), policy="whole-dead").run()
    assert log.manifest == before
    assert not strays(fs, log)
    assert positions(log) == list(range(0, 10, 2))


class Boastful:
    """Says that more entries are live than there are."""

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        for segment in question.segments:
            live = LiveSet.from_iterable([segment.first_position])
            yield SegmentJudgement(live, live_entries=5, live_bytes=5 * FRAME_BYTES)

    def facts(self) -> dict[str, object]:
        return {}


def test_a_rule_that_names_missing_entries_makes_the_run_stale() -> None:
    fs, log = new_log()
    before = log.manifest
    compactor = compactor_of(log, fs, Boastful())
    with pytest.raises(PlanStale, match="1 live entries, 5 were planned"):
        compactor.run()
    assert log.manifest == before
    assert not strays(fs, log)
    assert compactor.history.newest(1)[0].result == "rolled back"


def test_a_damaged_dead_set_stops_the_run() -> None:
    fs, log = new_log(segments=1)
    compactor_of(log, fs, EVEN, policy="whole-dead").run()
    (segment,) = sealed(log)
    assert segment.dead is not None
    fs.flip(f"{DIRECTORY}/{segment.dead.name}", 20)
    with pytest.raises(DamagedFile, match=segment.dead.name):
        compactor_of(log, fs, [4]).run()


# --- reports and events ---------------------------------------------------------------------


class ByHalves:
    """Odd positions are superseded, the others expire from position 10 on."""

    def judge(self, question: LiveSetQuestion) -> Iterator[SegmentJudgement]:
        for segment in question.segments:
            first = segment.first_position
            keep = range(first, first + 10, 2) if first < 10 else range(0)
            dropped = {Cause.SUPERSEDED: (5, 5 * FRAME_BYTES)}
            if not keep:
                dropped[Cause.EXPIRED] = (5, 5 * FRAME_BYTES)
            live = LiveSet.from_iterable(keep)
            yield SegmentJudgement(live, len(keep), len(keep) * FRAME_BYTES, dropped)

    def facts(self) -> dict[str, object]:
        return {}


def test_the_report_says_what_was_dropped_and_why() -> None:
    fs, log = new_log(segments=3)
    before = log.manifest
    compactor = compactor_of(log, fs, ByHalves())
    report = compactor.run(trigger="lag")
    assert report.dropped == {
        Cause.SUPERSEDED: (15, 15 * FRAME_BYTES),
        Cause.EXPIRED: (10, 10 * FRAME_BYTES),
    }
    assert (report.read_entries, report.kept_entries) == (30, 5)
    assert report.read_bytes == report.kept_bytes == 5 * FRAME_BYTES
    assert (report.trigger, report.policy) == ("lag", "all")
    assert report.generation_before == before.generation
    assert report.generation_after == before.generation + 1
    assert report.retired_bytes == sum(s.file_bytes for s in before.segments)
    assert list(report.seconds_by_phase) == ["PREPARE", "COPY", "COMMIT", "CLEANUP"]
    assert compactor.history.newest(9) == [report]


def test_reclaimed_bytes_are_added_to_the_report() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, EVEN)
    report = compactor.run()
    assert report.reclaimed_bytes == 0
    done = compactor.reclaim()
    (amended,) = compactor.history.newest(9)
    assert amended.run_id == report.run_id
    assert amended.reclaimed_bytes == done.bytes == report.retired_bytes
    assert compactor.reclaim().files == 0
    assert compactor.history.newest(9) == [amended]


def test_events_report_the_phases_in_order() -> None:
    events: list[Event] = []
    fs, log = new_log()
    report = compactor_of(log, fs, EVEN, events=events.append).run()
    phases = [event.phase for event in events if isinstance(event, RunPhase)]
    assert phases == ["PREPARE", "COPY", "COMMIT", "CLEANUP", "DONE"]
    (finished,) = [event for event in events if isinstance(event, RunFinished)]
    assert finished == RunFinished(DIRECTORY, report.run_id, report.summary())


def test_a_second_run_has_nothing_to_do_and_leaves_no_trace() -> None:
    fs, log = new_log()
    compactor = compactor_of(log, fs, EVEN)
    first = compactor.run()
    before, files = log.manifest, fs.list(DIRECTORY)
    second = compactor.run()
    assert second.result == "nothing to do"
    assert second.generation_after == second.generation_before == first.generation_after
    assert log.manifest == before
    assert fs.list(DIRECTORY) == files
    assert compactor.history.newest(9) == [first]


def test_an_empty_log_has_nothing_to_do() -> None:
    fs, log = new_log(segments=0)
    assert compactor_of(log, fs, []).run().result == "nothing to do"


# --- unfinished runs ------------------------------------------------------------------------


def test_nothing_is_recovered_where_nothing_is_unfinished() -> None:
    fs, log = new_log()
    assert compactor_of(log, fs, EVEN).recover() is None


def test_a_damaged_journal_is_discarded_and_reported() -> None:
    fs, log = new_log()
    with fs.open_append(f"{DIRECTORY}/JOURNAL") as file:
        file.write(b"no journal at all\n")
    events: list[Event] = []
    report = compactor_of(log, fs, EVEN, events=events.append).run()
    assert report.result == "done"
    (recovered,) = [event for event in events if isinstance(event, RunRecovered)]
    assert recovered.action.startswith("discarded: /data/log/JOURNAL at byte 0")
    assert not fs.exists(f"{DIRECTORY}/JOURNAL")


def test_a_requested_run_first_resumes_the_one_that_was_killed_and_reports_only_itself() -> None:
    disk, log = new_log()
    log.close()
    fs = FaultyFileSystem(disk)
    log = open_log(fs)
    log.settle()
    fs.add(Fault("rename", "*/MANIFEST", kind="CRASH"))
    with pytest.raises(PowerCut):
        compactor_of(log, fs, EVEN).run()
    disk = disk.kill_clone()
    log = open_log(disk)
    compactor = compactor_of(log, disk, EVEN)
    report = compactor.run()
    assert report.result == "nothing to do"
    (resumed,) = compactor.history.newest(9)
    assert (resumed.result, resumed.run_id != report.run_id) == ("done", True)
    assert positions(log) == list(range(0, 40, 2))
    assert not strays(disk, log)


def test_a_publish_with_unknown_outcome_is_resolved_and_never_reported_as_failed() -> None:
    """The rename worked, but neither the fsync after it nor reading back did."""
    disk, log = new_log()
    log.close()
    fs = FaultyFileSystem(disk)
    log = open_log(fs)
    log.settle()  # The first write would make one fsync more, that of what the open has found.
    compactor = compactor_of(log, fs, EVEN, clock=ManualClock())
    # Two fsyncs of the directory come before the one after the rename: those of the new names
    # and of the manifest's files; the journal's creation has one more.
    fs.add(Fault("sync_dir", nth=4, kind="EIO"))
    fs.add(Fault("open_read", "*/MANIFEST", kind="EIO"))
    with pytest.raises(WriteFailed):
        compactor.run()
    assert compactor.history.newest(9) == []
    assert log.manifest.horizon == 39
    report = compactor.recover()
    assert report is not None
    assert compactor.history.newest(9) == [report]
    assert report.result == "done"
    assert positions(log) == list(range(0, 40, 2))
    assert not strays(fs, log)
