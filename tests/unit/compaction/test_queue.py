"""Runs take turns on a disk, disks do not wait for each other, and any run can be called off."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lithify.compaction.queue import WAITING_MAX, Request, RequestUnknown, RunQueue
from lithify.compaction.record import WAITING, CompactionState, CompactionStatus
from lithify.compaction.report import Report
from lithify.errors import RunCancelled, RunRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.compaction.jobs import Progress


def a_report(run_id: str) -> Report:
    return Report(
        run_id=run_id,
        log="log",
        policy="all",
        trigger="admin",
        started_ms=0,
        finished_ms=0,
        horizon=-1,
        generation_before=1,
        generation_after=1,
        result="nothing to do",
    )


def settled(queue: RunQueue, request_id: str, log: Log) -> CompactionStatus:
    while True:
        status = queue.status(request_id, log, log.name)
        if status.state is not CompactionState.RUNNING:
            return status


class Log:
    """Something whose run lasts until it is let go or called off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running = False
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.ended = threading.Event()
        self.outcome = ""
        self.suspended = False
        self.busy_disk = 0

    def cancel(self) -> None:
        self.let_go.set()

    def suspend(self) -> None:
        self.suspended = True
        self.let_go.set()

    def status(self) -> CompactionStatus:
        return CompactionStatus(CompactionState.RUNNING, phase="rewrite")

    def run(self, go_on: Progress) -> Report:
        self.running = True
        self.began.set()
        try:
            self.let_go.wait()
            go_on("rewrite", 0, 1)
            if self.busy_disk:
                self.busy_disk -= 1
                raise RunRefused("disk", "another process has it")
            self.outcome = "done"
            return a_report("run")
        except RunCancelled:
            self.outcome = "cancelled"
            raise
        finally:
            self.running = False
            if self.outcome:
                self.ended.set()


@pytest.fixture
def queue() -> Iterator[RunQueue]:
    queue = RunQueue(limit="store")
    yield queue
    queue.close()


def add(queue: RunQueue, log: Log, disk: str = "sda", trigger: str = "admin") -> Log:
    queue.add(Request(log, log.name, disk, trigger, log.run))
    return log


def test_one_run_a_disk_at_a_time_and_disks_side_by_side(queue: RunQueue) -> None:
    first, second = add(queue, Log("first")), add(queue, Log("second"))
    other = add(queue, Log("other"), disk="sdb")
    first.began.wait()
    other.began.wait()
    assert not second.began.is_set()
    assert queue.waits(second)
    assert not queue.waits(first)
    first.let_go.set()
    second.began.wait()
    assert first.outcome == "done"
    second.let_go.set()
    other.let_go.set()
    second.ended.wait()


def test_persons_come_before_triggers_and_among_themselves_in_order(queue: RunQueue) -> None:
    running = add(queue, Log("running"))
    running.began.wait()
    order: list[str] = []

    class Noting(Log):
        def run(self, go_on: Progress) -> Report:
            order.append(self.name)
            self.ended.set()
            return a_report(self.name)

    last = add(queue, Noting("by itself"), trigger="periodic")
    add(queue, Noting("first asked"))
    add(queue, Noting("then asked"))
    running.let_go.set()
    last.ended.wait()
    assert order == ["first asked", "then asked", "by itself"]


def test_a_person_who_asks_during_a_run_gets_a_run_of_their_own(queue: RunQueue) -> None:
    reports = iter([a_report("first"), a_report("second")])
    log = Log("log")
    runs: list[str] = []

    def run(go_on: Progress) -> Report:
        log.run(go_on)
        report = next(reports)
        runs.append(report.run_id)
        return report

    ids = [queue.add(Request(log, "log", "sda", "admin", run)) for _ in range(2)]
    log.began.wait()
    second = queue.status(ids[1], log, "log")
    assert (second.state, second.phase) == (CompactionState.RUNNING, WAITING)
    log.let_go.set()
    statuses = [settled(queue, each, log) for each in ids]
    assert [status.state for status in statuses] == [CompactionState.SUCCESS] * 2
    assert [status.report.run_id for status in statuses if status.report] == ["first", "second"]
    assert runs == ["first", "second"]
    with pytest.raises(RequestUnknown, match="nothing is known of request 00"):
        queue.status("00", log, "log")


def test_a_trigger_that_asks_during_a_run_is_refused_and_so_are_too_many_persons(
    queue: RunQueue,
) -> None:
    log = add(queue, Log("log"))
    log.began.wait()
    with pytest.raises(RunRefused, match=r"compaction refused \(store\): a run on log is going on"):
        add(queue, log, trigger="periodic")
    for _ in range(WAITING_MAX):
        add(queue, log)
    with pytest.raises(RunRefused, match=f"{WAITING_MAX} runs on log wait already"):
        add(queue, log)
    log.let_go.set()


def test_a_request_that_is_called_off_while_it_waits_says_so(queue: RunQueue) -> None:
    running, waiting = add(queue, Log("running")), Log("waiting")
    running.began.wait()
    request_id = queue.add(Request(waiting, "waiting", "sda", "admin", waiting.run))
    queue.cancel(waiting)
    status = queue.status(request_id, waiting, "waiting")
    assert status.state is CompactionState.ERROR
    assert "cancelled" in status.error
    running.let_go.set()


def test_a_run_is_called_off_while_it_waits_and_while_it_goes_on(queue: RunQueue) -> None:
    running, waiting = add(queue, Log("running")), add(queue, Log("waiting"))
    running.began.wait()
    assert queue.cancel(waiting)
    assert not queue.waits(waiting)
    assert queue.cancel(running)
    running.ended.wait()
    assert running.outcome == "cancelled"
    assert not waiting.began.is_set()
    assert not queue.cancel(waiting), "there is nothing left to call off"


def test_while_another_process_has_the_disk_it_goes_on_waiting(queue: RunQueue) -> None:
    log = Log("log")
    log.busy_disk = 1
    log.let_go.set()
    add(queue, log)
    log.ended.wait()
    assert (log.outcome, log.busy_disk) == ("done", 0)


def test_what_fails_unexpectedly_stops_nobody_else(queue: RunQueue) -> None:
    class Broken(Log):
        def run(self, go_on: Progress) -> Report:
            raise ZeroDivisionError

    add(queue, Broken("broken"))
    log = add(queue, Log("log"))
    log.let_go.set()
    log.ended.wait()
    assert log.outcome == "done"


def test_closing_suspends_what_runs_and_takes_nothing_more() -> None:
    queue = RunQueue(limit="store")
    running, waiting = add(queue, Log("running")), add(queue, Log("waiting"))
    running.began.wait()
    queue.close()
    assert running.suspended
    assert not waiting.began.is_set()
    with pytest.raises(RunRefused, match="it is stopping"):
        add(queue, Log("late"))
