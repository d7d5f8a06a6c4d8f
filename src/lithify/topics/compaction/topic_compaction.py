"""Compaction of one topic: the interface for its callers.

    report = topic.compaction.run("admin", jobs)
    print(topic.compaction.plan(jobs).explain())

A run:

1. Return if nothing was appended since the last run and nothing can have expired.
2. Roll the active ledger, so that everything durable is in scope. A hold of the name `minimum lag`
   excludes messages younger than the minimum lag.
3. Run the kernel (`compaction/run/compactor.py`) with the topic's rule, into the compacted view.
   The run slows down while reads for consumers take longer than before it
   (`compaction/limits/pace_by_latency.py`).
4. Delete retired files that no reader has pinned.

A run that follows a killed one only completes that run, or repeats it.
At most one run per topic and per disk is in progress: other runs wait, and a dry run waits for a
run on its own topic. Any thread may call. `run` takes long; call it in a thread of its own. The
queue of the node schedules the runs of all topics (`scheduling.py`).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.compaction.limits.latencies import Latencies
from lithify.compaction.limits.pace_by_latency import Pacing, SharedRate
from lithify.compaction.planning.horizon import Holds
from lithify.compaction.policies.built_in import Limits
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.compaction.run.control import RunControl
from lithify.compaction.run.log_runs import LogRuns
from lithify.compaction.scheduling.triggers import Trigger
from lithify.compaction.tasks.jobs import ignore_progress
from lithify.errors import InvalidInput
from lithify.exit_codes import CONFLICT
from lithify.fs.full_disk_reserve import NO_RESERVE
from lithify.log.file_names import PACE
from lithify.topics.compaction.live_messages import FACTS, UNFINISHED, TopicRule
from lithify.topics.compaction.shrink_batches import TopicRewriting
from lithify.topics.compaction.unfinished_chunks import is_mark_due
from lithify.topics.disk_steps import DiskCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.one_run_per_disk import DiskGate
    from lithify.compaction.planning.horizon import HoldHandle
    from lithify.compaction.reports.report import Report
    from lithify.compaction.reports.status import CompactionRecord, CompactionStatus
    from lithify.compaction.run.compactor import DryRun
    from lithify.compaction.tasks.jobs import Jobs, Progress
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest
    from lithify.topics.compaction.unfinished_chunks import Mark
    from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
    from lithify.topics.disk_steps import Steps

__all__ = ["TOPIC_TASKS", "TopicCompaction", "ViewBeingDeleted"]

TOPIC_TASKS = ("lithify.topics.compaction.warm_up",)
"""Modules that Spark workers load at start: they warm up the code of the tasks."""

TARGET_BYTES_MAX = 256 * 2**20
TARGET_ENTRIES_MAX = 2**24
REWRITE_BYTES_MIN = 64 * 2**20
"""Rewrite budget of a run regardless of the new bytes, so that the view converges."""
SOURCE_BYTES_MIN, SOURCE_BYTES_MAX = 2 * TARGET_BYTES_MAX, 2 * 2**30
"""Bounds of the bytes that one task reads, by default an eighth of the new bytes. They split old,
mostly dead segments into many tasks, which balances the load."""


class ViewBeingDeleted(InvalidInput):
    """Another deletion of the compacted view is in progress."""

    exit_code = CONFLICT


class TopicCompaction:
    """Runs, plans and reports of one topic; see the module."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        *,
        settings: Callable[[], TopicCompactionSettings],
        clock: Clock,
        events: EventSink,
        name: str = "",
        gate: DiskGate | None = None,
        latencies: Latencies | None = None,
    ) -> None:
        """`name` is shown to runs that wait for the disk.

        `latencies` are those of reads for consumers, also of other topics on the disk.
        """
        self.latencies = latencies or Latencies()
        self.rate = SharedRate(fs, f"{log.directory}/{PACE}")
        """The rate of the run in progress."""
        self._log = log
        self._clock = clock
        self.settings = settings
        self._rule = TopicRule(
            settings, lambda: log.manifest.horizon, self._marks, lambda: log.last_position
        )
        self._deleting = threading.Lock()
        self._reclaiming = threading.Lock()
        self._compactor = Compactor(
            log,
            fs,
            self._rule,
            settings=_run_settings(settings(), 0),
            holds=Holds(clock),
            clock=clock,
            events=events,
            rewriting=TopicRewriting(log.manifest.log_id),
            pacing=Pacing(self.latencies, self.rate, clock),
        )
        self.runs = LogRuns(
            fs,
            log.directory,
            self._compactor,
            kind="topic",
            name=name or log.directory,
            resumes=False,
            gate=gate,
        )
        self.history = self._compactor.history
        self.reserve: NoReserve = NO_RESERVE
        """Disk space that a run and the deletion of old segments may use on a full disk."""

    # --- state ------------------------------------------------------------------------------

    @property
    def horizon(self) -> int:
        """The last position that a run has covered, -1 before the first run."""
        return self._log.manifest.horizon

    def is_new(self) -> bool:
        """Is there a message above the horizon, or one that may have expired since the last run?"""
        return self._log.last_position > self.horizon or self.may_have_expired()

    def may_have_expired(self) -> bool:
        """Can a retained message have expired since the last run?"""
        settings = self.settings()
        expires = settings.key_ttl_ms or settings.tombstone_retention_ms
        expires = expires or is_mark_due(self._marks(), self._clock.now_ms())
        return bool(expires and self._log.manifest.view)

    def _marks(self) -> Sequence[Mark]:
        """The watermarks of unfinished chunked messages from the last run."""
        marks: Sequence[Mark] = self._log.manifest.state.get(UNFINISHED, ())
        return marks

    @property
    def running(self) -> bool:
        """Is a run in progress?"""
        return self.runs.running

    def unfinished(self) -> bool:
        """Is there a killed run that no run has completed?"""
        return self.runs.unfinished()

    def record(self) -> CompactionRecord:
        """The totals of all runs, also before a restart; fails on an unreadable history."""
        return self.runs.record()

    def reading_record(self) -> Steps[CompactionRecord]:
        """The same in steps; a thread reads the history."""

        def find() -> Callable[[], object] | None:
            return None if self.runs.record_is_cached else self.record

        yield DiskCall(self.runs, find)
        return self.record()

    def status(self) -> CompactionStatus:
        """The progress of the run in progress, else the outcome of the last run."""
        return self.runs.status()

    def now_ms(self) -> int:
        """The time by the topic's clock."""
        return self._clock.now_ms()

    def plan(self, jobs: Jobs | None = None, *, waits: bool = True) -> DryRun:
        """What a run would do now with the sealed segments. Writes nothing but key indexes.

        Waits for a run in progress, or is refused without `waits`.
        """
        control = RunControl(waits=waits)
        with self.runs.dry_run(control):
            settings = self.settings()
            run_settings = _run_settings(settings, self._new_bytes())
            with self._minimum_lag(settings):
                return self._compactor.plan(settings=run_settings, jobs=jobs, control=control)

    # --- running ----------------------------------------------------------------------------

    def run(
        self, trigger: str, jobs: Jobs | None = None, progress: Progress = ignore_progress
    ) -> Report:
        """Compact as soon as topic and disk are free. `progress` may be a `RunControl`."""

        def run(control: RunControl) -> Report:
            with self.reserve.if_full():
                return self._run(trigger, jobs, control)

        return self.runs.run_exclusively(run, RunControl.of(progress))

    def _run(self, trigger: str, jobs: Jobs | None, control: RunControl) -> Report:
        settings = self.settings()
        run_settings = _run_settings(settings, self._new_bytes())
        if trigger != Trigger.UNFINISHED:
            if self._compactor.unfinished():
                self._compactor.recover(control=control)
            if self.is_new() and self._log.active_bytes:
                self._log.roll()
        control("PREPARE", 0, 0)
        with self._minimum_lag(settings):
            report = self._compactor.run(trigger, settings=run_settings, jobs=jobs, control=control)
        with self._reclaiming:
            freed = self._compactor.reclaim()
        return replace(report, reclaimed_bytes=freed.bytes) if report.result == "done" else report

    def reclaim(self) -> None:
        """Delete retired files without pins and add their bytes to the last run's report.

        A run in progress deletes its own retired files after it has written its report.
        """
        if self.running or not self._reclaiming.acquire(blocking=False):
            return
        try:
            if self._compactor.reclaim().files:
                self.runs.forget_record()
        finally:
            self._reclaiming.release()

    def cancel(self) -> None:
        """Cancel the run in progress; it leaves the topic unchanged."""
        self.runs.cancel()

    def close(self) -> None:
        """Cancel the run in progress, wait until it has stopped, and refuse new runs."""
        self.runs.close()

    def delete_view(self) -> None:
        """Delete the compacted view, not the log. Waits for a run in progress."""
        if not self._deleting.acquire(blocking=False):
            raise ViewBeingDeleted(f"the view of {self._log.directory} is already being deleted")
        try:
            with self.runs.turn():
                self._log.publish(_without_view, "compacted view deleted")
                with self._reclaiming:
                    self._compactor.reclaim()
        finally:
            self._deleting.release()

    def _new_bytes(self) -> int:
        """The bytes above the horizon."""
        manifest = self._log.manifest
        new = (s.frame_bytes for s in manifest.segments if s.last_position > manifest.horizon)
        return sum(new) + self._log.active_bytes

    def _minimum_lag(self, settings: TopicCompactionSettings) -> HoldHandle:
        hold = self._lag_limit(settings.compaction_lag_min_ms)
        return self._compactor.holds.place("minimum lag", hold, "topic")

    def _lag_limit(self, lag_min_ms: int) -> int:
        """The last position that is at least `lag_min_ms` old."""
        if not lag_min_ms:
            return self._log.next_position
        with self._log.snapshot("minimum lag") as snapshot:
            young = snapshot.find_time(self._clock.now_ms() - lag_min_ms)
        return self._log.next_position if young is None else young - 1


def _run_settings(settings: TopicCompactionSettings, new_bytes: int) -> RunSettings:
    policy_options: dict[str, float] = {
        "density_min": settings.live_ratio_min,
        "rewrite_bytes_max": settings.rewrite_bytes_max or max(new_bytes, REWRITE_BYTES_MIN),
    }
    source_bytes_max = min(max(new_bytes // 8, SOURCE_BYTES_MIN), SOURCE_BYTES_MAX)
    return RunSettings(
        Limits(TARGET_BYTES_MAX, TARGET_ENTRIES_MAX, source_bytes_max=source_bytes_max),
        "view",
        policy_options,
        in_view=True,
        budget=settings.budget(),
        pace=settings.pace(),
    )


def _without_view(manifest: Manifest) -> Manifest:
    state = {k: v for k, v in manifest.state.items() if k not in FACTS}
    return replace(manifest, view=None, horizon=-1, state=state)
