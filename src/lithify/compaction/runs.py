"""The runs of one log as its users see them: one at a time, how far, how they ended.

    with runs.turn(): ...                      # nobody else compacts meanwhile
    report = runs.one(lambda note: compactor.run(...), progress)
    runs.status()

1. One at a time: a run waits for the dry run or the run that is going on. A dry run is refused with
   `RunRefused` instead.
2. While it goes on, each step tells how far it is, and is where a cancel reaches it.
3. When it ends its report is the latest one. The status is folded from the history on disk, so it
   survives restarts; one that was killed is told as interrupted until the next run takes it up.

Any thread may call; `one` takes as long as the run. Called by the stores.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lithify.compaction.jobs import ignore_progress
from lithify.compaction.record import CompactionRecord, CompactionState, CompactionStatus
from lithify.compaction.steps import typed_errors
from lithify.errors import (
    Corrupt,
    LogClosed,
    RunCancelled,
    RunRefused,
    RunSuspended,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.compaction.jobs import Progress
    from lithify.compaction.report import Report
    from lithify.compaction.run import Compactor

__all__ = ["Runs"]

HISTORY_MAX = 1000
"""Runs that the record is made from; a history file keeps about as many."""

TURN_S = 0.1


class Runs:
    """See the module."""

    def __init__(self, directory: str, compactor: Compactor, *, limit: str) -> None:
        """`limit` is what a run that is refused waits for: the word for such a log."""
        self._limit = limit
        self._directory = directory
        self._compactor = compactor
        self._turn = threading.Lock()
        self._progress: tuple[str, int, int] | None = None
        self._stopping: type[RunCancelled] | None = None
        self._closed = False
        self._record: CompactionRecord | None = None
        self._failure = ""

    # --- looking ----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Is a run going on?"""
        return self._progress is not None

    def unfinished(self) -> bool:
        """Has a run been killed that no other one has taken up?"""
        return not self.running and self._compactor.observe().unfinished

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
        progress, report = self._progress, self.record().latest
        if progress is not None:
            return CompactionStatus(CompactionState.RUNNING, "", *progress, report)
        error = self._failure or (report.error if report is not None else None)
        if self.unfinished():
            error = "a run was interrupted; the next one takes it up"
        if error:
            return CompactionStatus(CompactionState.ERROR, error, report=report)
        state = CompactionState.NOT_RUN if report is None else CompactionState.SUCCESS
        return CompactionStatus(state, report=report)

    # --- running ----------------------------------------------------------------------------

    def one(
        self, run: Callable[[Progress], Report], progress: Progress = ignore_progress
    ) -> Report:
        """Carry out a run, which is handed what each of its steps has to call."""

        def note(phase: str, done: int, total: int) -> None:
            self._progress = phase, done, total
            if self._stopping is RunSuspended:
                raise RunSuspended(f"the run on {self._directory} was suspended")
            if self._stopping is not None:
                raise RunCancelled(f"the run on {self._directory} was cancelled")
            progress(phase, done, total)

        with self.turn(waits=True):
            self._stopping = None
            try:
                with typed_errors(self._directory):
                    note("PREPARE", 0, 0)
                    report = run(note)
                    self._record, self._failure = None, ""
                    if report.result == "nothing to do":
                        # It is not in the history, but it is the latest all the same.
                        self._record = self.record().with_report(report)
                return report
            except RunRefused as error:
                if error.limit != "disk":
                    self._record, self._failure = None, str(error)
                # One that waits for the disk has not begun: the last run went as it went.
                raise
            except Exception as error:
                # The history is read when somebody asks: it may be what cannot be read now.
                self._record, self._failure = None, str(error)
                raise
            finally:
                self._progress = None

    def cancel(self) -> None:
        """Ask a run that is going on to stop; it leaves everything as it was."""
        # Between two steps there is nothing that the compactor could cancel.
        self._stopping = RunCancelled
        self._compactor.cancel()

    def suspend(self) -> None:
        """Ask it to stop in such a way that the next run goes on with it."""
        self._stopping = RunSuspended
        self._compactor.suspend()

    def close(self, *, suspends: bool = False) -> None:
        """Stop the run that is going on, wait for its end, and let no other one begin."""
        if not self._closed:
            self._closed = True
            while not self._turn.acquire(timeout=TURN_S):
                if suspends:
                    self.suspend()
                else:
                    self.cancel()

    @contextmanager
    def turn(self, *, waits: bool = False) -> Iterator[None]:
        """One at a time; the second is refused, or waits if it says so."""
        mine = self._turn.acquire(blocking=False)
        while waits and not mine and not self._closed:
            mine = self._turn.acquire(timeout=TURN_S)
        if not mine:
            if self._closed:
                raise LogClosed(f"{self._directory} is closed")
            raise RunRefused(self._limit, f"a run on {self._directory} is going on")
        try:
            yield
        finally:
            self._turn.release()
