"""One run, as those see it who asked for it: how far it is, what it waits for, and the stop flag.

    control = RunControl(progress)          # one per run, made by the caller
    compaction.run("admin", jobs, control)  # any thread
    control.phase, control.waits_for        # any other thread
    control.cancel()                        # leaves the log as it was
    control.suspend()                       # the next run resumes it

The flag is the only one there is: the queue, the log's runs, the rate limiter and each step of the
run look at the same object. The first of `cancel` and `suspend` counts.

A control is called like a `Progress` (phase, done, total), and is one: whatever takes a progress
callable takes a control too.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lithify.compaction.tasks.jobs import ignore_progress
from lithify.errors import RunCancelled, RunRefused, RunSuspended

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.compaction.tasks.jobs import Progress

__all__ = ["WAITING", "RunControl"]

WAITING = "WAITING"
"""The phase of a run that has not begun."""

POLL_S = 0.1


class RunControl:
    """See the module."""

    def __init__(
        self, progress: Progress = ignore_progress, *, waits: bool = True, has_disk: bool = False
    ) -> None:
        """`progress` is told each step, and `WAITING` while the run waits.

        A run that does not wait is refused instead. With `has_disk` the caller holds the disk.
        """
        self.waits = waits
        self.has_disk = has_disk
        self.phase, self.done, self.total = WAITING, 0, 0
        self.waits_for = ""
        self._progress = progress
        self._stop: type[RunCancelled] | None = None
        self._stopped = threading.Event()

    @classmethod
    def of(cls, progress: Progress) -> RunControl:
        """The control that a caller gave as the progress, or a new one that tells it."""
        return progress if isinstance(progress, RunControl) else cls(progress)

    def cancel(self) -> None:
        """Ask the run to stop; it leaves the log as it was."""
        self._end(RunCancelled)

    def suspend(self) -> None:
        """Ask the run to stop in such a way that the next one resumes it."""
        self._end(RunSuspended)

    def _end(self, how: type[RunCancelled]) -> None:
        if self._stop is None:
            self._stop = how
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Was the run asked to stop?"""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise `RunCancelled` or `RunSuspended` if the run was asked to stop."""
        if self._stop is not None:
            how = "suspended" if self._stop is RunSuspended else "cancelled"
            when = " before it began" if self.phase == WAITING else ""
            raise self._stop(f"the run was {how}{when}")

    def __call__(self, phase: str, done: int, total: int) -> None:
        """A step: note it, and stop here if that was asked for."""
        self.check()
        self.phase, self.done, self.total, self.waits_for = phase, done, total, ""
        self._progress(phase, done, total)

    def wait(self, take: Callable[[], RunRefused | None]) -> None:
        """Try to take something until it is there; raises if the run is stopped or may not wait.

        `take` returns None once it has it, else the refusal that says what it waits for.
        """
        while (refused := take()) is not None:
            if not self.waits:
                raise refused
            self.check()
            self.waits_for = refused.waits_for
            self._progress(WAITING, 0, 0)
            self._stopped.wait(POLL_S)
        self.waits_for = ""
