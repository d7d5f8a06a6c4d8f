"""Catalogs with a history, and facts about a cluster, for tests of decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lithify.catalog.commands.tables import ColumnDefinition, CreateTable
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.versions import CatalogVersions
from lithify.catalog_compaction.facts import ClusterFacts, NodeTimes
from lithify.hybrid_time import timestamp
from tests.catalog_stage import after, started

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.objects import TableDescriptor, ZoneDescriptor
    from lithify.tables.assignments import Partition

BEGIN_MS = 1000
NODES = ("n1", "n2", "n3")
ZONE = "z"
K, V = ColumnDefinition("k", "int32"), ColumnDefinition("v", "int32")


def table(name: str, zone: str = ZONE) -> CreateTable:
    return CreateTable(name, (K, V), ("k",), (), zone)


def time_of(version: int) -> int:
    """The activation of a version; the versions are 10 ms apart."""
    return timestamp(BEGIN_MS + 10 * version)


class Past:
    """Versions 1, with the zone `z` of two partitions on two nodes each, and those that follow."""

    def __init__(self) -> None:
        first = started(CreateZone(ZONE, partitions=2, replicas=2))
        self.versions = CatalogVersions(replace_activation(first))

    @property
    def latest(self) -> Catalog:
        return self.versions.latest

    def execute(self, *commands: CatalogCommand) -> int:
        """The version that a batch makes."""
        version = self.latest.version + 1
        self.versions.append(after(self.latest, *commands, ms=BEGIN_MS + 10 * version))
        return version

    def zone(self, name: str = ZONE) -> ZoneDescriptor:
        return next(each for each in self.latest.zones() if each.name == name)

    def table(self, name: str) -> TableDescriptor:
        found = self.latest.table(name)
        assert found is not None
        return found

    def facts(self, needs: int | None = None, **changed: Any) -> ClusterFacts:
        """All is well, and every node needs a version, the latest one by default."""
        time = time_of(self.latest.version if needs is None else needs)
        assignments = {
            (self.zone().id, number): frozenset(NODES[number : number + 2]) for number in (0, 1)
        }
        facts = ClusterFacts(
            now=time_of(self.latest.version) + 1,
            topology=frozenset(NODES),
            answers={
                node: NodeTimes(node, time, time, published_of(node, assignments, time))
                for node in NODES
            },
            assignments=assignments,
        )
        return replace(facts, **changed)


def replace_activation(catalog: Catalog) -> Catalog:
    """Version 1 at its time."""
    return replace(catalog, activation=time_of(1))


def published_of(
    node: str, assignments: dict[Partition, frozenset[str]], time: int
) -> dict[Partition, int]:
    return {partition: time for partition, nodes in assignments.items() if node in nodes}


def answer(facts: ClusterFacts, node: str, **changed: Any) -> ClusterFacts:
    """The facts with a changed answer of a node."""
    answers = dict(facts.answers)
    answers[node] = replace(answers[node], **changed)
    return replace(facts, answers=answers)


def without(facts: ClusterFacts, node: str, *, in_topology: bool = False) -> ClusterFacts:
    """The facts without the answer of a node."""
    answers = {name: each for name, each in facts.answers.items() if name != node}
    topology = facts.topology if in_topology else facts.topology - {node}
    return replace(facts, answers=answers, topology=topology)
