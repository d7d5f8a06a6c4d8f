"""The runs of one log: one at a time, with progress and the outcome of the last one.

    report = runs.run_exclusively(lambda control: compactor.run(control=control), control)
    with runs.turn(): ...                      # no run meanwhile
    runs.status()

A run takes two turns; nothing else separates runs:

1. The **disk**: one run at a time on a device, among all processes of a user (`DiskGate`). It is
   taken first. The queue takes it before it starts a run (`compaction/scheduling/run_queue.py`).
2. The **log**: one run, dry run, recovery or deletion of a view at a time. A dry run takes only
   this one, so it never waits for a disk.

A run that finds a turn taken waits for it and shows that in its control, or is refused with
`RunRefused` if it may not wait. Each step of a run reports progress and checks for cancellation.
The report of a finished run becomes the latest one. The status is computed from the history on
disk, so it survives restarts; a killed run is shown as interrupted until the next one resumes it.

Thread-safe; `run_exclusively` returns when the run ends. Called by the stores.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from lithify.compaction.limits.one_run_per_disk import DiskGate, disk_owner, find_gate_directory
from lithify.compaction.reports.status import CompactionRecord, CompactionState, CompactionStatus
from lithify.compaction.run.control import WAITING, RunControl
from lithify.compaction.run.phases import typed_errors
from lithify.errors import Corrupt, LogClosed, RunCancelled, RunRefused, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from lithify.compaction.limits.one_run_per_disk import DiskTurn
    from lithify.compaction.reports.report import History, Report
    from lithify.fs import FileSystem

__all__ = ["LogRuns", "RunRecords"]

HISTORY_MAX = 1000
"""Reports that the record is computed from; a history file keeps about as many."""


class RunRecords(Protocol):
    """What a log's compactor keeps of its runs."""

    @property
    def history(self) -> History:
        """The reports of finished runs."""

    def unfinished(self) -> bool:
        """Was a run killed and not resumed yet?"""


class LogRuns:
    """The runs of one log; see the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        compactor: RunRecords,
        *,
        kind: str,
        name: str,
        resumes: bool,
        gate: DiskGate | None = None,
    ) -> None:
        """`kind` and `name` name the kind of log and this log in messages.

        `resumes`: a run that is interrupted because the log is closed is resumed later.
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
        self._dry_run: RunControl | None = None
        self._closed = False
        self._record: CompactionRecord | None = None
        self._failure = ""

    # --- status -----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Is a run in progress on this log?"""
        return self._control is not None

    def unfinished(self) -> bool:
        """Was a run killed and not resumed yet?"""
        return not self.running and self._compactor.unfinished()

    @property
    def record_is_cached(self) -> bool:
        """Does `record` return without reading the history?"""
        return self._record is not None

    def record(self) -> CompactionRecord:
        """Totals of all runs, across restarts; an unreadable history counts as a failure."""
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
        """Drop the cached record after a change of the history."""
        self._record = None

    def status(self) -> CompactionStatus:
        """The progress of the current run, or the outcome of the last one, across restarts."""
        control, report = self._control, self.record().latest
        if control is not None:
            phase = "PREPARE" if control.phase == WAITING else control.phase
            progress = phase, control.done, control.total
            return CompactionStatus(CompactionState.RUNNING, "", *progress, report)
        error = self._failure or (report.error if report is not None else None)
        if self.unfinished():
            error = "a run was interrupted; the next one resumes it"
        if error:
            return CompactionStatus(CompactionState.ERROR, error, report=report)
        state = CompactionState.NOT_RUN if report is None else CompactionState.SUCCESS
        return CompactionStatus(state, report=report)

    # --- running ----------------------------------------------------------------------------

    def run_exclusively(self, run: Callable[[RunControl], Report], control: RunControl) -> Report:
        """Execute a run when the disk and the log are free."""
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
                        # It is not in the history, but it is the latest run.
                        self._record = self.record().with_report(report)
                return report
            except Exception as error:
                # The history is read on demand: it may be unreadable at the moment.
                self._record, self._failure = None, str(error)
                raise
            finally:
                self._control = None

    def cancel(self) -> None:
        """Ask the current run to stop; it leaves everything as it was."""
        control = self._control
        if control is not None:
            control.cancel()

    def interrupt(self, control: RunControl | None = None) -> None:
        """Ask a run to stop because the log is closed: the next one resumes it, if possible."""
        control = control or self._control
        if control is not None and self._resumes:
            control.suspend()
        elif control is not None:
            control.cancel()

    def close(self) -> None:
        """Stop the current run or dry run, wait for its end, and refuse further ones."""
        if not self._closed:
            self._closed = True
            while not self._turn.acquire(timeout=0.1):
                self.interrupt()
                if (dry_run := self._dry_run) is not None:
                    dry_run.cancel()

    # --- turns ------------------------------------------------------------------------------

    @contextmanager
    def turn(self, control: RunControl | None = None) -> Iterator[None]:
        """Take the log; waits, or is refused if the control may not wait."""
        (control or RunControl()).wait(self._take_log)
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def dry_run(self, control: RunControl) -> Iterator[None]:
        """Take the log for a dry run, which `close` stops."""
        with self.turn(control):
            self._dry_run = control
            try:
                yield
            except RunCancelled as error:
                raise LogClosed(f"{self._directory} was closed during a dry run") from error
            finally:
                self._dry_run = None

    def _take_log(self) -> RunRefused | None:
        if self._closed:
            raise LogClosed(f"{self._directory} is closed")
        if self._turn.acquire(blocking=False):
            return None
        what = "a run" if self.running else "a dry run"
        return RunRefused(self.kind, f"{what} on {self.name} is in progress")

    @contextmanager
    def disk(self, control: RunControl) -> Iterator[None]:
        """Take the disk; waits, or is refused if the control may not wait."""
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
        """Take the disk now, or raise `RunRefused` naming its owner."""
        gate = self._gate or DiskGate(self._fs, find_gate_directory(self._fs, os.environ))
        with typed_errors(self._directory):
            return gate.enter(self._directory, disk_owner(self.name))

    @property
    def device(self) -> str:
        """The device of the log's directory."""
        with typed_errors(self._directory):
            found = self._fs.stat(self._directory)
            if found.is_symlink:
                found = self._fs.stat(f"{self._directory}/.")
            return str(found.device)
