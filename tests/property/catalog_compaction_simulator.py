"""A simulated cluster whose parts use versions of the catalog while its history is trimmed.

The catalogs, the metastore and the runners are the real ones; nodes, groups and time are simulated.
Every part that still needs a version asks for it after each step: `VersionGone` if it is not there.

- an open transaction: the version in force at its begin
- a replica: after a restart, the versions of all transactions in its log above its snapshot, for
  the tables that can be read: a run drops what only those need that were dropped before all low
  watermarks. A replica that was given up discards its log instead, and gets a
  snapshot of the leader
- an index build: the version in which the index was registered
- a rebalance: the version whose zone it follows
- a reader: the version at the low watermark of each node
- a pin: its version
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from struct import Struct
from typing import TYPE_CHECKING

from lithify.catalog.commands.indexes import CreateIndex, MakeIndexAvailable, StartBuildingIndex
from lithify.catalog.commands.tables import DropTable
from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.catalog.commands.zones import AlterZone, CreateZone
from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.objects import IndexStatus
from lithify.catalog_compaction.pins import NamedPin, place_pin, release_pin
from lithify.catalog_compaction.runner import CatalogRunner, CatalogTrimming, Placement
from lithify.errors import LithifyError
from lithify.hybrid_time import add_ms, timestamp
from tests.unit.catalog_compaction.clusters import SimulatedCluster, SimulatedGroup
from tests.unit.catalog_compaction.histories import ZONE, table

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.manager import CatalogManager
    from lithify.tables.assignments import Partition
    from tests.unit.catalog.manager.nodes import Nodes

NAMES = ("n1", "n2", "n3")
PARTITIONS = 2
ROW = b"row"
_ROW = Struct(">QQ")
"""The version of the transaction, and the table."""
AVAILABLE_MS = 1000
AWAY_MS = 10_000


class VersionGone(AssertionError):
    """A part of the cluster has asked for a version that is gone."""


@dataclass(eq=False)
class OpenOnNode:
    """An open transaction."""

    node: str
    catalog: Catalog


class Simulation:
    """See the module."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self.nodes = nodes
        self.random = Random(seed)
        self.metastore = nodes.cluster.node()
        self.managers: dict[str, CatalogManager] = {}
        self.runners: dict[str, CatalogRunner] = {}
        self.groups: dict[Partition, SimulatedGroup] = {}
        self.open: list[OpenOnNode] = []
        self.building: dict[int, int] = {}
        """By index: the version in which it was registered."""
        self.pins: dict[str, int] = {}
        self.leader, self.term = "n1", 1
        self.made = 0
        self.trimmed = 0
        self.rebuilt = 0
        self.readable = 0
        """The smallest low watermark in a run that has trimmed; what was dropped before is gone."""

    async def start(self) -> None:
        for name in NAMES:
            self.managers[name] = await self.nodes.started()
        self.cluster = SimulatedCluster(self.managers)
        for name in NAMES:
            self.runners[name] = CatalogRunner(
                self.cluster,
                self.managers[name],
                self.nodes.cluster.node(),
                self.nodes.clock,
                CatalogTrimming(away_ms=AWAY_MS),
            )
        await self.execute(CreateZone(ZONE, partitions=PARTITIONS, replicas=2))
        zone = self.latest.zone(ZONE)
        assert zone is not None
        for number in range(PARTITIONS):
            # The first one is everywhere: a majority of it is there without a node.
            members = NAMES[number:]
            group = self.groups[zone.id, number] = SimulatedGroup(members[0])
            for node in members:
                self.cluster.needs[node].hosted[zone.id, number] = group.add(node)
        self.place()

    @property
    def latest(self) -> Catalog:
        return self.managers["n1"].versions.latest

    def place(self) -> None:
        assigned = {key: frozenset(group.replicas) for key, group in self.groups.items()}
        self.cluster.placed = replace(self.cluster.placed, assignments=assigned)

    async def execute(self, *commands: CatalogCommand) -> None:
        try:
            await self.managers["n1"].execute(commands)
        except LithifyError:
            return
        self.nodes.clock.advance(self.random.choice([0, 0, 0.01]))

    # --- steps ------------------------------------------------------------------------------

    async def define(self) -> None:
        name = self.random.choice(["a", "b"])
        existing = self.latest.table(name)
        self.made += 1
        if self.random.random() < 0.3:
            await self.execute(CreateTenant(f"tenant-{self.made}"))
        elif existing is None:
            await self.execute(table(name))
        elif self.random.random() < 0.2:
            await self.execute(DropTable(name))
        else:
            before = self.latest.version
            await self.execute(CreateIndex(name, f"i{self.made}", ("v",)))
            for index in self.latest.indexes_of(existing.id):
                if self.latest.version > before and index.status is IndexStatus.REGISTERED:
                    self.building.setdefault(index.id, self.latest.version)

    async def build(self) -> None:
        for table_object in list(self.latest.tables()):
            for index in list(self.latest.indexes_of(table_object.id)):
                if index.status is IndexStatus.REGISTERED:
                    await self.execute(StartBuildingIndex(index.id))
                elif index.status is IndexStatus.BUILDING:
                    await self.execute(MakeIndexAvailable(index.id))
        self.forget_builds()

    def forget_builds(self) -> None:
        """Those that have ended, or whose table was dropped."""
        statuses = {
            index.id: index.status
            for each in self.latest.tables()
            for index in self.latest.indexes_of(each.id)
        }
        for index_id in list(self.building):
            if statuses.get(index_id) not in {IndexStatus.REGISTERED, IndexStatus.BUILDING}:
                del self.building[index_id]

    async def begin(self) -> None:
        node = self.random.choice(sorted(self.cluster.alive))
        catalog = self.managers[node].current
        self.open.append(OpenOnNode(node, catalog))
        self.cluster.needs[node].active.append(catalog.activation)

    async def commit(self) -> None:
        if self.open:
            opened = self.random.choice(self.open)
            tables = [each.id for each in opened.catalog.tables()]
            group = self.groups[self.random.choice(sorted(self.groups))]
            if tables and group.leader in self.cluster.alive:
                group.append(ROW, _ROW.pack(opened.catalog.version, self.random.choice(tables)))
            self.end(opened)

    def end(self, opened: OpenOnNode) -> None:
        self.open.remove(opened)
        self.cluster.needs[opened.node].active.remove(opened.catalog.activation)

    async def apply(self) -> None:
        for group in self.groups.values():
            for node, replica in group.replicas.items():
                if node in self.cluster.alive and self.random.random() < 0.7:
                    replica.applied = len(group.log)

    async def checkpoint(self) -> None:
        """Some snapshots become durable, others fail."""
        for group in self.groups.values():
            for node, replica in group.replicas.items():
                is_asked = node in self.cluster.alive and replica.wants_snapshot
                if is_asked and self.random.random() < 0.7:
                    replica.checkpoint()

    async def pass_time(self) -> None:
        self.nodes.clock.advance(self.random.choice([0.1, 1, 5]))

    async def raise_watermarks(self) -> None:
        for node in self.cluster.alive:
            if self.random.random() < 0.8:
                self.raise_watermark(node)

    def raise_watermark(self, node: str) -> None:
        needs = self.cluster.needs[node]
        value = add_ms(timestamp(self.nodes.clock.now_ms()), -AVAILABLE_MS)
        needs.low_watermark = max(needs.low_watermark, value)

    async def crash(self) -> None:
        node = self.random.choice(NAMES)
        if node in self.cluster.alive and len(self.cluster.alive) > 1:
            self.cluster.alive.discard(node)
            for opened in [each for each in self.open if each.node == node]:
                self.end(opened)
            for group in self.groups.values():
                self.find_leader(group, node)

    async def be_away(self) -> None:
        """A node is away for too long: the others do not wait for it."""
        await self.crash()
        for _ in range(3):
            self.nodes.clock.advance(AWAY_MS / 2000)
            await self.publish_and_trim()

    async def restart(self) -> None:
        for node in NAMES:
            if node not in self.cluster.alive:
                self.start_again(node)
                return

    def start_again(self, node: str) -> None:
        """Replay, and raise the low watermark to the earliest version."""
        self.discard(node)
        for group in self.groups.values():
            if node in group.replicas:
                for key, value in group.replicas[node].replayed():
                    if key == ROW:
                        self.replay(node, *_ROW.unpack(value))
        needs = self.cluster.needs[node]
        earliest = self.managers["n1"].versions.earliest.activation
        needs.low_watermark = max(needs.low_watermark, earliest)
        self.cluster.alive.add(node)
        self.rebuild()

    def discard(self, node: str) -> None:
        """A node that knows which of its replicas are given up discards their logs."""
        for partition, nodes in self.cluster.placed.to_rebuild.items():
            if node in nodes:
                self.groups[partition].replicas.pop(node, None)
                self.cluster.needs[node].hosted.pop(partition, None)
                self.find_leader(self.groups[partition], node)

    def find_leader(self, group: SimulatedGroup, gone: str) -> None:
        """Another one, if the leader has gone."""
        alive = [each for each in group.replicas if each in self.cluster.alive]
        if group.leader == gone and alive:
            group.leader = alive[0]
            # Only what a majority has is committed; here all of it is.
            group.replicas[alive[0]].applied = len(group.log)

    def rebuild(self) -> None:
        """Nodes that have discarded their logs get snapshots, if there is a leader."""
        for node in self.cluster.alive:
            self.discard(node)
        left = dict(self.cluster.placed.to_rebuild)
        for partition, nodes in left.items():
            group = self.groups[partition]
            for node in nodes & self.cluster.alive:
                if group.leader in self.cluster.alive:
                    self.cluster.needs[node].hosted[partition] = group.add(node)
                    left[partition] -= {node}
                    self.rebuilt += 1
        self.cluster.placed = replace(self.cluster.placed, to_rebuild=left)

    def replay(self, node: str, version: int, table_id: int) -> None:
        """A row of a table that cannot be read is skipped."""
        versions = self.managers[node].versions
        readable = versions.at_time(max(self.readable, versions.earliest.activation))
        left = range(readable.version, versions.latest.version + 1)
        if any(table_id in versions.at_version(each).objects for each in left):
            self.ask(version, f"the replay on {node}")

    async def rebalance(self) -> None:
        """Begin one, or end the one in progress."""
        running = dict(self.cluster.placed.rebalances)
        if running:
            partition, _ = running.popitem()
            self.move(partition)
            self.cluster.placed = replace(self.cluster.placed, rebalances={})
            return
        replicas = self.random.choice([2, 3])
        await self.execute(AlterZone(ZONE, replicas=replicas))
        partition = self.random.choice(sorted(self.groups))
        moved = {partition: self.latest.version}
        self.cluster.placed = replace(self.cluster.placed, rebalances=moved)

    def move(self, partition: Partition) -> None:
        group = self.groups[partition]
        others = [
            each for each in NAMES if each not in group.replicas and each in self.cluster.alive
        ]
        if others and group.leader in self.cluster.alive:
            self.cluster.needs[others[0]].hosted[partition] = group.add(others[0])
            left = next(each for each in group.replicas if each != group.leader)
            del group.replicas[left]
            del self.cluster.needs[left].hosted[partition]
            self.place()

    async def pin(self) -> None:
        name = self.random.choice(["p", "q"])
        if name in self.pins:
            await release_pin(self.metastore, name)
            del self.pins[name]
            return
        earliest = self.managers["n1"].versions.earliest.version
        version = self.random.choice([self.latest.version, self.latest.version - 1, earliest])
        placed = NamedPin(name, version, "me", "", self.nodes.clock.now_ms() + 10**9)
        try:
            await place_pin(self.metastore, self.nodes.clock, placed)
        except LithifyError:
            return
        self.pins[name] = version

    async def lose(self) -> None:
        self.cluster.lost = {each for each in NAMES if self.random.random() < 0.3}

    async def compact(self) -> None:
        await self.run_on(self.leader, self.term)

    async def start_and_trim(self) -> None:
        """With all nodes, or those that are there."""
        starts = self.random.random() < 0.5
        for node in NAMES if starts else ():
            if node not in self.cluster.alive:
                self.start_again(node)
        await self.publish_and_trim()

    async def publish_and_trim(self) -> None:
        """Enough for a version to become the earliest one, if nothing holds the history."""
        await self.pass_time()
        for step in (self.compact, self.apply, self.compact, self.checkpoint):
            await step()
        await self.pass_time()
        await self.raise_watermarks()
        await self.random.choice([self.compact, self.change_coordinator])()

    async def change_coordinator(self) -> None:
        """The earlier coordinator and the new one run at once, while the cluster changes."""
        before = self.leader, self.term
        self.leader = self.random.choice(sorted(self.cluster.alive))
        self.term += 1
        during = self.random.choice(
            [self.pin, self.pin, self.begin, self.commit, self.apply, self.define]
        )
        pause = self.random.randrange(300)

        async def later() -> None:
            for _ in range(pause):
                await asyncio.sleep(0)
            await during()

        runs = [self.run_on(*before), self.run_on(self.leader, self.term), later()]
        self.random.shuffle(runs)
        await asyncio.gather(*runs)

    async def run_on(self, node: str, term: int) -> None:
        try:
            done = await self.runners[node].run(term)
        except LithifyError:
            return
        finally:
            self.cluster.lost = set()
            self.rebuild()
        self.trimmed += done.decision.trims
        if done.decision.trims:
            watermarks = (each.low_watermark for each in done.facts.answers.values())
            self.readable = max(self.readable, min(watermarks))

    # --- checks -----------------------------------------------------------------------------

    def ask(self, version: int, who: str) -> None:
        for manager in self.managers.values():
            try:
                manager.versions.at_version(version)
            except CatalogVersionTrimmed as error:
                raise VersionGone(f"{who} needs version {version}: {error}") from error

    async def check(self) -> None:
        latest = self.latest.version
        for manager in self.managers.values():
            await manager.wait_applied(latest)
        self.forget_builds()
        for opened in self.open:
            self.ask(opened.catalog.version, f"a transaction on {opened.node}")
        for index, version in self.building.items():
            self.ask(version, f"the build of index {index}")
        for partition, version in self.cluster.placed.rebalances.items():
            self.ask(version, f"the rebalance of {partition}")
        for name, version in self.pins.items():
            self.ask(version, f"pin {name}")
        for node in self.cluster.alive:
            watermark = self.cluster.needs[node].low_watermark
            for manager in self.managers.values() if watermark else ():
                try:
                    manager.versions.at_time(watermark)
                except CatalogVersionTrimmed as error:
                    raise VersionGone(f"a reader on {node}: {error}") from error

    async def quiet(self) -> None:
        """Everything ends, all nodes are there, and the low watermarks rise."""
        for node in NAMES:
            if node not in self.cluster.alive:
                self.start_again(node)
        for opened in list(self.open):
            self.end(opened)
        for name in list(self.pins):
            await release_pin(self.metastore, name)
        self.pins = {}
        self.rebuild()
        self.cluster.placed = Placement(self.cluster.placed.assignments)
        self.cluster.lost = set()
        for _ in range(2):
            await self.build()
        for _ in range(3):
            self.nodes.clock.advance(3600)
            for node in NAMES:
                self.raise_watermark(node)
            await self.run_on(self.leader, self.term)
            for group in self.groups.values():
                for replica in group.replicas.values():
                    replica.applied = len(group.log)
            await self.run_on(self.leader, self.term)
            for group in self.groups.values():
                for replica in group.replicas.values():
                    replica.checkpoint()
        await self.run_on(self.leader, self.term)


async def simulate(nodes: Nodes, seed: int, steps: int) -> Simulation:
    """Run random steps, checks after each, and the quiet end."""
    simulation = Simulation(nodes, seed)
    await simulation.start()
    usual = [
        simulation.define,
        simulation.begin,
        simulation.begin,
        simulation.commit,
        simulation.apply,
        simulation.checkpoint,
        simulation.raise_watermarks,
        simulation.pass_time,
        simulation.compact,
        simulation.start_and_trim,
    ]
    rare = [
        simulation.build,
        simulation.crash,
        simulation.be_away,
        simulation.restart,
        simulation.rebalance,
        simulation.pin,
        simulation.lose,
        simulation.change_coordinator,
    ]
    for _ in range(steps):
        step = simulation.random.choice(usual if simulation.random.random() < 0.75 else rare)
        await step()
        await simulation.check()
    await simulation.quiet()
    await simulation.check()
    return simulation
