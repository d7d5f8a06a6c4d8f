"""The published time of a replica: it counts when a durable snapshot has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.catalog_compaction.published import GroupReplica, PublishedTime
from lithify.clock import ManualClock
from lithify.metastore.transaction import Delete
from lithify.tables.keys import PUBLISHED_KEY
from lithify.testing.memory_metastore import MemoryMetastoreCluster
from tests.unit.metastore.nodes import alone, do, put, three, told
from tests.unit.raft.net.nodes import until

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.metastore.local_metastore import LocalMetastore
    from lithify.testing.memory_metastore import MemoryMetastore


class FakeReplica:
    """A replica whose snapshots the test takes."""

    def __init__(self, store: MemoryMetastore) -> None:
        self.store = store
        self.leads = True
        self.snapshot_index = 0
        self.asked = 0

    def take_snapshot(self) -> None:
        self.asked += 1

    async def snapshot(self) -> None:
        self.snapshot_index = (await self.store.range(b"", b"", local=True)).revision


def replica_of() -> FakeReplica:
    return FakeReplica(MemoryMetastoreCluster(ManualClock()).node())


def test_a_time_counts_from_the_next_durable_snapshot_on() -> None:
    async def story() -> None:
        replica = replica_of()
        published = PublishedTime(replica)
        assert await published.read() == 0
        assert await published.write(100)
        assert await published.read() == 0
        await replica.snapshot()
        assert await published.read() == 100
        assert await published.write(200)
        assert await published.read() == 100
        await put(replica.store, b"row", b"1")
        assert await published.read() == 100
        await replica.snapshot()
        assert await published.read() == 200

    told(story)


def test_a_snapshot_is_requested_until_it_has_the_newest_time() -> None:
    async def story() -> None:
        replica = replica_of()
        published = PublishedTime(replica)
        await published.write(100)
        assert await published.settle(100)
        assert replica.asked == 1
        await published.read()
        assert replica.asked == 2
        await replica.snapshot()
        assert await published.settle(100)
        await published.read()
        assert replica.asked == 2
        assert not await published.settle(101)

    told(story)


def test_a_smaller_time_changes_nothing() -> None:
    async def story() -> None:
        replica = replica_of()
        published = PublishedTime(replica)
        await published.write(200)
        assert not await published.write(100)
        assert not await published.write(200)
        await replica.snapshot()
        assert await published.read() == 200

    told(story)


def test_nothing_is_published_while_the_time_before_cannot_be_read() -> None:
    async def story() -> None:
        replica = replica_of()
        published = PublishedTime(replica)
        await published.write(100)
        await replica.snapshot()
        await published.write(200)
        await replica.store.compact(replica.snapshot_index + 1)
        assert await published.read() == 0
        await put(replica.store, b"row", b"1")
        await replica.snapshot()
        assert await published.read() == 200

    told(story)


async def published_at(metastore: LocalMetastore, revision: int) -> None:
    """Return when a member has a snapshot with the key as of a revision."""
    await metastore.node.listeners.wait_applied(metastore.name, revision)
    published = PublishedTime(GroupReplica(metastore))
    assert await published.settle(4711)
    await until(lambda: metastore.snapshot_index >= revision)
    assert await published.read() == 4711


async def written(metastore: LocalMetastore) -> int:
    """The revision at which the leader has written a time."""
    assert await PublishedTime(GroupReplica(metastore)).write(4711)
    found = await metastore.get(PUBLISHED_KEY, local=True)
    assert found is not None
    return found.revision


def test_all_members_of_a_raft_group_publish_although_it_is_idle(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as metastores:
            [leader] = [each for each in metastores if GroupReplica(each).leads]
            revision = await written(leader)
            for metastore in metastores:
                await published_at(metastore, revision)

    told(story)


def test_a_published_time_survives_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            await published_at(metastore, await written(metastore))
            # Written, and in no snapshot when the node stops.
            await do(metastore, Delete(b"row"))
        async with alone(tmp_path) as metastore:
            assert await metastore.get(PUBLISHED_KEY, local=True) is not None
            assert await PublishedTime(GroupReplica(metastore)).read() == 4711

    told(story)
