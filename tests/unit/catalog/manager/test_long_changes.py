"""Batches and updates that take long: planned and applied outside of the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.catalog.commands.topics import CreateTopic
from lithify.catalog.manager.errors import CatalogStopped
from lithify.catalog.manager.executions import SHORT_COMMANDS_MAX
from tests.patience import PROCESS_S_MAX
from tests.unit.catalog.manager.nodes import Nodes, with_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds


class _Long:
    """Creates a tenant when it is allowed to; tells where it was planned."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.threads: list[int] = []

    def changes(self, catalog: Catalog, ids: NewIds, /) -> Sequence[CatalogChange]:
        self.threads.append(threading.get_ident())
        self.begun.set()
        assert self.may_end.wait(PROCESS_S_MAX)
        return CreateTenant("long").changes(catalog, ids)


def test_a_long_batch_is_planned_alone_and_outside_of_the_event_loop() -> None:
    async def story(nodes: Nodes) -> None:
        manager, long = await nodes.started(), _Long()
        waiting = [
            asyncio.create_task(manager.execute(batch, is_long=is_long))
            for batch, is_long in (
                ([CreateTenant("a")], False),
                ([CreateTenant("b")], False),
                ([long], True),
                ([CreateTenant("c")], False),
            )
        ]
        await asyncio.to_thread(long.begun.wait, PROCESS_S_MAX)
        await asyncio.gather(*waiting[:2])
        assert {tenant.name for tenant in manager.current.tenants()} == {"a", "b", "public"}
        assert not waiting[3].done()
        long.may_end.set()
        assert [(await each).version for each in waiting] == [2, 3, 4, 5]
        assert long.threads != [threading.get_ident()]

    with_nodes(story)


def test_a_batch_of_many_commands_is_a_long_one() -> None:
    async def story(nodes: Nodes) -> None:
        manager, long = await nodes.started(), _Long()
        long.may_end.set()
        await manager.execute([long] + [CreateTenant("a", if_not_exists=True)] * SHORT_COMMANDS_MAX)
        assert long.threads != [threading.get_ident()]

    with_nodes(story)


def test_a_node_that_stops_while_it_plans_a_long_batch_has_done_nothing() -> None:
    async def story(nodes: Nodes) -> None:
        manager, other, long = await nodes.started(), await nodes.started(), _Long()
        waiting = asyncio.create_task(manager.execute([long], is_long=True))
        await asyncio.to_thread(long.begun.wait, PROCESS_S_MAX)
        await manager.stop()
        long.may_end.set()
        with pytest.raises(CatalogStopped):
            await waiting
        assert (await other.execute([CreateTenant("a")])).version == 2

    with_nodes(story)


def test_a_long_update_is_applied_on_every_node() -> None:
    async def story(nodes: Nodes) -> None:
        manager, other = await nodes.started(), await nodes.started()
        topics = [CreateTopic("public/default", f"t{n}", owners=("n1",)) for n in range(1000)]
        assert (await manager.execute(topics)).version == 2
        await manager.execute([CreateTenant("a")])
        await other.wait_applied(3)
        late = await nodes.started()
        assert await manager.snapshot(3)
        for each in (manager, other, late):
            assert each.current == manager.current
            assert len(each.current.objects) > len(topics)

    with_nodes(story)
