"""Compacts the history of revisions, on the leader.

    compaction = HistoryCompaction(metastore, fs, directory, clock, HistorySettings())
    queue.observe("metastore", [compaction])              # a `ScheduledLog`
    queue.request(compaction, compaction.begin)
    dry_run = await compaction.plan()                     # in the loop of the Raft node

Steps of a run:

1. Horizon and plan (`horizon.py`, `plan.py`). If there is nothing to gain, the run is declined.
2. Raise the floor, by COMPACT_IF_UNCHANGED: if a hold was placed meanwhile, begin again. From here
   on reads at or below the floor are refused.
3. Wait until this member has removed what is no longer readable (`metastore/maintenance.py`), which
   waits for reads in progress. Other members do the same, at their own times.
4. The report is added to the history file.

A run on another node than the leader is refused, with the leader's name; its triggers are silent.
The queue's thread calls `run` and waits; the work is done in the loop of the Raft node. So the
queue has to be closed while that loop still runs.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING

from lithify.compaction.reports.report import Cause, History, Report
from lithify.compaction.run.log_runs import LogRuns
from lithify.compaction.scheduling.triggers import NOTHING_DUE, Observation, Trigger
from lithify.errors import LithifyError, LogClosed, RunCancelled, RunRefused
from lithify.log.file_names import HISTORY
from lithify.metastore.compaction.holds import HOLDS, NamedHold, list_holds
from lithify.metastore.compaction.horizon import history_horizon
from lithify.metastore.compaction.plan import POLICY, HistoryDryRun, HistoryPlan
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.local_metastore import GROUP

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.compaction.planning.horizon import Horizon
    from lithify.compaction.reports.report import Result
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.compaction.settings import HistorySettings
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["HistoryCompaction"]

TRIES_MAX = 5
LEADER_LOOKS = 60
LOOK_S = 0.05
"""Between two checks of the progress of the purge."""


class HistoryCompaction:
    """See the module; a `ScheduledLog` of the kind `metastore`."""

    def __init__(
        self,
        metastore: LocalMetastore,
        fs: FileSystem,
        directory: str,
        clock: Clock,
        settings: HistorySettings,
        events: EventSink,
    ) -> None:
        """Created in the loop of the Raft node; the directory, which must exist, has the reports.

        `events` gets repairs of the file of reports.
        """
        self._metastore = metastore
        self._clock = clock
        self.settings = settings
        self._loop = asyncio.get_running_loop()
        self._began_ms = clock.now_ms()
        self.history = History(fs, f"{directory}/{HISTORY}", repaired=events)
        self.runs = LogRuns(fs, directory, self, kind="metastore", name=GROUP, resumes=False)

    # --- for the queue ----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the log."""
        return GROUP

    @property
    def device(self) -> str:
        """The device of its directory."""
        return self.runs.device

    def unfinished(self) -> bool:
        """No run has to be resumed; see the package."""
        return False

    def began_ms(self) -> int | None:
        """When the first interval began."""
        return self._began_ms

    def observe(self) -> Observation:
        """The period, on the leader. Any thread."""
        try:
            leads = self._metastore.leading_term
        except MetastoreUnavailable:
            return NOTHING_DUE
        return Observation(period_ms=self.settings.every_ms or None) if leads else NOTHING_DUE

    def begin(self, jobs: Jobs, control: RunControl) -> Report:
        """A requested run."""
        return self.run(Trigger.ADMIN, jobs, control)

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:  # noqa: ARG002
        """Run and wait for the outcome. Not called in the loop of the Raft node."""
        return self.runs.run_exclusively(partial(self._run, trigger), control)

    def failed(self, error: LithifyError) -> None:
        """No operation: the report has the error."""

    # --- a run ------------------------------------------------------------------------------

    def _run(self, trigger: Trigger, control: RunControl) -> Report:
        run_id, started_ms = secrets.token_hex(6), self._clock.now_ms()
        report = partial(self._report, run_id, trigger, started_ms)
        work = self._compact(control)
        try:
            dry_run = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except CancelledError as error:
            raise LogClosed("the Raft node of the process has stopped") from error
        except RunRefused:
            raise
        except LithifyError as error:
            result: Result = "cancelled" if isinstance(error, RunCancelled) else "failed"
            self.history.append(report(None, result, str(error)))
            raise
        if dry_run.declined is not None:
            return report(dry_run, "nothing to do")
        done = report(dry_run, "done")
        self.history.append(done)
        return done

    def _report(
        self,
        run_id: str,
        trigger: Trigger,
        started_ms: int,
        dry_run: HistoryDryRun | None,
        result: Result,
        error: str | None = None,
    ) -> Report:
        plan = HistoryPlan(0, 0) if dry_run is None else dry_run.plan
        is_done = result == "done"
        dropped = {
            Cause.SUPERSEDED: (plan.values, plan.value_bytes),
            Cause.TOMBSTONE: (plan.tombstones, 0),
        }
        return Report(
            run_id=run_id,
            log=GROUP,
            policy=POLICY,
            trigger=trigger,
            started_ms=started_ms,
            finished_ms=self._clock.now_ms(),
            horizon=plan.revision,
            generation_before=plan.floor,
            generation_after=plan.revision if is_done else plan.floor,
            result=result,
            error=error,
            read_entries=plan.revisions,
            dropped=dropped if is_done else {},
            retired_bytes=plan.value_bytes if is_done else 0,
            declined=None if dry_run is None else dry_run.declined,
        )

    # --- in the loop of the Raft node -------------------------------------------------------

    async def plan(self) -> HistoryDryRun:
        """A dry run: what a run would do now. Changes nothing; on any member."""
        metastore = self._metastore
        horizon, now_ms, since = await self._find_horizon()
        state = metastore.state
        floor, revision = state.floor, horizon.position
        plan = HistoryPlan(floor, max(revision, floor))
        if revision > floor:
            found = await metastore.count_superfluous(revision, local=True)
            counts = found.revisions, found.values, found.tombstones, found.value_bytes
            plan = HistoryPlan(floor, revision, *counts)
        return HistoryDryRun(horizon, plan, now_ms, since)

    async def horizon(self) -> Horizon:
        """The horizon now, with all its holds; on any member."""
        horizon, _, _ = await self._find_horizon()
        return horizon

    async def _find_horizon(self) -> tuple[Horizon, int, int]:
        """The horizon, its time, and the revision at which its named holds were all."""
        metastore = self._metastore
        named, since = await list_holds(metastore)
        holds = [each.hold if isinstance(each, NamedHold) else each for each in named]
        now_ms = self._clock.now_ms()
        others = (*metastore.pins.list(), *holds)
        horizon = history_horizon(metastore.state, now_ms, self.settings.retention_ms, others)
        return horizon, now_ms, since

    async def _compact(self, control: RunControl) -> HistoryDryRun:
        metastore = self._metastore
        for _ in range(LEADER_LOOKS):
            # A node that has just started leads, or knows who does, soon.
            if metastore.group.leader:
                break
            await asyncio.sleep(LOOK_S)
        if not metastore.leading_term:
            leader = metastore.group.leader or "no node"
            raise RunRefused("leader", f"{leader} leads the metastore; run it there")
        for _ in range(TRIES_MAX):
            control("PLAN", 0, 0)
            dry_run = await self.plan()
            if dry_run.declined is not None:
                return dry_run
            control("COMPACT", 0, 0)
            revision, since = dry_run.plan.revision, dry_run.holds_revision
            if await metastore.compact_if_unchanged(revision, HOLDS, since):
                await self._wait_purged(revision, control)
                return dry_run
        raise RunRefused("holds", f"holds were placed during {TRIES_MAX} tries")

    async def _wait_purged(self, floor: int, control: RunControl) -> None:
        """Wait until this member has removed what is below its floor."""
        state = self._metastore.state
        while state.purged_floor < floor:
            control("PURGE", state.purged, floor)
            await asyncio.sleep(LOOK_S)
            state = self._metastore.state
