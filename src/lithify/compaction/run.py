"""One compaction run, from horizon to report.

    compactor = Compactor(log, fs, rule, settings=RunSettings(policy="stats", limits=limits))
    print(compactor.plan().explain())     # dry run: writes nothing
    report = compactor.run()
    compactor.reclaim()

Steps of a run; each may be the last one before a crash, see `docs/recovery.md`:

1. An unfinished run is found by its journal and finished, or given up if it no longer fits.
2. Horizon: the minimum of the holds. Candidates: sealed segments at or below it.
3. The rule judges them one by one. Each dead set is written to a file at once, so that memory
   holds one segment's judgement and not all of them.
4. A policy makes the plan. Scratch space is reserved, the journal created.      PREPARE
5. Groups are rewritten by the executor, each target journalled.                 COPY
6. The manifest is replaced.                                                     COMMIT
7. What nobody refers to is swept up; the report goes into the history.          CLEANUP, DONE

`reclaim` deletes retired files later, at its own pace, once no reader pins them.

A run that fails or is cancelled before step 6 is given up at once: its files go, the log is as it
was, and the report says why. One that is killed is taken up by the next run or by `recover`.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from lithify.checksum import crc32c
from lithify.clock import SystemClock
from lithify.compaction.budget import (
    Allowance,
    Budget,
    DiskGate,
    TokenBucket,
    default_gate_directory,
    reserve_scratch,
)
from lithify.compaction.horizon import Hold, Holds, Horizon, find_horizon
from lithify.compaction.journal import Journal, Phase, RunRecord
from lithify.compaction.plan import Plan, SegmentStats
from lithify.compaction.policies import Limits, plan_by_name
from lithify.compaction.publish import candidates, publish_edit
from lithify.compaction.report import Cause, History, Report
from lithify.compaction.rewrite import RewriteTask, rewrite
from lithify.compaction.rule import Judgement, Question
from lithify.compaction.schedule import Observation
from lithify.errors import (
    Corrupt,
    InvalidInput,
    LithifyError,
    PlanStale,
    RunCancelled,
    RunFailed,
    RunRefused,
    UnsupportedVersion,
)
from lithify.events import RunFinished, RunPhase, RunRecovered, ignore_events
from lithify.liveset import LiveSet
from lithify.log.manifest import DeadRef
from lithify.log.names import HISTORY, dead_set_name, segment_name
from lithify.log.reader import OpenSegment, read_dead_set
from lithify.log.recovery import remove_unpublished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.clock import Clock
    from lithify.compaction.report import Result
    from lithify.compaction.rule import Rule
    from lithify.events import EventSink, Reclaimed
    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest, SegmentRef

__all__ = ["Compactor", "DryRun", "Executor", "LocalExecutor", "RunSettings"]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a log is compacted."""

    limits: Limits
    policy: str = "all"
    policy_options: Mapping[str, float] = field(default_factory=dict)
    in_view: bool = False
    """Publish into the compacted view and leave the log itself alone."""
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do now."""

    horizon: Horizon
    plan: Plan
    now_ms: int

    def explain(self) -> str:
        """For a person: what holds the horizon, and the plan."""
        return f"{self.horizon.explain(self.now_ms)}\n{self.plan.explain()}"


class Executor(Protocol):
    """Carries out rewrites: in this process, or as Spark tasks."""

    def rewrite(
        self, fs: FileSystem, tasks: Sequence[RewriteTask], allowance: Allowance
    ) -> Iterator[tuple[int, SegmentRef]]:
        """(number of the task, its durable target), in any order, as they are finished."""


class LocalExecutor:
    """One rewrite after the other, in the calling thread."""

    def rewrite(
        self, fs: FileSystem, tasks: Sequence[RewriteTask], allowance: Allowance
    ) -> Iterator[tuple[int, SegmentRef]]:
        """See `Executor`."""
        for number, task in enumerate(tasks):
            yield number, rewrite(fs, task, allowance.read, allowance.write)


class Compactor:
    """Compacts one log that is open for writing; one run at a time."""

    def __init__(
        self,
        log: Log,
        fs: FileSystem,
        rule: Rule,
        *,
        settings: RunSettings,
        holds: Holds | None = None,
        clock: Clock | None = None,
        events: EventSink = ignore_events,
        gate: DiskGate | None = None,
        executor: Executor | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._log = log
        self._fs = fs
        self._rule = rule
        self._clock = clock or SystemClock()
        self._events = events
        self._gate = gate or DiskGate(fs, default_gate_directory())
        self._executor = executor or LocalExecutor()
        self._random_bytes = random_bytes
        self._journal = Journal(fs, log.directory)
        self._running = threading.Lock()
        self._allowance: Allowance | None = None
        self.settings = settings
        self.holds = holds or Holds(self._clock)
        self.history = History(fs, f"{log.directory}/{HISTORY}")

    # --- looking ----------------------------------------------------------------------------

    def horizon(self) -> Horizon:
        """How far a run could judge now, and what holds it back."""
        return _horizon(self._log.manifest, self.holds)

    def observe(self) -> Observation:
        """What has come since the last run, for the scheduler; looks at the manifest only."""
        manifest = self._log.manifest
        horizon = _horizon(manifest, self.holds).position
        new = [
            segment
            for segment in candidates(manifest, horizon, in_view=False)
            if segment.last_position > manifest.horizon
        ]
        return Observation(
            new_bytes=sum(segment.frame_bytes for segment in new),
            new_entries=sum(segment.entries for segment in new),
            oldest_unjudged_ms=min((segment.time_min for segment in new), default=None),
            unfinished=self._journal.exists(),
        )

    def plan(self) -> DryRun:
        """What a run would do now. Reads, but writes nothing and waits for nothing."""
        now_ms = self._clock.now_ms()
        with self._log.snapshot("compaction plan") as snapshot:
            horizon = _horizon(snapshot.manifest, self.holds)
            segments = candidates(
                snapshot.manifest, horizon.position, in_view=self.settings.in_view
            )
            question = self._question(segments, horizon.position, now_ms, _unlimited)
            judged = zip(segments, self._rule.judge(question), strict=True)
            stats = [_stats(segment, judgement) for segment, judgement in judged]
        return DryRun(horizon, self._plan(stats), now_ms)

    def _question(
        self,
        segments: Sequence[SegmentRef],
        horizon: int,
        as_of_ms: int,
        before_read: Callable[[int], None],
    ) -> Question:
        return Question(
            self._fs,
            self._log.directory,
            segments,
            horizon,
            as_of_ms,
            self.settings.budget.memory_bytes,
            before_read,
        )

    def _plan(self, stats: Sequence[SegmentStats]) -> Plan:
        settings = self.settings
        return plan_by_name(settings.policy, stats, settings.limits, **settings.policy_options)

    # --- running ----------------------------------------------------------------------------

    def cancel(self) -> None:
        """Ask the run that is going on, if any, to stop; it leaves the log as it was."""
        allowance = self._allowance
        if allowance is not None:
            allowance.cancel()

    def run(self, trigger: str = "admin") -> Report:
        """Compact now. Raises `RunRefused` with the name of what it waits for."""
        with _typed_errors(self._log.directory), self._exclusively():
            self._recover()
            return self._run(trigger)

    def recover(self) -> Report | None:
        """Finish or give up a run that was killed; None if there was none."""
        with _typed_errors(self._log.directory), self._exclusively():
            return self._recover()

    def reclaim(self) -> Reclaimed:
        """Delete retired files that nobody pins, paced, and add the bytes to the last report."""
        bucket = TokenBucket(self.settings.budget.delete_bytes_per_s, self._clock)
        with _typed_errors(self._log.directory):
            done = self._log.reclaim(lambda size: _take(bucket, size))
            if done.files:
                for report in self.history.newest(1):
                    total = report.reclaimed_bytes + done.bytes
                    self.history.append(replace(report, reclaimed_bytes=total))
        return done

    def _exclusively(self) -> _Turn:
        return _Turn(self._running, self._gate, self._log.directory)

    def _run(self, trigger: str) -> Report:
        times = _Times(self._clock, self._announce)
        allowance = self._allowance = Allowance(self.settings.budget, self._clock)
        run_id = self._random_bytes(6).hex()
        record: RunRecord | None = None
        before = self._log.manifest
        started_ms = self._clock.now_ms()
        try:
            # The pin keeps the sources on disk until the new generation rules.
            with (
                _typed_errors(self._log.directory),
                self._log.snapshot(f"compaction run {run_id}") as snapshot,
            ):
                times.enter(Phase.PREPARE, run_id)
                record, plan = self._prepare(
                    snapshot.manifest, run_id, trigger, started_ms, allowance
                )
                if _changes_nothing(record, plan, snapshot.manifest):
                    return self._report(record, "nothing to do", times, before)
                reserve_scratch(
                    self._fs,
                    self._log.directory,
                    plan.bytes_written,
                    self.settings.budget.scratch_bytes,
                )
                # The journal must not outlive the names of the dead sets that it refers to.
                self._fs.sync_dir(self._log.directory)
                self._journal.create(record)
                return self._carry_out(record, times, allowance, before)
        except RunRefused:
            self._sweep()
            raise
        except LithifyError as error:
            if self._log.manifest.last_run == run_id:
                raise  # Published: the journal is taken up by the next run.
            record = record or _blank(run_id, self.settings, trigger, started_ms, before)
            self._give_up(record, error, times, before)
            raise
        finally:
            self._allowance = None

    def _prepare(
        self,
        manifest: Manifest,
        run_id: str,
        trigger: str,
        started_ms: int,
        allowance: Allowance,
    ) -> tuple[RunRecord, Plan]:
        horizon = _horizon(manifest, self.holds).position
        segments = candidates(manifest, horizon, in_view=self.settings.in_view)
        question = self._question(segments, horizon, started_ms, allowance.read)
        judged: list[SegmentRef] = []
        stats: list[SegmentStats] = []
        causes: dict[Cause, tuple[int, int]] = {}
        for segment, judgement in zip(segments, self._rule.judge(question), strict=True):
            judged.append(self._with_dead_set(segment, judgement, run_id))
            stats.append(_stats(segment, judgement))
            for cause, (entries, size) in judgement.dropped.items():
                so_far = causes.get(cause, (0, 0))
                causes[cause] = so_far[0] + entries, so_far[1] + size
        plan = self._plan(stats)
        record = RunRecord(
            run_id=run_id,
            policy=plan.policy,
            trigger=trigger,
            started_ms=started_ms,
            as_of_ms=started_ms,
            horizon=judged[-1].last_position if judged else manifest.horizon,
            generation=manifest.generation,
            in_view=self.settings.in_view,
            judged=tuple(judged),
            dropped=tuple(dropped.segment for dropped in plan.dropped),
            groups=tuple(group.sources for group in plan.groups),
            causes={cause: count for cause, count in causes.items() if any(count)},
        )
        return record, plan

    def _with_dead_set(self, segment: SegmentRef, judgement: Judgement, run_id: str) -> SegmentRef:
        """The segment with what is dead in it now, in a durable file of its own."""
        if segment.dead is None and judgement.live_entries == segment.entries:
            return segment
        directory = self._log.directory
        everything = LiveSet.from_range(segment.first_position, segment.last_position + 1)
        dead = everything - judgement.live
        if segment.dead is not None:
            if read_dead_set(self._fs, directory, segment.dead) - dead:
                raise InvalidInput(f"the rule brings back dead entries of {segment.name}")
            if judgement.live_entries == segment.live_entries:
                return segment
        data = dead.to_bytes()
        name = dead_set_name(segment.id, run_id)
        with self._fs.open_append(f"{directory}/{name}", exclusive=True) as file:
            file.write(data)
            file.fsync()
        ref = DeadRef(
            name,
            entries=segment.entries - judgement.live_entries,
            frame_bytes=segment.frame_bytes - judgement.live_bytes,
            file_bytes=len(data),
            crc=crc32c(data),
        )
        return replace(segment, dead=ref)

    def _carry_out(
        self, record: RunRecord, times: _Times, allowance: Allowance, before: Manifest
    ) -> Report:
        """Steps 5 to 7, for a new run and for one that is taken up again."""
        times.enter(Phase.COPY, record.run_id)
        record = self._copy(record, allowance)
        allowance.check()
        times.enter(Phase.COMMIT, record.run_id)
        self._journal.enter(Phase.COMMIT)
        self._log.publish(lambda manifest: publish_edit(manifest, record), "compaction")
        return self._finish(record, times, before)

    def _copy(self, record: RunRecord, allowance: Allowance) -> RunRecord:
        by_id = {segment.id: segment for segment in record.judged}
        targets = dict(record.targets)
        missing = [number for number in range(len(record.groups)) if number not in targets]
        tasks = []
        for number in missing:
            sources = tuple(by_id[segment_id] for segment_id in record.groups[number])
            attempt = self._random_bytes(6).hex()
            target = segment_name(sources[0].id, attempt)
            tasks.append(RewriteTask(self._log.directory, sources, target, self._clock.now_ms()))
        for finished, target_ref in self._executor.rewrite(self._fs, tasks, allowance):
            self._journal.copied(missing[finished], target_ref)
            targets[missing[finished]] = target_ref
        return replace(record, targets=targets)

    def _finish(self, record: RunRecord, times: _Times, before: Manifest) -> Report:
        """The new generation rules: sweep up and report."""
        times.enter(Phase.CLEANUP, record.run_id)
        self._journal.enter(Phase.CLEANUP)
        self._sweep()
        times.enter(Phase.DONE, record.run_id)
        report = self._report(record, "done", times, before)
        self._journal.enter(Phase.DONE)
        self._journal.remove()
        return report

    # --- after a crash ----------------------------------------------------------------------

    def _recover(self) -> Report | None:
        self._log.settle()
        try:
            record = self._journal.read()
        except (Corrupt, UnsupportedVersion) as error:
            self._events(RunRecovered(self._log.directory, "?", "?", f"given up: {error}"))
            self._discard()
            return None
        if record is None:
            self._sweep()
            return None
        times = _Times(self._clock, self._announce)
        before = self._log.manifest
        if before.last_run == record.run_id:
            self._recovered(record, "it was published, finishing")
            return self._finish(record, times, before)
        try:
            with (
                _typed_errors(self._log.directory),
                self._log.snapshot(f"compaction run {record.run_id}"),
            ):
                record = self._intact(record)
                self._recovered(record, f"going on, {len(record.targets)} groups are copied")
                allowance = self._allowance = Allowance(self.settings.budget, self._clock)
                return self._carry_out(record, times, allowance, before)
        except LithifyError as error:
            if self._log.manifest.last_run == record.run_id:
                raise
            self._give_up(record, error, times, before)
            if isinstance(error, PlanStale):
                self._recovered(record, f"rolled back: {error}")
                return None
            raise
        finally:
            self._allowance = None

    def _intact(self, record: RunRecord) -> RunRecord:
        """The record without targets that are not there; `PlanStale` if sources are not."""
        publish_edit(self._log.manifest, replace(record, groups=(), dropped=()))
        directory = self._log.directory
        for segment in record.judged:
            if segment.dead is not None:
                try:
                    read_dead_set(self._fs, directory, segment.dead)
                except Corrupt as error:
                    raise PlanStale(str(error)) from error
        targets = {}
        for number, target in record.targets.items():
            with suppress(Corrupt):
                OpenSegment(self._fs, directory, target).file.close()
                targets[number] = target
        return replace(record, targets=targets)

    def _give_up(
        self, record: RunRecord, error: LithifyError, times: _Times, before: Manifest
    ) -> None:
        """Leave the log as it was; what fails here is left to the next run."""
        result: Result = "failed"
        if isinstance(error, RunCancelled):
            result = "cancelled"
        elif isinstance(error, PlanStale):
            result = "rolled back"
        with suppress(LithifyError, OSError):
            # Nothing may be removed while it is unknown whether the manifest on disk names it.
            self._log.settle()
            if self._log.manifest.last_run == record.run_id:
                return  # It was published after all: the journal is taken up by the next run.
            self._discard()
            self._report(record, result, times, before, str(error))

    def _discard(self) -> None:
        # In this order: without a journal the files are orphans, and a crash in between leaves
        # them to the next open.
        self._journal.remove()
        self._sweep()

    def _sweep(self) -> None:
        for event in remove_unpublished(self._fs, self._log.directory, self._log.manifest):
            self._events(event)

    # --- telling ----------------------------------------------------------------------------

    def _announce(self, run_id: str, phase: Phase) -> None:
        self._events(RunPhase(self._log.directory, run_id, phase))

    def _recovered(self, record: RunRecord, action: str) -> None:
        self._events(RunRecovered(self._log.directory, record.run_id, record.phase, action))

    def _report(
        self,
        record: RunRecord,
        result: Result,
        times: _Times,
        before: Manifest,
        error: str | None = None,
    ) -> Report:
        manifest = self._log.manifest
        published = result == "done"
        groups = {segment_id for group in record.groups for segment_id in group}
        gone = {s.name for s in record.judged if s.id in groups or s.id in record.dropped}
        retired = sum(r.file_bytes for r in manifest.retired if r.name in gone)
        report = Report(
            run_id=record.run_id,
            log=self._log.directory,
            policy=record.policy,
            trigger=record.trigger,
            started_ms=record.started_ms,
            finished_ms=self._clock.now_ms(),
            horizon=record.horizon,
            generation_before=record.generation,
            generation_after=manifest.generation if published else before.generation,
            result=result,
            error=error,
            read_bytes=sum(s.live_bytes for s in record.judged if s.id in groups),
            read_entries=sum(s.entries for s in record.judged),
            kept_entries=sum(s.live_entries for s in record.judged),
            kept_bytes=sum(s.live_bytes for s in record.judged),
            dropped=record.causes if published else {},
            retired_bytes=retired if published else 0,
            seconds_by_phase=times.seconds(),
        )
        if result != "nothing to do":  # An idle log is visited often.
            self.history.append(report)
        self._events(RunFinished(self._log.directory, record.run_id, report.summary()))
        return report


@contextmanager
def _typed_errors(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFailed(directory, error) from error


class _Turn:
    """One run a log and one run a disk."""

    def __init__(self, running: threading.Lock, gate: DiskGate, directory: str) -> None:
        self._running = running
        self._gate = gate
        self._directory = directory

    def __enter__(self) -> None:
        if not self._running.acquire(blocking=False):
            raise RunRefused("log", f"a run on {self._directory} is going on")
        try:
            owner = f"pid {os.getpid()}, compacting {self._directory}"
            self._turn = self._gate.enter(self._directory, owner)
        except BaseException:
            self._running.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._turn.release()
        self._running.release()


class _Times:
    """Seconds spent in each phase."""

    def __init__(self, clock: Clock, announce: Callable[[str, Phase], None]) -> None:
        self._clock = clock
        self._announce = announce
        self._entered: list[tuple[Phase, float]] = []

    def enter(self, phase: Phase, run_id: str) -> None:
        self._entered.append((phase, self._clock.monotonic_s()))
        self._announce(run_id, phase)

    def seconds(self) -> dict[str, float]:
        now = (Phase.DONE, self._clock.monotonic_s())
        return {
            phase: round(end - start, 6)
            for (phase, start), (_, end) in pairwise([*self._entered, now])
            if phase is not Phase.DONE
        }


def _unlimited(size: int) -> None:
    """For a dry run, which waits for nothing."""


def _take(bucket: TokenBucket, size: int) -> None:
    bucket.take(size)


def _horizon(manifest: Manifest, holds: Holds) -> Horizon:
    active = Hold("active segment", manifest.active.first_position - 1, "log")
    return find_horizon([*holds.list(), active])


def _stats(segment: SegmentRef, judgement: Judgement) -> SegmentStats:
    return SegmentStats(
        id=segment.id,
        first_position=segment.first_position,
        last_position=segment.last_position,
        entries=segment.entries,
        bytes=segment.frame_bytes,
        live_entries=judgement.live_entries,
        live_bytes=judgement.live_bytes,
    )


def _changes_nothing(record: RunRecord, plan: Plan, manifest: Manifest) -> bool:
    present = set(manifest.all_segments())
    return (
        plan.is_empty
        and record.horizon <= manifest.horizon
        and all(segment in present for segment in record.judged)
    )


def _blank(
    run_id: str, settings: RunSettings, trigger: str, started_ms: int, manifest: Manifest
) -> RunRecord:
    """For the report of a run that failed before it had decided anything."""
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
