"""One run at a time: on a log, on a disk, among processes; and how a run is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from lithify.compaction.limits.one_run_per_disk import DiskGate
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.run.control import WAITING, RunControl
from lithify.compaction.run.log_runs import LogRuns
from lithify.errors import LogClosed, RunCancelled, RunRefused, RunSuspended
from lithify.fs import LocalFileSystem, MemoryFileSystem
from tests.unit.compaction.logs import (
    DIRECTORY,
    Interrupted,
    compactor_of,
    fill,
    open_log,
    positions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lithify.compaction.reports.report import Report
    from lithify.fs import FileSystem
    from lithify.log.log import Log

EVEN = range(0, 10_000, 2)
ONE_GROUP_A_SEGMENT = Limits(target_bytes_max=5 * 132, target_entries_max=1000)


class Logged:
    """A log of four segments, and its runs."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str = DIRECTORY,
        between: Callable[[], None] = lambda: None,
        gate: str = "/gate",
    ) -> None:
        self.fs = fs
        self.log: Log = open_log(fs, directory)
        fill(self.log, 4)
        self.compactor = compactor_of(
            self.log, fs, EVEN, limits=ONE_GROUP_A_SEGMENT, jobs=Interrupted(between)
        )
        name = directory.rpartition("/")[2]
        self.runs = LogRuns(
            fs,
            directory,
            self.compactor,
            kind="log",
            name=name,
            resumes=True,
            gate=DiskGate(fs, gate),
        )

    def run(self, control: RunControl | None = None) -> Report:
        return self.runs.run_exclusively(
            lambda c: self.compactor.run(control=c), control or RunControl()
        )


def waited(control: RunControl) -> Iterator[str]:
    while True:
        yield control.waits_for


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def until_it_waits(control: RunControl) -> str:
    return next(found for found in waited(control) if found)


def test_a_second_run_of_a_log_waits_or_is_refused_during_the_first() -> None:
    refused: list[RunRefused] = []

    def run_again() -> None:
        control = RunControl(waits=False, has_disk=True)
        with pytest.raises(RunRefused) as raised:
            logged.run(control)
        refused.append(raised.value)

    logged = Logged(MemoryFileSystem(), between=run_again)
    assert logged.run().result == "done"
    assert [error.limit for error in refused] == ["log"] * 4
    assert str(refused[0]) == "compaction refused (log): a run on log is in progress"
    assert logged.run().result == "nothing to do"


def test_a_run_of_another_log_on_the_same_disk_waits_and_names_it() -> None:
    fs, seen, results = MemoryFileSystem(), list[str](), list[str]()
    other = Logged(fs, "/data/other")
    control = RunControl()
    threads: list[threading.Thread] = []

    def run_other() -> None:
        if not threads:
            threads.append(in_thread(lambda: results.append(other.run(control).result)))
            seen.append(until_it_waits(control))
            with pytest.raises(RunRefused, match=f"pid {os.getpid()} compacts log"):
                other.run(RunControl(waits=False))

    assert Logged(fs, between=run_other).run().result == "done"
    threads[0].join()
    assert seen == [f"disk: pid {os.getpid()} compacts log"]
    assert (results, control.waits_for) == (["done"], "")


def test_a_dry_run_waits_for_a_run_on_its_log_and_for_no_disk() -> None:
    fs, dry = MemoryFileSystem(), list[str]()
    other = Logged(fs, "/data/other")

    def plan_other() -> None:
        with other.runs.turn(RunControl(waits=False)):
            dry.append(other.compactor.plan().explain())
        with pytest.raises(RunRefused, match="a run on log is in progress"):
            logged.runs.turn(RunControl(waits=False)).__enter__()

    logged = Logged(fs, between=plan_other)
    logged.run()
    assert len(dry) == 4


def test_a_run_is_cancelled_while_it_waits() -> None:
    fs = MemoryFileSystem()
    logged, errors = Logged(fs), list[str]()
    control = RunControl()

    def run() -> None:
        with pytest.raises(RunCancelled) as raised:
            logged.run(control)
        errors.append(str(raised.value))

    with DiskGate(fs, "/gate").enter("/data", "pid 7 compacts public/default/orders"):
        thread = in_thread(run)
        assert until_it_waits(control) == "disk: pid 7 compacts public/default/orders"
        assert control.phase == WAITING
        control.cancel()
        thread.join()
    assert errors == ["the run was cancelled before it began"]
    assert logged.runs.status().state == "NOT_RUN"


def test_the_first_stop_request_wins() -> None:
    suspended, cancelled = RunControl(), RunControl()
    suspended.suspend()
    suspended.cancel()
    cancelled.cancel()
    cancelled.suspend()
    with pytest.raises(RunSuspended):
        suspended.check()
    with pytest.raises(RunCancelled, match="cancelled"):
        cancelled("COPY", 0, 0)


def test_cancelling_when_nothing_runs_does_nothing() -> None:
    logged = Logged(MemoryFileSystem())
    logged.runs.cancel()
    assert logged.run().result == "done"


def test_closing_suspends_the_run_and_ends_those_that_wait() -> None:
    closing = list[threading.Thread]()

    def close() -> None:
        if not closing:
            closing.append(in_thread(logged.runs.close))
            while not control.is_stopped:
                pass

    logged = Logged(MemoryFileSystem(), between=close)
    control = RunControl()
    with pytest.raises(RunSuspended):
        logged.run(control)
    closing[0].join()
    with pytest.raises(LogClosed):
        logged.run()
    assert logged.compactor.unfinished()


CHILD = """
import sys
from lithify.compaction.run.control import RunControl
from lithify.fs import LocalFileSystem
from tests.unit.compaction.run.test_log_runs import Logged

def between():
    print("copying", flush=True)
    sys.stdin.readline()

directory, gate = sys.argv[1:]
Logged(LocalFileSystem(), directory, between, gate).run(RunControl())
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_names_the_process_that_it_waits_for_and_starts_when_that_exits(
    tmp_path: Path, killed: bool
) -> None:
    fs, gate = LocalFileSystem(), f"{tmp_path}/gate"
    ours = Logged(fs, f"{tmp_path}/ours", gate=gate)
    command = [sys.executable, "-c", CHILD, f"{tmp_path}/orders", gate]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "copying\n"
        with pytest.raises(RunRefused, match=f"pid {child.pid} compacts orders") as raised:
            ours.run(RunControl(waits=False))
        assert raised.value.limit == "disk"
        assert raised.value.exit_code == 4
        control, results = RunControl(), list[str]()
        thread = in_thread(lambda: results.append(ours.run(control).result))
        assert until_it_waits(control) == f"disk: pid {child.pid} compacts orders"
        assert positions(ours.log) == list(range(40))
        if killed:
            child.kill()
        else:
            child.stdin.close()
        thread.join()
    assert results == ["done"]
    assert positions(ours.log) == list(range(0, 40, 2))
    ours.log.close()
