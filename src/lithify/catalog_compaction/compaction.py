"""Compacts the history of the catalog, on the coordinator: a `ScheduledLog` of the kind `catalog`.

    compaction = CatalogCompaction(runner, metastore, fs, directory, clock, events)
    low_watermark.listen(compaction.watermark_changed)
    node.listeners.on_leader(compaction.leader_changed)
    queue.observe("catalog", [compaction])

The coordinator is the leader of the metastore's group, and moves with it. A run is due when the low
watermark of this node has changed, when this node has become the coordinator, and by request. A
trigger during a run makes one more run due after it, however many triggers there were. Where the
run, its report and its place in the queue are like those of the metastore: `leader_runs.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lithify.catalog_compaction.plan import POLICY, CatalogDryRun
from lithify.compaction.reports.report import Cause
from lithify.compaction.scheduling.triggers import NOTHING_DUE, Observation
from lithify.metastore.compaction.leader_runs import LeaderRuns

if TYPE_CHECKING:
    from lithify.catalog_compaction.runner import CatalogRunner
    from lithify.clock import Clock
    from lithify.compaction.planning.horizon import Horizon
    from lithify.compaction.run.control import RunControl
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["CATALOG", "CatalogCompaction"]

CATALOG = "catalog"
"""The name of the log, and of its kind."""


class CatalogCompaction(LeaderRuns[CatalogDryRun]):
    """See the module."""

    def __init__(
        self,
        runner: CatalogRunner,
        metastore: LocalMetastore,
        fs: FileSystem,
        directory: str,
        clock: Clock,
        events: EventSink,
    ) -> None:
        """See `LeaderRuns`."""
        super().__init__(metastore, fs, directory, clock, events, name=CATALOG, policy=POLICY)
        self.runner = runner
        self._due = ""
        """Why a run is due; empty if none is."""
        self._led_term = 0
        self.last: CatalogDryRun | None = None
        """What the last run of this node has found."""

    async def watermark_changed(self, _: int) -> None:
        """The low watermark of this node has changed."""
        self._due = "the low watermark has changed"

    def leader_changed(self, group: str, leader: str, term: int) -> None:
        """A listener of `GroupListeners`."""
        if group != self._metastore.name or leader != self._metastore.node.identity.node:
            return
        if term != self._led_term:
            self._led_term = term
            self._due = "the coordinator has changed"

    def _observed(self) -> Observation:
        return Observation(reached=self._due) if self._due else NOTHING_DUE

    async def plan(self) -> CatalogDryRun:
        """See `LeaderRuns`."""
        return await self.runner.plan()

    async def horizon(self) -> Horizon:
        """See `LeaderRuns`."""
        return (await self.runner.plan()).decision.horizon

    async def snapshot(self, version: int, *, force: bool) -> bool:
        """A snapshot of a version, if the decision permits it; on the leader."""
        return await self.runner.snapshot(await self._leading_term(), version, force=force)

    async def _compact(self, control: RunControl) -> CatalogDryRun:
        term = await self._leading_term()
        # What comes from here on makes one more run due.
        self._due = ""
        control("COLLECT", 0, 0)
        self.last = await self.runner.run(term)
        return self.last

    def _figures(self, dry_run: CatalogDryRun | None, *, is_done: bool) -> dict[str, Any]:
        if dry_run is None:
            return {"horizon": 0, "generation_before": 0, "generation_after": 0}
        decision = dry_run.decision
        dropped = decision.version - decision.earliest
        return {
            "horizon": decision.version,
            "generation_before": decision.earliest,
            "generation_after": decision.version if is_done else decision.earliest,
            "read_entries": dry_run.latest - decision.earliest + 1,
            "kept_entries": dry_run.latest - decision.version + 1,
            "dropped": {Cause.SUPERSEDED: (dropped, 0)} if is_done else {},
        }
