"""Compaction of one topic: what its users call.

    report = topic.compaction.run("admin", jobs)
    print(topic.compaction.plan(jobs).explain())

A run:

1. If nothing came since the last one and nothing can have expired, there is nothing to do.
2. The active ledger is rolled, so that everything durable can be judged. What is younger than the
   minimum lag is kept out by a hold of that name.
3. The kernel's run (`compaction/run.py`) with the topic's rule, into the view.
4. Files that nobody needs any more are deleted.

One run a topic at a time: a second one is refused with `RunRefused`. Any thread may call; `run`
takes long and belongs into one of its own. Many topics take turns in `compactions.py`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.compaction.horizon import Holds
from lithify.compaction.jobs import LocalJobs, ignore_progress
from lithify.compaction.policies import Limits
from lithify.compaction.run import Compactor, RunSettings
from lithify.compaction.steps import typed_errors
from lithify.errors import (
    Corrupt,
    InvalidInput,
    LogClosed,
    RunCancelled,
    RunRefused,
    UnsupportedVersion,
)
from lithify.topics.compaction_record import (
    CompactionRecord,
    CompactionState,
    CompactionStatus,
)
from lithify.topics.rebatch import TopicRewriting
from lithify.topics.rule import LAST_MESSAGE, VIEW_MESSAGES, TopicRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.clock import Clock
    from lithify.compaction.horizon import HoldHandle
    from lithify.compaction.jobs import Jobs, Progress
    from lithify.compaction.report import Report
    from lithify.compaction.run import DryRun
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest
    from lithify.topics.compaction_settings import CompactionSettings

__all__ = ["TOPIC_TASKS", "TopicCompaction", "ViewBeingDeleted"]

TOPIC_TASKS = (
    "lithify.topics.indexing",
    "lithify.topics.survivors",
    "lithify.topics.verdict",
    "lithify.topics.rebatch",
    "lithify.compaction.rewrite",
)
"""The modules that the tasks of a run are in; a worker that has them loaded begins at once."""

TARGET_BYTES_MAX = 256 * 2**20
TARGET_ENTRIES_MAX = 2**24
REWRITE_BYTES_MIN = 64 * 2**20
"""A run may rewrite so much however little is new, so that the view comes to rest."""
SOURCE_BYTES_MAX = 2 * 2**30
"""What one task reads at most, so that old segments, of which little is live, are many tasks."""


HISTORY_MAX = 1000
"""Runs that the record is made from; a history file keeps about as many."""

TURN_S = 0.1


class ViewBeingDeleted(InvalidInput):
    """Somebody else is deleting the compacted view."""


class TopicCompaction:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        *,
        settings: Callable[[], CompactionSettings],
        clock: Clock,
        events: EventSink,
    ) -> None:
        self._log = log
        self._clock = clock
        self.settings = settings
        self._rule = TopicRule(settings, lambda: log.manifest.horizon)
        self._progress: tuple[str, int, int] | None = None
        self._turn = threading.Lock()
        self._deleting = threading.Lock()
        self._reclaiming = threading.Lock()
        self._stopping = False
        self._closed = False
        self._record: CompactionRecord | None = None
        self._failure = ""
        self._compactor = Compactor(
            log,
            fs,
            self._rule,
            settings=_run_settings(settings(), 0),
            holds=Holds(clock),
            clock=clock,
            events=events,
            rewriting=TopicRewriting(log.manifest.log_id),
        )
        self.history = self._compactor.history

    # --- looking ----------------------------------------------------------------------------

    @property
    def horizon(self) -> int:
        """The last position that a run has judged, -1 before the first one."""
        return self._log.manifest.horizon

    @property
    def holds_above(self) -> int | None:
        """The log above it is needed by the next run; None if there will be none by all we know."""
        # What a run is judging must not be dropped under it: it would have to be rolled back.
        wanted = self.running or self._log.manifest.view is not None or self.settings().by_itself
        return self.horizon if wanted else None

    def is_new(self) -> bool:
        """Is there something that no run has judged, or that may have expired since?"""
        settings = self.settings()
        expires = settings.key_ttl_ms or settings.tombstone_retention_ms
        manifest = self._log.manifest
        return self._log.last_position > manifest.horizon or bool(expires and manifest.view)

    @property
    def running(self) -> bool:
        """Is a run going on?"""
        return self._progress is not None

    def unfinished(self) -> bool:
        """Has a run been killed that no other one has taken up?"""
        return not self.running and self._compactor.observe().unfinished

    def record(self) -> CompactionRecord:
        """What all runs have done, also those before a restart; a damaged history is a failure."""
        record = self._record
        if record is None:
            reports: list[Report] = []
            try:
                reports = self.history.newest(HISTORY_MAX)
            except (Corrupt, UnsupportedVersion) as error:
                self._failure = str(error)
            record = self._record = CompactionRecord.of(reversed(reports))
        return record

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

    def plan(self, jobs: Jobs | None = None) -> DryRun:
        """What a run would do now with what is sealed; makes key indexes, changes nothing else."""
        with self._my_turn():
            settings = self._prepare(jobs, ignore_progress)
            with self._minimum_lag(settings):
                return self._compactor.plan()

    # --- running ----------------------------------------------------------------------------

    def run(
        self, trigger: str, jobs: Jobs | None = None, progress: Progress = ignore_progress
    ) -> Report:
        """Compact now."""

        def note(phase: str, done: int, total: int) -> None:
            self._progress = phase, done, total
            if self._stopping:
                raise RunCancelled(f"the run on {self._log.directory} was cancelled")
            progress(phase, done, total)

        with self._my_turn():
            self._stopping = False
            try:
                with typed_errors(self._log.directory):
                    report = self._run(trigger, jobs, note)
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
                self._progress = None

    def _run(self, trigger: str, jobs: Jobs | None, note: Progress) -> Report:
        note("PREPARE", 0, 0)
        settings = self._prepare(jobs, note)
        self._compactor.recover()
        if self.is_new() and self._log.active_bytes:
            self._log.roll()
        note("PREPARE", 0, 0)
        with self._minimum_lag(settings):
            report = self._compactor.run(trigger)
        with self._reclaiming:
            freed = self._compactor.reclaim()
        return replace(report, reclaimed_bytes=freed.bytes) if report.result == "done" else report

    def reclaim(self) -> None:
        """Delete what is retired and pinned no more, and add the bytes to the last run's report.

        A run that is going on deletes what it has retired itself, once its report is written.
        """
        if self.running or not self._reclaiming.acquire(blocking=False):
            return
        try:
            if self._compactor.reclaim().files:
                self._record = None
        finally:
            self._reclaiming.release()

    def cancel(self) -> None:
        """Ask a run that is going on to stop; it leaves everything as it was."""
        # Between two steps there is nothing that the compactor could cancel.
        self._stopping = True
        self._compactor.cancel()

    def close(self) -> None:
        """Cancel the run that is going on, wait for its end, and let no other one begin."""
        if not self._closed:
            self._closed = True
            while not self._turn.acquire(timeout=TURN_S):
                self.cancel()

    def delete_view(self) -> None:
        """Forget everything that was compacted; the log stays. Waits for the end of a run."""
        if not self._deleting.acquire(blocking=False):
            raise ViewBeingDeleted(f"the view of {self._log.directory} is being deleted")
        try:
            with self._my_turn(waits=True):
                self._log.publish(_without_view, "compacted view deleted")
                with self._reclaiming:
                    self._compactor.reclaim()
        finally:
            self._deleting.release()

    def _prepare(self, jobs: Jobs | None, progress: Progress) -> CompactionSettings:
        settings = self.settings()
        self._compactor.settings = _run_settings(settings, self._new_bytes())
        self._compactor.jobs = jobs or LocalJobs()
        self._compactor.progress = progress
        return settings

    def _new_bytes(self) -> int:
        """That no run has judged."""
        manifest = self._log.manifest
        new = (s.frame_bytes for s in manifest.segments if s.last_position > manifest.horizon)
        return sum(new) + self._log.active_bytes

    def _minimum_lag(self, settings: CompactionSettings) -> HoldHandle:
        hold = self._judgeable(settings.compaction_lag_min_ms)
        return self._compactor.holds.place("minimum lag", hold, "topic")

    def _judgeable(self, lag_min_ms: int) -> int:
        """The last position that is old enough."""
        if not lag_min_ms:
            return self._log.next_position
        with self._log.snapshot("minimum lag") as snapshot:
            young = snapshot.find_time(self._clock.now_ms() - lag_min_ms)
        return self._log.next_position if young is None else young - 1

    @contextmanager
    def _my_turn(self, *, waits: bool = False) -> Iterator[None]:
        """One at a time; the second is refused, or waits if it says so."""
        mine = self._turn.acquire(blocking=False)
        while waits and not mine and not self._closed:
            mine = self._turn.acquire(timeout=TURN_S)
        if not mine:
            if self._closed:
                raise LogClosed(f"{self._log.directory} is closed")
            raise RunRefused("topic", f"a run on {self._log.directory} is going on")
        try:
            yield
        finally:
            self._turn.release()


def _run_settings(settings: CompactionSettings, new_bytes: int) -> RunSettings:
    options: dict[str, float] = {
        "density_min": settings.live_ratio_min,
        "rewrite_bytes_max": settings.rewrite_bytes_max or max(new_bytes, REWRITE_BYTES_MIN),
    }
    return RunSettings(
        Limits(TARGET_BYTES_MAX, TARGET_ENTRIES_MAX, source_bytes_max=SOURCE_BYTES_MAX),
        "view",
        options,
        in_view=True,
        budget=settings.budget(),
    )


def _without_view(manifest: Manifest) -> Manifest:
    state = {k: v for k, v in manifest.state.items() if k not in {LAST_MESSAGE, VIEW_MESSAGES}}
    return replace(manifest, view=None, horizon=-1, state=state)
