"""A snapshot replaces updates: one switch, whatever races with it or interrupts it."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.update_log.errors import SnapshotMismatch
from lithify.catalog.update_log.format import (
    SNAPSHOT_KEY,
    chunk_key,
    chunks_of,
    update_key,
    updates_up_to,
)
from lithify.catalog.update_log.replay import BATCH_ROWS, LoggedSnapshot
from lithify.catalog.update_log.snapshot_publication import DELETE_KEYS_MAX
from lithify.catalog.update_log.update_log import UpdateLog
from lithify.clock import ManualClock
from lithify.errors import InvalidInput
from lithify.metastore.transaction import Delete, Put, Transaction
from lithify.testing.memory_metastore import Happens, MemoryMetastoreCluster, Moment
from tests.unit.catalog.update_log.joined import CHUNK_BYTES, Joined, cut

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lithify.testing.memory_metastore import MemoryMetastore

BODY = b"x" * (CHUNK_BYTES // 2)


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 100))


def log_of(node: MemoryMetastore) -> UpdateLog:
    return UpdateLog(node, secrets.token_bytes)


def a_node() -> MemoryMetastore:
    return MemoryMetastoreCluster(ManualClock()).node()


async def append_all(node: MemoryMetastore, last: int, body: bytes = BODY) -> None:
    for version in range(1, last + 1):
        assert (await log_of(node).append(version, [b"%d" % version + body])).won


def content_of(version: int, body: bytes = BODY) -> bytes:
    return b"".join(b"%d" % each + body + b";" for each in range(1, version + 1))


async def save(node: MemoryMetastore, version: int, content: bytes | None = None) -> bool:
    if content is None:
        content = content_of(version)
    return await log_of(node).save_snapshot(version, cut(content), Joined())


async def joined(node: MemoryMetastore) -> bytes:
    """What a replay of the log results in."""
    fold = Joined()
    log = log_of(node)
    async with aclosing(log.replay(await log.head())) as events:
        async for event in events:
            if isinstance(event, LoggedSnapshot):
                await fold.load(event)
            else:
                fold.apply(event)
    return b"".join(fold.chunks())


async def keys(node: MemoryMetastore, start: bytes, end: bytes) -> list[bytes]:
    return [row.key for row in (await node.range(start, end)).rows]


async def all_chunks(node: MemoryMetastore) -> list[bytes]:
    return await keys(node, chunks_of(0)[0], chunks_of(2**64 - 1)[1])


async def published(node: MemoryMetastore) -> int:
    return (await log_of(node).head()).snapshot


def chunk_keys(version: int) -> list[bytes]:
    count = -(-len(content_of(version)) // CHUNK_BYTES)
    return [chunk_key(version, place) for place in range(count)]


async def check_clean(node: MemoryMetastore, snapshot: int, newest: int) -> None:
    """Only what a reader needs is there."""
    assert await published(node) == snapshot
    assert await all_chunks(node) == chunk_keys(snapshot)
    left = await keys(node, *updates_up_to(newest))
    assert left == [update_key(version) for version in range(snapshot + 1, newest + 1)]
    assert await joined(node) == content_of(newest)


def test_a_snapshot_replaces_the_updates_up_to_its_version() -> None:
    async def story() -> None:
        node = a_node()
        await append_all(node, 9)
        assert await save(node, 7)
        await check_clean(node, 7, 9)
        assert await save(node, 9)
        await check_clean(node, 9, 9)

    run(story())


def test_snapshots_ascend_only() -> None:
    async def story() -> None:
        node = a_node()
        await append_all(node, 9)
        assert await save(node, 5)
        assert not await save(node, 5)
        assert not await save(node, 4)
        await check_clean(node, 5, 9)

    run(story())


@pytest.mark.parametrize("version", [0, 4])
def test_only_a_version_of_the_log_can_be_a_snapshot(version: int) -> None:
    async def story() -> None:
        node = a_node()
        await append_all(node, 3)
        with pytest.raises(InvalidInput, match="from 1 to 3"):
            await save(node, version, b"")
        assert await published(node) == 0

    run(story())


def test_a_snapshot_that_differs_from_the_replay_is_not_published() -> None:
    async def story() -> None:
        node = a_node()
        await append_all(node, 3)
        with pytest.raises(SnapshotMismatch, match="version 2"):
            await save(node, 2, content_of(2) + b"?")
        assert await published(node) == 0
        assert await all_chunks(node) == []
        assert await joined(node) == content_of(3)

    run(story())


def test_a_chunk_that_is_not_as_written_is_noticed_before_the_switch() -> None:
    async def story() -> None:
        node = a_node()
        await append_all(node, 4)
        damages = 2

        async def damaging(request: str, moment: Moment) -> None:
            nonlocal damages
            if damages and request == "transact" and moment is Moment.AFTER:
                found = await node.range(chunk_key(3, 0), chunk_key(3, 1))
                if found.rows and found.rows[0].value[:1] == b"1":
                    damages -= 1
                    put = Put(chunk_key(3, 0), b"X" + found.rows[0].value[1:])
                    node.gate = None
                    await node.transact(Transaction(then=(put,)))
                    node.gate = damaging

        node.gate = damaging
        assert await save(node, 3)
        assert damages == 0
        node.gate = None
        await check_clean(node, 3, 4)

    run(story())


def test_a_chunk_that_another_node_deletes_before_the_switch_is_written_again() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        node, other = cluster.node(), cluster.node()
        await append_all(node, 4)
        deleted = False

        async def deleting(request: str, moment: Moment) -> None:
            nonlocal deleted
            if (request, moment) != ("transact", Moment.BEFORE) or deleted:
                return
            if await all_chunks(other) == chunk_keys(3):
                deleted = True
                await other.transact(Transaction(then=(Delete(chunk_key(3, 0)),)))

        node.gate = deleting
        assert await save(node, 3)
        assert deleted
        await check_clean(other, 3, 4)

    run(story())


def test_a_try_does_not_write_chunks_that_are_there() -> None:
    """Otherwise two nodes that publish the same version could stop each other all the time."""

    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        node, other = cluster.node(), cluster.node()
        await append_all(node, 4)

        async def crashing(request: str, moment: Moment) -> None:
            complete = await all_chunks(other) == chunk_keys(3)
            if complete and (request, moment) == ("transact", Moment.BEFORE):
                raise _Crashed

        node.gate = crashing
        with pytest.raises(_Crashed):
            await save(node, 3)
        before = await other.range(*chunks_of(3))
        assert await save(other, 3)
        assert (await other.range(*chunks_of(3))).rows == before.rows

    run(story())


class _Crashed(Exception):
    """The process ends here."""


def test_a_crash_at_any_step_loses_nothing_and_the_next_try_removes_its_leftovers() -> None:
    async def story(step: int, next_version: int) -> bool:
        cluster = MemoryMetastoreCluster(ManualClock())
        node, other = cluster.node(), cluster.node()
        await append_all(node, 9)
        assert await save(node, 2)
        steps = 0

        async def crashing(_request: str, _moment: Moment) -> None:
            nonlocal steps
            steps += 1
            if steps > step:
                raise _Crashed

        node.gate = crashing
        with suppress(_Crashed):
            await save(node, 5)
        assert await joined(other) == content_of(9)
        before = await published(other)
        assert before in {2, 5}
        assert await save(other, next_version) is (next_version > before)
        await check_clean(other, max(before, next_version), 9)
        return steps <= step

    for next_version in (4, 5, 7):
        step, finished = 0, False
        while not finished:
            finished = asyncio.run(story(step, next_version))
            step += 1
        assert step > 20


@pytest.mark.parametrize("fate", Happens)
def test_lost_answers_do_not_stop_a_snapshot(fate: Happens) -> None:
    async def story(lost: int) -> bool:
        cluster = MemoryMetastoreCluster(ManualClock())
        node = cluster.node()
        await append_all(node, 9)
        assert await save(node, 2)
        sent = 0

        async def losing(request: str, moment: Moment) -> None:
            nonlocal sent
            if (request, moment) == ("transact", Moment.BEFORE):
                sent += 1
                if sent == lost:
                    node.lose_answers(fate)

        node.gate = losing
        assert await save(node, 6)
        node.gate = None
        cluster.deliver()
        await check_clean(node, 6, 9)
        return sent < lost

    lost = 1
    while not asyncio.run(story(lost)):
        lost += 1
    assert lost > 6


def test_a_late_chunk_of_another_node_does_not_damage_a_published_snapshot() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        slow, fast = cluster.node(), cluster.node()
        await append_all(fast, 9)
        sent = 0

        async def gone(request: str, moment: Moment) -> None:
            nonlocal sent
            if (request, moment) == ("transact", Moment.BEFORE):
                sent += 1
                if sent == 3:  # after two deletions of leftovers, the first chunk
                    slow.lose_answers(Happens.LATER)
            if sent == 3 and request == "range":
                raise _Crashed

        slow.gate = gone
        # Cut in another way, as another release of the program may do.
        smaller = cut(content_of(5), CHUNK_BYTES // 2)
        with pytest.raises(_Crashed):
            await log_of(slow).save_snapshot(5, smaller, Joined())
        assert await save(fast, 5)
        cluster.deliver()
        await check_clean(fast, 5, 9)

    run(story())


@pytest.mark.parametrize("versions", [(5, 5), (5, 7), (7, 5)])
def test_two_nodes_at_once_publish_one_whole_snapshot(versions: tuple[int, int]) -> None:
    async def story(seed: int) -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        nodes = cluster.node(), cluster.node()
        await append_all(nodes[0], 9)
        draw = seed

        async def slower(_request: str, _moment: Moment) -> None:
            nonlocal draw
            draw = draw * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
            for _ in range(draw >> 61):
                await asyncio.sleep(0)

        for node in nodes:
            node.gate = slower
        both = await asyncio.gather(
            *(save(node, version) for node, version in zip(nodes, versions, strict=True))
        )
        assert True in both
        for node in nodes:
            node.gate = None
        await check_clean(nodes[0], max(versions), 9)

    for seed in range(40):
        asyncio.run(story(seed))


def test_a_snapshot_and_appends_do_not_disturb_each_other() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        saving, appending = cluster.node(), cluster.node()
        await append_all(appending, 50, b"")
        version = 50

        async def appends(_request: str, _moment: Moment) -> None:
            nonlocal version
            version += 1
            assert (await log_of(appending).append(version, [b"%d" % version])).won

        saving.gate = appends
        assert await save(saving, 40, content_of(40, b""))
        assert version > 60
        assert await joined(appending) == content_of(version, b"")

    run(story())


def test_commands_are_small_and_other_writers_get_a_turn_between_them() -> None:
    """100,000 updates in the real store; enough here to need each kind of batch several times."""

    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        node, other = cluster.node(), cluster.node()
        count = 20 * BATCH_ROWS
        log = log_of(node)
        for first in range(1, count + 1, 500):
            stop = min(first + 500, count + 1)
            await log.append(first, [b"%d" % version for version in range(first, stop)])
        deleted: list[int] = []
        turns: Counter[str] = Counter()
        phase = "snapshot"

        async def measure() -> None:
            async with aclosing(node.watch(*updates_up_to(count), after=revision)) as revisions:
                while True:
                    deleted.append(len((await anext(revisions)).changes))

        async def write() -> None:
            while True:
                await other.transact(Transaction(then=(Put(b"other", b""), Delete(b"x"))))
                turns[phase] += 1

        revision = (await log.head()).revision
        others = [asyncio.create_task(measure()), asyncio.create_task(write())]
        assert await save(node, count - 10, content_of(count - 10, b""))
        phase = "after"
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert max(deleted) <= DELETE_KEYS_MAX <= 128
        assert sum(deleted) >= count - 10 - DELETE_KEYS_MAX
        assert turns["snapshot"] > count // DELETE_KEYS_MAX + count // BATCH_ROWS

    run(story())


def test_the_pointer_is_the_only_thing_that_names_a_snapshot() -> None:
    async def story() -> None:
        node = a_node()
        await append_all(node, 3)
        await node.transact(Transaction(then=(Put(chunk_key(3, 0), b"not published"),)))
        assert await node.get(SNAPSHOT_KEY) is None
        assert await joined(node) == content_of(3)

    run(story())
