"""Compacts the segments of one group, one job at a time.

The group's thread creates jobs and applies their results; the log worker's thread runs them:

    compaction.request_drop()         # a snapshot was taken: phase 1
    compaction.observe()              # the threshold that calls for phase 3, for the queue
    compaction.request(run)           # phase 3; the callback receives the outcome
    job = compaction.next_job()       # None if no job is due, or one is running
    outcome = job()                   # in the worker's thread
    compaction.done(outcome)          # in the group's thread

Phase 1 drops the segments without a live index: the kernel's policy `whole-dead`. It follows
every snapshot, copies nothing, and writes no report. `next_job` plans it from memory and
drops the group's references; the job then deletes the files. With no live index at all this is
Raft's plain truncation.

Phase 3 merges sparse segments: a run of the kernel (`lithify.compaction.run.compactor`) by the
policy `neighbours`, with a plan, a report in the group's history, and exclusive use of the disk.
It reads the log through `segments_port.py`. Segments that phase 1 drops just before a run are part
of its plan and of its report.

Phase 3 begins only by `request`. In a node the queue of runs calls it (`run_requests.py`): for a
client's request, for a trigger (`triggers.py`), and for the interval of the settings.

1. Requests that arrive while a job runs are queued. If the snapshot has moved since the job was
   created, phase 1 runs once more.
2. A run that fails leaves the segments of the failed portion unchanged. If it failed in the middle
   of a publish, the next job only finishes or rolls back that publish. Until then nothing may be
   dropped: a merged file that is in place, but not known to the group yet, contains entries of its
   neighbours.
3. A segment that a run finds damaged is repaired (`raft/repair/repair.py`). Until then runs skip
   it and merge the others.
4. The worker never waits for the disk: the queue takes the disk before it requests the run.
   Without a queue a run is refused while the disk is in use.
5. A run that copies slows down when batches of the write-ahead log take longer than they did
   before the run (`compaction/limits/pace_by_latency.py`).
6. Links that merges leave behind are deleted when they are `link_keep_ms` old. Until then a reader
   with an old name finds the merged file.

A dry run is a job too, so that no file changes while it reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lithify.compaction.limits.latencies import Latencies
from lithify.compaction.limits.pace_by_latency import HeldRate, Pacing
from lithify.compaction.planning.horizon import Holds
from lithify.compaction.policies.built_in import plan_whole_dead
from lithify.compaction.policies.packing import Limits
from lithify.compaction.run.compactor import Compactor, DryRun, RunSettings
from lithify.compaction.run.control import RunControl
from lithify.compaction.run.journal import NoJournal
from lithify.compaction.run.log_runs import LogRuns
from lithify.compaction.scheduling.triggers import Observation, Trigger
from lithify.errors import (
    Corrupt,
    LithifyError,
    LogClosed,
    ReadFailed,
    RunCancelled,
    RunFailed,
    RunRefused,
)
from lithify.events import SideFileSetAside
from lithify.logger import get_logger
from lithify.raft.compaction.segments_port import (
    LiveIndexRule,
    NamedLog,
    compactable,
    segment_stats,
    tidy,
)
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.compaction.triggers import MergeTriggers
from lithify.raft.compaction.write_merged_segments import SOURCES_MAX, MergeJobs, MergeTargets
from lithify.raft.storage import merge_links
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.clock import Clock
    from lithify.compaction.planning.plan import SegmentStats
    from lithify.compaction.reports.report import Report
    from lithify.compaction.reports.status import CompactionStatus
    from lithify.events import Event
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.raft.storage.group_log import GroupLog
    from lithify.raft.storage.group_segments import IndexSpan
    from lithify.raft.storage.segment_file import SegmentLimits

__all__ = ["CompactionOutcome", "GroupCompaction", "RunWanted"]

log = get_logger("lithify.raft")


def _ignore_outcome(_: Report | LithifyError) -> None:
    """The default callback of a run."""


@dataclass(frozen=True, slots=True)
class RunWanted:
    """A requested run of phase 3."""

    trigger: Trigger = Trigger.ADMIN
    control: RunControl = field(default_factory=lambda: RunControl(waits=False))
    ended: Callable[[Report | LithifyError], None] = _ignore_outcome
    """Called once, in the group's thread."""


@dataclass(slots=True)
class CompactionOutcome:
    """The result of a job."""

    removed: list[str] = field(default_factory=list)
    """Deleted files."""
    gone: list[str] = field(default_factory=list)
    """Segments that were merged into a lower one."""
    refs: list[SegmentRef] = field(default_factory=list)
    """Segments that were rewritten."""
    report: Report | None = None
    plan: DryRun | None = None
    failure: Exception | None = None


class GroupCompaction:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        log: GroupLog,
        limits: SegmentLimits,
        clock: Clock,
        settings: GroupCompactionSettings | None = None,
        latencies: Latencies | None = None,
    ) -> None:
        """`latencies` are those of appends, which wait for the disk that runs use."""
        self._fs = fs
        self._directory = directory
        self._log = log
        self._clock = clock
        self._settings = settings or GroupCompactionSettings()
        self._limits = Limits(limits.frame_bytes_max, limits.entries_max, sources_max=SOURCES_MAX)
        self.named = NamedLog(fs, directory, log.group)
        self.pacing = Pacing(latencies or Latencies(), HeldRate(), clock)
        self.holds = Holds(clock)
        """They limit the horizon, so that runs and drops leave the segments above it."""
        self._hold = self.holds.place("snapshot", log.snapshot_index)
        self._horizon = log.snapshot_index
        self._kernel = self._compactor(self.named)
        self.runs = LogRuns(
            fs,
            directory,
            self._kernel,
            kind="group",
            name=f"group {group_of(log.group)}",
            resumes=True,
        )
        self.history = self._kernel.history
        self._drop_wanted = False
        self._reached = ""
        """The threshold that calls for phase 3, as text; empty if none does."""
        self._requests: list[RunWanted] = []
        self._current: RunWanted | None = None
        """The request of the run in progress."""
        self._plans: list[Callable[[DryRun | LithifyError], None]] = []
        self._planning: list[Callable[[DryRun | LithifyError], None]] = []
        self._running_at: int | None = None
        """The snapshot's index when the running job was created."""
        self._publish_unfinished = False
        """Was a publish perhaps interrupted?"""
        self._triggers = MergeTriggers(self._settings)
        self._purge_ms: int | None = None
        self._closed: LithifyError | None = None
        self.drops = self.merges = 0
        """Runs of phase 1, and completed runs of phase 3, in this process."""
        self.failure: BaseException | None = None
        """Why the last job failed."""

    def _compactor(self, named: NamedLog) -> Compactor:
        group = self._log.group
        return Compactor(
            named,
            self._fs,
            LiveIndexRule(named, group, self._limits),
            settings=RunSettings(
                self._limits,
                "neighbours",
                dead_sets=False,
                budget=self._settings.budget,
                pace=self._settings.pace,
            ),
            holds=self.holds,
            clock=self._clock,
            jobs=MergeJobs(),
            targets=MergeTargets(self._fs, named, group, self._clock),
            journal=NoJournal(),
            events=_log_side_file,
            pacing=self.pacing,
        )

    # --- the group's thread -----------------------------------------------------------------

    def request_drop(self) -> None:
        """Request phase 1. It runs when no other job does."""
        self._drop_wanted = True

    def observe(self) -> Observation:
        """The triggers of phase 3, for the queue of runs."""
        return Observation(reached=self._reached, period_ms=self._settings.interval_ms)

    def request(self, wanted: RunWanted) -> None:
        """Request phase 3. The callback receives the report, or the error."""
        if self._closed is not None:
            wanted.ended(self._closed)
            return
        self._requests.append(wanted)
        self.request_drop()

    def plan(self, ended: Callable[[DryRun | LithifyError], None]) -> None:
        """Request a dry run. It waits for the job in progress."""
        if self._closed is not None:
            ended(self._closed)
        else:
            self._plans.append(ended)

    def close(self, error: LithifyError) -> None:
        """Stop: the run in progress and all requests, also later ones, end with the error."""
        self._closed = error
        current = [] if self._current is None else [self._current]
        for wanted in current:
            # It may not have begun: then the runs do not know it yet.
            self.runs.interrupt(wanted.control)
        requests, plans = [*current, *self._requests], [*self._planning, *self._plans]
        self._current, self._requests, self._planning, self._plans = None, [], [], []
        for wanted in requests:
            wanted.ended(error)
        for ended in plans:
            ended(error)

    @property
    def is_idle(self) -> bool:
        """Is no job due, now or later?"""
        return not (self._drop_wanted or self._plans) and self._purge_ms is None

    @property
    def is_running(self) -> bool:
        """Is a job in progress?"""
        return self._running_at is not None

    def next_job(self) -> Callable[[], CompactionOutcome] | None:
        """The next job of the worker, if one is due; cheap if none is."""
        if self._closed is not None:
            return None
        now_ms = self._clock.now_ms()
        purge = self._purge_ms is not None and now_ms >= self._purge_ms
        if self.is_running or not (self._drop_wanted or purge or self._plans):
            return None
        state, segments = self._log.state, self._log.segments
        self._running_at = state.snapshot_index
        if self._publish_unfinished:
            return partial(self._tidy, segments.spans)
        if self._plans:
            self._planning, self._plans = self._plans, []
            return self._dry_run()
        dropped = self._drop() if self._drop_wanted else []
        if purge:
            self._purge_ms = None
        if self._drop_wanted and self._requests:
            self._current, self._reached = self._requests.pop(0), ""
            self._triggers.record_begin()
            # The next job deletes the links of this run when they are old enough.
            self._purge_ms = now_ms + self._settings.link_keep_ms
        self._drop_wanted = bool(self._requests)
        damaged = segments.damages.open
        self.named.take(segments.spans, dropped, state, self._horizon, damaged)
        return partial(self._run, now_ms - self._settings.link_keep_ms, self._current)

    def _drop(self) -> list[IndexSpan]:
        """Drop the group's references to dead segments, and return these segments.

        Sets the threshold that this has reached, if any.
        """
        segments, stats = self._log.segments, self._stats()
        self.drops += bool(stats)
        dead = {each.segment for each in plan_whole_dead(stats, self._limits).dropped}
        dropped = [span for span in segments.spans if span.number in dead]
        # References go before files: no reader may plan to read a file that is about to be deleted.
        segments.replace([span.ref.name for span in dropped], ())
        kept = [each for each in stats if each.id not in dead]
        self._reached = self._triggers.by_drop(stats, kept) or self._reached
        return dropped

    def _stats(self) -> list[SegmentStats]:
        """Entries and live entries of the segments up to the horizon."""
        self._update_horizon()
        spans = compactable(self._log.segments.spans, self._horizon)
        return segment_stats(spans, self._log.state)

    def _update_horizon(self) -> None:
        self._hold.move(self._log.snapshot_index)
        self._horizon = min(hold.position for hold in self.holds.list())

    def _dry_run(self) -> Callable[[], CompactionOutcome]:
        """The job of a dry run over the current segments and live indexes."""
        state = self._log.state
        named = NamedLog(self._fs, self._directory, self._log.group)
        segments = self._log.segments
        self._update_horizon()
        named.take(segments.spans, (), state, self._horizon, segments.damages.open)
        compactor = self._compactor(named)

        def plan() -> CompactionOutcome:
            named.begin()
            return CompactionOutcome(plan=compactor.plan())

        return plan

    def done(self, outcome: CompactionOutcome | BaseException) -> None:
        """Apply the result of a job to the group."""
        assert self._running_at is not None
        snapshot_index, self._running_at = self._running_at, None
        if self._planning:
            self._deliver_plan(outcome)
            return
        state, segments = self._log.state, self._log.segments
        failure = outcome.failure if isinstance(outcome, CompactionOutcome) else outcome
        if isinstance(outcome, CompactionOutcome):
            segments.replace(outcome.gone, outcome.refs)
        self._publish_unfinished = self.named.half_published or outcome is failure
        merged = self._current is not None
        self.merges += merged and failure is None
        is_harmless = isinstance(failure, RunCancelled) or _is_disk(failure)
        self.failure = None if is_harmless else failure
        if self.failure is not None:
            self._note_failure()
        if isinstance(failure, Corrupt | ReadFailed):
            self._note_damage(failure)
        self._deliver_outcome(outcome, failure)
        if outcome is failure:
            self._refuse_waiting(outcome)
        self._triggers.record_job(self._stats(), merged=merged)
        if state.snapshot_index != snapshot_index:
            self.request_drop()

    def _deliver_plan(self, outcome: CompactionOutcome | BaseException) -> None:
        planning, self._planning = self._planning, []
        for ended in planning:
            if isinstance(outcome, CompactionOutcome) and outcome.plan is not None:
                ended(outcome.plan)
            else:
                ended(self._typed(outcome))

    def _note_failure(self) -> None:
        """Retry at the next request, not at once: a full disk stays full for a while.

        A run that was requested meanwhile is not affected.
        """
        if self._current is None:
            name = group_of(self._log.group)
            log.warning("compaction failed", group=name, reason=str(self.failure))
        self._drop_wanted = bool(self._requests)
        if self._current is not None and self._current.trigger is Trigger.THRESHOLD:
            self._reached = self._reached or "the run of the last threshold has failed"
        self._purge_ms = self._clock.now_ms() + self._settings.link_keep_ms

    def _note_damage(self, failure: Corrupt | ReadFailed) -> None:
        """Report a segment that cannot be copied: it is repaired, and runs skip it until then."""
        name = failure.path.rpartition("/")[2]
        if any(span.ref.name == name for span in self._log.segments.spans):
            self._log.segments.damages.found(name, failure)

    def _deliver_outcome(
        self, outcome: CompactionOutcome | BaseException, failure: BaseException | None
    ) -> None:
        """Call the callback of the run that ended, if this job was one."""
        wanted, self._current = self._current, None
        if wanted is None:
            return
        if isinstance(outcome, CompactionOutcome) and outcome.report is not None:
            wanted.ended(outcome.report)
        else:
            wanted.ended(self._typed(failure))

    def _refuse_waiting(self, failure: object) -> None:
        """End what waits with an error: the job that has to precede it has failed."""
        requests, self._requests, self._drop_wanted = self._requests, [], False
        plans, self._plans = self._plans, []
        for ended in (*(wanted.ended for wanted in requests), *plans):
            ended(self._typed(failure))

    def _typed(self, error: object) -> LithifyError:
        """The error for a callback. One that is not of the file system is a bug."""
        if isinstance(error, OSError):
            return RunFailed(self._directory, error)
        return error if isinstance(error, LithifyError) else LogClosed(f"the run ended: {error!r}")

    def overview(self) -> dict[str, int | str]:
        """Counts and the last failure, for the group's overview."""
        failure = str(self.failure or "")
        return {"compactions": self.drops, "merges": self.merges, "compaction_failure": failure}

    # --- the worker's thread ----------------------------------------------------------------

    def _tidy(self, spans: Sequence[IndexSpan]) -> CompactionOutcome:
        gone, refs = tidy(self._fs, self._directory, spans)
        self.named.half_published = False
        return CompactionOutcome(gone=gone, refs=refs)

    def _run(self, before_ms: int, wanted: RunWanted | None) -> CompactionOutcome:
        outcome = CompactionOutcome()
        if self._closed is not None:
            return outcome
        try:
            outcome.removed = [event.name for event in self.named.sweep()]
            # Before the merge: its own links are in use until this outcome is applied, and may
            # look old if the clock was set back meanwhile.
            merge_links.purge_links(self._fs, self._directory, before_ms)
            if wanted is not None:
                run = partial(self._merge, wanted.trigger)
                outcome.report = self.runs.run_exclusively(run, wanted.control)
        except Exception as error:  # noqa: BLE001  (the group must apply what was done before it)
            outcome.failure = error
        outcome.gone, outcome.refs = self.named.published()
        return outcome

    def _merge(self, trigger: str, control: RunControl) -> Report:
        """Phase 3."""
        self.named.begin()
        report = self._kernel.run(trigger, control=control)
        return replace(report, reclaimed_bytes=self._kernel.reclaim().bytes)

    # --- any thread -------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Is a run of phase 3 in progress?"""
        return self.runs.running

    def cancel(self) -> None:
        """Ask the run in progress to stop. What it has published stays."""
        self.runs.cancel()

    def status(self) -> CompactionStatus:
        """The progress of the run, or the result of the last one, which may precede a restart."""
        return self.runs.status()


def _log_side_file(event: Event) -> None:
    """Log that a history was set aside. The report of a run has the other events."""
    if isinstance(event, SideFileSetAside):
        path = f"{event.log}/{event.path}"
        log.warning("side file set aside", file=path, kept_as=event.kept_as, reason=event.reason)


def _is_disk(failure: object) -> bool:
    return isinstance(failure, RunRefused) and failure.limit == "disk"
