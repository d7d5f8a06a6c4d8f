"""A run of catalog compaction, on the coordinator: the leader of the metastore.

    runner = CatalogRunner(cluster, catalog, metastore, clock, CatalogTrimming())
    dry_run = await runner.plan()            # any node
    dry_run = await runner.run(term)         # the coordinator

1. The coordinator takes its term: it raises the key `COORDINATOR` to it. One of a later term ends
   everything that an earlier one has begun, because each snapshot demands that the key is the same.
2. One request to every node of the topology, all at the same time, has the answers of
   `node_times.py`. A node that does not answer within `timeout_ms` has not answered.
3. Two stages run side by side on these answers:
   - **Replicas update**: the minimum begin time of all active transactions goes to all nodes, which
     publish it. Without the answer of every node there is none. It is not sent if what is published
     already names the same version: an idle cluster writes nothing.
   - **Compaction**: the decision (`decision.py`) on what was published before, then the snapshot of
     its version, which is published only if the term and the pins are still the same. If a node is
     no longer waited for, that is recorded first: its logs may need what the snapshot replaces.

If a stage fails the other one still ends; the error of the compaction is the one that is raised.

Lost and late messages do no harm: a run without an answer aborts, a minimum that is late is smaller
than the one that replaced it and changes nothing, and two coordinators publish ascending snapshots,
each of a version that its own facts permit. One event loop.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lithify.catalog_compaction.decision import Decision, decide, named_holds
from lithify.catalog_compaction.facts import ClusterFacts, Floors, Waits
from lithify.catalog_compaction.pins import NamedPins, delete_expired, read_pins
from lithify.catalog_compaction.plan import CatalogDryRun
from lithify.errors import LithifyError, RunRefused
from lithify.logger import get_logger
from lithify.metastore.transaction import Compare, Condition, Put, Transaction
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lithify.catalog.versions import CatalogVersions
    from lithify.catalog_compaction.facts import NodeTimes
    from lithify.clock import Clock
    from lithify.compaction.planning.horizon import Hold
    from lithify.metastore.metastore import Metastore
    from lithify.tables.assignments import Partition

__all__ = ["COORDINATOR", "CatalogRunner", "CatalogTrimming", "Placement"]

COORDINATOR = b"catalog_compaction/coordinator"
_TERM = struct.Struct(">Q")

log = get_logger("lithify.catalog")


@dataclass(frozen=True, slots=True)
class CatalogTrimming:
    """The settings of catalog compaction."""

    versions_min: int = 1
    """The newest versions that are kept although nothing needs them."""
    age_ms: int = 0
    """What was in force this long ago is kept too."""
    away_ms: int | None = 86_400_000
    """A node that does not answer holds the history for this long; None: without limit."""
    timeout_ms: int = 10_000
    """For the answer of a node."""

    def __post_init__(self) -> None:
        check_range("catalog_versions_min", self.versions_min, 1, 2**45)
        check_range("catalog_age_ms", self.age_ms, 0, 2**45)
        check_range("catalog_away_ms", self.away_ms, 10_000, 2**45)
        check_range("catalog_timeout_ms", self.timeout_ms, 1, 600_000)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the partitions of tables are."""

    assignments: Mapping[Partition, frozenset[str]] = field(default_factory=dict)
    """The nodes that have a replica, as of now."""
    rebalances: Mapping[Partition, int] = field(default_factory=dict)
    """Running ones, and the version of the catalog whose zone they follow."""
    to_rebuild: Mapping[Partition, frozenset[str]] = field(default_factory=dict)
    """Nodes whose replica is rebuilt."""


class TrimmedCatalog(Protocol):
    """What is needed of the `CatalogManager`."""

    versions: CatalogVersions

    def now(self) -> int:
        """The hybrid time of this node."""

    async def snapshot(self, version: int, demands: tuple[Compare, ...] = ()) -> bool:
        """Replace the updates up to a version by a snapshot."""


class TrimmedCluster(Protocol):
    """The other nodes, as this one reaches them."""

    def topology(self) -> Collection[str]:
        """The nodes that are there, this one included."""

    async def times(self, node: str) -> NodeTimes:
        """The answer of a node; any `LithifyError` is no answer."""

    async def publish(self, node: str, minimum: int, term: int) -> None:
        """Have a node publish the minimum begin time of all nodes."""

    async def placement(self) -> Placement:
        """Of the partitions of tables, as of now."""

    async def give_up(self, nodes: Collection[str], demands: tuple[Compare, ...]) -> bool:
        """Have all replicas on nodes be rebuilt, durably; False if that was not possible."""


class CatalogRunner:
    """See the module."""

    def __init__(
        self,
        cluster: TrimmedCluster,
        catalog: TrimmedCatalog,
        metastore: Metastore,
        clock: Clock,
        settings: CatalogTrimming,
    ) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._metastore = metastore
        self._clock = clock
        self.settings = settings
        self._floors = Floors(settings.versions_min, settings.age_ms)
        self._waits = Waits(settings.away_ms)
        self._heard_s: dict[str, float] = {}
        """When a node has last answered, or was first asked."""

    async def plan(self) -> CatalogDryRun:
        """What a run would do now."""
        dry_run, _ = await self._plan()
        return dry_run

    async def run(self, term: int) -> CatalogDryRun:
        """A run of the coordinator of a term."""
        fence = await self._take(term)
        dry_run, pins = await self._plan()
        trimming = self._trim(dry_run.decision, fence, pins)
        stages = trimming, self._publish(dry_run, term)
        trimmed, published = await asyncio.gather(*stages, return_exceptions=True)
        for error in (trimmed, published):
            if isinstance(error, BaseException):
                raise error
        await delete_expired(self._metastore, pins, self._clock.now_ms())
        return dry_run

    async def snapshot(self, term: int, version: int, *, force: bool) -> bool:
        """A snapshot of a version, if the decision permits it; False if there is one as new.

        `force`: without the answers and replicas that are missing; named holds are kept.
        """
        self._catalog.versions.at_version(version)
        fence = await self._take(term)
        dry_run, pins = await self._plan()
        decision, facts = dry_run.decision, dry_run.facts
        if version > decision.version:
            holds = named_holds(self._catalog.versions, facts, self._floors)
            named = [hold for hold in holds if hold.position < version]
            if named or not force:
                raise RunRefused("holds", _why_not(version, decision, dry_run.now_ms, named))
        if not await self._give_up(decision, fence):
            raise RunRefused("replicas", "where they are has changed; try again")
        return await self._catalog.snapshot(version, (fence, pins.unchanged))

    # --- steps ------------------------------------------------------------------------------

    async def _take(self, term: int) -> Compare:
        """Take the term; returns the demand that no later coordinator has."""
        while True:
            found = await self._metastore.get(COORDINATOR)
            taken = 0 if found is None else int(_TERM.unpack(found.value)[0])
            revision = 0 if found is None else found.revision
            same = Compare(COORDINATOR, Condition.REVISION, revision)
            if taken == term:
                return same
            if taken > term:
                what = f"the coordinator of term {taken} has replaced that of term {term}"
                raise RunRefused("leader", what)
            put = Put(COORDINATOR, _TERM.pack(term))
            await self._metastore.transact(Transaction((same,), (put,)))

    async def _plan(self) -> tuple[CatalogDryRun, NamedPins]:
        topology = frozenset(self._cluster.topology())
        asked = sorted(topology)
        found = await asyncio.gather(*map(self._times, asked))
        answers = {node: times for node, times in zip(asked, found, strict=True) if times}
        # After the answers: a replica that was assigned meanwhile has not answered.
        placement, pins = await asyncio.gather(
            self._cluster.placement(), read_pins(self._metastore)
        )
        now_ms = self._clock.now_ms()
        versions = self._catalog.versions
        removals = (each.nodes for each in versions.latest.removals())
        assigned = topology.union(*placement.assignments.values(), *removals)
        facts = ClusterFacts(
            now=self._catalog.now(),
            topology=topology,
            answers=answers,
            assignments=placement.assignments,
            rebalances=placement.rebalances,
            to_rebuild=placement.to_rebuild,
            pins=pins.holds(now_ms),
            away_ms=self._away_ms(assigned, answers),
        )
        # In a thread: a catalog may have many thousands of tables.
        decision = await asyncio.to_thread(decide, versions, facts, self._floors, self._waits)
        return CatalogDryRun(decision, facts, versions.latest.version, now_ms), pins

    async def _times(self, node: str) -> NodeTimes | None:
        try:
            async with asyncio.timeout(self.settings.timeout_ms / 1000):
                return await self._cluster.times(node)
        except (LithifyError, TimeoutError) as error:
            log.info("a node has not answered", node=node, reason=str(error) or "in time")
            return None

    def _away_ms(self, nodes: Collection[str], answers: Collection[str]) -> dict[str, int]:
        """For how long the nodes without an answer have been away."""
        now_s = self._clock.monotonic_s()
        self._heard_s |= dict.fromkeys(answers, now_s)
        silent = [node for node in nodes if node not in answers]
        return {
            node: round(1000 * (now_s - self._heard_s.setdefault(node, now_s))) for node in silent
        }

    async def _publish(self, dry_run: CatalogDryRun, term: int) -> None:
        """The replicas update."""
        facts, versions = dry_run.facts, self._catalog.versions
        minimum = facts.minimum_begin
        published = [time for each in facts.answers.values() for time in each.published.values()]
        if not minimum or not published:
            return
        if min(published) >= versions.at_version(_version_of(versions, minimum)).activation:
            return
        sent = (self._send(node, minimum, term) for node in sorted(facts.topology))
        await asyncio.gather(*sent)

    async def _send(self, node: str, minimum: int, term: int) -> None:
        try:
            async with asyncio.timeout(self.settings.timeout_ms / 1000):
                await self._cluster.publish(node, minimum, term)
        except (LithifyError, TimeoutError) as error:
            # It may have published. The next run tries again.
            log.info("a node has not published", node=node, reason=str(error) or "in time")

    async def _trim(self, decision: Decision, fence: Compare, pins: NamedPins) -> None:
        if decision.trims and await self._give_up(decision, fence):
            await self._catalog.snapshot(decision.version, (fence, pins.unchanged))

    async def _give_up(self, decision: Decision, fence: Compare) -> bool:
        """Record, before anything goes that they need, that nodes are not waited for."""
        if not decision.left:
            return True
        log.warning("the replicas of nodes are given up", nodes=", ".join(decision.left))
        return await self._cluster.give_up(decision.left, (fence,))


def _version_of(versions: CatalogVersions, time: int) -> int:
    earliest = versions.earliest
    return versions.at_time(max(time, earliest.activation)).version


def _why_not(version: int, decision: Decision, now_ms: int, named: Sequence[Hold]) -> str:
    texts = [hold.describe(now_ms) for hold in named]
    texts += [abort.describe() for abort in decision.aborts]
    what = f"version {version} cannot be the earliest one, {decision.version} can: "
    more = "" if named else "; --force does it without them"
    return what + "; ".join(dict.fromkeys(texts)) + more
