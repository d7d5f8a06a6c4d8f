"""Reads are answered as of one index, and a slow one delays no other."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from lithify.errors import ProtocolError
from lithify.raft.commands import CommandResult
from lithify.raft.errors import EntryDeleted, GroupAbsent
from lithify.raft.kv import format as kv
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.machine import KvMachine
from lithify.raft.machine import QueryRead
from lithify.raft.net.client_operations import ClientOperation, NoAnswer
from tests.patience import PROCESS_S_MAX
from tests.raft_members import Members
from tests.unit.raft.node.test_node import client_of, refusal, running, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lithify.raft.commands import Result
    from lithify.raft.kv.state import KvState
    from lithify.raft.pending_work import Job

LARGE = bytes(5000)
"""A value that fills a file of the write-ahead log, so that it goes to a segment."""


class Slow(KvMachine):
    """Has a question whose answer takes until it is released."""

    def __init__(self, asked: threading.Event, let_go: threading.Event) -> None:
        super().__init__()
        self.asked = asked
        self.let_go = let_go

    def query(self, state: KvState, query: bytes) -> bytes | QueryRead:
        if query != b"slow":
            return super().query(state, query)
        self.asked.set()
        return QueryRead((), partial(self.wait, len(state.rows)))

    def wait(self, keys: int, commands: Sequence[bytes]) -> bytes:
        assert not commands
        # If it is the event loop that waits here, it is never released.
        return b"%d keys" % keys if self.let_go.wait(PROCESS_S_MAX) else b"not released"


def test_a_slow_query_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, let_go = threading.Event(), threading.Event()

    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1"), lambda: Slow(is_asked, let_go)) as node,
            client_of(node) as client,
            client_of(node) as other,
        ):
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
            one, two = KvClient(other, "default"), KvClient(other, "orders")
            await one.put(b"before", b"it")
            asked = asyncio.create_task(client.ask("default", ClientOperation.READ, b"slow"))
            assert await asyncio.to_thread(is_asked.wait, PROCESS_S_MAX)
            group = node.groups["orders"]
            ticks = 0

            def count_tick(tick: Callable[[], None] = group.tick) -> None:
                nonlocal ticks
                ticks += 1
                tick()

            monkeypatch.setattr(group, "tick", count_tick)
            term = group.status().term
            while ticks < 30:
                for kv_client in (one, two):
                    await kv_client.put(b"key", b"value")
                    assert (await kv_client.get(b"key")).value == b"value"
                    assert len(await kv_client.scan(b"k", 10)) == 1
            assert group.status().term == term, "longer than an election"
            assert not asked.done()
            let_go.set()
            index, reply = await asked
            # As of the moment when it was asked.
            assert reply == b"1 keys"
            assert index < node.groups["default"].applied_index

    asyncio.run(story())


def test_a_query_that_fails_ends_the_node_wherever_it_runs(tmp_path: Path) -> None:
    class Failing(KvMachine):
        def query(self, state: KvState, query: bytes) -> bytes | QueryRead:
            return QueryRead((), self.fail)

        def fail(self, commands: Sequence[bytes]) -> bytes:
            raise KeyError("a bug")

    async def story() -> None:
        async with running(settings(tmp_path, "n1"), Failing) as node:
            async with client_of(node) as client:
                await KvClient(client, "default").put(b"it", b"leads")
            await refusal(
                node, NoAnswer, lambda client: client.ask("default", ClientOperation.READ, b"")
            )

    with pytest.raises(KeyError, match="a bug"):
        asyncio.run(story())


def test_a_refusal_of_the_machine_is_the_answer() -> None:
    class Refusing(KvMachine):
        def query(self, state: KvState, query: bytes) -> bytes | QueryRead:
            return QueryRead((), self.refuse)

        def refuse(self, commands: Sequence[bytes]) -> bytes:
            raise ProtocolError("no such question")

    members = Members("n1", machine=Refusing)
    group = members.elect("n1")
    result = members.ask("n1", lambda done: group.read(b"", done))
    assert str(result) == "no such question"


class Asked:
    """One member, with a value in a segment that a query has asked for."""

    def __init__(self) -> None:
        self.members = Members("n1")
        self.group = self.members.elect("n1")
        for key in (b"key", b"other"):
            self.members.put("n1", key, b"old" + LARGE)
        self.results: list[Result] = []
        self.group.read(kv.get(b"key"), self.results.append)
        self.job: Job
        (self.job,) = self.group.work().reads
        assert not self.results
        self.index = self.group.applied_index

    @property
    def answer(self) -> tuple[int, bytes]:
        (result,) = self.results
        assert isinstance(result, CommandResult), result
        return result.index, kv.parse_reply(result.reply).value


def test_a_value_in_memory_is_answered_at_once() -> None:
    asked = Asked()
    asked.members.put("n1", b"small", b"in memory")
    asked.group.read(kv.get(b"small"), asked.results.append)
    assert not asked.group.work().reads
    assert asked.answer == (asked.group.applied_index, b"in memory")


def test_a_value_that_was_read_from_a_segment_is_answered_at_once_again() -> None:
    asked = Asked()
    asked.group.job_done(asked.job, asked.job())
    asked.results.clear()
    asked.group.read(kv.get(b"key"), asked.results.append)
    assert not asked.group.work().reads
    assert asked.answer == (asked.index, b"old" + LARGE)
    asked.members.put("n1", b"key", b"new")
    asked.results.clear()
    asked.group.read(kv.get(b"key"), asked.results.append)
    asked.group.work()
    assert asked.answer == (asked.group.applied_index, b"new")


def test_an_answer_is_as_of_the_time_of_the_query() -> None:
    asked = Asked()
    result = asked.job()
    asked.members.put("n1", b"key", b"new")
    asked.group.job_done(asked.job, result)
    assert asked.answer == (asked.index, b"old" + LARGE)


def test_a_query_whose_entry_was_deleted_is_repeated() -> None:
    asked = Asked()
    for key in (b"key", b"other", b"another"):
        asked.members.put("n1", key, b"new" + LARGE)
    asked.members.snapshot("n1")
    asked.members.tick()
    result = asked.job()
    assert isinstance(result, list)
    assert isinstance(result[0].reply, EntryDeleted)
    asked.group.job_done(asked.job, result)
    assert asked.answer == (asked.group.applied_index, b"new" + LARGE)


def test_waiting_requests_fail_when_the_group_closes() -> None:
    asked = Asked()
    asked.group.close(GroupAbsent("g", "n1"))
    assert [type(result) for result in asked.results] == [GroupAbsent]
