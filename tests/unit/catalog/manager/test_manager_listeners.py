"""Listeners and readiness; how a node follows the log when it is behind."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lithify.catalog.commands.tenants_and_namespaces import CreateTenant
from lithify.metastore.errors import MetastoreUnavailable
from lithify.testing.memory_metastore import MemoryMetastore, Moment
from tests.unit.catalog.manager.nodes import Heard, Nodes, with_nodes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate
    from lithify.catalog.manager.manager import CatalogManager
    from lithify.metastore.metastore import Revision


async def create(manager: CatalogManager, *names: str) -> int:
    return (await manager.execute([CreateTenant(name) for name in names])).version


async def until_waiting() -> None:
    """Let all tasks run until each waits for something that does not come by itself."""
    for _ in range(1000):
        await asyncio.sleep(0)


class Slow(Heard):
    """A listener that finishes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = asyncio.Event()

    async def __call__(self, before: Catalog, after: Catalog, update: CatalogUpdate | None) -> None:
        await super().__call__(before, after, update)
        await self.passes.wait()


class Failing(Heard):
    """A listener that fails after it has got a version."""

    async def __call__(self, before: Catalog, after: Catalog, update: CatalogUpdate | None) -> None:
        await super().__call__(before, after, update)
        raise ZeroDivisionError(f"in version {after.version}")


def test_listeners_on_every_node_get_every_version_once_in_order() -> None:
    async def story(nodes: Nodes) -> None:
        managers = [await nodes.started() for _ in range(3)]
        heard = [Heard() for _ in managers]
        for manager, listener in zip(managers, heard, strict=True):
            manager.listen(listener)
        await asyncio.gather(*(create(managers[n % 3], f"t{n}") for n in range(60)))
        for manager, listener in zip(managers, heard, strict=True):
            await manager.wait_ready(61)
            assert listener.versions == list(range(2, 62))
            assert None not in listener.updates

    with_nodes(story)


def test_replayed_versions_are_delivered_only_on_request() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        for name in "abc":
            await create(manager, name)
        await manager.snapshot(2)
        asked, not_asked = Heard(), Heard()
        fresh = nodes.manager()
        fresh.listen(asked, replayed=True)
        fresh.listen(not_asked)
        await fresh.start()
        await create(fresh, "d")
        await fresh.wait_ready(5)
        assert asked.versions == [2, 3, 4, 5]
        assert asked.updates[0] is None
        assert None not in asked.updates[1:]
        assert not_asked.versions == [5]

    with_nodes(story)


def test_a_version_is_ready_when_all_listeners_have_finished() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        await manager.wait_ready(1)
        slow, fast = Slow(), Heard()
        manager.listen(slow)
        manager.listen(fast)
        await create(manager, "a")
        await create(manager, "b")
        ready = [asyncio.create_task(manager.wait_ready(version)) for version in (2, 3)]
        await until_waiting()
        assert slow.versions == fast.versions == [2]
        assert [each.done() for each in ready] == [False, False]
        slow.passes.set()
        await asyncio.gather(*ready)
        assert slow.versions == fast.versions == [2, 3]

    with_nodes(story)


def test_a_listener_may_change_the_catalog() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()

        async def add_another(
            _before: Catalog, after: Catalog, _update: CatalogUpdate | None
        ) -> None:
            if after.tenant("a") and not after.tenant("b"):
                await create(manager, "b")

        manager.listen(add_another)
        await create(manager, "a")
        await manager.wait_ready(3)
        assert manager.current.tenant("b")

    with_nodes(story)


def test_an_error_in_a_listener_is_logged_once_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        failing, other = Failing(), Heard()
        manager.listen(failing)
        manager.listen(other)
        await create(manager, "a")
        await create(manager, "b")
        await manager.wait_ready(3)
        assert failing.versions == other.versions == [2, 3]

    with caplog.at_level(logging.ERROR, "lithify.catalog"):
        with_nodes(story)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2
    assert [str(record.exc_info[1]) for record in errors if record.exc_info] == [
        "in version 2",
        "in version 3",
    ]


def test_a_listener_that_ends_as_if_cancelled_is_one_that_fails() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()

        async def gives_up(before: Catalog, after: Catalog, update: CatalogUpdate | None) -> None:
            raise asyncio.CancelledError

        manager.listen(gives_up)
        await create(manager, "a")
        await manager.wait_ready(2)
        await create(manager, "b")
        await manager.wait_ready(3)

    with_nodes(story)


def test_a_node_that_is_behind_gets_what_it_missed() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        behind, ahead = await nodes.started(store), await nodes.started()
        heard = Heard()
        behind.listen(heard)
        store.hold()
        for number in range(20):
            await create(ahead, f"t{number}")
        await ahead.snapshot(15)
        assert behind.versions.latest.version == 1
        store.apply(10)
        await until_waiting()
        assert behind.versions.latest.version > 1
        store.follow()
        await behind.wait_ready(21)
        assert heard.versions == list(range(2, 22))
        assert None not in heard.updates
        await until_waiting()
        assert behind.versions.earliest.version == 15
        assert behind.versions.latest == ahead.versions.latest

    with_nodes(story)


def test_a_node_far_behind_catches_up_from_the_snapshot() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        behind, ahead = await nodes.started(store), await nodes.started()
        heard = Heard()
        behind.listen(heard)
        await create(ahead, "seen")
        await behind.wait_ready(2)
        store.hold()
        for number in range(20):
            await create(ahead, f"t{number}")
        await ahead.snapshot(18)
        await store.compact(nodes.cluster.state.revision)
        store.install()
        await behind.wait_ready(22)
        assert heard.versions == [2, 18, 19, 20, 21, 22]
        assert [each is None for each in heard.updates] == [False, True, False, False, False, False]
        assert behind.versions.earliest.version == 18
        assert behind.versions.latest == ahead.versions.latest
        store.follow()
        await create(behind, "last")
        assert behind.versions.latest.version == 23

    with_nodes(story)


def test_a_node_whose_start_a_newer_snapshot_overtakes_repeats_nothing() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        ahead = await nodes.started()
        await create(ahead, "a")

        async def overtaken(request: str, moment: Moment) -> None:
            if (request, moment) == ("get", Moment.AFTER):  # it knows the newest version
                store.gate = None
                for name in "bcd":
                    await create(ahead, name)
                await ahead.snapshot(4)

        store.gate = overtaken
        heard = Heard()
        starting = nodes.manager(store)
        starting.listen(heard, replayed=True)
        await starting.start()
        await starting.wait_ready(5)
        await create(starting, "e")
        await starting.wait_ready(6)
        assert heard.versions == [4, 5, 6]
        assert starting.versions.latest == ahead.versions.latest

    with_nodes(story)


def test_a_node_behind_the_floor_without_a_snapshot_misses_and_repeats_nothing() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        behind, ahead = await nodes.started(store), await nodes.started()
        heard = Heard()
        behind.listen(heard)
        store.hold()
        for number in range(20):
            await create(ahead, f"t{number}")
        await store.compact(nodes.cluster.state.revision)
        store.install()
        await behind.wait_ready(21)
        store.follow()
        await create(ahead, "more")
        await behind.wait_ready(22)
        assert heard.versions == list(range(2, 23))
        assert None not in heard.updates

    with_nodes(story)


def test_a_snapshot_that_was_published_while_a_node_was_behind_drops_versions_there() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        behind, ahead = await nodes.started(store), await nodes.started()
        for number in range(5):
            await create(ahead, f"t{number}")
        await behind.wait_ready(6)
        store.hold()
        await ahead.snapshot(4)
        await store.compact(nodes.cluster.state.revision)
        store.install()
        store.follow()
        await create(ahead, "last")
        await behind.wait_ready(7)
        assert behind.versions.earliest.version == 4

    with_nodes(story)


class Interrupted(MemoryMetastore):
    """A node whose watches and reads fail while the test wants it."""

    failing = False

    async def watch(
        self, start: bytes, end: bytes, *, after: int
    ) -> AsyncGenerator[Revision, None]:
        async for revision in super().watch(start, end, after=after):
            if self.failing:
                raise MetastoreUnavailable("the watch was interrupted")
            yield revision


def test_an_interrupted_watch_continues_when_the_metastore_is_there_again() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        store.__class__ = Interrupted
        assert isinstance(store, Interrupted)
        manager, other = await nodes.started(store), await nodes.started()
        heard = Heard()
        manager.listen(heard)
        reads = 0

        async def away(_request: str, moment: Moment) -> None:
            nonlocal reads
            if moment is Moment.BEFORE and _request != "watch":
                reads += 1
                if reads < 4:
                    raise MetastoreUnavailable("no leader")
                assert isinstance(store, Interrupted)
                store.failing, store.gate = False, None

        store.failing, store.gate = True, away
        await create(other, "a")
        await create(other, "b")
        await manager.wait_ready(3)
        assert reads == 4
        await create(other, "c")
        await manager.wait_ready(4)
        assert heard.versions == [2, 3, 4]

    with_nodes(story)
