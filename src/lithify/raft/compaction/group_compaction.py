"""When a group's segments are compacted, one job at a time, and how the group takes it in.

The group's thread asks and takes in; the log worker's thread runs:

    compaction.ask()                  # a snapshot was taken: phase 1
    compaction.observe()              # what calls for phase 3, for the queue
    compaction.request(run)           # phase 3 is wanted; whoever asks is told the outcome
    job = compaction.next_job()       # None if there is nothing to do, or one is under way
    outcome = job()                   # in the worker's thread
    compaction.done(outcome)          # in the group's thread again

Phase 1 drops the segments that have no live index: the kernel's policy `whole-dead`. It follows
every snapshot, costs no copying, and has no report. `next_job` plans it from what is in memory and
drops the group's references; the job then removes the files. With no live index at all this is
Raft's plain truncation.

Phase 3 merges what is sparse: a run of the kernel (`lithify.compaction.run.compactor`) by the
policy `neighbours`, with a plan, a report in the group's history, and the disk to itself. It sees
the log through `segments_port.py`. What is dropped just before it is part of its plan and of its
report.

Phase 3 begins only by `request`. In a node the queue of runs asks (`run_requests.py`): for persons,
and when a trigger calls (`triggers.py`, and the interval of the settings).

1. What is asked for while a job is under way is remembered. If the snapshot has moved since the job
   was made, phase 1 is done once more.
2. A run that fails changes nothing of the portion that failed. If that was in the middle of a
   publish, the next job does nothing but tidy up. Before that nothing may be dropped: a merged file
   that is in place, but not known to the group yet, has entries of its neighbours.
3. A segment that a run finds damaged is repaired (`raft/repair/repair.py`). Until then runs leave
   it alone, so that the others are merged.
4. The worker never waits for the disk: the queue has it before it asks. Without a queue a run is
   refused while the disk is in use.
5. While a run copies it slows down when rounds of the write-ahead log take longer than they did
   before it (`compaction/limits/pace.py`).
6. Links that merges have left are removed when they are `link_keep_ms` old; until then whoever
   still has an old name finds the merged file.

A dry run is a job too, so that no file changes under it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lithify.compaction.limits.latencies import Latencies
from lithify.compaction.limits.pace import HeldRate, Pacing
from lithify.compaction.planning.horizon import Holds
from lithify.compaction.policies.built_in import plan_whole_dead
from lithify.compaction.policies.packing import Limits
from lithify.compaction.run.compactor import Compactor, DryRun, RunSettings
from lithify.compaction.run.control import RunControl
from lithify.compaction.run.journal import NoJournal
from lithify.compaction.run.log_runs import LogRuns
from lithify.compaction.scheduling.schedule import Observation, Trigger
from lithify.errors import (
    Corrupt,
    LithifyError,
    LogClosed,
    ReadFailed,
    RunCancelled,
    RunRefused,
)
from lithify.logger import get_logger
from lithify.raft.compaction.merge_targets import SOURCES_MAX, MergeJobs, MergeTargets
from lithify.raft.compaction.segments_port import (
    LiveIndexRule,
    NamedLog,
    compactable,
    segment_stats,
    tidy,
)
from lithify.raft.compaction.settings import GroupCompactionSettings
from lithify.raft.compaction.triggers import MergeTriggers
from lithify.raft.storage import merge_links
from lithify.raft.storage.file_names import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.clock import Clock
    from lithify.compaction.planning.plan import SegmentStats
    from lithify.compaction.reports.report import Report
    from lithify.compaction.reports.status import CompactionStatus
    from lithify.fs import FileSystem
    from lithify.log.manifest import SegmentRef
    from lithify.raft.storage.group_log import GroupLog
    from lithify.raft.storage.group_segments import IndexSpan
    from lithify.raft.storage.segment_file import SegmentLimits

__all__ = ["CompactionOutcome", "GroupCompaction", "RunWanted"]

log = get_logger("lithify.raft")


def _ignore_end(_: Report | LithifyError) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class RunWanted:
    """A run of phase 3 that somebody has asked for."""

    trigger: Trigger = Trigger.ADMIN
    control: RunControl = field(default_factory=lambda: RunControl(waits=False))
    ended: Callable[[Report | LithifyError], None] = _ignore_end
    """Called once, in the group's thread."""


@dataclass(slots=True)
class CompactionOutcome:
    """What a job has done."""

    removed: list[str] = field(default_factory=list)
    """Files that are gone."""
    gone: list[str] = field(default_factory=list)
    """Segments that are in a lower one now."""
    refs: list[SegmentRef] = field(default_factory=list)
    """Segments that were written anew."""
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
        self._named = NamedLog(fs, directory, log.group)
        self._pacing = Pacing(latencies or Latencies(), HeldRate(), clock)
        self.holds = Holds(clock)
        """What keeps segments: no run, and no drop, goes beyond one of them."""
        self._hold = self.holds.place("snapshot", log.snapshot_index)
        self._horizon = log.snapshot_index
        self._kernel = self._compactor(self._named)
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
        self._called = ""
        """Which threshold calls for phase 3."""
        self._requests: list[RunWanted] = []
        self._served: RunWanted | None = None
        """Whose run is under way."""
        self._plans: list[Callable[[DryRun | LithifyError], None]] = []
        self._planning: list[Callable[[DryRun | LithifyError], None]] = []
        self._running_at: int | None = None
        """The snapshot's index when the job that is under way was made."""
        self._untidy = False
        """May a merge be half done?"""
        self._triggers = MergeTriggers(self._settings)
        self._purge_ms: int | None = None
        self._closed: LithifyError | None = None
        self.drops = self.merges = 0
        """Of phase 1, and of phase 3 that came to their end, in this process."""
        self.failure: BaseException | None = None
        """Why the last job did not do everything."""

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
            pacing=self._pacing,
        )

    # --- the group's thread -----------------------------------------------------------------

    def ask(self) -> None:
        """Have phase 1 done as soon as nothing else is under way."""
        self._drop_wanted = True

    def observe(self) -> Observation:
        """What calls for phase 3."""
        return Observation(reached=self._called, period_ms=self._settings.interval_ms)

    def request(self, wanted: RunWanted) -> None:
        """Have phase 3 done; it is told what came of it."""
        if self._closed is not None:
            wanted.ended(self._closed)
            return
        self._requests.append(wanted)
        self.ask()

    def plan(self, ended: Callable[[DryRun | LithifyError], None]) -> None:
        """Have a dry run made; it waits for the run that is going on."""
        if self._closed is not None:
            ended(self._closed)
        else:
            self._plans.append(ended)

    def close(self, error: LithifyError) -> None:
        """The group takes no further part: nobody waits any more."""
        self._closed = error
        served = [] if self._served is None else [self._served]
        requests, plans = [*served, *self._requests], [*self._planning, *self._plans]
        self._served, self._requests, self._planning, self._plans = None, [], [], []
        for wanted in requests:
            wanted.ended(error)
        for ended in plans:
            ended(error)
        self.runs.interrupt()

    @property
    def is_running(self) -> bool:
        """Is a job under way?"""
        return self._running_at is not None

    def next_job(self) -> Callable[[], CompactionOutcome] | None:
        """What the worker is to do now; cheap if that is nothing."""
        if self._closed is not None:
            return None
        now_ms = self._clock.now_ms()
        purge = self._purge_ms is not None and now_ms >= self._purge_ms
        if self.is_running or not (self._drop_wanted or purge or self._plans):
            return None
        state, segments = self._log.state, self._log.segments
        self._running_at = state.snapshot_index
        if self._untidy:
            return partial(self._tidy, segments.spans)
        if self._plans:
            self._planning, self._plans = self._plans, []
            return self._dry_run()
        dropped = self._drop() if self._drop_wanted else []
        if purge:
            self._purge_ms = None
        if self._drop_wanted and self._requests:
            self._served, self._called = self._requests.pop(0), ""
            self._triggers.record_begin()
            # Looked at again when the links of this run are old enough.
            self._purge_ms = now_ms + self._settings.link_keep_ms
        self._drop_wanted = bool(self._requests)
        damaged = segments.damages.open
        self._named.take(segments.spans, dropped, state, self._horizon, damaged)
        return partial(self._run, now_ms - self._settings.link_keep_ms, self._served)

    def _drop(self) -> list[IndexSpan]:
        """Phase 1 as far as the group is concerned; what it drops. Phase 3 may be due then."""
        segments, stats = self._log.segments, self._stats()
        self.drops += bool(stats)
        dead = {each.segment for each in plan_whole_dead(stats, self._limits).dropped}
        dropped = [span for span in segments.spans if span.number in dead]
        # First the references: nobody can ask for what is about to be removed.
        segments.replace([span.ref.name for span in dropped], ())
        kept = [each for each in stats if each.id not in dead]
        self._called = self._triggers.by_drop(stats, kept) or self._called
        return dropped

    def _stats(self) -> list[SegmentStats]:
        """What is known of the segments up to the horizon."""
        self._find_horizon()
        spans = compactable(self._log.segments.spans, self._horizon)
        return segment_stats(spans, self._log.state)

    def _find_horizon(self) -> None:
        self._hold.move(self._log.snapshot_index)
        self._horizon = min(hold.position for hold in self.holds.list())

    def _dry_run(self) -> Callable[[], CompactionOutcome]:
        """The job of a dry run: of the segments and the live indexes as they are now."""
        state = self._log.state
        named = NamedLog(self._fs, self._directory, self._log.group)
        segments = self._log.segments
        self._find_horizon()
        named.take(segments.spans, (), state, self._horizon, segments.damages.open)
        compactor = self._compactor(named)

        def plan() -> CompactionOutcome:
            named.begin()
            return CompactionOutcome(plan=compactor.plan())

        return plan

    def done(self, outcome: CompactionOutcome | BaseException) -> None:
        """Take in what a job has done."""
        assert self._running_at is not None
        began_at, self._running_at = self._running_at, None
        if self._planning:
            self._planned(outcome)
            return
        state, segments = self._log.state, self._log.segments
        failure = outcome.failure if isinstance(outcome, CompactionOutcome) else outcome
        if isinstance(outcome, CompactionOutcome):
            segments.replace(outcome.gone, outcome.refs)
        self._untidy = self._named.half_published or outcome is failure
        merged = self._served is not None
        self.merges += merged and failure is None
        is_harmless = isinstance(failure, RunCancelled) or _is_disk(failure)
        self.failure = None if is_harmless else failure
        if self.failure is not None:
            self._failed()
        if isinstance(failure, Corrupt | ReadFailed):
            self._note_damage(failure)
        self._tell(outcome, failure)
        self._triggers.record_job(self._stats(), merged=merged)
        if state.snapshot_index != began_at:
            self.ask()

    def _planned(self, outcome: CompactionOutcome | BaseException) -> None:
        planning, self._planning = self._planning, []
        for ended in planning:
            if isinstance(outcome, CompactionOutcome) and outcome.plan is not None:
                ended(outcome.plan)
            else:
                ended(_typed(outcome))

    def _failed(self) -> None:
        """Done again when somebody asks next: a full disk stays full for a while."""
        if self._served is None:
            name = group_of(self._log.group)
            log.warning("compaction failed", group=name, reason=str(self.failure))
        self._drop_wanted = False
        if self._served is not None and self._served.trigger is Trigger.THRESHOLD:
            self._called = self._called or "the run that this called for has failed"
        self._purge_ms = self._clock.now_ms() + self._settings.link_keep_ms

    def _note_damage(self, failure: Corrupt | ReadFailed) -> None:
        """A segment that cannot be copied is repaired, and left alone by runs until then."""
        name = failure.path.rpartition("/")[2]
        if any(span.ref.name == name for span in self._log.segments.spans):
            self._log.segments.damages.found(name, failure)

    def _tell(
        self, outcome: CompactionOutcome | BaseException, failure: BaseException | None
    ) -> None:
        """Answer whoever asked for this run."""
        wanted, self._served = self._served, None
        if wanted is None:
            return
        if isinstance(outcome, CompactionOutcome) and outcome.report is not None:
            wanted.ended(outcome.report)
        else:
            wanted.ended(_typed(failure))

    def overview(self) -> dict[str, int | str]:
        """What it has done, as it can be printed."""
        failure = str(self.failure or "")
        return {"compactions": self.drops, "merges": self.merges, "compaction_failure": failure}

    # --- the worker's thread ----------------------------------------------------------------

    def _tidy(self, spans: Sequence[IndexSpan]) -> CompactionOutcome:
        gone, refs = tidy(self._fs, self._directory, spans)
        self._named.half_published = False
        return CompactionOutcome(gone=gone, refs=refs)

    def _run(self, before_ms: int, wanted: RunWanted | None) -> CompactionOutcome:
        outcome = CompactionOutcome()
        if self._closed is not None:
            return outcome
        try:
            outcome.removed = [event.name for event in self._named.sweep()]
            if wanted is not None:
                run = partial(self._merge, wanted.trigger)
                outcome.report = self.runs.run_exclusively(run, wanted.control)
            merge_links.purge_links(self._fs, self._directory, before_ms)
        except Exception as error:  # noqa: BLE001  (what was done before it must be taken in)
            outcome.failure = error
        outcome.gone, outcome.refs = self._named.published()
        return outcome

    def _merge(self, trigger: str, control: RunControl) -> Report:
        """Phase 3."""
        self._named.begin()
        report = self._kernel.run(trigger, control=control)
        return replace(report, reclaimed_bytes=self._kernel.reclaim().bytes)

    # --- any thread -------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Is a run of phase 3 going on?"""
        return self.runs.running

    def cancel(self) -> None:
        """Ask the run that is going on to stop; what it has published stays."""
        self.runs.cancel()

    def status(self) -> CompactionStatus:
        """How the last run went, also one before a restart; or how far this one is."""
        return self.runs.status()


def _is_disk(failure: object) -> bool:
    return isinstance(failure, RunRefused) and failure.limit == "disk"


def _typed(error: object) -> LithifyError:
    """What those who wait are told; an error of another kind is a fault of the program."""
    return error if isinstance(error, LithifyError) else LogClosed(f"the run ended: {error!r}")
