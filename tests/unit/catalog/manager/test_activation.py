"""A change is answered in bounded time, also if clocks differ by more than the skew."""

from __future__ import annotations

import asyncio

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.catalog.manager.manager import CatalogManager
from lithify.clock import ManualClock
from lithify.hybrid_time import milliseconds
from tests.unit.catalog.manager.nodes import CLUSTER, Nodes, with_nodes


def test_a_change_is_answered_soon_though_the_clock_of_the_node_is_an_hour_behind() -> None:
    async def story(nodes: Nodes) -> None:
        behind = ManualClock()
        nodes.clock.advance(3600)
        slept_s = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal slept_s
            slept_s += seconds
            behind.advance(seconds)
            await asyncio.sleep(0)

        store = nodes.cluster.node()
        manager = CatalogManager(store, behind, timing=lambda: CLUSTER, sleep=sleep)
        await manager.start()
        executed = await manager.execute([CreateTenant("a")])
        assert slept_s == (CLUSTER.delay_ms + 2 * CLUSTER.skew_ms) / 1000
        assert behind.now_ms() < milliseconds(executed.activation) - 3_500_000
        assert manager.current.version == executed.version, "what was answered is in force here"
        await manager.stop()

    with_nodes(story, CLUSTER)
