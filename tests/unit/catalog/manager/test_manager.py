"""Changes: one version each, retried after lost races, active when answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.tenants_and_namespaces import CreateTenant, DropTenant
from lithify.catalog.errors import CatalogVersionNotFound, CatalogVersionTrimmed, ObjectExists
from lithify.catalog.manager.activation import ALONE, ActivationTiming
from lithify.catalog.manager.errors import CatalogBusy, CatalogFailed, CatalogStopped
from lithify.catalog.manager.executions import GROUP_BATCHES_MAX, TRIES_MAX
from lithify.catalog.update_log.errors import AppendOutcomeUnknown
from lithify.catalog.update_log.format import update_key
from lithify.hybrid_time import add_ms, milliseconds
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.transaction import Delete, Put, Transaction
from lithify.raft.net.client_operations import MayHaveHappened
from lithify.testing.memory_metastore import Happens, Moment
from tests.unit.catalog.manager.nodes import CLUSTER, Nodes, with_nodes

if TYPE_CHECKING:
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds
    from lithify.catalog.manager.manager import CatalogManager


def tenants(catalog: Catalog) -> set[str]:
    return {tenant.name for tenant in catalog.tenants()} - {"public"}


async def create(manager: CatalogManager, *names: str) -> int:
    return (await manager.execute([CreateTenant(name) for name in names])).version


async def until_waiting() -> None:
    """Let all tasks run until each waits for something that does not come by itself."""
    for _ in range(1000):
        await asyncio.sleep(0)


def test_a_new_cluster_begins_with_version_1() -> None:
    async def story(nodes: Nodes) -> None:
        catalog = (await nodes.started()).current
        assert catalog.version == 1
        assert catalog.namespace("public/default") is not None
        assert catalog.default_zone is not None
        assert catalog.default_zone.name == "default"

    with_nodes(story)


def test_nodes_that_start_at_once_agree_on_version_1() -> None:
    async def story(nodes: Nodes) -> None:
        managers = [nodes.manager() for _ in range(5)]
        await asyncio.gather(*(manager.start() for manager in managers))
        assert [manager.versions.latest.version for manager in managers] == [1] * 5
        assert all(each.versions.latest == managers[0].versions.latest for each in managers)

    with_nodes(story)


def test_version_0_is_empty_and_in_force_before_all_others() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        assert manager.versions.at_version(0) == Catalog()
        assert manager.versions.at_time(1) == Catalog()
        with pytest.raises(CatalogVersionNotFound):
            manager.versions.at_version(2)

    with_nodes(story)


def test_a_batch_makes_one_version_and_says_which_commands_did_something() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        commands = [CreateTenant("a"), CreateTenant("a", if_not_exists=True), CreateTenant("b")]
        executed = await manager.execute(commands)
        assert (executed.version, executed.applied) == (2, (True, False, True))
        assert manager.current.version == 2
        assert tenants(manager.current) == {"a", "b"}
        assert executed.activation == manager.current.activation

    with_nodes(story)


@pytest.mark.parametrize("count", [0, 2])
def test_a_batch_that_changes_nothing_makes_no_version(count: int) -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        await create(manager, "a")
        executed = await manager.execute([CreateTenant("a", if_not_exists=True)] * count)
        assert (executed.version, executed.applied) == (2, (False,) * count)
        assert executed.activation == manager.versions.latest.activation
        assert manager.versions.latest.version == 2

    with_nodes(story)


def test_a_batch_with_one_wrong_command_changes_nothing() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        with pytest.raises(ObjectExists):
            await create(manager, "a", "a")
        assert manager.versions.latest.version == 1

    with_nodes(story)


def test_many_callers_share_a_transaction_and_get_a_version_each() -> None:
    async def story(nodes: Nodes) -> None:
        metastore = nodes.cluster.node()
        manager = await nodes.started(metastore)
        transactions = 0

        async def count(request: str, moment: Moment) -> None:
            nonlocal transactions
            transactions += (request, moment) == ("transact", Moment.BEFORE)
            await asyncio.sleep(0)

        metastore.gate = count
        calls = 3 * GROUP_BATCHES_MAX
        versions = await asyncio.gather(*(create(manager, f"t{n}") for n in range(calls)))
        assert versions == list(range(2, calls + 2))
        assert transactions == 3
        activations = [manager.versions.at_version(each).activation for each in versions]
        assert activations == sorted(set(activations))
        for version in versions:
            assert len(tenants(manager.versions.at_version(version))) == version - 1

    with_nodes(story)


def test_a_refusal_in_a_group_does_not_affect_the_others() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        results = await asyncio.gather(
            create(manager, "a"),
            create(manager, "a"),
            manager.execute([DropTenant("a")]),
            create(manager, "a"),
            return_exceptions=True,
        )
        assert isinstance(results[1], ObjectExists)
        assert results[0] == 2
        assert results[3] == 4
        assert manager.current.version == 4

    with_nodes(story)


def test_the_node_that_loses_a_race_plans_again_on_the_version_of_the_winner() -> None:
    async def story(nodes: Nodes) -> None:
        slow_store = nodes.cluster.node()
        slow, fast = await nodes.started(slow_store), await nodes.started()

        async def overtaken(request: str, moment: Moment) -> None:
            if (request, moment) == ("transact", Moment.BEFORE):
                slow_store.gate = None
                await create(fast, "a")

        slow_store.gate = overtaken
        executed = await slow.execute([CreateTenant("a", if_not_exists=True), CreateTenant("b")])
        assert (executed.version, executed.applied) == (3, (False, True))
        await fast.wait_applied(3)
        assert tenants(fast.current) == tenants(slow.current) == {"a", "b"}

    with_nodes(story)


def test_a_node_that_is_behind_does_not_retry_before_it_has_the_version_of_the_winner() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        behind, ahead = await nodes.started(store), await nodes.started()
        sent = 0

        async def count(request: str, moment: Moment) -> None:
            nonlocal sent
            sent += (request, moment) == ("transact", Moment.BEFORE)

        store.gate = count
        store.hold()
        await create(ahead, "a")
        waiting = asyncio.create_task(create(behind, "b"))
        await until_waiting()
        assert (sent, waiting.done()) == (1, False)
        store.follow()
        assert await waiting == 3
        assert sent == 2

    with_nodes(story)


def test_nodes_that_change_the_catalog_at_the_same_time_all_succeed() -> None:
    async def story(nodes: Nodes) -> None:
        managers = [await nodes.started() for _ in range(2)]
        for number in range(150):
            await asyncio.gather(
                *(create(each, f"t{number}-{place}") for place, each in enumerate(managers))
            )
        for manager in managers:
            await manager.wait_applied(301)
            assert len(tenants(manager.versions.latest)) == 300
            for version in (127, 128, 255, 256):
                assert manager.versions.at_version(version).version == version

    with_nodes(story)


def test_a_change_is_answered_when_it_is_applied_here() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        manager = await nodes.started(store)
        store.hold()
        waiting = asyncio.create_task(create(manager, "a"))
        await until_waiting()
        assert not waiting.done()
        store.follow()
        assert manager.versions.at_version(await waiting).tenant("a")

    with_nodes(story)


def test_a_node_that_always_loses_fails_with_a_typed_error() -> None:
    async def story(nodes: Nodes) -> None:
        slow_store = nodes.cluster.node()
        slow, fast = await nodes.started(slow_store), await nodes.started()
        races = 0

        async def overtaken(request: str, moment: Moment) -> None:
            nonlocal races
            if (request, moment) == ("transact", Moment.BEFORE):
                races += 1
                await create(fast, f"fast{races}")

        slow_store.gate = overtaken
        with pytest.raises(CatalogBusy, match=str(TRIES_MAX)):
            await create(slow, "slow")
        assert races == TRIES_MAX
        slow_store.gate = None
        assert "slow" not in tenants(slow.versions.latest)
        await create(slow, "slow")

    with_nodes(story)


@pytest.mark.parametrize("fate", Happens)
def test_a_change_whose_answer_was_lost_is_made_once(fate: Happens) -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        manager = await nodes.started(store)
        store.lose_answers(fate)
        assert await create(manager, "a") == 2
        nodes.cluster.deliver()
        assert await create(manager, "b") == 3

    with_nodes(story)


def test_an_outcome_that_cannot_be_found_out_is_reported_as_unknown() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        manager = await nodes.started(store)

        async def gone(request: str, moment: Moment) -> None:
            if moment is Moment.BEFORE and request == "transact":
                raise MayHaveHappened("no answer")
            if request == "get":
                raise MetastoreUnavailable("no leader")

        store.gate = gone
        results = await asyncio.gather(
            create(manager, "a"),
            manager.execute([CreateTenant("public", if_not_exists=True)]),
            return_exceptions=True,
        )
        assert isinstance(results[0], AppendOutcomeUnknown)
        assert not isinstance(results[1], BaseException), "it changes nothing, so it is certain"
        store.gate = None
        assert await create(manager, "b") == 2

    with_nodes(story)


def test_without_a_metastore_nothing_changes_and_the_error_is_typed() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        manager = await nodes.started(store)

        async def gone(request: str, moment: Moment) -> None:
            raise MetastoreUnavailable("no leader")

        store.gate = gone
        with pytest.raises(MetastoreUnavailable):
            await create(manager, "a")
        store.gate = None
        assert await create(manager, "a") == 2

    with_nodes(story)


def test_a_change_is_answered_when_it_is_active_on_every_node() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        appended_ms = nodes.clock.now_ms()
        executed = await manager.execute([CreateTenant("a")])
        assert milliseconds(executed.activation) == appended_ms + CLUSTER.delay_ms
        assert nodes.clock.now_ms() >= appended_ms + CLUSTER.delay_ms + CLUSTER.skew_ms
        before = manager.versions.at_time(executed.activation - 1)
        assert (before.version, manager.versions.at_time(executed.activation).version) == (1, 2)

    with_nodes(story, CLUSTER)


def test_a_version_is_applied_before_it_is_active() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        await nodes.sleep(1)
        never = asyncio.Event()

        async def sleep(_seconds: float) -> None:
            await never.wait()

        manager._activation._sleep = sleep
        waiting = asyncio.create_task(create(manager, "a"))
        await manager.wait_applied(2)
        await manager.wait_ready(2)
        await until_waiting()
        assert not waiting.done()
        assert manager.current.version == 1
        nodes.clock.advance(CLUSTER.delay_ms / 1000)
        assert manager.current.version == 2
        waiting.cancel()

    with_nodes(story, CLUSTER)


def test_a_refusal_is_answered_when_its_reason_is_active_on_every_node() -> None:
    async def story(nodes: Nodes) -> None:
        manager, other = await nodes.started(), await nodes.started()
        await nodes.sleep(1)
        creating = asyncio.create_task(create(other, "a"))
        await manager.wait_applied(2)
        creating.cancel()  # only a wait lets time pass
        activation = manager.versions.at_version(2).activation
        with pytest.raises(ObjectExists):
            await create(manager, "a")
        assert nodes.clock.now_ms() >= milliseconds(activation) + CLUSTER.skew_ms
        assert "a" in tenants(manager.current)

    with_nodes(story, CLUSTER)


def test_a_single_node_does_not_wait() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        now_ms = nodes.clock.now_ms()
        for number in range(100):
            version = await create(manager, f"t{number}")
            assert manager.current.version == version
        assert nodes.clock.now_ms() == now_ms
        nodes.clock.jump(-3600)
        version = await create(manager, "after-the-jump")
        assert manager.current.version == version

    with_nodes(story, ALONE)


def test_activations_ascend_when_the_delay_becomes_shorter() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        await create(manager, "a")
        nodes.timing = ActivationTiming(delay_ms=0, skew_ms=200)
        nodes.clock.jump(-10)
        await create(manager, "b")
        first, second = (manager.versions.at_version(each).activation for each in (2, 3))
        assert first < second

    with_nodes(story, CLUSTER)


def test_a_snapshot_drops_earlier_versions_on_every_node() -> None:
    async def story(nodes: Nodes) -> None:
        manager, other = await nodes.started(), await nodes.started()
        for name in "abcdef":
            await create(manager, name)
        held = other.versions.at_version(2)
        assert await manager.snapshot(5)
        await create(other, "g")
        for each in (manager, other):
            await each.wait_applied(8)
            assert each.versions.earliest.version == 5
            with pytest.raises(CatalogVersionTrimmed, match="5"):
                each.versions.at_version(4)
            activation = each.versions.at_version(5).activation
            assert each.versions.at_time(activation).version == 5
            with pytest.raises(CatalogVersionTrimmed, match="5"):
                each.versions.at_time(activation - 1)
        assert tenants(held) == {"a"}
        assert not await manager.snapshot(5)
        with pytest.raises(CatalogVersionTrimmed):
            await manager.snapshot(4)
        with pytest.raises(CatalogVersionNotFound):
            await manager.snapshot(9)

    with_nodes(story)


def test_a_snapshot_waits_until_its_version_is_in_force() -> None:
    async def story(nodes: Nodes) -> None:
        manager, other = await nodes.started(), await nodes.started()
        await nodes.sleep(1)
        creating = asyncio.create_task(create(other, "a"))
        await manager.wait_applied(2)
        creating.cancel()  # only a wait lets time pass
        assert await manager.snapshot(2)
        assert manager.current.version == 2
        assert add_ms(manager.current.activation, CLUSTER.skew_ms) <= manager.now()

    with_nodes(story, CLUSTER)


def test_a_node_that_starts_replays_snapshot_and_updates() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        for name in "abcdef":
            await create(manager, name)
        await manager.snapshot(4)
        fresh = await nodes.started()
        assert fresh.versions.earliest.version == 4
        for version in range(4, 8):
            assert fresh.versions.at_version(version) == manager.versions.at_version(version)
        assert fresh.current.version == 7
        assert await create(fresh, "g") == 8

    with_nodes(story)


def test_a_node_that_starts_after_a_snapshot_of_the_newest_version_is_ready() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        await create(manager, "a")
        await manager.snapshot(2)
        fresh = await nodes.started()
        await fresh.wait_ready(2)
        assert fresh.current == manager.current

    with_nodes(story)


def test_waits_end_when_the_node_stops() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        waits = [
            asyncio.create_task(manager.wait_applied(9)),
            asyncio.create_task(manager.wait_ready(9)),
        ]
        await until_waiting()
        await manager.stop()
        await manager.stop()
        for result in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(result, CatalogStopped)
        with pytest.raises(CatalogStopped):
            await create(manager, "a")
        await manager.wait_applied(1)
        assert manager.current.version == 1

    with_nodes(story)


def test_a_change_that_was_sent_when_the_node_stops_is_unknown_and_one_that_was_not_is_not() -> (
    None
):
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        manager = await nodes.started(store)
        sent, never = asyncio.Event(), asyncio.Event()

        async def held(request: str, moment: Moment) -> None:
            if (request, moment) == ("transact", Moment.AFTER):
                sent.set()
                await never.wait()

        store.gate = held
        first = asyncio.create_task(create(manager, "a"))
        await sent.wait()
        second = asyncio.create_task(create(manager, "b"))
        await until_waiting()
        await manager.stop()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(results[0], AppendOutcomeUnknown)
        assert isinstance(results[1], CatalogStopped)
        fresh = await nodes.started()
        assert tenants(fresh.current) == {"a"}

    with_nodes(story)


def test_a_node_can_be_stopped_while_it_starts() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        manager = nodes.manager(store)
        passes = asyncio.Event()

        async def held(_request: str, _moment: Moment) -> None:
            await passes.wait()

        store.gate = held
        starting = asyncio.create_task(manager.start())
        await until_waiting()
        await manager.stop()
        passes.set()
        with pytest.raises(CatalogStopped):
            await starting

    with_nodes(story)


def test_a_cancelled_change_that_has_not_begun_is_not_made() -> None:
    async def story(nodes: Nodes) -> None:
        store = nodes.cluster.node()
        manager = await nodes.started(store)
        passes = asyncio.Event()

        async def held(request: str, _moment: Moment) -> None:
            if request == "transact":
                await passes.wait()

        store.gate = held
        first = asyncio.create_task(create(manager, "a"))
        await until_waiting()
        second = asyncio.create_task(create(manager, "b"))
        await until_waiting()
        second.cancel()
        passes.set()
        await first
        await create(manager, "c")
        assert tenants(manager.current) == {"a", "c"}

    with_nodes(story)


def test_an_update_that_cannot_be_read_fails_the_node_and_says_why() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        bad = Transaction(then=(Put(update_key(2), bytes(16) + b'{"format":99}'),))
        await nodes.cluster.node().transact(bad)
        with pytest.raises(CatalogFailed, match="99"):
            await manager.wait_applied(2)
        with pytest.raises(CatalogFailed):
            await create(manager, "a")
        assert manager.current.version == 1

    with_nodes(story)


def test_a_log_with_a_gap_is_refused_at_the_start() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        await create(manager, "a")
        await create(manager, "b")
        await nodes.cluster.node().transact(Transaction(then=(Delete(update_key(2)),)))
        with pytest.raises(Exception, match="version 2 is missing"):
            await nodes.started()

    with_nodes(story)


@dataclass(frozen=True, slots=True)
class _Broken:
    def changes(self, _catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        raise ZeroDivisionError


def test_a_command_with_a_defect_fails_its_caller_only() -> None:
    async def story(nodes: Nodes) -> None:
        manager = await nodes.started()
        with pytest.raises(ZeroDivisionError):
            await manager.execute([_Broken()])
        assert await create(manager, "a") == 2

    with_nodes(story)
