"""Compaction of one blob store: the interface for its users.

    print(store.compaction.plan().explain())
    report = store.compaction.run()

1. Check whether a run is worth its cost (`compaction/policies/why_declined.py`). If not, the report
   says why.
2. Run the kernel (`compaction/run/compactor.py`) with the store's rule, in place: the log itself
   shrinks. A run never touches the active segment. If the store is full and its active segment has
   dead records, the segment is sealed first, so that the run can judge it.
3. During the run, erasing is paused. The run slows down when gets take longer than they did before
   it (`compaction/limits/pace_by_latency.py`).
4. The index opens the segments that the run has written.
5. Delete retired files. A blob that is open for reading pins its files.

Policies are the kernel's `all`, `stats` and `hybrid`, and those of installed packages. A store with
one segment cannot be compacted, so runs on it are refused. One run per store and per
disk at a time: another run waits, and a dry run waits for a run on its own store. Any thread may
call, and `run` takes long. The stores of a node take turns in its queue (`scheduling.py`).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.blobs.compaction.live_blobs import BlobRewriting
from lithify.blobs.settings import POLICY_NAMES
from lithify.compaction.limits.latencies import Latencies
from lithify.compaction.limits.pace_by_latency import Pacing, SharedRate
from lithify.compaction.policies.packing import Limits
from lithify.compaction.policies.plugins import check_policy
from lithify.compaction.policies.why_declined import Eligibility, WhyNot
from lithify.compaction.run.compactor import Compactor, RunSettings
from lithify.compaction.run.control import RunControl
from lithify.compaction.run.journal import Journal
from lithify.compaction.run.log_runs import LogRuns
from lithify.compaction.scheduling.triggers import Trigger
from lithify.compaction.tasks.jobs import ignore_progress
from lithify.errors import Corrupt, RunRefused, UnsupportedVersion
from lithify.fs.full_disk_reserve import NO_RESERVE
from lithify.log.file_names import PACE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from lithify.blobs.compaction.live_blobs import BlobRule
    from lithify.blobs.settings import BlobSettings, StoreShape
    from lithify.clock import Clock
    from lithify.compaction.limits.one_run_per_disk import DiskGate
    from lithify.compaction.reports.report import Report
    from lithify.compaction.reports.status import CompactionStatus
    from lithify.compaction.run.compactor import DryRun
    from lithify.compaction.tasks.jobs import Jobs, Progress
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.log.log import Log

__all__ = ["BLOB_TASKS", "BlobCompaction"]

BLOB_TASKS = (
    "lithify.blobs.build_key_index",
    "lithify.blobs.validity_tasks",
    "lithify.blobs.compaction.live_blobs",
    "lithify.blobs.statistics.tasks",
    "lithify.compaction.rewrite.rewrite",
)
"""Modules with the tasks of runs and statistics. A worker imports them when it starts."""

TARGET_ENTRIES_MAX = 2**21
"""The key index takes 130 MB of memory for this many entries while it is built."""

HISTORY_MAX = 1000

NO_GAIN = (WhyNot.NOTHING_SEALED, WhyNot.NOTHING_TO_GAIN)


class BlobCompaction:
    """Plans and runs the compaction of one store; see the module."""

    def __init__(
        self,
        fs: FileSystem,
        log: Log,
        rule: BlobRule,
        shape: StoreShape,
        settings: Callable[[], BlobSettings],
        *,
        clock: Clock,
        events: EventSink,
        gate: DiskGate | None,
        published: Callable[[], None],
        reclaimed: Callable[[tuple[str, ...]], None],
        erase_paused: Callable[[], AbstractContextManager[None]],
        must_seal: Callable[[], bool],
        seal_full: Callable[[], None],
    ) -> None:
        """`published` is called after a run, `reclaimed` with the names of the deleted files.

        `erase_paused` stops erasing during a run, so that nothing overwrites its sources.
        `seal_full` is called before a run: it seals the active segment of a full store if
        `must_seal` says so.
        """
        self._log = log
        self._journal = Journal(fs, log.directory)
        self._shape = shape
        self._settings = settings
        self._clock = clock
        self._reclaiming = threading.Lock()
        self._closed = False
        self.latencies = Latencies()
        """Latencies of gets; the store adds them."""
        self.rate = SharedRate(fs, f"{log.directory}/{PACE}")
        """The rate of the current run."""
        self._published = published
        self._reclaimed = reclaimed
        self._erase_paused = erase_paused
        self._must_seal = must_seal
        self._seal_full = seal_full
        self._compactor = Compactor(
            log,
            fs,
            rule,
            settings=self._run_settings(settings().policy, 0),
            clock=clock,
            events=events,
            rewriting=BlobRewriting(log.manifest.log_id),
            pacing=Pacing(self.latencies, self.rate, clock),
        )
        self.runs = LogRuns(
            fs,
            log.directory,
            self._compactor,
            kind="store",
            name=f"blob store {log.directory.rpartition('/')[2]}",
            resumes=True,
            gate=gate,
        )
        self.history = self._compactor.history
        self.holds = self._compactor.holds
        self.reserve: NoReserve = NO_RESERVE
        """Space that a run may use on a full disk."""

    def plan(
        self, policy: str | None = None, jobs: Jobs | None = None, *, waits: bool = True
    ) -> DryRun:
        """Plan a run without running it. Builds missing key indexes and changes nothing else.

        Waits for the current run, or is refused without `waits`.
        """
        control, settings = RunControl(waits=waits), self._checked(policy)
        with self.runs.dry_run(control):
            found = self._compactor.plan(settings=settings, jobs=jobs, control=control)
        if found.declined is not None and found.declined.why in NO_GAIN and self._must_seal():
            # A run would seal the active segment and judge it; a dry run does not.
            return replace(found, declined=None)
        return found

    def run(
        self,
        trigger: str = "admin",
        policy: str | None = None,
        jobs: Jobs | None = None,
        progress: Progress = ignore_progress,
    ) -> Report:
        """Compact with this policy, or with that of the settings, once disk and store are free.

        `progress` may be a `RunControl`.
        """

        def run(control: RunControl) -> Report:
            settings = self._checked(policy)
            if trigger != Trigger.UNFINISHED:
                self._seal_full()
            with self._erase_paused():
                try:
                    report = self._compactor.run(
                        trigger, settings=settings, jobs=jobs, control=control
                    )
                finally:
                    # A run that fails may first have finished an earlier one.
                    self._published()
            freed = self.reclaim()
            return replace(report, reclaimed_bytes=freed) if report.result == "done" else report

        def run_with_reserve(control: RunControl) -> Report:
            with self.reserve.if_full():
                return run(control)

        return self.runs.run_exclusively(run_with_reserve, RunControl.of(progress))

    def recover(self) -> Report | None:
        """Finish or abandon a run that was killed; None if there was none. `run` calls this."""
        control = RunControl()
        with self.runs.disk(control), self.runs.turn(control), self._erase_paused():
            try:
                return self._compactor.recover(control=control)
            finally:
                self._published()

    def unfinished_as_of_ms(self) -> int:
        """The time as of which the unfinished run judges records; 0 if there is no such run."""
        try:
            record = self._journal.read()
        except (Corrupt, UnsupportedVersion):
            return 0  # The run will be abandoned.
        return 0 if record is None else record.as_of_ms

    def reclaim(self) -> int:
        """Delete retired files that no reader pins; returns their bytes."""
        with self._reclaiming:
            if self._closed:
                return 0
            before = self._log.manifest.retired
            done = self._compactor.reclaim(self._settings().budget)
            left = {retired.name for retired in self._log.manifest.retired}
            self._reclaimed(tuple(r.name for r in before if r.name not in left))
        if done.files:
            self.runs.forget_record()
        return done.bytes

    # --- for schedulers of many stores -----------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether a run is in progress."""
        return self.runs.running

    def status(self) -> CompactionStatus:
        """The progress of the current run, or the result of the last one, kept across restarts."""
        return self.runs.status()

    def cancel(self) -> None:
        """Cancel the current run; the store is unchanged."""
        self.runs.cancel()

    def close(self) -> None:
        """Suspend the current run, wait until it stops, and refuse new ones."""
        self.runs.close()
        with self._reclaiming:
            # Another store may soon use files with these names.
            self._closed = True

    # --- settings -------------------------------------------------------------------------------

    def check(self, policy: str | None) -> None:
        """Raise if the store can never be compacted, or not by this policy."""
        if self._shape.capacity_bytes == self._shape.segment_bytes:
            what = (
                f"{self._log.directory} has one segment, and the active segment is never compacted"
            )
            raise RunRefused("segments", what)
        if policy is not None:
            check_policy(policy, POLICY_NAMES)

    def _checked(self, policy: str | None) -> RunSettings:
        """The settings of a run by this policy, or the store's own."""
        self.check(policy)
        name = policy or self._settings().policy
        return self._run_settings(name, self._last_full_ms() if name == "hybrid" else 0)

    def _run_settings(self, policy: str, last_full_ms: int) -> RunSettings:
        settings, options = self._settings(), dict[str, float]()
        if policy in ("stats", "hybrid"):
            options["benefit_segments_min"] = max(1, settings.reclaim_segments_min)
        if policy == "hybrid":
            options["last_full_ms"] = last_full_ms
            options["now_ms"] = self._clock.now_ms()
            options["full_every_ms"] = settings.full_every_ms
        limits = Limits(
            self._shape.record_bytes_max,
            TARGET_ENTRIES_MAX,
            overhead_bytes=self._shape.closing_bytes,
        )
        eligibility = Eligibility(
            self._shape.capacity_bytes, settings.used_percent_min, settings.reclaim_segments_min
        )
        return RunSettings(
            limits,
            policy,
            options,
            budget=settings.budget,
            eligibility=eligibility,
            pace=settings.pace,
        )

    def _last_full_ms(self) -> int:
        """The start of the last run that compacted everything; 0 if there was none."""
        for report in self.history.newest(HISTORY_MAX):
            if report.result == "done" and report.policy in ("all", "hybrid:all"):
                return report.started_ms
        return 0
