"""The metastore in memory keeps the promises of the interface, and fails as a test asks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.hybrid_time import milliseconds
from lithify.metastore.errors import LeaseNotFound, RevisionCompacted, RevisionNotReached
from lithify.metastore.metastore import Change, Revision
from lithify.metastore.transaction import (
    Compare,
    Condition,
    Delete,
    DeleteRange,
    Put,
    Transaction,
    prefix_range,
)
from lithify.raft.net.client_operations import MayHaveHappened
from lithify.testing.memory_metastore import Happens, MemoryMetastoreCluster, Moment

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lithify.metastore.metastore import Outcome
    from lithify.metastore.transaction import Operation
    from lithify.testing.memory_metastore import MemoryMetastore


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


async def put(node: MemoryMetastore, key: bytes, value: bytes) -> Outcome:
    return await node.transact(Transaction(then=(Put(key, value),)))


async def values(node: MemoryMetastore, revision: int = 0, *, local: bool = False) -> list[bytes]:
    found = await node.range(b"", b"", revision=revision, local=local)
    return [row.value for row in found.rows]


async def take(
    node: MemoryMetastore, count: int, *, after: int = 0, prefix: bytes = b""
) -> list[Revision]:
    found: list[Revision] = []
    async with aclosing(node.watch(*prefix_range(prefix), after=after)) as revisions:
        while len(found) < count:
            found.append(await anext(revisions))
    return found


def test_keys_are_read_at_every_revision_above_the_floor() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        first = await put(node, b"a", b"1")
        second = await put(node, b"a", b"2")
        deleted = await node.transact(Transaction(then=(Delete(b"a"),)))
        assert await values(node, first.revision) == [b"1"]
        assert await values(node, second.revision) == [b"2"]
        assert await values(node, deleted.revision) == []
        assert first.revision < second.revision < deleted.revision
        assert first.timestamp < second.timestamp < deleted.timestamp
        with pytest.raises(RevisionNotReached):
            await node.get(b"a", revision=deleted.revision + 1)

    run(story())


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare(b"a", Condition.ABSENT), False),
        (Compare(b"b", Condition.ABSENT), True),
        (Compare(b"a", Condition.PRESENT), True),
        (Compare(b"b", Condition.PRESENT), False),
        (Compare(b"a", Condition.REVISION, 1), True),
        (Compare(b"a", Condition.REVISION, 2), False),
        (Compare(b"a", Condition.REVISION, 0), False),
        (Compare(b"b", Condition.REVISION, 0), True),
        (Compare(b"a", Condition.REVISION_AT_MOST, 1), True),
        (Compare(b"b", Condition.REVISION_AT_MOST, 0), True),
        (Compare(b"a", Condition.REVISION_AT_MOST, 0), False),
        (Compare(b"a", Condition.VALUE, value=b"1"), True),
        (Compare(b"a", Condition.VALUE, value=b"2"), False),
        (Compare(b"b", Condition.VALUE, value=b""), False),
    ],
)
def test_a_compare_decides_which_branch_is_executed(compare: Compare, holds: bool) -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        await put(node, b"a", b"1")
        then, otherwise = Put(b"then", b"t"), Put(b"otherwise", b"o")
        outcome = await node.transact(Transaction((compare,), (then,), (otherwise,)))
        assert outcome.succeeded is holds
        assert outcome.changed
        assert (await node.get(b"then") is not None) is holds
        assert (await node.get(b"otherwise") is not None) is not holds

    run(story())


@pytest.mark.parametrize(
    "operations",
    [(), (Delete(b"b"),), (DeleteRange(b"b", b""),), (Put(b"b", b"x"), Delete(b"b"))],
)
def test_a_transaction_that_changes_nothing_makes_no_revision(
    operations: tuple[Operation, ...],
) -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        before = await put(node, b"a", b"1")
        outcome = await node.transact(Transaction(then=operations))
        assert (outcome.changed, outcome.revision) == (False, before.revision)

    run(story())


def test_a_range_is_deleted_in_batches() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        await node.transact(Transaction(then=tuple(Put(b"k%d" % n, b"") for n in range(5))))
        batch = Transaction(then=(DeleteRange(b"k1", b"k4", 2),))
        left = []
        while (await node.transact(batch)).changed:
            left.append([row.key for row in (await node.range(b"", b"")).rows])
        assert left == [[b"k0", b"k3", b"k4"], [b"k0", b"k4"]]

    run(story())


def test_a_range_is_read_in_pages() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        await node.transact(Transaction(then=tuple(Put(b"k%d" % n, b"") for n in range(5))))
        page = await node.range(b"k1", b"k4", limit=2)
        assert ([row.key for row in page.rows], page.more) == ([b"k1", b"k2"], True)
        page = await node.range(b"k3", b"k4", limit=2)
        assert ([row.key for row in page.rows], page.more) == ([b"k3"], False)

    run(story())


def test_revisions_visible_above_the_floor_stay() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        await put(node, b"changed", b"old")  # 1
        await put(node, b"kept", b"1")  # 2
        await put(node, b"deleted", b"1")  # 3
        await node.transact(Transaction(then=(Delete(b"deleted"),)))  # 4
        await put(node, b"changed", b"new")  # 5
        await put(node, b"other", b"1")  # 6
        await node.compact(4)
        for revision in (1, 4):
            with pytest.raises(RevisionCompacted):
                await values(node, revision)
        assert await values(node, 5) == [b"new", b"1"]
        await node.compact(6)
        assert await values(node) == [b"new", b"1", b"1"]
        kept = await node.get(b"kept")
        assert kept is not None
        assert kept.timestamp > 0

    run(story())


def test_a_watch_yields_each_revision_of_its_range_once_in_order() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        before = await put(node, b"w/a", b"0")
        await put(node, b"w/a", b"1")
        watching = asyncio.create_task(take(node, 3, after=before.revision, prefix=b"w/"))
        await put(node, b"other", b"x")
        await node.transact(Transaction(then=(Put(b"w/b", b"2"), Put(b"x", b""), Delete(b"w/a"))))
        await put(node, b"w/a", b"3")
        found = await watching
        assert [revision.changes for revision in found] == [
            (Change(b"w/a", b"1"),),
            (Change(b"w/a", None), Change(b"w/b", b"2")),
            (Change(b"w/a", b"3"),),
        ]

    run(story())


def test_a_watch_may_start_at_the_floor_and_not_below() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        for value in (b"1", b"2", b"3"):
            await put(node, b"a", value)
        await node.compact(2)
        assert [each.revision for each in await take(node, 1, after=2)] == [3]
        with pytest.raises(RevisionCompacted):
            await take(node, 1, after=1)

    run(story())


def test_a_watch_that_waits_is_not_affected_by_compaction_of_what_it_has_seen() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        await put(node, b"w", b"1")
        watching = asyncio.create_task(take(node, 2, prefix=b"w"))
        for _ in range(3):
            await put(node, b"other", b"")
        await node.compact(4)
        await put(node, b"w", b"2")
        assert len(await watching) == 2

    run(story())


def test_a_held_node_is_behind_and_sees_everything_later() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        ahead, behind = cluster.node(), cluster.node()
        await put(ahead, b"a", b"1")
        behind.hold()
        watching = asyncio.create_task(take(behind, 3))
        await put(ahead, b"a", b"2")
        await put(ahead, b"a", b"3")
        assert await values(behind, local=True) == [b"1"]
        assert await values(behind) == [b"3"]
        behind.apply(1)
        assert await values(behind, local=True) == [b"2"]
        behind.follow()
        assert [each.changes[0].value for each in await watching] == [b"1", b"2", b"3"]

    run(story())


def test_a_node_that_installs_a_snapshot_does_not_see_what_was_compacted() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        ahead, behind = cluster.node(), cluster.node()
        behind.hold()
        watching = asyncio.create_task(take(behind, 1))
        for value in (b"1", b"2", b"3"):
            await put(ahead, b"a", value)
        await ahead.compact(2)
        behind.install()
        with pytest.raises(RevisionCompacted):
            await watching

    run(story())


@pytest.mark.parametrize("fate", Happens)
def test_a_lost_answer_is_an_unknown_outcome(fate: Happens) -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        node = cluster.node()
        node.lose_answers(fate)
        with pytest.raises(MayHaveHappened):
            await put(node, b"a", b"1")
        assert await values(node) == ([b"1"] if fate is Happens.YES else [])
        cluster.deliver()
        assert await values(node) == ([] if fate is Happens.NO else [b"1"])

    run(story())


def test_the_gate_decides_the_order_of_two_nodes() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        slow, fast = cluster.node(), cluster.node()
        passes = asyncio.Event()

        async def gate(request: str, moment: Moment) -> None:
            if (request, moment) == ("transact", Moment.BEFORE):
                await passes.wait()

        slow.gate = gate
        waiting = asyncio.create_task(put(slow, b"a", b"slow"))
        await put(fast, b"a", b"fast")
        assert await values(fast) == [b"fast"]
        passes.set()
        await waiting
        assert await values(fast) == [b"slow"]

    run(story())


def test_keys_of_a_lease_are_deleted_when_it_is_overdue() -> None:
    async def story() -> None:
        clock = ManualClock()
        cluster = MemoryMetastoreCluster(clock)
        node = cluster.node()
        lease = await node.grant_lease(1000)
        await node.transact(
            Transaction(then=(Put(b"a", b"1", lease.id), Put(b"b", b"1", lease.id)))
        )
        await put(node, b"b", b"2")  # no longer a key of the lease
        clock.advance(0.9)
        kept = await node.keep_lease(lease)
        assert kept.generation > lease.generation
        clock.advance(0.9)
        cluster.tick()
        assert await values(node) == [b"1", b"2"]
        clock.advance(0.1)
        cluster.tick()
        assert await values(node) == [b"2"]
        assert await node.leases() == []
        with pytest.raises(LeaseNotFound):
            await node.keep_lease(kept)
        with pytest.raises(LeaseNotFound):
            await node.transact(Transaction(then=(Put(b"a", b"1", lease.id),)))

    run(story())


def test_a_revoked_lease_takes_its_keys_with_it() -> None:
    async def story() -> None:
        node = MemoryMetastoreCluster(ManualClock()).node()
        lease = await node.grant_lease(1000)
        await node.transact(Transaction(then=(Put(b"a", b"1", lease.id),)))
        await node.revoke_lease(lease.id)
        await node.revoke_lease(lease.id)
        assert await values(node) == []

    run(story())


def test_safe_time_is_the_time_of_what_the_node_has_applied() -> None:
    async def story() -> None:
        clock = ManualClock()
        cluster = MemoryMetastoreCluster(clock)
        node, behind = cluster.node(), cluster.node()
        behind.hold()
        cluster.tick()
        now = await node.read_time()
        assert milliseconds(now) == clock.now_ms()
        await node.wait_safe_time(now)
        waiting = asyncio.create_task(behind.wait_safe_time(now))
        await asyncio.sleep(0)
        assert not waiting.done()
        behind.follow()
        await waiting

    run(story())
