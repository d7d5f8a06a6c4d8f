"""The runs of one log: one at a time, how far the run is, and how the last one ended.

    report = runs.one(lambda control: compactor.run("admin", control=control), control)
    with runs.turn(): ...                      # no run meanwhile
    runs.status()

A run has two turns, which are all that keeps runs apart:

1. The **disk**: one run at a time on a device, among all processes of a user (`DiskGate`). It is
   taken first. The queue takes it before it hands out a run (`compaction/scheduling/run_queue.py`).
2. The **log**: one run, dry run, recovery or deletion of a view at a time. A dry run takes only
   this one, so it never waits for a disk.

Whatever meets a turn that is taken waits for it and says so in its control, or is refused with
`RunRefused` if it does not wait. Each step of a run tells how far it is, and is where a cancel
reaches it. When a run ends its report is the latest one. The status is folded from the history on
disk, so it survives restarts; a run that was killed is told as interrupted until the next one
resumes it.

Any thread may call; `one` takes as long as the run. Called by the stores.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from lithify.compaction.limits.budget import DiskGate, find_gate_directory
from lithify.compaction.reports.status import CompactionRecord, CompactionState, CompactionStatus
from lithify.compaction.run.control import WAITING, RunControl
from lithify.compaction.run.phases import typed_errors
from lithify.errors import Corrupt, LogClosed, RunRefused, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from lithify.compaction.limits.budget import DiskTurn
    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.compactor import Compactor
    from lithify.fs import FileSystem

__all__ = ["LogRuns"]

HISTORY_MAX = 1000
"""Runs that the record is made from; a history file keeps about as many."""


class LogRuns:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        compactor: Compactor,
        *,
        kind: str,
        name: str,
        resumes: bool,
        gate: DiskGate | None = None,
    ) -> None:
        """`kind` and `name` are the words for such a log and for this one.

        `resumes` is whether a run that is interrupted because the log is closed is resumed later.
        """
        self.kind = kind
        self.name = name
        self._fs = fs
        self._directory = directory
        self._compactor = compactor
        self._resumes = resumes
        self._gate = gate
        self._turn = threading.Lock()
        self._control: RunControl | None = None
        self._closed = False
        self._record: CompactionRecord | None = None
        self._failure = ""

    # --- looking ----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Does a run have the log?"""
        return self._control is not None

    def unfinished(self) -> bool:
        """Has a run been killed that no other one has resumed?"""
        return not self.running and self._compactor.unfinished()

    def record(self) -> CompactionRecord:
        """What all runs have done, also before a restart; an unreadable history is a failure."""
        record = self._record
        if record is None:
            reports: list[Report] = []
            try:
                reports = self._compactor.history.newest(HISTORY_MAX)
            except (Corrupt, UnsupportedVersion) as error:
                self._failure = str(error)
            record = self._record = CompactionRecord.of(reversed(reports))
        return record

    def forget_record(self) -> None:
        """The history has changed."""
        self._record = None

    def status(self) -> CompactionStatus:
        """How the last run went, also one before a restart; or how far this one is."""
        control, report = self._control, self.record().latest
        if control is not None:
            phase = "PREPARE" if control.phase == WAITING else control.phase
            progress = phase, control.done, control.total
            return CompactionStatus(CompactionState.RUNNING, "", *progress, report)
        error = self._failure or (report.error if report is not None else None)
        if self.unfinished():
            error = "a run was interrupted; the next one takes it up"
        if error:
            return CompactionStatus(CompactionState.ERROR, error, report=report)
        state = CompactionState.NOT_RUN if report is None else CompactionState.SUCCESS
        return CompactionStatus(state, report=report)

    # --- running ----------------------------------------------------------------------------

    def run_exclusively(self, run: Callable[[RunControl], Report], control: RunControl) -> Report:
        """Carry out a run when the disk and the log are free."""
        disk: AbstractContextManager[object] = nullcontext()
        if not control.has_disk:
            disk = self.disk(control)
        with disk, self.turn(control):
            self._control = control
            try:
                with typed_errors(self._directory):
                    control("PREPARE", 0, 0)
                    report = run(control)
                    self._record, self._failure = None, ""
                    if report.result == "nothing to do":
                        # It is not in the history, but it is the latest all the same.
                        self._record = self.record().with_report(report)
                return report
            except Exception as error:
                # The history is read when somebody asks: it may be what cannot be read now.
                self._record, self._failure = None, str(error)
                raise
            finally:
                self._control = None

    def cancel(self) -> None:
        """Ask the run that is going on to stop; it leaves everything as it was."""
        control = self._control
        if control is not None:
            control.cancel()

    def interrupt(self, control: RunControl | None = None) -> None:
        """Ask a run to stop because the log is closed: the next one resumes it, if it may."""
        control = control or self._control
        if control is not None and self._resumes:
            control.suspend()
        elif control is not None:
            control.cancel()

    def close(self) -> None:
        """Stop the run that is going on, wait for its end, and let no other one begin."""
        if not self._closed:
            self._closed = True
            while not self._turn.acquire(timeout=0.1):
                self.interrupt()

    # --- turns ------------------------------------------------------------------------------

    @contextmanager
    def turn(self, control: RunControl | None = None) -> Iterator[None]:
        """Have the log; waits, or is refused if the control says so."""
        (control or RunControl()).wait(self._take_log)
        try:
            yield
        finally:
            self._turn.release()

    def _take_log(self) -> RunRefused | None:
        if self._closed:
            raise LogClosed(f"{self._directory} is closed")
        if self._turn.acquire(blocking=False):
            return None
        what = "a run" if self.running else "a dry run"
        return RunRefused(self.kind, f"{what} on {self.name} is going on")

    @contextmanager
    def disk(self, control: RunControl) -> Iterator[None]:
        """Have the disk; waits, or is refused if the control says so."""
        turns: list[DiskTurn] = []

        def take() -> RunRefused | None:
            if self._closed:
                raise LogClosed(f"{self._directory} is closed")
            try:
                turns.append(self.take_disk())
            except RunRefused as refused:
                return refused
            return None

        control.wait(take)
        with turns.pop():
            yield

    def take_disk(self) -> DiskTurn:
        """Have the disk now, or raise `RunRefused` with who has it."""
        gate = self._gate or DiskGate(self._fs, find_gate_directory(self._fs, os.environ))
        with typed_errors(self._directory):
            return gate.enter(self._directory, f"pid {os.getpid()} compacts {self.name}")

    @property
    def device(self) -> str:
        """The disk that the log is on."""
        found = self._fs.stat(self._directory)
        if found.is_symlink:
            found = self._fs.stat(f"{self._directory}/.")
        return str(found.device)
