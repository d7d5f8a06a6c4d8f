"""Appends by compare-and-set, replay, watch."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from lithify.catalog.update_log.errors import (
    AppendOutcomeUnknown,
    SnapshotDamaged,
    UpdateMissing,
)
from lithify.catalog.update_log.format import (
    VERSION_KEY,
    chunk_key,
    encode_version,
    parse_update_key,
    update_key,
)
from lithify.catalog.update_log.replay import BATCH_ROWS, LoggedSnapshot, LoggedUpdate
from lithify.catalog.update_log.update_log import SnapshotMoved, UpdateLog
from lithify.clock import ManualClock
from lithify.exit_codes import OUTCOME_UNKNOWN
from lithify.metastore.errors import MetastoreUnavailable, RevisionCompacted
from lithify.metastore.transaction import Delete, Put, Transaction
from lithify.testing.memory_metastore import Happens, MemoryMetastoreCluster, Moment
from tests.unit.catalog.update_log.joined import Joined

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lithify.testing.memory_metastore import MemoryMetastore

BOUNDARIES = (127, 128, 255, 256, 65535, 65536, 2**32, 2**63)


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


def log_of(node: MemoryMetastore) -> UpdateLog:
    return UpdateLog(node, secrets.token_bytes)


def a_node() -> MemoryMetastore:
    return MemoryMetastoreCluster(ManualClock()).node()


async def append_all(log: UpdateLog, first: int, last: int) -> None:
    for version in range(first, last + 1):
        assert (await log.append(version, [b"%d" % version])).won


async def replayed(log: UpdateLog) -> list[tuple[int, bytes]]:
    async with aclosing(log.replay(await log.head())) as events:
        return [
            (
                each.version,
                b"".join(each.chunks) if isinstance(each, LoggedSnapshot) else each.payload,
            )
            async for each in events
        ]


async def watched(log: UpdateLog, count: int, after: int = 0) -> list[LoggedUpdate | SnapshotMoved]:
    found: list[LoggedUpdate | SnapshotMoved] = []
    async with aclosing(log.watch(after)) as events:
        while len(found) < count:
            found.append(await anext(events))
    return found


def test_keys_are_in_the_order_of_versions() -> None:
    versions = sorted({n + d for n in BOUNDARIES for d in (-1, 0, 1)})
    assert sorted(map(update_key, versions)) == [update_key(version) for version in versions]
    assert [parse_update_key(update_key(version)) for version in versions] == versions
    assert parse_update_key(chunk_key(1, 1)) is None
    assert parse_update_key(update_key(1) + b"x") is None


def test_versions_are_appended_one_after_the_other() -> None:
    async def story() -> None:
        log = log_of(a_node())
        assert not (await log.append(2, [b"two"])).won
        assert (await log.append(1, [b"one"])).won
        assert not (await log.append(1, [b"again"])).won
        assert not (await log.append(3, [b"three"])).won
        assert (await log.append(2, [b"two", b"three"])).won
        assert not (await log.append(3, [b"three"])).won
        assert await replayed(log) == [(1, b"one"), (2, b"two"), (3, b"three")]

    run(story())


def test_one_of_two_racing_writers_wins_each_version() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        logs = [log_of(cluster.node()) for _ in range(2)]
        for version in range(1, 300):
            both = await asyncio.gather(
                *(log.append(version, [b"%d" % place]) for place, log in enumerate(logs))
            )
            assert sorted(each.won for each in both) == [False, True]
        versions = [version for version, _ in await replayed(logs[0])]
        assert versions == list(range(1, 300))

    run(story())


@pytest.mark.parametrize("fate", Happens)
def test_a_writer_whose_answer_was_lost_finds_out_that_it_won(fate: Happens) -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        node = cluster.node()
        node.lose_answers(fate, fate)
        appended = await log_of(node).append(1, [b"one", b"two"])
        assert appended.won
        cluster.deliver()
        log = log_of(node)
        assert await replayed(log) == [(1, b"one"), (2, b"two")]
        assert appended.timestamp == (await watched(log, 1))[0].timestamp  # type: ignore[union-attr]

    run(story())


@pytest.mark.parametrize("fate", [Happens.NO, Happens.LATER])
def test_a_writer_whose_answer_was_lost_finds_out_that_the_same_update_of_another_won(
    fate: Happens,
) -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        slow, fast = cluster.node(), cluster.node()
        slow.lose_answers(fate)

        async def overtaken(request: str, moment: Moment) -> None:
            if (request, moment) == ("get", Moment.BEFORE):
                slow.gate = None
                assert (await log_of(fast).append(1, [b"same"])).won
                cluster.deliver()

        slow.gate = overtaken
        assert not (await log_of(slow).append(1, [b"same"])).won
        assert await replayed(log_of(fast)) == [(1, b"same")]

    run(story())


def test_an_outcome_stays_unknown_if_the_update_was_replaced_by_a_snapshot() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        slow, fast = cluster.node(), cluster.node()
        slow.lose_answers(Happens.YES)

        async def overtaken(request: str, moment: Moment) -> None:
            if (request, moment) == ("get", Moment.BEFORE):
                slow.gate = None
                log = log_of(fast)
                await append_all(log, 2, 3)
                assert await log.save_snapshot(2, [b"one;2;"], Joined())

        slow.gate = overtaken
        with pytest.raises(AppendOutcomeUnknown) as caught:
            await log_of(slow).append(1, [b"one"])
        assert caught.value.exit_code == OUTCOME_UNKNOWN

    run(story())


def test_an_outcome_stays_unknown_if_the_metastore_is_not_available_for_the_question() -> None:
    async def story() -> None:
        node = a_node()
        node.lose_answers(Happens.NO)

        async def gone(request: str, _moment: Moment) -> None:
            if request == "get":
                raise MetastoreUnavailable("no leader")

        node.gate = gone
        with pytest.raises(AppendOutcomeUnknown):
            await log_of(node).append(1, [b"one"])

    run(story())


def test_an_outcome_stays_unknown_if_only_the_second_try_certainly_failed() -> None:
    async def story() -> None:
        node = a_node()
        node.lose_answers(Happens.LATER)
        requests: list[str] = []

        async def gone(request: str, moment: Moment) -> None:
            if moment is Moment.BEFORE:
                requests.append(request)
                if requests.count("transact") == 2:
                    raise MetastoreUnavailable("no leader")

        node.gate = gone
        with pytest.raises(AppendOutcomeUnknown):
            await log_of(node).append(1, [b"one"])

    run(story())


def test_a_first_try_that_certainly_failed_is_not_unknown() -> None:
    async def story() -> None:
        node = a_node()

        async def gone(request: str, moment: Moment) -> None:
            raise MetastoreUnavailable("no leader")

        node.gate = gone
        with pytest.raises(MetastoreUnavailable):
            await log_of(node).append(1, [b"one"])

    run(story())


def test_a_missing_update_is_an_error_that_names_it() -> None:
    async def story() -> None:
        node = a_node()
        log = log_of(node)
        await append_all(log, 1, 300)
        for missing in (300, 256, 1):
            await node.transact(Transaction(then=(Delete(update_key(missing)),)))
            with pytest.raises(UpdateMissing) as caught:
                await replayed(log)
            assert (caught.value.version, caught.value.newest) == (missing, 300)

    run(story())


def test_a_damaged_snapshot_is_an_error_that_names_it() -> None:
    async def story() -> None:
        node = a_node()
        log = log_of(node)
        await append_all(log, 1, 3)
        await log.save_snapshot(2, [b"1;2;"], Joined())
        await node.transact(Transaction(then=(Put(chunk_key(2, 0), b"1;X;"),)))
        with pytest.raises(SnapshotDamaged, match="version 2"):
            await replayed(log)

    run(story())


def test_a_replay_that_a_snapshot_overtakes_continues_from_it() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        reading, writing = cluster.node(), cluster.node()
        await append_all(log_of(writing), 1, 200)
        reads = 0

        async def overtaken(request: str, moment: Moment) -> None:
            nonlocal reads
            reads += (request, moment) == ("range", Moment.AFTER)
            if reads == 2:  # the first batch of updates
                reading.gate = None
                content = b"".join(b"%d;" % version for version in range(1, 191))
                assert await log_of(writing).save_snapshot(190, [content], Joined())

        reading.gate = overtaken
        versions = [version for version, _ in await replayed(log_of(reading))]
        assert versions == [*range(1, BATCH_ROWS + 1), *range(190, 201)]

    run(story())


def test_a_watch_after_the_head_continues_the_replay_without_gap_or_repetition() -> None:
    async def story() -> None:
        cluster = MemoryMetastoreCluster(ManualClock())
        reading, writing = cluster.node(), cluster.node()
        appended = 0

        async def appends_between(request: str, moment: Moment) -> None:
            nonlocal appended
            appended += 1
            await append_all(log_of(writing), appended, appended)

        reading.gate = appends_between
        head = await log_of(reading).head()
        reading.gate = None
        assert appended == 6
        async with aclosing(log_of(reading).replay(head)) as events:
            versions = [each.version async for each in events]
        after = await watched(log_of(reading), appended - head.newest, head.revision)
        assert versions + [each.version for each in after] == list(range(1, appended + 1))

    run(story())


def test_a_watch_yields_updates_and_snapshots_in_order_and_no_removals() -> None:
    async def story() -> None:
        log = log_of(a_node())
        watching = asyncio.create_task(watched(log, 6))
        await append_all(log, 1, 2)
        await log.save_snapshot(2, [b"1;2;"], Joined())
        await log.append(3, [b"3", b"4"])
        await log.append(5, [b"5"])
        found = await watching
        kinds = [(type(each).__name__, each.version) for each in found]
        update, moved = "LoggedUpdate", "SnapshotMoved"
        assert kinds == [
            (update, 1),
            (update, 2),
            (moved, 2),
            (update, 3),
            (update, 4),
            (update, 5),
        ]

    run(story())


def test_a_watch_raises_if_revisions_that_it_needs_were_compacted() -> None:
    async def story() -> None:
        node = a_node()
        log = log_of(node)
        await append_all(log, 1, 3)
        await node.compact(2)
        with pytest.raises(RevisionCompacted):
            await watched(log, 1, after=1)
        assert (await watched(log, 1, after=2))[0].version == 3
        assert await replayed(log) == [(1, b"1"), (2, b"2"), (3, b"3")]

    run(story())


def test_an_empty_log_is_replayed_as_nothing() -> None:
    async def story() -> None:
        assert await replayed(log_of(a_node())) == []

    run(story())


def test_the_newest_version_is_stored_so_that_the_metastore_orders_it() -> None:
    async def story() -> None:
        node = a_node()
        await node.transact(Transaction(then=(Put(VERSION_KEY, encode_version(254)),)))
        log = log_of(node)
        for version in (255, 256, 257):
            assert (await log.append(version, [b""])).won

    run(story())
