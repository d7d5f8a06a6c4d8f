"""One compaction run, from horizon to report.

    compactor = Compactor(log, fs, rule, settings=RunSettings(policy="stats", limits=limits))
    print(compactor.plan().explain())     # dry run: writes nothing
    report = compactor.run(control=control)
    compactor.reclaim()

One run at a time: callers hold the turns of the log and of its disk (`log_runs.py`). Settings, jobs
and the control are arguments of a run; the constructor has the defaults.

Steps of a run; a crash may come after each of them, see `docs/recovery.md`:

1. An unfinished run is found by its journal and finished, or discarded if it no longer fits
   (`resume.py`). A run that was started for this purpose ends here: newer entries are judged by the
   next run.
2. Horizon: the minimum of the holds. Candidates: sealed segments at or below it.
3. The rule judges them; dead sets are written (`compaction/live_set_rules/dead_sets.py`).
4. A policy makes the plan. Scratch space is reserved, the journal created.      PREPARE
5. Groups are rewritten by the jobs, each target journalled (`phases.py`).        COPY
6. The manifest is replaced.                                                     COMMIT
7. Unreferenced files are removed; the report is added to the history.           CLEANUP, DONE

`reclaim` deletes retired files later, at its own pace, once no reader pins them.

A run that fails or is cancelled before step 6 is rolled back at once: its files are removed, the
log is unchanged, and the report has the reason. A run that is killed or suspended is resumed by the
next run or by `recover`. A run that is not worth it (`compaction/policies/why_declined.py`) or
would change nothing publishes nothing: its result is "nothing to do", and the report has the
reason.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lithify.clock import SystemClock
from lithify.compaction.limits.budget import Allowance, Budget
from lithify.compaction.limits.free_disk_space import reserve_scratch
from lithify.compaction.limits.token_bucket import TokenBucket
from lithify.compaction.live_set_rules.dead_sets import judge_segments, segment_stats
from lithify.compaction.live_set_rules.rule_interface import LiveSetQuestion
from lithify.compaction.planning.horizon import Hold, Holds, Horizon, find_horizon
from lithify.compaction.policies.plugins import plan_by_name
from lithify.compaction.policies.why_declined import Declined, Eligibility, no_gain
from lithify.compaction.reports.report import History, Report
from lithify.compaction.run.control import RunControl
from lithify.compaction.run.journal import Journal, NoJournal, Phase, RunRecord
from lithify.compaction.run.phases import PhaseTimes, RunPhases, typed_errors
from lithify.compaction.run.publish import candidates
from lithify.compaction.run.resume import resume_run
from lithify.compaction.run.rewrite_targets import RewriteTargets
from lithify.compaction.scheduling.triggers import Trigger
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import LithifyError, RunRefused, RunSuspended
from lithify.events import ignore_events
from lithify.log.file_names import HISTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.pace_by_latency import PaceSettings, Pacing
    from lithify.compaction.live_set_rules.rule_interface import LiveSetRule
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
    """The settings of a run."""

    limits: Limits
    policy: str = "all"
    policy_options: Mapping[str, float] = field(default_factory=dict)
    in_view: bool = False
    """Publish into the compacted view and leave the log itself unchanged."""
    dead_sets: bool = True
    """Write dead sets for kept segments, so that readers skip their dead entries."""
    budget: Budget = field(default_factory=Budget)
    eligibility: Eligibility = field(default_factory=Eligibility)
    pace: PaceSettings | None = None
    """How a run slows down while users of the log wait; None: not at all."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run."""

    horizon: Horizon
    plan: Plan
    now_ms: int
    declined: Declined | None = None
    """Why a run would do nothing."""
    show: Callable[[int], str] = str
    """Formats a position."""

    def declined_row(self) -> dict[str, str] | None:
        """`declined` as encoded in a report."""
        return None if self.declined is None else asdict(self.declined)

    def explain(self) -> str:
        """Text: the holds at the horizon, the plan, and why it would not be executed."""
        lines = [self.horizon.explain(self.now_ms, self.show), self.plan.explain()]
        if self.declined is not None:
            lines.append(f"a run would do nothing, {self.declined}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _RunArguments:
    """The arguments of one run or dry run."""

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
        """Create the compactor of one log.

        `jobs` do the heavy work; the default is the calling thread. `rewriting` is required if
        entries may be partly live. The defaults of `targets` and `journal` are for a log with a
        manifest (`log_port.py`). `pacing` is required if the settings have a pace.
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

    def _arguments(
        self,
        settings: RunSettings | None = None,
        jobs: Jobs | None = None,
        control: RunControl | None = None,
    ) -> _RunArguments:
        return _RunArguments(
            settings or self._settings, jobs or self._jobs, control or RunControl()
        )

    def _steps(self, arguments: _RunArguments) -> RunPhases:
        return RunPhases(
            self._log,
            self._fs,
            journal=self._journal,
            history=self.history,
            targets=self._targets,
            dead_sets=arguments.settings.dead_sets,
            jobs=arguments.jobs,
            clock=self._clock,
            events=self._events,
            progress=arguments.control,
        )

    # --- queries ----------------------------------------------------------------------------

    def horizon(self) -> Horizon:
        """The current horizon, with the holds that determine it."""
        return _horizon(self._log.manifest, self.holds)

    def unfinished(self) -> bool:
        """Was a run killed and not resumed yet?"""
        return self._journal.exists()

    def plan(
        self,
        *,
        settings: RunSettings | None = None,
        jobs: Jobs | None = None,
        control: RunControl | None = None,
    ) -> DryRun:
        """Dry run: publishes nothing, and is not limited to a rate.

        The rule may write side files, which save the next run work.
        """
        arguments = self._arguments(settings, jobs, control)
        settings, now_ms = arguments.settings, self._clock.now_ms()
        unlimited = replace(settings.budget, read_bytes_per_s=None, write_bytes_per_s=None)
        with self._log.pin("compaction plan"):
            manifest = self._log.manifest
            horizon = _horizon(manifest, self.holds)
            allowance = Allowance(unlimited, self._clock, arguments.control.check)
            question = self._question(arguments, manifest, horizon.position, now_ms, allowance)
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
        arguments: _RunArguments,
        manifest: Manifest,
        horizon: int,
        as_of_ms: int,
        allowance: Allowance,
    ) -> LiveSetQuestion:
        return LiveSetQuestion(
            fs=self._fs,
            directory=self._log.directory,
            log_id=manifest.log_id,
            segments=candidates(manifest, horizon, in_view=arguments.settings.in_view),
            horizon=horizon,
            as_of_ms=as_of_ms,
            budget=allowance.budget,
            jobs=arguments.jobs,
            check=allowance.check,
            progress=arguments.control,
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
        """Compact now. Raises `RunRefused` naming what the run would wait for."""
        arguments = self._arguments(settings, jobs, control)
        with self._allowed(arguments) as allowance:
            finished = resume_run(self._steps(arguments), allowance)
            if finished is not None and trigger == Trigger.UNFINISHED:
                return finished
            # Steps of its own: those of the resumed run know which of its groups are published.
            return self._run(arguments, self._steps(arguments), trigger, allowance)

    def recover(self, *, control: RunControl | None = None) -> Report | None:
        """Resume or discard a run that was killed; None if there was none."""
        arguments = self._arguments(control=control)
        with self._allowed(arguments) as allowance:
            return resume_run(self._steps(arguments), allowance)

    def reclaim(self, budget: Budget | None = None) -> Reclaimed:
        """Delete unpinned retired files, paced, and add the bytes to the last report."""
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
    def _allowed(self, arguments: _RunArguments) -> Iterator[Allowance]:
        """The allowance of the run; its checks also stop the run and adjust its rate."""
        budget, pace, check = (
            arguments.settings.budget,
            arguments.settings.pace,
            arguments.control.check,
        )
        if pace is None or self._pacing is None:
            with typed_errors(self._log.directory):
                yield Allowance(budget, self._clock, check)
            return
        adjust_rate = self._pacing.adjust_rate

        def adjust_and_check() -> None:
            adjust_rate()
            check()

        with typed_errors(self._log.directory), self._pacing.run(pace, budget) as paced:
            yield Allowance(paced, self._clock, adjust_and_check)

    def _run(
        self, arguments: _RunArguments, steps: RunPhases, trigger: str, allowance: Allowance
    ) -> Report:
        times = PhaseTimes(self._clock)
        run_id = self._random_bytes(6).hex()
        before = self._log.manifest
        record = _blank(run_id, arguments.settings, trigger, self._clock.now_ms(), before)
        try:
            # The pin keeps the sources on disk until the new generation is published.
            with typed_errors(self._log.directory), self._log.pin(f"compaction run {run_id}"):
                steps.enter(Phase.PREPARE, run_id, times)
                record, decision = self._decide(arguments, record, self._log.manifest, allowance)
                if isinstance(decision, Declined):
                    steps.sweep()
                    return steps.report(record, "nothing to do", times, before, declined=decision)
                scratch_bytes = steps.scratch_bytes(record, decision.overhead_bytes)
                self._begin(arguments.settings, record, scratch_bytes)
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
                raise  # Published: the next run resumes from the journal.
            steps.give_up(record, error, times, before)
            raise

    def _decide(
        self, arguments: _RunArguments, blank: RunRecord, manifest: Manifest, allowance: Allowance
    ) -> tuple[RunRecord, Plan | Declined]:
        """Judge and plan, if the run is eligible."""
        eligibility, dead_sets = arguments.settings.eligibility, arguments.settings.dead_sets
        if declined := eligibility.by_use(self._used_bytes()):
            return blank, declined
        horizon = _horizon(manifest, self.holds).position
        question = self._question(arguments, manifest, horizon, blank.as_of_ms, allowance)
        judged = judge_segments(question, self._rule, blank.run_id, dead_sets=dead_sets)
        plan = _plan(arguments.settings, judged.stats)
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
        """Refuse a run that cannot fit; otherwise write the decision to the journal."""
        directory = self._log.directory
        scratch_bytes = settings.budget.scratch_bytes
        reserve_scratch(self._fs, directory, needed_bytes, scratch_bytes)
        if settings.dead_sets:
            # The journal must not outlive the dead sets that it refers to, nor their names. Making
            # all of them durable together costs little more than one.
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
        return True  # Without segments the store's facts have no subject.
    present = set(manifest.all_segments())
    return (
        plan.is_empty
        # A view includes segments by its horizon. In place, readers do not use the horizon.
        and (record.horizon <= manifest.horizon or not record.in_view)
        and (not dead_sets or all(segment in present for segment in record.judged))
        and _knows(manifest, record.state)
    )


def _knows(manifest: Manifest, facts: Mapping[str, Any]) -> bool:
    """Does the manifest contain these facts of the store?"""
    return {**manifest.state, **facts} == manifest.state


def _blank(
    run_id: str, settings: RunSettings, trigger: str, started_ms: int, manifest: Manifest
) -> RunRecord:
    """The record of a run before its decision."""
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
