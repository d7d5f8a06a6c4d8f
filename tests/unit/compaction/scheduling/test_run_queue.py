"""The run queue: one run per disk, disks in parallel, and any run can be cancelled."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.compaction.limits.one_run_per_disk import DiskGate
from lithify.compaction.reports.status import CompactionState, CompactionStatus
from lithify.compaction.run.control import WAITING, RunControl
from lithify.compaction.run.log_runs import LogRuns
from lithify.compaction.scheduling.run_order import REST_MS
from lithify.compaction.scheduling.run_queue import WAITING_MAX, RequestUnknown, RunQueue
from lithify.compaction.scheduling.triggers import Observation, Trigger
from lithify.errors import LithifyError, LogClosed, PlanStale, RunCancelled, RunRefused
from lithify.fs import MemoryFileSystem
from tests.unit.compaction.logs import compactor_of, fill, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.compaction.reports.report import Report
    from lithify.compaction.tasks.jobs import Jobs

REACHED = Observation(reached="enough")


class Log:
    """A log whose run lasts until it is released or cancelled; implements `ScheduledLog`.

    Every other entry is dead, so the first run is done and the next ones find nothing.
    """

    def __init__(self, name: str, fs: MemoryFileSystem, disk: str = "sda") -> None:
        self.name = name
        self.disk = disk
        self.device_error: OSError | None = None
        self.observation = Observation()
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.ended = threading.Event()
        self.outcome = ""
        self.runs_done: list[str] = []
        self.failures: list[LithifyError] = []
        self.error: LithifyError | None = None
        log = self.log = open_log(fs, f"/{disk}/{name}")
        fill(log, 1)
        self.compactor = compactor_of(log, fs, range(0, 10, 2))
        self.runs = LogRuns(
            fs,
            log.directory,
            self.compactor,
            kind="store",
            name=name,
            resumes=True,
            gate=DiskGate(fs, f"/gate/{disk}"),
        )

    @property
    def device(self) -> str:
        if self.device_error is not None:
            raise self.device_error
        return self.disk

    def began_ms(self) -> int:
        return 0

    def observe(self) -> Observation:
        return self.observation

    def failed(self, error: LithifyError) -> None:
        self.failures.append(error)

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:
        return self.runs.run_exclusively(lambda control: self._run(trigger, jobs, control), control)

    def person(self, jobs: Jobs, control: RunControl) -> Report:
        return self.run(Trigger.ADMIN, jobs, control)

    def _run(self, trigger: str, jobs: Jobs, control: RunControl) -> Report:
        self.began.set()
        try:
            while not self.let_go.wait(0.01):
                control("rewrite", 0, 1)
            if self.error is not None:
                raise self.error
            report = self.compactor.run(trigger, jobs=jobs, control=control)
        except RunCancelled as error:
            self.outcome = type(error).__name__
            raise
        else:
            self.outcome = "done"
            self.runs_done.append(trigger)
            return report
        finally:
            self.ended.set()


class Bench:
    """A queue, and its logs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFileSystem()
        self.fs.mkdir("/gate")
        self.queue = RunQueue(self.clock)
        self.logs: list[Log] = []

    def log(self, name: str, disk: str = "sda") -> Log:
        self.logs.append(Log(name, self.fs, disk))
        return self.logs[-1]

    def asked(self, name: str, disk: str = "sda") -> Log:
        log = self.log(name, disk)
        self.ask(log)
        return log

    def ask(self, log: Log, *, waits: bool = True) -> str:
        return self.queue.request(log, log.person, waits=waits)

    def look(self) -> None:
        self.queue.observe("store", self.logs)

    def outcome(self, log: Log, request_id: str) -> CompactionStatus:
        while True:
            status = self.queue.status(log, request_id)
            if status.state is not CompactionState.RUNNING:
                return status

    def settled(self, log: Log) -> None:
        while self.queue.is_busy(log):
            pass

    def waits(self, log: Log) -> bool:
        return self.queue.status(log).phase == WAITING


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.queue.close()


def test_one_run_per_disk_and_disks_in_parallel(bench: Bench) -> None:
    first, second, other = bench.asked("first"), bench.asked("second"), bench.asked("other", "sdb")
    first.began.wait()
    other.began.wait()
    assert not second.began.is_set()
    assert bench.queue.status(second).waits_for == f"disk: pid {os.getpid()} compacts first"
    assert bench.waits(second)
    assert not bench.waits(first)
    first.let_go.set()
    second.began.wait()
    assert first.outcome == "done"
    second.let_go.set()
    other.let_go.set()
    second.ended.wait()


def test_a_log_of_which_nothing_has_changed_keeps_its_observation(bench: Bench) -> None:
    one, two = bench.log("one"), bench.log("two", "sdb")
    one.observation = Observation(period_ms=1000)
    bench.look()
    bench.clock.advance(2)
    assert bench.queue.observe("store", [two], unchanged=["one"]) == []
    one.began.wait()
    # Its own observation is refused meanwhile, and is to be repeated.
    assert bench.queue.observe("store", [one, two]) == [one]
    one.let_go.set()
    one.ended.wait()
    bench.settled(one)
    assert bench.queue.observe("store", [one, two]) == []


def test_requests_come_first_then_triggers_by_priority(bench: Bench) -> None:
    running = bench.asked("running")
    running.began.wait()
    order: list[str] = []

    class Noting(Log):
        def _run(self, trigger: str, jobs: Jobs, control: RunControl) -> Report:
            order.append(self.name)
            self.let_go.set()
            return super()._run(trigger, jobs, control)

    seen = {
        "periodic": Observation(period_ms=1),
        "threshold": REACHED,
        "lag": Observation(oldest_unjudged_ms=0, lag_ms_max=1),
        "first asked": Observation(),
        "then asked": Observation(),
    }
    logs = {name: Noting(name, bench.fs) for name in seen}
    for name, log in logs.items():
        log.observation = seen[name]
        bench.logs.append(log)
    bench.look()
    for name in ("first asked", "then asked"):
        bench.ask(logs[name])
    running.let_go.set()
    logs["periodic"].ended.wait()
    assert order == ["first asked", "then asked", "lag", "threshold", "periodic"]


def test_a_log_that_is_always_due_does_not_starve_others(bench: Bench) -> None:
    hot, idle = bench.log("hot"), bench.log("idle")
    hot.observation = REACHED
    idle.observation = Observation(period_ms=1)
    bench.look()
    hot.began.wait()
    for _ in range(3):
        bench.ask(hot)
    bench.clock.advance(1)
    hot.let_go.set()
    idle.began.wait()
    assert len(hot.runs_done) == 1, "a second request does not pass the one that waits"
    idle.let_go.set()
    bench.settled(hot)
    assert len(hot.runs_done) == 4


def test_a_request_during_a_run_gets_a_separate_run(bench: Bench) -> None:
    log = bench.log("log")
    ids = [bench.ask(log) for _ in range(2)]
    log.began.wait()
    second = bench.queue.status(log, ids[1])
    assert (second.state, second.phase) == (CompactionState.RUNNING, WAITING)
    log.let_go.set()
    statuses = [bench.outcome(log, each) for each in ids]
    assert [status.state for status in statuses] == [CompactionState.SUCCESS] * 2
    results = [status.report.result for status in statuses if status.report]
    assert results == ["done", "nothing to do"]
    with pytest.raises(RequestUnknown, match="request 00 for a run on log is unknown"):
        bench.queue.status(log, "00")


def test_a_trigger_during_a_run_is_consumed_by_it_and_too_many_requests_are_refused(
    bench: Bench,
) -> None:
    log = bench.asked("log")
    log.began.wait()
    log.observation = REACHED
    bench.look()
    for _ in range(WAITING_MAX):
        bench.ask(log)
    with pytest.raises(RunRefused, match=f"{WAITING_MAX} runs on log are waiting already"):
        bench.ask(log)
    log.let_go.set()
    bench.settled(log)
    assert log.runs_done == ["admin"] * (WAITING_MAX + 1)


def test_a_cancelled_waiting_request_has_a_status(bench: Bench) -> None:
    running, waiting = bench.asked("running"), bench.log("waiting")
    running.began.wait()
    request_id = bench.ask(waiting)
    assert bench.queue.cancel(waiting)
    status = bench.queue.status(waiting, request_id)
    assert status.state is CompactionState.ERROR
    assert "cancelled" in status.error
    running.let_go.set()


def test_a_run_is_cancelled_while_it_waits_and_while_it_runs(bench: Bench) -> None:
    running, waiting = bench.asked("running"), bench.asked("waiting")
    running.began.wait()
    assert bench.queue.cancel(waiting)
    assert not bench.waits(waiting)
    assert bench.queue.cancel(running)
    running.ended.wait()
    assert running.outcome == "RunCancelled"
    assert not waiting.began.is_set()
    assert not bench.queue.cancel(waiting), "there is nothing left to call off"


def test_a_cancelled_trigger_pauses(bench: Bench) -> None:
    running, waiting = bench.asked("running"), bench.log("waiting")
    running.began.wait()
    waiting.observation = REACHED
    bench.look()
    assert bench.waits(waiting)
    assert bench.queue.cancel(waiting)
    bench.look()
    assert not bench.queue.is_busy(waiting)
    running.let_go.set()
    bench.clock.advance(REST_MS / 1000)
    bench.look()
    waiting.began.wait()
    waiting.let_go.set()


def test_while_another_process_has_the_disk_requests_wait_and_name_it(bench: Bench) -> None:
    log, later = bench.log("log"), bench.log("later")
    log.let_go.set()
    later.let_go.set()
    log.observation = REACHED
    with DiskGate(bench.fs, "/gate/sda").enter("/sda", "pid 7 compacts public/default/orders"):
        bench.look()
        request_id = bench.ask(later)
        while not (status := bench.queue.status(later, request_id)).waits_for:
            pass
        assert status.waits_for == "disk: pid 7 compacts public/default/orders"
        assert status.row()["waitsFor"] == status.waits_for
        assert bench.queue.status(log).waits_for == status.waits_for
        with pytest.raises(RunRefused, match="pid 7 compacts") as raised:
            bench.ask(bench.log("impatient"), waits=False)
        assert raised.value.exit_code == 4
        cancelled = bench.asked("called off")
        assert bench.queue.cancel(cancelled)
        assert not log.began.is_set()
    assert bench.outcome(later, request_id).state is CompactionState.SUCCESS
    bench.settled(log)
    assert (log.outcome, later.outcome, cancelled.outcome) == ("done", "done", "")


def test_a_request_that_may_not_wait_is_refused(bench: Bench) -> None:
    running, other = bench.asked("running"), bench.log("other")
    running.began.wait()
    refused = r"compaction refused \(store\): a run on running is in progress"
    with pytest.raises(RunRefused, match=refused):
        bench.ask(running, waits=False)
    with pytest.raises(RunRefused, match=rf"\(disk\): pid {os.getpid()} compacts running"):
        bench.ask(other, waits=False)
    running.let_go.set()
    bench.settled(running)
    other.let_go.set()
    request_id = bench.ask(other, waits=False)
    assert bench.outcome(other, request_id).state is CompactionState.SUCCESS


def test_a_failed_run_backs_off_and_an_unexpected_error_stops_no_other_log(bench: Bench) -> None:
    log, broken = bench.log("log"), bench.log("broken")
    broken.error = PlanStale("not now")
    broken.let_go.set()
    broken.observation = REACHED
    for pause_s in (REST_MS / 1000, 2 * REST_MS / 1000):
        broken.began.clear()
        bench.look()
        broken.began.wait()
        bench.settled(broken)
        bench.clock.advance(pause_s - 1)
        bench.look()
        assert not bench.queue.is_busy(broken)
        bench.clock.advance(1)
    assert [str(error) for error in broken.failures] == ["not now"] * 2
    broken.run = broken.person = None  # type: ignore[method-assign,assignment]
    bench.look()
    bench.settled(broken)
    log.let_go.set()
    bench.ask(log)
    log.ended.wait()
    assert log.outcome == "done"


def test_a_killed_run_is_finished_before_anything_else_and_once(bench: Bench) -> None:
    killed = bench.log("killed")
    with bench.fs.open_append("/sda/killed/JOURNAL") as file:
        file.write(b"damaged")
        file.fsync()
    killed.let_go.set()
    bench.look()
    killed.ended.wait()
    bench.settled(killed)
    assert killed.runs_done == ["unfinished"]
    assert not killed.compactor.unfinished()
    bench.look()
    assert not bench.queue.is_busy(killed)


def test_a_closed_log_is_removed_and_a_reopened_one_is_checked(bench: Bench) -> None:
    log = bench.log("log")
    log.observation = REACHED
    log.error = LogClosed("it is closed")
    log.let_go.set()
    bench.look()
    log.ended.wait()
    while bench.queue._is_running("store log"):
        pass
    bench.logs.clear()
    bench.look()
    assert not bench.queue._members
    log.log.close()
    again = bench.log("log")
    again.observation = replace(REACHED, period_ms=1)
    again.let_go.set()
    bench.look()
    again.ended.wait()


def test_a_killed_run_that_a_person_finishes_is_not_finished_again(bench: Bench) -> None:
    killed = bench.log("killed")
    with bench.fs.open_append("/sda/killed/JOURNAL") as file:
        file.write(b"damaged")
        file.fsync()
    killed.let_go.set()
    other = bench.asked("other")
    other.began.wait()
    bench.look()
    request = bench.ask(killed)
    other.let_go.set()
    assert bench.outcome(killed, request).state is CompactionState.SUCCESS
    bench.look()
    bench.settled(killed)
    assert killed.runs_done == ["admin"]


def test_a_log_with_unreadable_files_does_not_stop_the_triggers_of_others(
    bench: Bench,
) -> None:
    gone, log = bench.log("gone"), bench.log("log")
    gone.device_error = FileNotFoundError("/sda/gone")
    log.observation = REACHED
    log.let_go.set()
    bench.look()
    log.ended.wait()


def test_closing_suspends_the_run_and_refuses_new_ones() -> None:
    bench = Bench()
    running, waiting = bench.asked("running"), bench.asked("waiting")
    running.began.wait()
    bench.queue.close()
    assert running.outcome == "RunSuspended"
    assert not waiting.began.is_set()
    with pytest.raises(RunRefused, match="it is stopping"):
        bench.asked("late")
