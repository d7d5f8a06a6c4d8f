"""What a run does once it has decided: copy, publish, clean up, report; or give up.

    COPY      each group is rewritten by the jobs; each target is opened, then journalled
    COMMIT    the manifest is replaced
    CLEANUP   what nobody refers to is swept up
    DONE      the report goes into the history, the journal goes

The same steps carry out a new run and one that was killed and is taken up again: a `RunRecord` says
what was decided and what is done already. What a crash leaves between any two of them, and what is
then done, is in `docs/recovery.md`.

Called by `run.py` and `resume.py`, by one thread at a time.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lithify.compaction.journal import Phase
from lithify.compaction.publish import publish_edit
from lithify.compaction.report import Report
from lithify.compaction.rewrite import RewriteTask, check_target, run_rewrite
from lithify.errors import (
    Corrupt,
    ExecutorUnfit,
    LithifyError,
    PlanStale,
    RunCancelled,
    RunFailed,
)
from lithify.events import RunFinished, RunPhase, RunRecovered
from lithify.log.names import segment_name
from lithify.log.recovery import remove_unpublished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.clock import Clock
    from lithify.compaction.budget import Allowance
    from lithify.compaction.eligibility import Declined
    from lithify.compaction.jobs import Jobs, Progress
    from lithify.compaction.journal import Journal, RunRecord
    from lithify.compaction.report import History, Result
    from lithify.compaction.rewrite import Rewriting, Rewritten
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.log import Log
    from lithify.log.manifest import Manifest

__all__ = ["Steps", "Times", "typed_errors"]


@contextmanager
def typed_errors(directory: str) -> Iterator[None]:
    """What the file system fails becomes `RunFailed`."""
    try:
        yield
    except OSError as error:
        raise RunFailed(directory, error) from error


class Times:
    """When each phase of a run began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entered: list[tuple[Phase, float]] = []

    def enter(self, phase: Phase) -> None:
        """A phase begins."""
        self._entered.append((phase, self._clock.monotonic_s()))

    def seconds(self) -> dict[str, float]:
        """What each phase has taken so far."""
        now = (Phase.DONE, self._clock.monotonic_s())
        return {
            phase: round(end - start, 6)
            for (phase, start), (_, end) in pairwise([*self._entered, now])
            if phase is not Phase.DONE
        }


class Steps:
    """The steps, for the runs of one log."""

    def __init__(
        self,
        log: Log,
        fs: FileSystem,
        *,
        journal: Journal,
        history: History,
        jobs: Jobs,
        rewriting: Rewriting | None,
        clock: Clock,
        events: EventSink,
        progress: Progress,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.log = log
        self.fs = fs
        self.journal = journal
        self.clock = clock
        self.events = events
        self._history = history
        self._jobs = jobs
        self._rewriting = rewriting
        self._progress = progress
        self._random_bytes = random_bytes

    def enter(self, phase: Phase, run_id: str, times: Times) -> None:
        """A phase begins: note the time and say so."""
        times.enter(phase)
        self.events(RunPhase(self.log.directory, run_id, phase))

    def carry_out(
        self, record: RunRecord, times: Times, allowance: Allowance, before: Manifest
    ) -> Report:
        """COPY to DONE."""
        self.enter(Phase.COPY, record.run_id, times)
        record = self._copy(record, allowance)
        allowance.check()
        self.enter(Phase.COMMIT, record.run_id, times)
        self.journal.enter(Phase.COMMIT)
        self.log.publish(lambda manifest: publish_edit(manifest, record), "compaction")
        return self.finish(record, times, before)

    def _copy(self, record: RunRecord, allowance: Allowance) -> RunRecord:
        by_id = {segment.id: segment for segment in record.judged}
        targets = dict(record.targets)
        missing = [number for number in range(len(record.groups)) if number not in targets]
        budget = allowance.budget.share(min(self._jobs.slots, len(missing)))
        tasks, weights = [], []
        for number in missing:
            sources = tuple(by_id[segment_id] for segment_id in record.groups[number])
            task = RewriteTask(
                self.fs,
                self.log.directory,
                sources,
                segment_name(sources[0].id, self._random_bytes(6).hex()),
                self.clock.now_ms(),
                budget,
                self._rewriting,
                self.clock,
            )
            tasks.append(task)
            weights.append(sum(source.live_bytes for source in sources))
        results = self._jobs.run(
            "rewrite",
            run_rewrite,
            tasks,
            weights=weights,
            check=allowance.check,
            progress=self._progress,
        )
        for finished, written in results:
            self._check(written)
            self.journal.copied(missing[finished], written.target)
            targets[missing[finished]] = written.target
        return replace(record, targets=targets)

    def _check(self, written: Rewritten) -> None:
        """See what will be published: another machine may have written it somewhere else."""
        directory, target = self.log.directory, written.target
        try:
            check_target(self.fs, directory, target, self.log.manifest.log_id)
        except Corrupt as error:
            path = f"{directory}/{target.name}"
            problem = f"wrote {path}, and here it is not what was written: {error}"
            raise ExecutorUnfit(written.host, problem) from error

    def finish(self, record: RunRecord, times: Times, before: Manifest) -> Report:
        """CLEANUP and DONE: the new generation rules, sweep up and report."""
        self.enter(Phase.CLEANUP, record.run_id, times)
        self.journal.enter(Phase.CLEANUP)
        self.sweep()
        self.enter(Phase.DONE, record.run_id, times)
        report = self.report(record, "done", times, before)
        self.journal.enter(Phase.DONE)
        self.journal.remove()
        return report

    def give_up(
        self, record: RunRecord, error: LithifyError, times: Times, before: Manifest
    ) -> None:
        """Leave the log as it was; what fails here is left to the next run."""
        result: Result = "failed"
        if isinstance(error, RunCancelled):
            result = "cancelled"
        elif isinstance(error, PlanStale):
            result = "rolled back"
        with suppress(LithifyError, OSError):
            # Nothing may be removed while it is unknown whether the manifest on disk names it.
            self.log.settle()
            if self.log.manifest.last_run == record.run_id:
                return  # It was published after all: the journal is taken up by the next run.
            self.discard()
            self.report(record, result, times, before, str(error))

    def discard(self) -> None:
        """Forget the run and remove its files."""
        # In this order: without a journal the files are orphans, and a crash in between leaves
        # them to the next open.
        self.journal.remove()
        self.sweep()

    def sweep(self) -> None:
        """Remove what runs have written and nobody names."""
        for event in remove_unpublished(self.fs, self.log.directory, self.log.manifest):
            self.events(event)

    def recovered(self, record: RunRecord, action: str) -> None:
        """Say what becomes of a run that was killed."""
        self.events(RunRecovered(self.log.directory, record.run_id, record.phase, action))

    def report(
        self,
        record: RunRecord,
        result: Result,
        times: Times,
        before: Manifest,
        error: str | None = None,
        declined: Declined | None = None,
    ) -> Report:
        """The run as its report, which goes into the history unless there was nothing to do."""
        manifest = self.log.manifest
        published = result == "done"
        groups = {segment_id for group in record.groups for segment_id in group}
        gone = {s.name for s in record.judged if s.id in groups or s.id in record.dropped}
        retired = sum(r.file_bytes for r in manifest.retired if r.name in gone)
        report = Report(
            run_id=record.run_id,
            log=self.log.directory,
            policy=record.policy,
            trigger=record.trigger,
            started_ms=record.started_ms,
            finished_ms=self.clock.now_ms(),
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
            read_messages=record.messages[0],
            kept_messages=record.messages[1],
            declined=declined,
        )
        if result != "nothing to do":  # An idle log is visited often.
            self._history.append(report)
        self.events(RunFinished(self.log.directory, record.run_id, report.summary()))
        return report
