"""Compaction of one blob store: what its users call.

    print(store.compaction.plan().explain())
    report = store.compaction.run()

1. The kernel's run (`compaction/run.py`) with the store's rule, in place: the log itself shrinks.
   The active segment is never touched.
2. The index opens what the run has written.
3. Files that nobody needs any more are deleted; a blob that is being read holds its files.

Policies are the kernel's `all`, `stats` and `hybrid`. A store of one segment has nothing that could
be compacted and says so. One run a store at a time; any thread may call, and `run` takes long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.blobs.rule import BlobRewriting
from lithify.compaction.jobs import LocalJobs, ignore_progress
from lithify.compaction.journal import Journal
from lithify.compaction.policies import Limits
from lithify.compaction.run import Compactor, RunSettings
from lithify.errors import Corrupt, RunRefused, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.blobs.rule import BlobRule
    from lithify.blobs.settings import BlobSettings, Shape
    from lithify.clock import Clock
    from lithify.compaction.budget import DiskGate
    from lithify.compaction.jobs import Jobs, Progress
    from lithify.compaction.report import Report
    from lithify.compaction.run import DryRun
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.log import Log

__all__ = ["BLOB_TASKS", "BlobCompaction"]

BLOB_TASKS = (
    "lithify.blobs.indexing",
    "lithify.blobs.judging",
    "lithify.blobs.rule",
    "lithify.compaction.rewrite",
)
"""The modules that the tasks of a run are in; a worker that has them loaded begins at once."""

TARGET_ENTRIES_MAX = 2**21
"""Of which the key index takes 130 MB while it is made."""

HISTORY_MAX = 1000


class BlobCompaction:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        rule: BlobRule,
        shape: Shape,
        settings: BlobSettings,
        *,
        clock: Clock,
        events: EventSink,
        gate: DiskGate | None,
        published: Callable[[], None],
        reclaimed: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`published` is called after a run, `reclaimed` with the names of files that are gone."""
        self._log = log
        self._journal = Journal(fs, log.directory)
        self._shape = shape
        self._settings = settings
        self._clock = clock
        self._published = published
        self._reclaimed = reclaimed
        self._compactor = Compactor(
            log,
            fs,
            rule,
            settings=self._run_settings(settings.policy, 0),
            clock=clock,
            events=events,
            gate=gate,
            rewriting=BlobRewriting(log.manifest.log_id),
        )
        self.history = self._compactor.history
        self.holds = self._compactor.holds

    def plan(self, policy: str | None = None, jobs: Jobs | None = None) -> DryRun:
        """What a run would do now; makes key indexes that are missing, changes nothing else."""
        self._prepare(policy, jobs, ignore_progress)
        return self._compactor.plan()

    def run(
        self,
        trigger: str = "admin",
        policy: str | None = None,
        jobs: Jobs | None = None,
        progress: Progress = ignore_progress,
    ) -> Report:
        """Compact now, by this policy or the one of the settings."""
        self._prepare(policy, jobs, progress)
        try:
            report = self._compactor.run(trigger)
        finally:
            # A run that fails may have finished an earlier one first.
            self._published()
        freed = self.reclaim()
        return replace(report, reclaimed_bytes=freed) if report.result == "done" else report

    def recover(self) -> Report | None:
        """Finish or give up a run that was killed; None if there was none. A run does it too."""
        try:
            return self._compactor.recover()
        finally:
            self._published()

    def unfinished_as_of_ms(self) -> int:
        """The time by which a run has judged that is not over; 0 if there is none."""
        try:
            record = self._journal.read()
        except (Corrupt, UnsupportedVersion):
            return 0  # It will be given up.
        return 0 if record is None else record.as_of_ms

    def reclaim(self) -> int:
        """Delete retired files that no reader holds; their bytes."""
        before = self._log.manifest.retired
        done = self._compactor.reclaim()
        left = {retired.name for retired in self._log.manifest.retired}
        self._reclaimed(tuple(r.name for r in before if r.name not in left))
        return done.bytes

    def cancel(self) -> None:
        """Ask a run that is going on to stop; it leaves everything as it was."""
        self._compactor.cancel()

    def _prepare(self, policy: str | None, jobs: Jobs | None, progress: Progress) -> None:
        if self._shape.capacity_bytes == self._shape.segment_bytes:
            what = f"{self._log.directory} has one segment, which is always the active one"
            raise RunRefused("segments", what)
        name = policy or self._settings.policy
        full_ms = self._last_full_ms() if name == "hybrid" else 0
        self._compactor.settings = self._run_settings(name, full_ms)
        self._compactor.jobs = jobs or LocalJobs()
        self._compactor.progress = progress

    def _run_settings(self, policy: str, last_full_ms: int) -> RunSettings:
        options: dict[str, float] = {}
        if policy == "hybrid":
            options = {
                "last_full_ms": last_full_ms,
                "now_ms": self._clock.now_ms(),
                "full_every_ms": self._settings.full_every_ms,
            }
        limits = Limits(
            self._shape.record_bytes_max,
            TARGET_ENTRIES_MAX,
            overhead_bytes=self._shape.closing_bytes,
        )
        return RunSettings(limits, policy, options, budget=self._settings.budget)

    def _last_full_ms(self) -> int:
        """When everything was compacted last, 0 if never."""
        for report in self.history.newest(HISTORY_MAX):
            if report.result == "done" and report.policy in ("all", "hybrid:all"):
                return report.started_ms
        return 0
