"""Runs of the coordinator: two stages, fenced by term, and harmless if messages are lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.errors import CatalogVersionNotFound
from lithify.catalog.update_log.errors import SnapshotRefused
from lithify.catalog_compaction.facts import AbortKind
from lithify.catalog_compaction.pins import NamedPin, place_pin
from lithify.catalog_compaction.runner import (
    COORDINATOR,
    CatalogRunner,
    CatalogTrimming,
    Placement,
)
from lithify.errors import InvalidSetting, RunRefused
from lithify.hybrid_time import add_ms, timestamp
from lithify.metastore.transaction import Compare, Condition
from tests.unit.catalog.manager.nodes import Nodes, with_nodes
from tests.unit.catalog_compaction.clusters import SimulatedCluster, SimulatedGroup
from tests.unit.catalog_compaction.histories import ZONE, table

if TYPE_CHECKING:
    from lithify.catalog.manager.manager import CatalogManager

NAMES = ("n1", "n2", "n3")


class Stage:
    """Three nodes with one group that all of them have."""

    def __init__(self, nodes: Nodes, managers: dict[str, CatalogManager]) -> None:
        self.nodes = nodes
        self.managers = managers
        self.cluster = SimulatedCluster(managers)
        self.group = SimulatedGroup("n1")
        self.metastore = nodes.cluster.node()

    @property
    def latest(self) -> int:
        return self.managers["n1"].versions.latest.version

    @property
    def earliest(self) -> int:
        return self.managers["n1"].versions.earliest.version

    def runner(self, node: str = "n1", settings: CatalogTrimming | None = None) -> CatalogRunner:
        given = settings or CatalogTrimming()
        metastore, clock = self.nodes.cluster.node(), self.nodes.clock
        return CatalogRunner(self.cluster, self.managers[node], metastore, clock, given)

    async def define(self, *names: str) -> None:
        for name in names:
            await self.managers["n1"].execute([CreateTenant(name)])

    async def hours_pass(self) -> None:
        """And the low watermarks rise."""
        self.nodes.clock.advance(3600)
        for needs in self.cluster.needs.values():
            needs.low_watermark = add_ms(timestamp(self.nodes.clock.now_ms()), -1000)

    def durable(self) -> None:
        """All replicas apply everything, and take the snapshots that they were asked for."""
        for replica in self.group.replicas.values():
            replica.applied = len(self.group.log)
            if replica.wants_snapshot:
                replica.checkpoint()


async def staged(nodes: Nodes) -> Stage:
    stage = Stage(nodes, {name: await nodes.started() for name in NAMES})
    await stage.managers["n1"].execute([CreateZone(ZONE, partitions=1, replicas=3), table("t")])
    zone = stage.managers["n1"].current.zone(ZONE)
    assert zone is not None
    for node in NAMES:
        stage.cluster.needs[node].hosted[zone.id, 0] = stage.group.add(node)
    stage.cluster.placed = Placement({(zone.id, 0): frozenset(NAMES)})
    return stage


async def published(stage: Stage) -> None:
    """A run, and all replicas have durably what it has published."""
    await stage.runner().run(1)
    stage.durable()
    # Who has applied it later is asked for a snapshot by the next question.
    await stage.runner().plan()
    stage.durable()


async def settled(stage: Stage) -> None:
    """Until all has been dropped that may be."""
    runner = stage.runner()
    for _ in range(2):
        await runner.run(1)
        stage.durable()
        await runner.run(1)
        stage.durable()
    await stage.managers["n1"].wait_applied(stage.latest)


def test_a_minimum_is_published_by_one_run_and_used_by_the_next() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.define("a", "b")
        await stage.hours_pass()
        first = await stage.runner().run(1)
        assert {each.kind for each in first.decision.aborts} == {AbortKind.UNPUBLISHED}
        assert len(stage.group.log) == 1
        stage.durable()
        assert (await stage.runner().plan()).decision.aborts
        await stage.runner().run(1)
        stage.durable()
        third = await stage.runner().run(1)
        assert (third.decision.version, third.declined) == (stage.latest, None)
        assert stage.earliest == stage.latest

    with_nodes(story)


def test_a_group_whose_snapshot_fails_holds_the_history() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await settled(stage)
        await stage.define("a")
        await stage.hours_pass()
        before = stage.earliest
        for _ in range(3):
            await stage.runner().run(1)
            for replica in stage.group.replicas.values():
                replica.applied = len(stage.group.log)
        assert stage.earliest == before
        assert all(each.wants_snapshot for each in stage.group.replicas.values())
        await settled(stage)
        assert stage.earliest == stage.latest

    with_nodes(story)


def test_an_active_transaction_holds_the_version_that_was_in_force_when_it_began() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        used = stage.managers["n2"].current
        stage.cluster.needs["n2"].active = [used.activation]
        await stage.define("a", "b")
        await stage.hours_pass()
        await settled(stage)
        assert stage.earliest == used.version
        stage.cluster.needs["n2"].active = []
        await settled(stage)
        assert stage.earliest == stage.latest

    with_nodes(story)


def test_an_idle_cluster_writes_nothing() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await settled(stage)
        written = len(stage.group.log)
        for _ in range(3):
            await stage.hours_pass()
            assert (await stage.runner().run(1)).declined is not None
        assert len(stage.group.log) == written

    with_nodes(story)


def test_both_stages_use_one_request_to_each_node() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await stage.runner().run(1)
        assert stage.cluster.asked == len(NAMES)

    with_nodes(story)


@pytest.mark.parametrize("lost", ["n1", "n3"])
def test_a_lost_answer_ends_both_stages_of_the_run_and_the_next_one_does_them(lost: str) -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        stage.cluster.lost = {lost}
        dry_run = await stage.runner().run(1)
        aborts = [(each.kind, each.node) for each in dry_run.decision.aborts]
        assert (AbortKind.NO_ANSWER, lost) in aborts
        assert stage.group.log == []
        stage.cluster.lost = set()
        await settled(stage)
        assert stage.earliest == stage.latest

    with_nodes(story)


def test_a_late_minimum_changes_nothing() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.cluster.publish("n1", 2000, 1)
        await stage.cluster.publish("n1", 1000, 1)
        assert len(stage.group.log) == 1
        await stage.cluster.publish("n1", 3000, 3)
        await stage.cluster.publish("n1", 4000, 2)
        assert [int.from_bytes(value, "big") for _, value in stage.group.log] == [2000, 3000]

    with_nodes(story)


def test_an_earlier_coordinator_is_refused() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.runner("n2").run(2)
        with pytest.raises(RunRefused, match="term 2 has replaced that of term 1"):
            await stage.runner("n1").run(1)

    with_nodes(story)


@pytest.mark.parametrize("change", ["coordinator", "pin"])
def test_a_snapshot_is_refused_if_the_coordinator_or_a_pin_changes_in_mid_run(change: str) -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await settled(stage)
        before = stage.earliest
        await stage.define("a")
        await stage.hours_pass()
        await published(stage)
        assert stage.earliest == before
        manager, publish = stage.managers["n1"], stage.managers["n1"].snapshot

        async def interrupted(version: int, demands: tuple[object, ...] = ()) -> bool:
            if change == "pin":
                expires_ms = nodes.clock.now_ms() + 10**6
                pin = NamedPin("late", before, "me", "", expires_ms)
                await place_pin(stage.metastore, nodes.clock, pin)
            else:
                stage.cluster.lost = {"n3"}
                await stage.runner("n2").run(2)
            return await publish(version, demands)  # type: ignore[arg-type]

        manager.snapshot = interrupted  # type: ignore[method-assign]
        with pytest.raises(SnapshotRefused):
            await stage.runner().run(1)
        assert stage.earliest == before

    with_nodes(story)


def test_two_coordinators_at_once_do_no_harm() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await settled(stage)
        await stage.define("a", "b")
        await stage.hours_pass()
        for term in range(2, 8):
            runs = stage.runner("n1").run(term), stage.runner("n2").run(term + 1)
            await asyncio.gather(*runs, return_exceptions=True)
            stage.durable()
        for manager in stage.managers.values():
            assert manager.versions.latest.version == stage.latest
        await stage.runner("n3").run(99)
        assert stage.earliest == stage.latest

    with_nodes(story)


def test_a_failed_snapshot_does_not_keep_the_minimum_from_being_published() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await settled(stage)
        await stage.define("a")
        await stage.hours_pass()
        await published(stage)
        await stage.define("b")
        await stage.hours_pass()
        written = len(stage.group.log)

        async def fails(version: int, _demands: tuple[object, ...] = ()) -> bool:
            raise SnapshotRefused(version)

        stage.managers["n1"].snapshot = fails  # type: ignore[assignment, method-assign]
        with pytest.raises(SnapshotRefused):
            await stage.runner().run(1)
        assert len(stage.group.log) == written + 1

    with_nodes(story)


def test_a_node_that_was_silent_for_the_configured_time_is_not_waited_for() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await settled(stage)
        await stage.define("a")
        stage.cluster.alive = {"n1", "n2"}
        runner = stage.runner(settings=CatalogTrimming(away_ms=2 * 3_600_000))
        for _ in range(2):
            await stage.hours_pass()
            dry_run = await runner.run(1)
            stage.durable()
            assert dry_run.decision.left == ()
        assert stage.earliest < stage.latest
        nodes.clock.advance(2 * 3600)
        stage.cluster.gives_up = False
        dry_run = await runner.run(1)
        # What it may need stays until it is recorded that its log does not count.
        assert (dry_run.decision.left, stage.earliest < stage.latest) == (("n3",), True)
        with pytest.raises(RunRefused, match="where they are has changed"):
            await runner.snapshot(1, stage.latest, force=False)
        stage.cluster.gives_up = True
        dry_run = await runner.run(1)
        assert (dry_run.decision.left, dry_run.decision.version) == (("n3",), stage.latest)
        assert "node n3 was away for too long: its replicas are rebuilt" in dry_run.explain()
        assert set(stage.cluster.placed.to_rebuild.values()) == {frozenset({"n3"})}
        assert stage.earliest == stage.latest

    with_nodes(story)


def test_another_coordinator_does_not_wait_for_replicas_to_rebuild() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.hours_pass()
        await settled(stage)
        await stage.define("a")
        await stage.hours_pass()
        stage.cluster.alive = {"n1", "n2"}
        runner = stage.runner("n2")
        for _ in range(3):
            dry_run = await runner.run(2)
            stage.durable()
        assert [each.kind for each in dry_run.decision.aborts] == [AbortKind.MISSING_NODE]
        fence = Compare(COORDINATOR, Condition.REVISION, 0)
        await stage.cluster.give_up(["n3"], (fence,))
        dry_run = await runner.run(2)
        assert (dry_run.decision.version, dry_run.decision.left) == (stage.latest, ())
        assert "node n3 has 1 replicas to rebuild" in dry_run.explain()
        assert dry_run.row()["to_rebuild"] == {"n3": 1}

    with_nodes(story)


def test_a_snapshot_by_request_takes_the_same_decision() -> None:
    async def story(nodes: Nodes) -> None:
        stage = await staged(nodes)
        await stage.define("a", "b")
        await stage.hours_pass()
        latest = stage.latest
        with pytest.raises(RunRefused, match="unpublished: node n1"):
            await stage.runner().snapshot(1, latest, force=False)
        stage.cluster.needs["n2"].low_watermark = timestamp(1)
        with pytest.raises(RunRefused, match=r"low watermark \(owner n2\)"):
            await stage.runner().snapshot(1, latest, force=True)
        await stage.hours_pass()
        assert await stage.runner().snapshot(1, latest, force=True)
        with pytest.raises(CatalogVersionNotFound):
            await stage.runner().snapshot(1, latest + 1, force=True)

    with_nodes(story)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"versions_min": 0}, {"age_ms": -1}, {"away_ms": 1}, {"timeout_ms": 0}):
        with pytest.raises(InvalidSetting):
            CatalogTrimming(**wrong)
