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

What it shares with other runs of the leader, and who calls it: `leader_runs.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lithify.compaction.reports.report import Cause
from lithify.compaction.scheduling.triggers import Observation
from lithify.errors import RunRefused
from lithify.metastore.compaction.holds import HOLDS, NamedHold, list_holds
from lithify.metastore.compaction.horizon import history_horizon
from lithify.metastore.compaction.leader_runs import LeaderRuns
from lithify.metastore.compaction.plan import POLICY, HistoryDryRun, HistoryPlan
from lithify.metastore.local_metastore import GROUP

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.compaction.planning.horizon import Horizon
    from lithify.compaction.run.control import RunControl
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.compaction.settings import HistorySettings
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["HistoryCompaction"]

TRIES_MAX = 5
LOOK_S = 0.05
"""Between two checks of the progress of the purge."""


class HistoryCompaction(LeaderRuns[HistoryDryRun]):
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
        """See `LeaderRuns`."""
        super().__init__(metastore, fs, directory, clock, events, name=GROUP, policy=POLICY)
        self.settings = settings

    def _observed(self) -> Observation:
        return Observation(period_ms=self.settings.every_ms or None)

    def _figures(self, dry_run: HistoryDryRun | None, *, is_done: bool) -> dict[str, Any]:
        plan = HistoryPlan(0, 0) if dry_run is None else dry_run.plan
        dropped = {
            Cause.SUPERSEDED: (plan.values, plan.value_bytes),
            Cause.TOMBSTONE: (plan.tombstones, 0),
        }
        return {
            "horizon": plan.revision,
            "generation_before": plan.floor,
            "generation_after": plan.revision if is_done else plan.floor,
            "read_entries": plan.revisions,
            "dropped": dropped if is_done else {},
            "retired_bytes": plan.value_bytes if is_done else 0,
        }

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
        now_ms = self.clock.now_ms()
        others = (*metastore.pins.list(), *holds)
        horizon = history_horizon(metastore.state, now_ms, self.settings.retention_ms, others)
        return horizon, now_ms, since

    async def _compact(self, control: RunControl) -> HistoryDryRun:
        metastore = self._metastore
        await self._leading_term()
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
