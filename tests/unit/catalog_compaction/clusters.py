"""A simulated cluster for the runner: nodes that answer from memory, with lost and late replies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from lithify.catalog_compaction.node_times import LocalTimes
from lithify.catalog_compaction.runner import Placement
from lithify.errors import LithifyError
from lithify.metastore.metastore import KeyValue, Outcome
from lithify.metastore.transaction import Put

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lithify.catalog.manager.manager import CatalogManager
    from lithify.catalog_compaction.facts import NodeTimes
    from lithify.catalog_compaction.published import Replica
    from lithify.metastore.transaction import Compare, Transaction
    from lithify.tables.assignments import Partition


class NoAnswerHere(LithifyError):
    """The answer of a simulated node is lost."""


class SimulatedNeeds:
    """A `LocalNeeds` that a test changes."""

    def __init__(self, catalog: CatalogManager) -> None:
        self._catalog = catalog
        self.low_watermark = 0
        self.active: list[int] = []
        """The begin times of active transactions: activations of the versions that they use."""
        self.hosted: dict[Partition, Replica] = {}

    def minimum_begin(self) -> int:
        return min(self.active, default=self._catalog.now())

    def activation(self) -> int:
        return self._catalog.current.activation

    def replicas(self) -> dict[Partition, Replica]:
        return dict(self.hosted)


async def at_once(_: float) -> None:
    """Sleeps take no time, but let other tasks run."""
    await asyncio.sleep(0)


class SimulatedCluster:
    """A `TrimmedCluster`: all nodes in one process."""

    def __init__(self, managers: Mapping[str, CatalogManager]) -> None:
        self.needs = {name: SimulatedNeeds(each) for name, each in managers.items()}
        self.local = {name: LocalTimes(name, self.needs[name], at_once) for name in managers}
        self.alive = set(managers)
        self.placed = Placement()
        self.gives_up = True
        """Can it be recorded that replicas are given up?"""
        self.lost: set[str] = set()
        """The next answers of these nodes are lost, after the question was carried out."""
        self.asked = 0
        self.before_times: Callable[[], object] = int
        """Called when a node is asked for its times."""

    def topology(self) -> frozenset[str]:
        return frozenset(self.alive)

    async def times(self, node: str) -> NodeTimes:
        self.asked += 1
        self.before_times()
        self._check(node)
        found = await self.local[node].read()
        self._lose(node)
        return found

    async def publish(self, node: str, minimum: int, term: int) -> None:
        self._check(node)
        await self.local[node].publish(minimum, term)
        self._lose(node)

    async def placement(self) -> Placement:
        return self.placed

    async def give_up(self, nodes: Collection[str], demands: tuple[Compare, ...]) -> bool:
        assert demands
        if self.gives_up:
            found = {
                each: self.placed.to_rebuild.get(each, frozenset()) | assigned.intersection(nodes)
                for each, assigned in self.placed.assignments.items()
            }
            self.placed = replace(self.placed, to_rebuild=found)
        return self.gives_up

    def _check(self, node: str) -> None:
        if node not in self.alive:
            raise NoAnswerHere(f"node {node} is down")

    def _lose(self, node: str) -> None:
        if node in self.lost:
            raise NoAnswerHere(f"the answer of node {node} is lost")


class SimulatedGroup:
    """The log of a partition: its index is the revision. Replicas apply it when they are told."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        self.log: list[tuple[bytes, bytes]] = []
        """(key, value); the value of a row is what its replay needs."""
        self.replicas: dict[str, SimulatedReplica] = {}

    def add(self, node: str) -> SimulatedReplica:
        """A member that has received all by a snapshot."""
        replica = self.replicas[node] = SimulatedReplica(self, node)
        replica.applied = replica.snapshot_index = len(self.log)
        return replica

    def append(self, key: bytes, value: bytes) -> int:
        self.log.append((key, value))
        self.replicas[self.leader].applied = len(self.log)
        return len(self.log)


class SimulatedReplica:
    """A `Replica` and its `Store`."""

    def __init__(self, group: SimulatedGroup, node: str) -> None:
        self._group = group
        self._node = node
        self.applied = 0
        self.snapshot_index = 0
        self.wants_snapshot = False

    @property
    def store(self) -> SimulatedReplica:
        return self

    @property
    def leads(self) -> bool:
        return self._group.leader == self._node

    def take_snapshot(self) -> None:
        self.wants_snapshot = True

    def checkpoint(self) -> None:
        """The snapshot that was asked for is durable."""
        self.snapshot_index, self.wants_snapshot = self.applied, False

    def replayed(self) -> list[tuple[bytes, bytes]]:
        """What a restart applies again."""
        return self._group.log[self.snapshot_index : self.applied]

    async def get(self, key: bytes, *, revision: int = 0, local: bool = False) -> KeyValue | None:
        assert local
        await asyncio.sleep(0)
        for index in range(revision or self.applied, 0, -1):
            found, value = self._group.log[index - 1]
            if found == key:
                return KeyValue(key, value, index, 0)
        return None

    async def transact(self, transaction: Transaction) -> Outcome:
        await asyncio.sleep(0)
        if not self.leads:
            raise NoAnswerHere(f"node {self._node} does not lead")
        (compare,), (put,) = transaction.compares, transaction.then
        assert isinstance(put, Put)
        found = await self.get(put.key, local=True)
        if (0 if found is None else found.revision) != compare.revision:
            return Outcome(succeeded=False, revision=self.applied, timestamp=0)
        index = self._group.append(put.key, put.value)
        return Outcome(succeeded=True, revision=index, timestamp=0, changed=True)
