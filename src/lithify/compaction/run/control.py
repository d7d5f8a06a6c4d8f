"""The control of one run, shared with its requester: progress, what it waits for, and a stop flag.

    control = RunControl(progress)          # one per run, created by the caller
    compaction.run("admin", jobs, control)  # any thread
    control.phase, control.waits_for        # any other thread
    control.cancel()                        # leaves the log as it was
    control.suspend()                       # the next run resumes it

There is a single flag: the queue, the log's runs, the rate limiter and each step of the run share
one object. The first call of `cancel` or `suspend` wins.

A control is callable like a `Progress` (phase, done, total): wherever a progress callable is
accepted, a control is too.
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
"""The phase of a run that has not started."""

POLL_S = 0.1


class RunControl:
    """Progress and stop flag of one run; see the module."""

    def __init__(
        self, progress: Progress = ignore_progress, *, waits: bool = True, has_disk: bool = False
    ) -> None:
        """`progress` is called at each step, and with `WAITING` while the run waits.

        A run that may not wait is refused instead. `has_disk`: the caller already holds the disk.
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
        """The control that a caller passed as progress, or a new one that forwards to it."""
        return progress if isinstance(progress, RunControl) else cls(progress)

    def cancel(self) -> None:
        """Ask the run to stop; it leaves the log as it was."""
        self._end(RunCancelled)

    def suspend(self) -> None:
        """Ask the run to stop so that the next one resumes it."""
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
        """Record a step, and stop here if requested."""
        self.check()
        self.phase, self.done, self.total, self.waits_for = phase, done, total, ""
        self._progress(phase, done, total)

    def wait(self, take: Callable[[], RunRefused | None]) -> None:
        """Retry `take` until it succeeds; raises if the run is stopped or may not wait.

        `take` returns None on success, otherwise the refusal that names what it waits for.
        """
        while (refused := take()) is not None:
            if not self.waits:
                raise refused
            self.check()
            self.waits_for = refused.waits_for
            self._progress(WAITING, 0, 0)
            self._stopped.wait(POLL_S)
        self.waits_for = ""
