"""Runs on the history: they remove what no reader can see, on the leader, with a report."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock
from lithify.compaction.reports.report import Cause, Report
from lithify.compaction.run.control import RunControl
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.compaction.scheduling.triggers import NOTHING_DUE, Trigger
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import InvalidSetting, RunCancelled, RunRefused
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.metastore import queries
from lithify.metastore.compaction.history_compaction import HistoryCompaction
from lithify.metastore.compaction.holds import NamedHold, place_hold, release_hold
from lithify.metastore.compaction.settings import HistorySettings
from lithify.metastore.errors import RevisionCompacted
from lithify.metastore.maintenance import maintained
from lithify.metastore.transaction import Delete, Put
from tests.unit.metastore.nodes import alone, do, put, three, told
from tests.unit.raft.net.nodes import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lithify.metastore.local_metastore import LocalMetastore

HOUR_S = 3600


@asynccontextmanager
async def compacting(
    directory: Path, clock: ManualClock
) -> AsyncIterator[tuple[LocalMetastore, HistoryCompaction]]:
    async with alone(directory, clock) as metastore, maintained(metastore, clock):
        yield metastore, compaction_of(metastore, directory, clock)


def compaction_of(
    metastore: LocalMetastore, directory: Path, clock: ManualClock
) -> HistoryCompaction:
    fs, settings = LocalFileSystem(), HistorySettings()
    return HistoryCompaction(metastore, fs, str(directory), clock, settings, ignore_events)


async def run(compaction: HistoryCompaction, control: RunControl | None = None) -> Report:
    control = control or RunControl()
    return await asyncio.to_thread(compaction.run, Trigger.ADMIN, LocalJobs(), control)


def test_a_run_does_what_its_dry_run_says(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (metastore, compaction):
            old = [await put(metastore, b"a", b"%03d" % number) for number in range(10)]
            await put(metastore, b"b", b"1")
            await do(metastore, Delete(b"b"))
            clock.advance(2 * HOUR_S)
            last = await put(metastore, b"c", b"")
            before = metastore.state.keys.row_count
            dry_run = await compaction.plan()
            plan = dry_run.plan
            assert (plan.floor, plan.values, plan.tombstones, plan.value_bytes) == (0, 10, 0, 28)
            assert dry_run.declined is None
            assert metastore.state.floor == 0
            assert "10 values (28 B) and 0 tombstones are removed" in dry_run.explain()
            report = await run(compaction)
            assert metastore.state.floor == plan.revision == report.generation_after
            assert before - metastore.state.keys.row_count == plan.values + plan.tombstones
            assert report.dropped[Cause.SUPERSEDED] == (10, 28)
            assert (report.result, report.read_entries) == ("done", plan.revisions)
            assert compaction.history.newest(9) == [report]
            assert compaction.runs.status().row()["status"] == "SUCCESS"
            with pytest.raises(RevisionCompacted):
                await metastore.get(b"a", revision=old[5])
            found = await metastore.get(b"a", revision=last)
            assert found is not None
            assert found.value == b"009"

    told(story)


def test_a_run_without_gain_is_declined_with_the_reason(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (metastore, compaction):
            for number in range(3):
                await put(metastore, b"a", b"%d" % number)
            dry_run = await compaction.plan()
            why = str(dry_run.declined)
            assert why.startswith("nothing to gain: the history above 0 is held by retention")
            assert dry_run.explain().endswith(f"a run would do nothing, {why}")
            report = await run(compaction)
            assert (report.result, report.declined) == ("nothing to do", dry_run.declined)
            clock.advance(2 * HOUR_S)
            assert (await run(compaction)).result == "done"
            await put(metastore, b"new", b"")
            clock.advance(2 * HOUR_S)
            await put(metastore, b"newer", b"")
            report = await run(compaction)
            assert "is visible above it" in str(report.declined)
            assert compaction.history.newest(9)[0].generation_after == metastore.state.floor
            assert len(compaction.history.newest(9)) == 1
            row = (await compaction.plan()).row()
            assert row["declined"]
            assert isinstance(row["holds"], list)

    told(story)


def test_holds_and_pins_keep_their_revisions_readable(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (metastore, compaction):
            old = [await put(metastore, b"a", b"%d" % number) for number in range(9)]
            await place_hold(metastore, clock, NamedHold("backup", old[3], "n1", "of Monday"))
            pin = metastore.pins.place("export", old[2] - 1, "n1")
            clock.advance(2 * HOUR_S)
            report = await run(compaction)
            assert report.generation_after == old[2] - 1
            assert "held by export (owner n1)" in str((await compaction.plan()).explain())
            pin.release()
            await run(compaction)
            found = await metastore.get(b"a", revision=old[3])
            assert found is not None
            assert found.value == b"3"
            dry_run = await compaction.plan()
            assert "held by hold backup (owner n1: of Monday) for 7200 s" in str(dry_run.declined)
            await release_hold(metastore, "backup")
            assert (await run(compaction)).result == "done"
            with pytest.raises(RevisionCompacted):
                await metastore.get(b"a", revision=old[3])

    told(story)


def test_a_hold_that_is_placed_during_a_run_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (metastore, compaction):
            old = [await put(metastore, b"a", b"%d" % number) for number in range(9)]
            clock.advance(2 * HOUR_S)
            count = metastore.count_superfluous

            async def late(floor: int, *, local: bool = False) -> Any:
                monkeypatch.setattr(metastore, "count_superfluous", count)
                await place_hold(metastore, clock, NamedHold("late", old[4], "n1", ""))
                return await count(floor, local=local)

            monkeypatch.setattr(metastore, "count_superfluous", late)
            report = await run(compaction)
            assert (report.result, report.generation_after) == ("done", old[4] - 1)
            found = await metastore.get(b"a", revision=old[4])
            assert found is not None

    told(story)


def test_a_run_on_another_node_names_the_leader(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with three(tmp_path, clock) as nodes:
            compaction = compaction_of(nodes[1], tmp_path, clock)
            assert compaction.observe() == NOTHING_DUE
            assert compaction_of(nodes[0], tmp_path, clock).observe().period_ms == 60_000
            with pytest.raises(RunRefused, match="n1 leads the metastore"):
                await run(compaction)
            assert (await compaction.plan()).plan.is_empty, "a dry run is possible"

    told(story)


def test_a_cancelled_run_is_reported(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (metastore, compaction):
            await put(metastore, b"a", b"1")
            clock.advance(2 * HOUR_S)

            def cancel(phase: str, _: int, __: int) -> None:
                if phase == "PLAN":
                    control.cancel()

            control = RunControl(cancel)
            await put(metastore, b"a", b"2")
            await put(metastore, b"a", b"3")
            clock.advance(2 * HOUR_S)
            with pytest.raises(RunCancelled):
                await run(compaction, control)
            (report,) = compaction.history.newest(9)
            assert report.result == "cancelled"
            assert metastore.state.floor == 0

    told(story)


def test_the_queue_runs_it_by_request_and_by_period(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (metastore, compaction):
            for number in range(5):
                await put(metastore, b"a", b"%d" % number)
            clock.advance(2 * HOUR_S)
            queue = RunQueue(clock)
            try:
                queue.request(compaction, compaction.begin)
                await until(lambda: compaction.history.newest(1))
                assert compaction.history.newest(1)[0].trigger == "admin"
                for number in range(5):
                    await put(metastore, b"a", b"%d" % number)
                queue.observe("metastore", [compaction])
                clock.advance(2 * HOUR_S)
                queue.observe("metastore", [compaction])
                await until(lambda: len(compaction.history.newest(9)) == 2)
                assert compaction.history.newest(1)[0].trigger == "periodic"
            finally:
                await asyncio.to_thread(queue.close)

    told(story)


def test_a_plan_is_counted_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "COUNTED_MAX", 2)
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (metastore, compaction):
            for number in range(6):
                await do(metastore, *(Put(b"%d" % key, b"%d" % number) for key in range(5)))
            clock.advance(2 * HOUR_S)
            await put(metastore, b"x", b"")
            plan = (await compaction.plan()).plan
            assert (plan.revisions, plan.values, plan.value_bytes) == (5, 25, 25)

    told(story)


def test_periodic_runs_can_be_switched_off(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with compacting(tmp_path, clock) as (_, compaction):
            compaction.settings = HistorySettings(every_ms=0)
            assert compaction.observe().period_ms is None

    told(story)


def test_settings_are_checked() -> None:
    for given in ({"retention_ms": -1}, {"every_ms": -1}):
        with pytest.raises(InvalidSetting, match="metastore_"):
            HistorySettings(**given)
