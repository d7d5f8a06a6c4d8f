"""One compaction run, from horizon to report.

    compactor = Compactor(log, fs, rule, settings=RunSettings(policy="stats", limits=limits))
    print(compactor.plan().explain())     # dry run: writes nothing
    report = compactor.run(control=control)
    compactor.reclaim()

One run at a time: callers hold the turn of the log and of its disk (`log_runs.py`). Settings, jobs
and the control are arguments of a run; those of the constructor are the default.

Steps of a run; each may be the last one before a crash, see `docs/recovery.md`:

1. An unfinished run is found by its journal and finished, or given up if it no longer fits
   (`resume.py`). If that is what the run was begun for, it ends with it: what came since then is
   judged when somebody asks.
2. Horizon: the minimum of the holds. Candidates: sealed segments at or below it.
3. The rule judges them; dead sets are written (`compaction/live_set/dead_sets.py`).
4. A policy makes the plan. Scratch space is reserved, the journal created.      PREPARE
5. Groups are rewritten by the jobs, each target journalled (`phases.py`).        COPY
6. The manifest is replaced.                                                     COMMIT
7. What nobody refers to is swept up; the report goes into the history.          CLEANUP, DONE

`reclaim` deletes retired files later, at its own pace, once no reader pins them.

A run that fails or is cancelled before step 6 is given up at once: its files go, the log is as it
was, and the report says why. One that is killed or suspended is taken up by the next run or by
`recover`. One
that is not worth it (`compaction/policies/eligibility.py`) or would change nothing publishes
nothing: its result is "nothing to do", and the report says why not.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance, Budget, TokenBucket, reserve_scratch
from lithify.compaction.live_set.dead_sets import judge_segments, segment_stats
from lithify.compaction.live_set.rule import LiveSetQuestion
from lithify.compaction.planning.horizon import Hold, Holds, Horizon, find_horizon
from lithify.compaction.policies.eligibility import Declined, Eligibility, no_gain
from lithify.compaction.policies.plugins import plan_by_name
from lithify.compaction.reports.report import History, Report
from lithify.compaction.run.control import RunControl
from lithify.compaction.run.journal import Journal, NoJournal, Phase, RunRecord
from lithify.compaction.run.phases import PhaseTimes, RunPhases, typed_errors
from lithify.compaction.run.publish import candidates
from lithify.compaction.run.resume import resume_run
from lithify.compaction.run.rewrite_targets import RewriteTargets
from lithify.compaction.scheduling.schedule import Trigger
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import LithifyError, RunRefused, RunSuspended
from lithify.events import ignore_events
from lithify.log.file_names import HISTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.pace import PaceSettings, Pacing
    from lithify.compaction.live_set.rule import LiveSetRule
    from lithify.compaction.planning.plan import Plan, SegmentStats
    from lithify.compaction.policies.packing import Limits
    from lithify.compaction.rewrite.rewrite import Rewriting
    from lithify.compaction.run.log_port import CompactedLog, Targets
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.events import EventSink, Reclaimed
    from lithify.fs import FileSystem
    from lithify.log.manifest import Manifest

__all__ = ["Compactor", "DryRun", "RunSettings"]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a log is compacted."""

    limits: Limits
    policy: str = "all"
    policy_options: Mapping[str, float] = field(default_factory=dict)
    in_view: bool = False
    """Publish into the compacted view and leave the log itself alone."""
    dead_sets: bool = True
    """Write down what is dead in segments that are kept: readers do not know it otherwise."""
    budget: Budget = field(default_factory=Budget)
    eligibility: Eligibility = field(default_factory=Eligibility)
    pace: PaceSettings | None = None
    """How a run slows down while users of the log wait; None: it does not."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do now."""

    horizon: Horizon
    plan: Plan
    now_ms: int
    declined: Declined | None = None
    """Why a run would not do it."""
    show: Callable[[int], str] = str
    """Writes a position for people."""

    def declined_row(self) -> dict[str, str] | None:
        """`declined` as it stands in a report."""
        return None if self.declined is None else asdict(self.declined)

    def explain(self) -> str:
        """For a person: what holds the horizon, the plan, and why it would not be carried out."""
        lines = [self.horizon.explain(self.now_ms, self.show), self.plan.explain()]
        if self.declined is not None:
            lines.append(f"a run would do nothing, {self.declined}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Means:
    """What one run or dry run is done with."""

    settings: RunSettings
    jobs: Jobs
    control: RunControl


class Compactor:
    """Compacts one log that is open for writing; one run at a time."""

    def __init__(
        self,
        log: CompactedLog,
        fs: FileSystem,
        rule: LiveSetRule,
        *,
        settings: RunSettings,
        holds: Holds | None = None,
        clock: Clock | None = None,
        events: EventSink = ignore_events,
        jobs: Jobs | None = None,
        rewriting: Rewriting | None = None,
        targets: Targets | None = None,
        journal: NoJournal | None = None,
        pacing: Pacing | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`jobs` do the heavy work, in this thread unless given.

        `rewriting` is needed where entries may be partly live. `targets` and `journal` are those
        of a log with a manifest unless given (`log_port.py`). `pacing` is needed where settings
        have a pace.
        """
        self._log = log
        self._fs = fs
        self._rule = rule
        self._clock = clock or SystemClock()
        self._events = events
        self._random_bytes = random_bytes
        self._journal = journal or Journal(fs, log.directory)
        self._targets = targets or RewriteTargets(log, fs, rewriting, self._clock, random_bytes)
        self._settings = settings
        self._jobs: Jobs = jobs or LocalJobs()
        self._pacing = pacing
        self.holds = holds or Holds(self._clock)
        self.history = History(fs, f"{log.directory}/{HISTORY}", repaired=events)

    def _means(
        self,
        settings: RunSettings | None = None,
        jobs: Jobs | None = None,
        control: RunControl | None = None,
    ) -> _Means:
        return _Means(settings or self._settings, jobs or self._jobs, control or RunControl())

    def _steps(self, means: _Means) -> RunPhases:
        return RunPhases(
            self._log,
            self._fs,
            journal=self._journal,
            history=self.history,
            targets=self._targets,
            dead_sets=means.settings.dead_sets,
            jobs=means.jobs,
            clock=self._clock,
            events=self._events,
            progress=means.control,
        )

    # --- looking ----------------------------------------------------------------------------

    def horizon(self) -> Horizon:
        """How far a run could judge now, and what holds it back."""
        return _horizon(self._log.manifest, self.holds)

    def unfinished(self) -> bool:
        """Has a run been killed that no other one has resumed?"""
        return self._journal.exists()

    def plan(self, *, settings: RunSettings | None = None, jobs: Jobs | None = None) -> DryRun:
        """What a run would do now. Publishes nothing, and keeps to no rate.

        The rule may make side files, which cost the next run nothing any more.
        """
        means = self._means(settings, jobs)
        settings, now_ms = means.settings, self._clock.now_ms()
        unlimited = replace(settings.budget, read_bytes_per_s=None, write_bytes_per_s=None)
        with self._log.pin("compaction plan"):
            manifest = self._log.manifest
            horizon = _horizon(manifest, self.holds)
            allowance = Allowance(unlimited, self._clock)
            question = self._question(means, manifest, horizon.position, now_ms, allowance)
            stats, is_new = segment_stats(question, self._rule)
        is_new = is_new and settings.dead_sets
        plan = _plan(settings, stats)
        eligibility = settings.eligibility
        declined = eligibility.by_use(self._used_bytes()) or eligibility.by_plan(plan)
        if declined is None:
            last = question.segments[-1].last_position if question.segments else manifest.horizon
            changes = question.segments and (
                is_new
                or not plan.is_empty
                or (settings.in_view and last > manifest.horizon)
                or not _knows(manifest, self._rule.facts())
            )
            declined = None if changes else no_gain(plan)
        return DryRun(horizon, plan, now_ms, declined, self._log.show_position)

    def _used_bytes(self) -> int:
        segments = self._log.manifest.segments
        return sum(segment.file_bytes for segment in segments) + self._log.active_bytes

    def _question(
        self,
        means: _Means,
        manifest: Manifest,
        horizon: int,
        as_of_ms: int,
        allowance: Allowance,
    ) -> LiveSetQuestion:
        return LiveSetQuestion(
            fs=self._fs,
            directory=self._log.directory,
            log_id=manifest.log_id,
            segments=candidates(manifest, horizon, in_view=means.settings.in_view),
            horizon=horizon,
            as_of_ms=as_of_ms,
            budget=allowance.budget,
            jobs=means.jobs,
            check=allowance.check,
            progress=means.control,
            before_read=allowance.read,
        )

    # --- running ----------------------------------------------------------------------------

    def run(
        self,
        trigger: str = "admin",
        *,
        settings: RunSettings | None = None,
        jobs: Jobs | None = None,
        control: RunControl | None = None,
    ) -> Report:
        """Compact now. Raises `RunRefused` with the name of what it waits for."""
        means = self._means(settings, jobs, control)
        steps = self._steps(means)
        with self._allowed(means) as allowance:
            finished = resume_run(steps, allowance)
            if finished is not None and trigger == Trigger.UNFINISHED:
                return finished
            return self._run(means, steps, trigger, allowance)

    def recover(self, *, control: RunControl | None = None) -> Report | None:
        """Finish or give up a run that was killed; None if there was none."""
        means = self._means(control=control)
        with self._allowed(means) as allowance:
            return resume_run(self._steps(means), allowance)

    def reclaim(self, budget: Budget | None = None) -> Reclaimed:
        """Delete retired files that nobody pins, paced, and add the bytes to the last report."""
        bytes_per_s = (budget or self._settings.budget).delete_bytes_per_s
        bucket = TokenBucket(bytes_per_s, self._clock)
        with typed_errors(self._log.directory):
            done = self._log.reclaim(lambda size: _take(bucket, size))
            if done.files:
                for report in self.history.newest(1):
                    total = report.reclaimed_bytes + done.bytes
                    self.history.append(replace(report, reclaimed_bytes=total))
        return done

    @contextmanager
    def _allowed(self, means: _Means) -> Iterator[Allowance]:
        """What the run may use; it stops and slows down by its checks."""
        budget, pace, check = means.settings.budget, means.settings.pace, means.control.check
        if pace is None or self._pacing is None:
            with typed_errors(self._log.directory):
                yield Allowance(budget, self._clock, check)
            return
        look = self._pacing.look

        def look_and_check() -> None:
            look()
            check()

        with typed_errors(self._log.directory), self._pacing.run(pace):
            yield Allowance(self._pacing.budget(budget), self._clock, look_and_check)

    def _run(self, means: _Means, steps: RunPhases, trigger: str, allowance: Allowance) -> Report:
        times = PhaseTimes(self._clock)
        run_id = self._random_bytes(6).hex()
        before = self._log.manifest
        record = _blank(run_id, means.settings, trigger, self._clock.now_ms(), before)
        try:
            # The pin keeps the sources on disk until the new generation rules.
            with typed_errors(self._log.directory), self._log.pin(f"compaction run {run_id}"):
                steps.enter(Phase.PREPARE, run_id, times)
                record, decision = self._decide(means, record, self._log.manifest, allowance)
                if isinstance(decision, Declined):
                    steps.sweep()
                    return steps.report(record, "nothing to do", times, before, declined=decision)
                scratch_bytes = steps.scratch_bytes(record, decision.overhead_bytes)
                self._begin(means.settings, record, scratch_bytes)
                return steps.carry_out(record, times, allowance, before)
        except RunRefused:
            steps.sweep()
            raise
        except RunSuspended:
            if not self._journal.exists():
                steps.sweep()
            raise
        except LithifyError as error:
            if self._log.manifest.last_run == run_id and self._journal.exists():
                raise  # Published: the journal is taken up by the next run.
            steps.give_up(record, error, times, before)
            raise

    def _decide(
        self, means: _Means, blank: RunRecord, manifest: Manifest, allowance: Allowance
    ) -> tuple[RunRecord, Plan | Declined]:
        """Judge and plan, if it is worth it."""
        eligibility, dead_sets = means.settings.eligibility, means.settings.dead_sets
        if declined := eligibility.by_use(self._used_bytes()):
            return blank, declined
        horizon = _horizon(manifest, self.holds).position
        question = self._question(means, manifest, horizon, blank.as_of_ms, allowance)
        judged = judge_segments(question, self._rule, blank.run_id, dead_sets=dead_sets)
        plan = _plan(means.settings, judged.stats)
        record = replace(
            blank,
            policy=plan.policy,
            horizon=judged.segments[-1].last_position if judged.segments else manifest.horizon,
            generation=manifest.generation,
            judged=judged.segments,
            dropped=tuple(dropped.segment for dropped in plan.dropped),
            groups=tuple(group.sources for group in plan.groups),
            causes=judged.causes,
            messages=judged.messages,
            state=judged.facts,
        )
        if declined := eligibility.by_plan(plan):
            return record, declined
        changes = not _changes_nothing(record, plan, manifest, dead_sets=dead_sets)
        return record, plan if changes else no_gain(plan)

    def _begin(self, settings: RunSettings, record: RunRecord, needed_bytes: int) -> None:
        """Refuse what cannot fit; else the journal says from now on what was decided."""
        directory = self._log.directory
        scratch_bytes = settings.budget.scratch_bytes
        reserve_scratch(self._fs, directory, needed_bytes, scratch_bytes)
        if settings.dead_sets:
            # The journal must not outlive the dead sets that it refers to, nor their names. Made
            # durable all together they cost little more than one.
            for segment in record.judged:
                if segment.dead is not None and record.run_id in segment.dead.name:
                    with self._fs.open_append(f"{directory}/{segment.dead.name}") as file:
                        file.fsync()
            self._fs.sync_dir(directory)
        self._journal.create(record)


def _plan(settings: RunSettings, stats: Sequence[SegmentStats]) -> Plan:
    return plan_by_name(settings.policy, stats, settings.limits, **settings.policy_options)


def _take(bucket: TokenBucket, size: int) -> None:
    bucket.take(size)


def _horizon(manifest: Manifest, holds: Holds) -> Horizon:
    active = Hold("active segment", manifest.active.first_position - 1, "log")
    return find_horizon([*holds.list(), active])


def _changes_nothing(record: RunRecord, plan: Plan, manifest: Manifest, *, dead_sets: bool) -> bool:
    if not record.judged:
        return True  # The store's facts are about nothing.
    present = set(manifest.all_segments())
    return (
        plan.is_empty
        # Segments join a view by its horizon. In place it tells nothing that readers ask for.
        and (record.horizon <= manifest.horizon or not record.in_view)
        and (not dead_sets or all(segment in present for segment in record.judged))
        and _knows(manifest, record.state)
    )


def _knows(manifest: Manifest, facts: Mapping[str, Any]) -> bool:
    """Does the manifest have these facts of the store?"""
    return {**manifest.state, **facts} == manifest.state


def _blank(
    run_id: str, settings: RunSettings, trigger: str, started_ms: int, manifest: Manifest
) -> RunRecord:
    """A run that has not decided anything yet."""
    return RunRecord(
        run_id=run_id,
        policy=settings.policy,
        trigger=trigger,
        started_ms=started_ms,
        as_of_ms=started_ms,
        horizon=manifest.horizon,
        generation=manifest.generation,
        in_view=settings.in_view,
        judged=(),
        dropped=(),
        groups=(),
        causes={},
    )
