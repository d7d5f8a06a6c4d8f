"""The metastore on nodes: reads, watches and times, also while members come, go and fall behind."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock
from lithify.errors import InvalidInput
from lithify.hybrid_time import add_ms, timestamp
from lithify.metastore import queries
from lithify.metastore.errors import MetastoreUnavailable, RevisionCompacted
from lithify.metastore.local_metastore import LocalMetastore
from lithify.metastore.metastore import Change
from lithify.metastore.transaction import Delete, Put, prefix_range
from lithify.raft.core import DropReason
from lithify.raft.core.errors import ProposalDropped
from lithify.raft.errors import OutcomeUnknown
from lithify.raft.net.client_operations import ClientOperation, MayHaveHappened
from lithify.raft.node import process_requests
from tests.unit.metastore.nodes import alone, do, put, settings, three, told
from tests.unit.raft.net.nodes import until
from tests.unit.raft.node.test_node import running

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.metastore.metastore import Revision


async def take(metastore: LocalMetastore, count: int, after: int = 0) -> list[Revision]:
    found: list[Revision] = []
    async with aclosing(metastore.watch(b"", b"", after=after)) as revisions:
        while len(found) < count:
            found.append(await anext(revisions))
    return found


async def purge(metastore: LocalMetastore) -> None:
    while not metastore.purge(1000).finished:
        await asyncio.sleep(0)


def test_a_watch_yields_what_is_there_and_then_what_comes(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            first = await put(metastore, b"a", b"1")
            async with aclosing(metastore.watch(b"", b"", after=0)) as revisions:
                assert (await anext(revisions)).revision == first
                coming = asyncio.ensure_future(anext(revisions))
                await asyncio.sleep(0)
                second = await do(metastore, Put(b"b", b"2"), Delete(b"a"))
                found = await coming
                assert (found.revision, found.timestamp) == (second.revision, second.timestamp)
                assert set(found.changes) == {Change(b"b", b"2"), Change(b"a", None)}

    told(story)


def test_a_watch_has_its_range_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            watch = metastore.watch(*prefix_range(b"b"), after=0)
            async with aclosing(watch) as revisions:
                coming = asyncio.ensure_future(anext(revisions))
                await put(metastore, b"a", b"1")
                await put(metastore, b"c", b"1")
                assert not coming.done()
                await do(metastore, Put(b"a", b"2"), Put(b"b", b"3"))
                assert (await coming).changes == (Change(b"b", b"3"),)

    told(story)


def test_a_watch_that_needs_compacted_revisions_ends(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            revisions = [await put(metastore, b"a", b"%d" % n) for n in range(5)]
            watch = metastore.watch(b"", b"", after=revisions[0])
            await metastore.compact(revisions[2])
            with pytest.raises(RevisionCompacted) as raised:
                await anext(watch)
            assert (raised.value.revision, raised.value.floor) == (revisions[0] + 1, revisions[2])
            assert [each.revision for each in await take(metastore, 2, revisions[2])] == (
                revisions[3:]
            )

    told(story)


def test_a_watch_after_a_revision_to_come_waits_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            first = await put(metastore, b"a", b"1")
            watch = metastore.watch(b"", b"", after=first + 1)
            coming = asyncio.ensure_future(anext(watch))
            assert await put(metastore, b"a", b"2") == first + 1
            third = await put(metastore, b"a", b"3")
            assert (await coming).revision == third
            await watch.aclose()

    told(story)


def test_a_watch_ends_when_the_node_stops(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            coming = asyncio.ensure_future(anext(metastore.watch(b"", b"", after=0)))
            await asyncio.sleep(0)
        with pytest.raises(MetastoreUnavailable, match="no group 'metastore' on node n1"):
            await coming

    told(story)


def test_a_watch_of_nonsense_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            for after in (-1, 2**63):
                with pytest.raises(InvalidInput, match="must be after 0 to"):
                    await anext(metastore.watch(b"", b"", after=after))
            with pytest.raises(InvalidInput, match="at most 4096 fit"):
                await anext(metastore.watch(bytes(5000), b"", after=0))

    told(story)


def test_a_node_that_is_no_member_raises_a_typed_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n9", ManualClock(), None)) as node:
            # It has the group, of another machine; see a name that it does not have.
            await until(lambda: node.groups)
            del node.groups["metastore"]
            metastore = LocalMetastore(node, ManualClock())
            for ask in (
                metastore.get(b"a", local=True),
                metastore.get(b"a"),
                do(metastore, Put(b"a", b"")),
                anext(metastore.watch(b"", b"", after=0)),
                metastore.wait_safe_time(1),
            ):
                with pytest.raises(MetastoreUnavailable, match="no group 'metastore'"):
                    await ask

    told(story)


# --- pages --------------------------------------------------------------------------------------


def test_a_page_without_rows_does_not_strand_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "EXAMINED_MAX", 3)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            keys = [b"%02d" % n for n in range(12)]
            await do(metastore, *(Put(key, b"") for key in keys))
            await do(metastore, *map(Delete, keys[:10]))
            for local in (False, True):
                found = await metastore.range(b"", b"", local=local)
                assert [row.key for row in found.rows] == keys[10:]
                nothing = await metastore.range(b"", b"05", local=local)
                assert (nothing.rows, nothing.more) == ((), False)

    told(story)


def test_pages_continue_after_their_last_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "EXAMINED_MAX", 2)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            keys = [b"%02d" % n for n in range(20)]
            await do(metastore, *(Put(key, key) for key in keys))
            gone = keys[3:9] + keys[15:]
            await do(metastore, *map(Delete, gone))
            found, start, more = [], b"", True
            while more:
                page = await metastore.range(start, b"", limit=3)
                found += [row.key for row in page.rows]
                more = page.more
                assert page.rows or not more
                start = found[-1] + b"\0"
            assert found == [key for key in keys if key not in gone]

    told(story)


def test_a_range_is_of_one_revision_although_its_first_pages_have_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "EXAMINED_MAX", 2)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            keys = [b"%02d" % n for n in range(6)]
            await do(metastore, *(Put(key, b"old") for key in keys))
            before = await do(metastore, *map(Delete, keys[:5]))
            asked = metastore.node.read
            queries_sent = []

            async def read(group: str, query: bytes, *, local: bool = False) -> Any:
                queries_sent.append(query)
                answer = await asked(group, query, local=local)
                if len(queries_sent) == 1:
                    await do(metastore, Put(keys[0], b"new"), Put(keys[5], b"new"))
                return answer

            monkeypatch.setattr(metastore.node, "read", read)
            found = await metastore.range(b"", b"")
            assert len(queries_sent) > 1
            assert found.revision == before.revision
            assert [(row.key, row.value) for row in found.rows] == [(keys[5], b"old")]

    told(story)


def test_a_range_of_the_newest_revision_survives_a_compaction_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "EXAMINED_MAX", 2)

    async def story() -> None:
        async with alone(tmp_path) as metastore:
            keys = [b"%02d" % n for n in range(6)]
            await do(metastore, *(Put(key, b"old") for key in keys))
            await do(metastore, *map(Delete, keys[:5]))
            asked = metastore.node.read
            sent = []

            async def read(group: str, query: bytes, *, local: bool = False) -> Any:
                sent.append(query)
                answer = await asked(group, query, local=local)
                if len(sent) == 1:
                    await metastore.compact(await put(metastore, keys[5], b"new"))
                    await purge(metastore)
                return answer

            monkeypatch.setattr(metastore.node, "read", read)
            assert [row.value for row in (await metastore.range(b"", b"")).rows] == [b"new"]
            with pytest.raises(RevisionCompacted):
                await metastore.range(b"", b"", revision=1)

    told(story)


def test_nonsense_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            for ask in (
                metastore.get(b"", revision=-1),
                metastore.get(bytes(4097)),
                metastore.range(bytes(4097), b""),
                metastore.range(b"", bytes(4097)),
                metastore.range(b"", b"", limit=-1),
                metastore.range(b"", b"", revision=2**63),
            ):
                with pytest.raises(InvalidInput):
                    await ask

    told(story)


# --- time ---------------------------------------------------------------------------------------


def test_safe_time_advances_with_the_clock_without_writes(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with alone(tmp_path, clock) as metastore:
            outcome = await do(metastore, Put(b"a", b""))
            assert outcome.timestamp == timestamp(clock.now_ms())
            await metastore.wait_safe_time(outcome.timestamp)
            before = metastore.group.applied_index
            until_then = add_ms(outcome.timestamp, 500)
            waiting = [
                asyncio.ensure_future(metastore.wait_safe_time(until_then)) for _ in range(20)
            ]
            await asyncio.sleep(0)
            clock.advance(0.6)
            await asyncio.gather(*waiting)
            assert metastore.state.time >= until_then
            assert metastore.group.applied_index <= before + 2, "they share a command"
            assert await metastore.read_time() == metastore.state.time
            assert (await do(metastore, Put(b"a", b""))).timestamp > until_then

    told(story)


def test_safe_time_is_waited_for_although_outcomes_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with alone(tmp_path, clock) as metastore:
            group, tries = metastore.group, []
            propose = group.propose

            def lose(command: bytes, done: Any) -> None:
                tries.append(command)
                if len(tries) < 3:
                    done(OutcomeUnknown("metastore", 7))
                else:
                    propose(command, done)

            monkeypatch.setattr(group, "propose", lose)
            clock.advance(1)
            await metastore.wait_safe_time(timestamp(clock.now_ms() - 10))
            assert len(tries) == 3

    told(story)


def test_safe_time_follows_a_clock_of_the_leader_that_is_behind(tmp_path: Path) -> None:
    theirs, ours = ManualClock(), ManualClock()
    ours.jump(0.2)

    async def story() -> None:
        async with alone(tmp_path, theirs) as metastore:
            metastore._clock = ours
            wanted = timestamp(theirs.now_ms() + 100)
            waiting = asyncio.ensure_future(metastore.wait_safe_time(wanted))
            await until(lambda: metastore.state.time)
            assert not waiting.done()
            assert metastore.state.time < wanted
            theirs.advance(0.2)
            await waiting

    told(story)


# --- purging ------------------------------------------------------------------------------------


def test_a_purge_waits_for_reads_of_what_it_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            old = [await put(metastore, b"a", b"%d" % n) for n in range(4)]
            asked, gate = metastore.node.read, asyncio.Event()

            async def read(group: str, query: bytes, *, local: bool = False) -> Any:
                answer = await asked(group, query, local=local)
                await gate.wait()
                return answer

            monkeypatch.setattr(metastore.node, "read", read)
            reading = asyncio.ensure_future(metastore.get(b"a", revision=old[1], local=True))
            later = asyncio.ensure_future(metastore.get(b"a", revision=old[3], local=True))
            await asyncio.sleep(0)
            await metastore.compact(old[2])
            assert metastore.purge(100).examined == 0
            gate.set()
            found = await reading
            assert found is not None
            assert found.value == b"1"
            await later
            assert metastore.purge(100).removed == 3
            assert metastore.state.purged_floor == old[2]
            with pytest.raises(RevisionCompacted):
                await metastore.get(b"a", revision=old[1], local=True)

    told(story)


# --- three nodes --------------------------------------------------------------------------------


def test_all_nodes_write_read_and_watch_across_a_change_of_leaders(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as nodes:
            written = [await put(node, b"k%d" % n, b"1") for n, node in enumerate(nodes)]
            watches = [node.watch(b"", b"", after=0) for node in nodes]
            seen = [[(await anext(each)).revision for _ in range(3)] for each in watches]
            assert seen == [written] * 3
            coming = [asyncio.ensure_future(anext(each)) for each in watches]
            transfer = nodes[0].node.requests.ask(
                "metastore", ClientOperation.TRANSFER, b'{"to": "n2"}'
            )
            await transfer
            await until(lambda: nodes[1].leading_term)
            outcome = await do(nodes[0], Put(b"later", b"2"))
            found = await asyncio.gather(*coming)
            assert {each.revision for each in found} == {outcome.revision}
            assert len({each.timestamp for each in found}) == 1
            for node in nodes:
                kept = await node.get(b"later")
                assert kept is not None
                assert kept.value == b"2"
            for each in watches:
                await each.aclose()

    told(story)


def test_a_refused_proposal_is_unavailable_and_an_unknown_outcome_stays_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with alone(tmp_path) as metastore:
            group = metastore.group
            monkeypatch.setattr(process_requests, "AGAIN_S", 60.0)

            def drop(_: bytes, done: Any) -> None:
                done(ProposalDropped(DropReason.NO_LEADER, ""))

            monkeypatch.setattr(group, "propose", drop)
            with pytest.raises(MetastoreUnavailable, match="propose was not answered"):
                await put(metastore, b"a", b"1")
            monkeypatch.setattr(
                group, "propose", lambda _, done: done(OutcomeUnknown("metastore", 7))
            )
            with pytest.raises(MayHaveHappened):
                await put(metastore, b"a", b"1")

    told(story)
