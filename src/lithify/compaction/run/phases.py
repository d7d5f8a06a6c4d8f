"""The phases of a run after its decision: copy, publish, clean up, report; or roll back.

    COPY      each group is rewritten; each target is opened, then journalled
    COMMIT    the log publishes them (`log_port.py`); several times if there are several portions
    CLEANUP   unreferenced files are removed
    DONE      the report is added to the history, the journal is removed

A new run and a resumed run use the same steps: a `RunRecord` has the decisions and the progress.
`docs/recovery.md` lists what a crash leaves between any two steps, and how it is handled.

Called by `compactor.py` and `resume.py`, by one thread at a time.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lithify.compaction.reports.report import Cause, Report
from lithify.compaction.run.journal import Phase
from lithify.compaction.run.publish import publish_edit
from lithify.errors import LithifyError, PlanStale, RunCancelled, RunFailed
from lithify.events import RunFinished, RunPhase, RunRecovered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lithify.clock import Clock
    from lithify.compaction.limits.budget import Allowance
    from lithify.compaction.policies.why_declined import Declined
    from lithify.compaction.reports.report import History, Result
    from lithify.compaction.run.journal import NoJournal, RunRecord
    from lithify.compaction.run.log_port import CompactedLog, Targets
    from lithify.compaction.tasks.jobs import Jobs, Progress
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.manifest import Manifest

__all__ = ["PhaseTimes", "RunPhases", "typed_errors"]


@contextmanager
def typed_errors(directory: str) -> Iterator[None]:
    """Convert errors of the file system to `RunFailed`."""
    try:
        yield
    except OSError as error:
        raise RunFailed(directory, error) from error


class PhaseTimes:
    """The start time of each phase of a run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entered: list[tuple[Phase, float]] = []

    def enter(self, phase: Phase) -> None:
        """Record the start of a phase."""
        self._entered.append((phase, self._clock.monotonic_s()))

    def seconds(self) -> dict[str, float]:
        """The duration of each phase so far."""
        now = (Phase.DONE, self._clock.monotonic_s())
        taken: dict[str, float] = {}
        for (phase, start), (_, end) in pairwise([*self._entered, now]):
            if phase is not Phase.DONE:
                taken[phase] = round(taken.get(phase, 0.0) + end - start, 6)
        return taken


class RunPhases:
    """The steps of a run on one log."""

    def __init__(
        self,
        log: CompactedLog,
        fs: FileSystem,
        *,
        journal: NoJournal,
        history: History,
        targets: Targets,
        dead_sets: bool,
        jobs: Jobs,
        clock: Clock,
        events: EventSink,
        progress: Progress,
    ) -> None:
        self.log = log
        self.fs = fs
        self.journal = journal
        self.clock = clock
        self.events = events
        self._history = history
        self._targets = targets
        self._dead_sets = dead_sets
        self._jobs = jobs
        self._progress = progress
        self._published: list[int] = []
        """Groups published by this process."""

    def enter(self, phase: Phase, run_id: str, times: PhaseTimes) -> None:
        """Start a phase: record the time and report progress."""
        times.enter(phase)
        self.events(RunPhase(self.log.directory, run_id, phase))

    def carry_out(
        self, record: RunRecord, times: PhaseTimes, allowance: Allowance, before: Manifest
    ) -> Report:
        """Perform COPY to DONE."""
        portions = self._targets.portions(record)
        for numbers in portions:
            self.enter(Phase.COPY, record.run_id, times)
            record = self._copy(record, numbers, allowance)
            allowance.check()
            self.enter(Phase.COMMIT, record.run_id, times)
            self.journal.enter(Phase.COMMIT)
            self._publish(record if len(portions) == 1 else record.portion(numbers))
            self._published += numbers
        return self.finish(record, times, before)

    def _publish(self, record: RunRecord) -> None:
        self.log.publish(lambda manifest: publish_edit(manifest, record), "compaction")

    def scratch_bytes(self, record: RunRecord, overhead_bytes: int) -> int:
        """Size of the targets until they are published."""
        live_bytes = {segment.id: segment.live_bytes for segment in record.judged}
        return max(
            sum(
                overhead_bytes + sum(live_bytes[source] for source in record.groups[number])
                for number in numbers
            )
            for numbers in self._targets.portions(record)
        )

    def _copy(self, record: RunRecord, numbers: Sequence[int], allowance: Allowance) -> RunRecord:
        targets = dict(record.targets)
        missing = [number for number in numbers if number not in targets]
        written = self._targets.write(record, missing, self._jobs, allowance, self._progress)
        for number, target in written:
            self.journal.copied(number, target)
            targets[number] = target
        return replace(record, targets=targets)

    def finish(self, record: RunRecord, times: PhaseTimes, before: Manifest) -> Report:
        """Perform CLEANUP and DONE, after the new generation is published."""
        self.enter(Phase.CLEANUP, record.run_id, times)
        self.journal.enter(Phase.CLEANUP)
        self.sweep()
        self.enter(Phase.DONE, record.run_id, times)
        report = self.report(record, "done", times, before)
        self.journal.enter(Phase.DONE)
        self.journal.remove()
        return report

    def give_up(
        self, record: RunRecord, error: LithifyError, times: PhaseTimes, before: Manifest
    ) -> None:
        """Roll back: leave the log as it was. Failures here are left to the next run."""
        result: Result = "failed"
        if isinstance(error, RunCancelled):
            result = "cancelled"
        elif isinstance(error, PlanStale):
            result = "rolled back"
        with suppress(LithifyError, OSError):
            # Nothing may be removed while the manifest on disk is unknown: it may name the files.
            self.log.settle()
            if self.log.manifest.last_run == record.run_id and self.journal.exists():
                return  # It was published after all: the next run resumes it.
            self.discard()
            self.report(record, result, times, before, str(error))

    def discard(self) -> None:
        """Remove the journal of the run and its files."""
        # In this order: without a journal the files are orphans, and a crash in between leaves
        # them to the next open.
        self.journal.remove()
        self.sweep()

    def sweep(self) -> None:
        """Remove output of runs that the manifest does not name."""
        for event in self.log.sweep():
            self.events(event)

    def recovered(self, record: RunRecord, action: str) -> None:
        """Raise an event about a run that was killed."""
        self.events(RunRecovered(self.log.directory, record.run_id, record.phase, action))

    def report(
        self,
        record: RunRecord,
        result: Result,
        times: PhaseTimes,
        before: Manifest,
        error: str | None = None,
        declined: Declined | None = None,
    ) -> Report:
        """Create the report; it is added to the history unless there was nothing to do."""
        manifest = self.log.manifest
        # Some portions may have been published before the run failed.
        published = manifest.last_run == record.run_id
        groups = {segment_id for group in record.groups for segment_id in group}
        gone = self._gone(record, result)
        names = {segment.name for segment in record.judged if segment.id in gone}
        retired = sum(r.file_bytes for r in manifest.retired if r.name in names)
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
            dropped=self._causes(record, gone) if published else {},
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

    def _gone(self, record: RunRecord, result: Result) -> set[int]:
        """The judged segments that are no longer in the log, or have changed."""
        numbers = range(len(record.groups)) if result == "done" else self._published
        return {*record.dropped, *(s for number in numbers for s in record.groups[number])}

    def _causes(self, record: RunRecord, gone: set[int]) -> Mapping[Cause, tuple[int, int]]:
        """What died in this run, by cause. Without dead sets, only entries of removed segments."""
        if self._dead_sets:
            return record.causes
        went = [segment for segment in record.judged if segment.id in gone]
        entries = sum(segment.entries - segment.live_entries for segment in went)
        frame_bytes = sum(segment.frame_bytes - segment.live_bytes for segment in went)
        return {Cause.UNREFERENCED: (entries, frame_bytes)} if entries else {}
