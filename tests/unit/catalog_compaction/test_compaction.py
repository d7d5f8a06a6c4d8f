"""The triggers of catalog compaction, on a real node: remembered once, on the coordinator only."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from lithify.catalog_compaction.compaction import CatalogCompaction
from lithify.catalog_compaction.decision import decide
from lithify.catalog_compaction.facts import Floors
from lithify.catalog_compaction.plan import CatalogDryRun
from lithify.clock import ManualClock
from lithify.compaction.run.control import RunControl
from lithify.compaction.scheduling.triggers import NOTHING_DUE, Trigger
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from tests.unit.catalog_compaction.histories import Past
from tests.unit.metastore.nodes import three, told

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.metastore.local_metastore import LocalMetastore


class StubRunner:
    """Runs that a test observes."""

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.during = ""
        self.compaction: CatalogCompaction

    async def run(self, term: int) -> CatalogDryRun:
        self.terms.append(term)
        for _ in range(3 if self.during else 0):
            await self.compaction.watermark_changed(1)
        made = Past()
        facts = made.facts()
        return CatalogDryRun(decide(made.versions, facts, Floors()), facts, 1, 1)


def compaction_of(
    metastore: LocalMetastore, directory: Path, runner: StubRunner
) -> CatalogCompaction:
    fs, clock = LocalFileSystem(), ManualClock()
    found = CatalogCompaction(
        runner,  # type: ignore[arg-type]
        metastore,
        fs,
        str(directory),
        clock,
        ignore_events,
    )
    runner.compaction = found
    return found


async def run(compaction: CatalogCompaction) -> str:
    work = partial(compaction.run, Trigger.THRESHOLD, LocalJobs(), RunControl())
    return str((await asyncio.to_thread(work)).result)


def test_a_trigger_during_a_run_makes_one_more_run_due(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as metastores:
            leader, follower = metastores[:2]
            runner = StubRunner()
            compaction = compaction_of(leader, tmp_path, runner)
            assert compaction.observe() == NOTHING_DUE
            await compaction.watermark_changed(1)
            assert compaction.observe().reached == "the low watermark has changed"
            runner.during = "triggers"
            assert await run(compaction) == "nothing to do"
            assert compaction.observe().reached
            runner.during = ""
            await run(compaction)
            assert compaction.observe() == NOTHING_DUE
            assert runner.terms == [leader.leading_term] * 2

            other = compaction_of(follower, tmp_path, StubRunner())
            await other.watermark_changed(1)
            assert other.observe() == NOTHING_DUE

    told(story)


def test_a_run_is_due_when_this_node_becomes_the_coordinator(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as metastores:
            compaction = compaction_of(metastores[0], tmp_path, StubRunner())
            leads = "metastore", "n1", metastores[0].leading_term
            for other in (("metastore", "n2", 1), ("other", "n1", 1)):
                compaction.leader_changed(*other)
                assert compaction.observe() == NOTHING_DUE
            compaction.leader_changed(*leads)
            assert compaction.observe().reached == "the coordinator has changed"
            await run(compaction)
            compaction.leader_changed(*leads)
            assert compaction.observe() == NOTHING_DUE

    told(story)
