"""Runs of what the leader of the metastore compacts for all nodes: a `ScheduledLog`.

    queue.observe("metastore", [runs])
    queue.request(runs, runs.begin)
    dry_run = await runs.plan()                           # in the loop of the Raft node

Used by the history of the metastore and by that of the catalog. A run on another node than the
leader is refused, with the leader's name; its triggers are silent. The queue's thread calls `run`
and waits; the work is done in the loop of the Raft node. So the queue has to be closed while that
loop still runs. No run has to be resumed after a crash: each publishes with one transaction.
"""

from __future__ import annotations

import asyncio
import secrets
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lithify.compaction.reports.report import History, Report
from lithify.compaction.run.log_runs import LogRuns
from lithify.compaction.scheduling.triggers import NOTHING_DUE, Observation, Trigger
from lithify.errors import LithifyError, LogClosed, RunCancelled, RunRefused
from lithify.log.file_names import HISTORY
from lithify.metastore.errors import MetastoreUnavailable

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.compaction.planning.horizon import Horizon
    from lithify.compaction.policies.why_declined import Declined
    from lithify.compaction.reports.report import Result
    from lithify.compaction.run.control import RunControl
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["LeaderDryRun", "LeaderRuns"]


class LeaderDryRun(Protocol):
    """What a run would do now."""

    @property
    def declined(self) -> Declined | None:
        """Why it would do nothing."""

    def explain(self) -> str:
        """Text."""

    def row(self) -> dict[str, object]:
        """As JSON values."""


LEADER_LOOKS = 60
LOOK_S = 0.05

D = TypeVar("D", bound=LeaderDryRun)


class LeaderRuns(ABC, Generic[D]):
    """See the module."""

    def __init__(
        self,
        metastore: LocalMetastore,
        fs: FileSystem,
        directory: str,
        clock: Clock,
        events: EventSink,
        *,
        name: str,
        policy: str,
    ) -> None:
        """Created in the loop of the Raft node; the directory, which must exist, has the reports.

        `name` is that of the log and of its kind; `events` gets repairs of the file of reports.
        """
        self._metastore = metastore
        self.clock = clock
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._began_ms = clock.now_ms()
        self.name = name
        """The name of the log."""
        self.history = History(fs, f"{directory}/{HISTORY}", repaired=events)
        self.runs = LogRuns(fs, directory, self, kind=name, name=name, resumes=False)

    # --- of the log -------------------------------------------------------------------------

    @abstractmethod
    async def plan(self) -> D:
        """A dry run: what a run would do now. Changes nothing; on any member."""

    @abstractmethod
    async def horizon(self) -> Horizon:
        """The horizon now, with all its holds; on any member."""

    @abstractmethod
    async def _compact(self, control: RunControl) -> D:
        """A run, on the leader; returns what it has done, or why it did nothing."""

    @abstractmethod
    def _observed(self) -> Observation:
        """The facts for the triggers, on the leader."""

    @abstractmethod
    def _figures(self, dry_run: D | None, *, is_done: bool) -> dict[str, Any]:
        """What a report says about the log: the fields of `Report` that differ from log to log."""

    # --- for the queue ----------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The device of its directory."""
        return self.runs.device

    def unfinished(self) -> bool:
        """No run has to be resumed; see the module."""
        return False

    def began_ms(self) -> int | None:
        """When the first interval began."""
        return self._began_ms

    def observe(self) -> Observation:
        """The triggers, on the leader. Any thread."""
        try:
            leads = self._metastore.leading_term
        except MetastoreUnavailable:
            return NOTHING_DUE
        return self._observed() if leads else NOTHING_DUE

    def begin(self, jobs: Jobs, control: RunControl) -> Report:
        """A requested run."""
        return self.run(Trigger.ADMIN, jobs, control)

    def run(self, trigger: Trigger, jobs: Jobs, control: RunControl) -> Report:  # noqa: ARG002
        """Run and wait for the outcome. Not called in the loop of the Raft node."""
        return self.runs.run_exclusively(partial(self._run, trigger), control)

    def failed(self, error: LithifyError) -> None:
        """No operation: the report has the error."""

    # --- a run ------------------------------------------------------------------------------

    async def _leading_term(self) -> int:
        """The term in which this node leads; raises `RunRefused`."""
        for _ in range(LEADER_LOOKS):
            # A node that has just started leads, or knows who does, soon.
            if self._metastore.group.leader:
                break
            await asyncio.sleep(LOOK_S)
        term = self._metastore.leading_term
        if not term:
            leader = self._metastore.group.leader or "no node"
            raise RunRefused("leader", f"{leader} leads the metastore; run it there")
        return term

    def _run(self, trigger: Trigger, control: RunControl) -> Report:
        run_id, started_ms = secrets.token_hex(6), self.clock.now_ms()
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
        dry_run: D | None,
        result: Result,
        error: str | None = None,
    ) -> Report:
        return Report(
            run_id=run_id,
            log=self.name,
            policy=self._policy,
            trigger=trigger,
            started_ms=started_ms,
            finished_ms=self.clock.now_ms(),
            result=result,
            error=error,
            declined=None if dry_run is None else dry_run.declined,
            **self._figures(dry_run, is_done=result == "done"),
        )
