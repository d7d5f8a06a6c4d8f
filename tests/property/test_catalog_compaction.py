"""The history of the catalog in a simulated cluster: no part misses a version, and it shrinks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from lithify.catalog_compaction import decision, pins, published
from lithify.catalog_compaction.facts import ClusterFacts
from lithify.tables.keys import PUBLISHED_KEY
from tests.property.catalog_compaction_simulator import Simulation, VersionGone, simulate
from tests.unit.catalog.manager.nodes import with_nodes

if TYPE_CHECKING:
    from tests.unit.catalog.manager.nodes import Nodes

STEPS = 60
SEEDS = 200


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
@example(seed=187)  # a version has a lower time than a clock that was read before
def test_no_part_of_the_cluster_needs_a_version_that_is_gone(seed: int) -> None:
    async def story(nodes: Nodes) -> None:
        simulation = await simulate(nodes, seed, STEPS)
        event(f"trimmed: {min(simulation.trimmed, 5)}")
        event(f"rebuilt: {min(simulation.rebuilt, 3)}")
        for manager in simulation.managers.values():
            versions = manager.versions
            assert versions.earliest.version == versions.latest.version

    with_nodes(story)


async def newest_time(self: Any) -> int:
    """Counts what no snapshot has yet."""
    newest = await self.replica.store.get(PUBLISHED_KEY, local=True)
    return 0 if newest is None else int.from_bytes(newest.value, "big")


def own_minimum(facts: ClusterFacts) -> int:
    """Of some of the nodes only."""
    return max((each.minimum_begin for each in facts.answers.values()), default=0)


read_time = published.PublishedTime.read


async def time_or_latest(self: Any) -> int:
    """A replica that has not published needs nothing."""
    return await read_time(self) or 2**62


def nothing(*_: object) -> tuple[()]:
    return ()


BREAKS = {
    "a time counts before a snapshot has it": (published.PublishedTime, "read", newest_time),
    "active transactions of other nodes": (
        ClusterFacts,
        "minimum_begin",
        property(own_minimum),
    ),
    "index builds": (decision, "_building", nothing),
    "rebalances": (decision, "_rebalancing", nothing),
    "missing nodes and replicas": (decision, "_missing", lambda *_: None),
    "replicas that have not published": (published.PublishedTime, "read", time_or_latest),
    "pins": (pins.NamedPins, "holds", nothing),
    "logs of nodes that were away too long": (Simulation, "discard", nothing),
}


@pytest.mark.parametrize("ignored", BREAKS)
def test_the_simulation_notices_what_a_run_ignores(
    ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*BREAKS[ignored])
    with pytest.raises(VersionGone):
        simulate_all()


def simulate_all() -> None:
    async def simulated(seed: int, nodes: Nodes) -> None:
        await simulate(nodes, seed, STEPS)

    for seed in range(SEEDS):
        with_nodes(partial(simulated, seed))
