"""The decision about the catalog's history is the newest version that nothing forbids.

Histories are made by the real commands; what the nodes answer is random. The oracle asks of every
version, by the rules as they are written, whether it may become the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.indexes import (
    CreateIndex,
    MakeIndexAvailable,
    StartBuildingIndex,
)
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.tables import ColumnDefinition, CreateTable, DropTable
from lithify.catalog.commands.zones import CreateZone
from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.objects import IndexStatus, TableDescriptor, ZoneDescriptor
from lithify.catalog.versions import CatalogVersions
from lithify.catalog_compaction.decision import Decision, decide
from lithify.catalog_compaction.facts import ClusterFacts, Floors, NodeTimes
from lithify.compaction.planning.horizon import Hold
from lithify.errors import LithifyError
from lithify.hybrid_time import add_ms, timestamp

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.tables.assignments import Partition

NODES = ("n1", "n2", "n3")
BEGIN_MS = 1000


class History:
    """Versions, one each 10 ms."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.versions = CatalogVersions()
        self.execute(*initial_commands())
        self.execute(CreateZone("y", partitions=1), CreateZone("z", partitions=2, replicas=2))
        for _ in range(data.draw(st.integers(2, 12))):
            self.change()
        first = data.draw(st.sampled_from([0, 0, 0, 1, 2, self.versions.latest.version]))
        self.versions.replace(self.versions.at_version(first))

    def execute(self, *commands: Any) -> None:
        latest = self.versions.latest
        try:
            plan = plan_batch(latest, commands)
        except LithifyError:
            return
        if plan is not None:
            time = timestamp(BEGIN_MS + 10 * plan.update.version)
            self.versions.append(latest.with_update(plan.update, time))

    def change(self) -> None:
        name = self.data.draw(st.sampled_from(["a", "b"]))
        kind = self.data.draw(
            st.sampled_from(["create", "create", "drop", "index", "build", "end"])
        )
        if kind == "create":
            zone = self.data.draw(st.sampled_from(["y", "z"]))
            column = ColumnDefinition("k", "int32"), ColumnDefinition("v", "int32")
            self.execute(CreateTable(name, column, ("k",), (), zone))
        elif kind == "drop":
            self.execute(DropTable(name))
        elif kind == "index":
            self.execute(CreateIndex(name, "i", ("v",)))
        else:
            table = self.versions.latest.table(name)
            for index in self.versions.latest.indexes_of(table.id) if table else []:
                self.execute(
                    (StartBuildingIndex if kind == "build" else MakeIndexAvailable)(index.id)
                )


RARELY = st.sampled_from(range(40)).map(lambda drawn: drawn == 20)
"""Not a boundary, which would be drawn more often."""


def a_time(data: st.DataObject, versions: CatalogVersions) -> int:
    """Around one of the versions."""
    latest = versions.latest.version
    version = data.draw(st.sampled_from([*range(latest + 2), *[latest] * 8]))
    return timestamp(BEGIN_MS + 10 * version + data.draw(st.sampled_from([-1, 0, 1])))


def facts_of(data: st.DataObject, versions: CatalogVersions) -> ClusterFacts:
    zones = [zone for zone in versions.latest.zones() if zone.name in {"y", "z"}]
    partitions = [(zone.id, number) for zone in zones for number in range(zone.partitions)]
    topology = frozenset(data.draw(st.sampled_from([NODES, NODES, NODES, NODES[:2]])))
    assignments: dict[Partition, frozenset[str]] = {}
    published: dict[str, dict[Partition, int]] = {node: {} for node in NODES}
    for partition in partitions:
        nodes = data.draw(st.sets(st.sampled_from(NODES), min_size=1, max_size=2))
        if not data.draw(RARELY):
            assignments[partition] = frozenset(nodes)
        for node in nodes:
            if not data.draw(RARELY):
                published[node][partition] = 0 if data.draw(RARELY) else a_time(data, versions)
    answers = {
        node: NodeTimes(node, a_time(data, versions), 1, published[node])
        for node in NODES
        if node in topology and not data.draw(RARELY)
    }
    version = st.integers(versions.latest.version // 2, versions.latest.version)
    return ClusterFacts(
        now=timestamp(BEGIN_MS + 10 * versions.latest.version + 5),
        topology=topology,
        answers=answers,
        assignments=assignments,
        rebalances=data.draw(st.dictionaries(st.sampled_from(partitions), version, max_size=1)),
        pins=tuple(
            Hold("pin", each, "export") for each in data.draw(st.lists(version, max_size=1))
        ),
    )


def at_time(versions: CatalogVersions, time: int) -> Catalog:
    try:
        return versions.at_time(time)
    except CatalogVersionTrimmed:
        return versions.earliest


def may_be_first(
    versions: CatalogVersions, facts: ClusterFacts, floors: Floors, number: int
) -> bool:
    version = versions.at_version(number)
    times = [answer.low_watermark for answer in facts.answers.values()]
    times += [time for answer in facts.answers.values() for time in answer.published.values()]
    times.append(add_ms(facts.now, -floors.age_ms))
    if any(at_time(versions, time).version < number for time in times):
        return False
    needed = [*facts.rebalances.values(), *(pin.position for pin in facts.pins)]
    if any(each < number for each in needed):
        return False
    if versions.latest.version - number + 1 < floors.versions_min:
        return False
    before = [versions.at_version(each) for each in range(versions.earliest.version, number)]
    wanted = min(at_time(versions, time).version for time in times[:-1])
    for reader in (versions.at_version(wanted), versions.at_time(facts.now), versions.latest):
        for index in (each for table in reader.tables() for each in reader.indexes_of(table.id)):
            building = index.status in {IndexStatus.REGISTERED, IndexStatus.BUILDING}
            if building and any(index.id in catalog.objects for catalog in before):
                return False
    return all(replicas_are_there(versions, facts, version, table) for table in version.tables())


def replicas_are_there(
    versions: CatalogVersions, facts: ClusterFacts, version: Catalog, table: TableDescriptor
) -> bool:
    if table.id not in versions.latest.objects:
        times = (answer.low_watermark for answer in facts.answers.values())
        readable = at_time(versions, min(times))
        return table.id not in readable.objects
    zone = version.get(ZoneDescriptor, table.zone_id)
    for number in range(zone.partitions):
        nodes = facts.assignments.get((zone.id, number), frozenset())
        if not nodes or not nodes <= facts.topology:
            return False
        if any((zone.id, number) not in facts.answers[node].published for node in nodes):
            return False
    return True


@settings(max_examples=400)
@given(data=st.data())
def test_the_newest_version_is_chosen_that_nothing_forbids(data: st.DataObject) -> None:
    versions = History(data).versions
    facts = facts_of(data, versions)
    floors = Floors(data.draw(st.integers(1, 4)), data.draw(st.sampled_from([0, 0, 15, 40])))
    decision = decide(versions, facts, floors)
    earliest = versions.earliest.version
    assert decision.earliest == earliest
    if not is_known(facts):
        assert (decision.version, decision.wanted) == (earliest, 0)
        assert decision.aborts
        event("aborted")
        return
    allowed = [
        number
        for number in range(earliest, versions.latest.version + 1)
        if may_be_first(versions, facts, floors, number)
    ]
    assert decision.version == max([earliest, *allowed])
    check_reasons(decision)
    event(f"trims: {decision.trims}")


def is_known(facts: ClusterFacts) -> bool:
    if facts.topology - facts.answers.keys():
        return False
    return all(all(answer.published.values()) for answer in facts.answers.values())


def check_reasons(decision: Decision) -> None:
    """Whatever keeps the wanted version from being the first is named."""
    assert decision.version <= decision.wanted or decision.version == decision.earliest
    if decision.version < decision.wanted:
        assert all(hold.position <= decision.wanted for hold in decision.horizon.blocking)
        assert decision.horizon.position <= decision.version
    for abort in decision.aborts:
        assert abort.object
        assert str(abort.version) in abort.describe()
