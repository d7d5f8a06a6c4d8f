"""Decides how far the history of the catalog may be trimmed. Pure.

    decision = decide(versions, facts, Floors())
    decision.version          the version that becomes a snapshot; the ones before it go

1. Every node of the topology must have answered, have a low watermark, and have published a time in
   each of its replicas; otherwise the run is aborted.
2. The **wanted** version is the one that was in force at the smallest of these times. It stays
   readable, so a reader at that time or later finds its version.
3. Holds lower it: to the version in which an index that is being built was registered, to the one
   whose zone a rebalance follows, to a pin, to the last version with an object whose directories
   are not deleted yet, and to the floors. An index is being built if it is so in the wanted
   version, in the one in force, or in the newest one.
4. The replicas of all tables of the version must be there: every node that is assigned one must be
   in the topology and have answered for it, because what it replays after a crash is known by its
   published time only. A dropped table needs no replicas if it is absent at all low watermarks too.
   A table that fails lowers the version to the last one without it.
5. A node that has not answered for `Waits.away_ms` is not waited for, if in each of its groups a
   majority has answered with a published time, and if that lets something go. It is named in
   `left`: before anything is trimmed, its replicas are recorded as to be rebuilt. Those that
   are recorded are not waited for, and are not counted in a majority; the node may be back, but
   takes no part with its log.

So an older version is chosen where a newer one is not admissible; all reasons are in the decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.catalog.errors import CatalogVersionTrimmed
from lithify.catalog.objects import IndexStatus, Removal, TableDescriptor, ZoneDescriptor
from lithify.catalog_compaction.facts import Abort, AbortKind, Floors, Waits
from lithify.compaction.planning.horizon import Hold, Horizon, find_horizon
from lithify.hybrid_time import add_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.versions import CatalogVersions
    from lithify.catalog_compaction.facts import ClusterFacts
    from lithify.tables.assignments import Partition

__all__ = ["Decision", "decide", "named_holds"]

_PATIENT = Waits()
_BUILDING = (IndexStatus.REGISTERED, IndexStatus.BUILDING)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is trimmed, and why not more."""

    earliest: int
    """The first version that is there now."""
    wanted: int
    """The version in force at the smallest time that a node needs; 0 if that is not known."""
    version: int
    """The first version that is left; `earliest` if nothing is trimmed."""
    horizon: Horizon
    """All holds; a position is the version that stays."""
    aborts: tuple[Abort, ...] = ()
    left: tuple[str, ...] = ()
    """Nodes that were away for too long: their replicas must be rebuilt."""

    @property
    def trims(self) -> bool:
        """Is anything trimmed?"""
        return self.version > self.earliest


def decide(
    versions: CatalogVersions, facts: ClusterFacts, floors: Floors, waits: Waits = _PATIENT
) -> Decision:
    """The decision on these facts; see the module."""
    patient = _decide(versions, facts, floors, frozenset())
    left = frozenset(_left(facts, waits))
    if not left:
        return patient
    decision = _decide(versions, facts, floors, left)
    return decision if decision.version > patient.version else patient


def _decide(
    versions: CatalogVersions, facts: ClusterFacts, floors: Floors, left: frozenset[str]
) -> Decision:
    """The decision if some nodes are not waited for."""
    earliest = versions.earliest.version
    aborts = list(_unknown(facts, left))
    if aborts:
        stays = Hold("unknown", earliest, aborts[0].describe())
        return Decision(earliest, 0, earliest, find_horizon((stays,)), tuple(aborts))
    needed = list(_needed(versions, facts))
    wanted = min((hold.position for hold in needed), default=earliest)
    stuck = list(_stuck(versions, facts, wanted))
    aborts += (
        Abort(AbortKind(hold.name), wanted, object=hold.owner)
        for hold in stuck
        if hold.position < wanted
    )
    holds = [*needed, *stuck, *facts.pins, *_kept(versions, facts, floors, left)]
    version = max(find_horizon(holds).position, earliest)
    while version > earliest:
        failed = _missing(versions, facts, version, left)
        if failed is None:
            break
        abort, table = failed
        aborts.append(abort)
        version = max(_first_with(versions, table.id, version) - 1, earliest)
        holds.append(Hold("replicas", version, f"table {table.name}"))
    horizon = find_horizon(holds)
    return Decision(earliest, wanted, version, horizon, tuple(aborts), tuple(sorted(left)))


def named_holds(versions: CatalogVersions, facts: ClusterFacts, floors: Floors) -> tuple[Hold, ...]:
    """The holds of what is known, also when a node has not answered or a replica is missing."""
    needed = list(_needed(versions, facts))
    latest = versions.latest.version
    stuck = _stuck(versions, facts, min((hold.position for hold in needed), default=latest))
    return (*needed, *stuck, *facts.pins, *_kept(versions, facts, floors))


def _stuck(versions: CatalogVersions, facts: ClusterFacts, wanted: int) -> Iterator[Hold]:
    """Index builds and rebalances."""
    current = versions.at_version(_version_at(versions, facts.now))
    yield from _building(versions, (versions.at_version(wanted), current, versions.latest))
    yield from _rebalancing(facts)


def _left(facts: ClusterFacts, waits: Waits) -> Iterator[str]:
    """The nodes that are not waited for; see the module."""
    for node, away_ms in facts.away_ms.items():
        if waits.away_ms is None or away_ms <= waits.away_ms or node in facts.answers:
            continue
        groups = [each for each in facts.assignments if node in facts.required(each)]
        if all(2 * _live(facts, each) > len(facts.assignments[each]) for each in groups):
            yield node


def _live(facts: ClusterFacts, partition: Partition) -> int:
    """The number of nodes with a published replica of a partition."""
    answers = (facts.answers.get(node) for node in facts.required(partition))
    return sum(bool(each and each.published.get(partition)) for each in answers)


def _unknown(facts: ClusterFacts, left: frozenset[str]) -> Iterator[Abort]:
    """What aborts the run: a time that is not known."""
    for node in sorted(facts.topology - left):
        answer = facts.answers.get(node)
        if answer is None:
            yield Abort(AbortKind.NO_ANSWER, 0, node)
            continue
        if not answer.low_watermark:
            yield Abort(AbortKind.NO_LOW_WATERMARK, 0, node)
        for partition, time in sorted(answer.published.items()):
            if not time:
                yield Abort(AbortKind.UNPUBLISHED, 0, node, partition)


def _needed(versions: CatalogVersions, facts: ClusterFacts) -> Iterator[Hold]:
    """The versions in force at the times that the nodes need."""
    for node, answer in sorted(facts.answers.items()):
        if answer.low_watermark:
            yield Hold("low watermark", _version_at(versions, answer.low_watermark), node)
        published = {key: time for key, time in answer.published.items() if time}
        if published:
            partition = min(published, key=lambda each: published[each])
            version = _version_at(versions, published[partition])
            yield Hold(
                "published", version, f"{node}, partition {partition[1]} of zone {partition[0]}"
            )


def _version_at(versions: CatalogVersions, time: int) -> int:
    try:
        return versions.at_time(time).version
    except CatalogVersionTrimmed:
        # A node that was away for long: what is left is all that it can have.
        return versions.earliest.version


def _kept(
    versions: CatalogVersions,
    facts: ClusterFacts,
    floors: Floors,
    left: frozenset[str] = frozenset(),
) -> Iterator[Hold]:
    """The floors, and objects whose directories are not deleted yet by nodes that may be."""
    latest = versions.latest.version
    if floors.versions_min > 1:
        yield Hold("versions", max(latest - floors.versions_min + 1, 0), str(floors.versions_min))
    if floors.age_ms:
        version = _version_at(versions, add_ms(facts.now, -floors.age_ms))
        yield Hold("age", version, f"{floors.age_ms} ms")
    for removal in versions.latest.removals():
        if left.issuperset(removal.nodes):
            # When they are back, they find the removal in the newest version.
            continue
        if removal.id in versions.earliest.objects and isinstance(
            versions.earliest.objects[removal.id], Removal
        ):
            # The last version with the object is gone.
            continue
        first = _first_with(versions, removal.id, latest, removed=True)
        yield Hold("removal", max(first - 1, 0), f"{removal.of} {removal.name}")


def _building(versions: CatalogVersions, readers: Iterable[Catalog]) -> Iterator[Hold]:
    """The indexes that are being built in one of these versions."""
    found = set()
    for catalog in readers:
        for table in catalog.tables():
            for index in catalog.indexes_of(table.id):
                if index.status in _BUILDING and index.id not in found:
                    found.add(index.id)
                    version = _first_with(versions, index.id, catalog.version)
                    yield Hold("index build", version, f"index {catalog.full_name(index)}")


def _rebalancing(facts: ClusterFacts) -> Iterator[Hold]:
    for (zone, number), version in sorted(facts.rebalances.items()):
        yield Hold("rebalance", version, f"partition {number} of zone {zone}")


def _first_with(
    versions: CatalogVersions, object_id: int, version: int, *, removed: bool = False
) -> int:
    """The first version with an object that this version has; ids are never used again.

    `removed`: with the removal of an object, which has its id.
    """
    low, high = versions.earliest.version, version
    while low < high:
        middle = (low + high) // 2
        found = versions.at_version(middle).objects.get(object_id)
        if found is not None and isinstance(found, Removal) == removed:
            high = middle
        else:
            low = middle + 1
    return low


def _missing(
    versions: CatalogVersions, facts: ClusterFacts, version: int, left: frozenset[str]
) -> tuple[Abort, TableDescriptor] | None:
    """The first table of a version whose replicas are not all there, and why."""
    candidate = versions.at_version(version)
    current = versions.at_version(_version_at(versions, facts.now))
    watermark = min(answer.low_watermark for answer in facts.answers.values())
    readable = versions.at_version(_version_at(versions, watermark))
    by_zone: dict[int, Abort | None] = {}
    for table in candidate.tables():
        name, zone = f"table {table.name}", table.zone_id
        if current.find(TableDescriptor, table.id) is None:
            if readable.find(TableDescriptor, table.id) is not None:
                return Abort(AbortKind.DROPPED_TABLE, version, object=name), table
            continue
        if zone not in by_zone:
            by_zone[zone] = _missing_replica(candidate.get(ZoneDescriptor, zone), facts, left)
        abort = by_zone[zone]
        if abort is not None:
            return replace(abort, version=version, object=name), table
    return None


def _missing_replica(
    zone: ZoneDescriptor, facts: ClusterFacts, left: frozenset[str]
) -> Abort | None:
    for number in range(zone.partitions):
        partition = zone.id, number
        if not facts.assignments.get(partition):
            return Abort(AbortKind.NO_ASSIGNMENT, 0, "", partition)
        for node in sorted(facts.required(partition) - left):
            if node not in facts.topology:
                return Abort(AbortKind.MISSING_NODE, 0, node, partition)
            if partition not in facts.answers[node].published:
                return Abort(AbortKind.MISSING_GROUP, 0, node, partition)
    return None
