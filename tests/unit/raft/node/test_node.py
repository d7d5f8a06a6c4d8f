"""Nodes in this process, on real sockets and files: groups come, grow, shrink and stay."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import threading
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lithify.errors import InvalidInput, LogLocked, ProtocolError, WriteFailed
from lithify.fs import LocalFileSystem
from lithify.raft.client.client import RaftClient
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.format import KvOutcome
from lithify.raft.kv.machine import KvMachine, kv_machine
from lithify.raft.net.client_operations import (
    Address,
    ClientOperation,
    MayHaveHappened,
    NoAnswer,
    OperationRefused,
)
from lithify.raft.node import client_requests
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.net.nodes import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from lithify.raft.machine import CommandBatch, Machine
    from lithify.raft.net.transport import Tls


def settings(directory: Path, name: str, *, join: bool = False, **more: Any) -> RaftNodeSettings:
    listen = Address("127.0.0.1", 0)
    return RaftNodeSettings(name, str(directory / name), listen, join=join, tick_ms=20, **more)


@asynccontextmanager
async def running(
    given: RaftNodeSettings,
    make_machine: Callable[[], Machine[Any]] = KvMachine,
    fs: LocalFileSystem | None = None,
) -> AsyncIterator[RaftNode]:
    node = RaftNode(given, fs or LocalFileSystem(), lambda _: make_machine())
    stop = asyncio.Event()
    ready: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(node.run(stop, ready.set_result))
    ends: list[asyncio.Future[Any]] = [task, ready]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield node
    finally:
        stop.set()
        await task


@asynccontextmanager
async def client_of(
    *nodes: RaftNode, timeout_s: float = PROCESS_S_MAX
) -> AsyncIterator[RaftClient]:
    addresses = [node.transport.address for node in nodes]
    async with RaftClient(addresses, timeout_s=timeout_s) as client:
        yield client


async def refusal(
    node: RaftNode,
    kind: type[Exception] | tuple[type[Exception], ...],
    ask: Callable[[RaftClient], Awaitable[object]],
    tls: Tls | None = None,
) -> str:
    """Why a client with little time gets no answer; it has more until a node has said so."""
    timeout_s = 0.3
    while True:
        at = [node.transport.address]
        async with RaftClient(at, tls=tls, timeout_s=timeout_s) as client:
            with pytest.raises(kind) as raised:
                await ask(client)
        why = str(raised.value)
        if "no node was asked" not in why and "is silent" not in why:
            return why
        assert timeout_s < PROCESS_S_MAX, why
        timeout_s *= 2


def members_of(node: RaftNode) -> list[str]:
    return [str(group.status().config) for _, group in sorted(node.groups.items())]


def test_written_keys_survive_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            await asyncio.gather(*(kv.put(b"k%d" % n, b"v%d" % n) for n in range(500)))
            assert (await kv.delete(b"k7")).outcome is KvOutcome.DONE
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            assert (await kv.get(b"k8")).value == b"v8"
            assert (await kv.get(b"k7")).outcome is KvOutcome.ABSENT
            assert len(await kv.scan(b"k", 1000)) == 499
            same = await kv.compare_and_set(b"k8", b"x", b"something else")
            assert same.outcome is KvOutcome.MISMATCH

    asyncio.run(story())


class Failing(KvMachine):
    """Does not understand what was committed."""

    def apply_many(self, batch: CommandBatch, start: int, state: Any) -> Any:
        raise ProtocolError("no such command")


def test_a_machine_that_fails_ends_the_node(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1"), Failing) as node:
            async with client_of(node) as client:
                with pytest.raises(MayHaveHappened):
                    await KvClient(client, "default").put(b"key", b"value")
            # What follows would be done by a machine that has not seen this command.
            assert node.has_failed

    with pytest.raises(ProtocolError, match="no such command"):
        asyncio.run(story())


def test_work_of_a_group_is_dropped_while_the_node_stops(tmp_path: Path) -> None:
    let_go = threading.Event()

    async def want(node: RaftNode) -> None:
        group = node.groups["default"]
        await until(node._disk._ending.is_set)
        group.take_snapshot()
        node.mark(group)
        await until(lambda: not node._rounds.marked)
        let_go.set()

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node:
            async with client_of(node) as client:
                await KvClient(client, "default").put(b"key", b"value")
            node._disk.run(partial(let_go.wait, PROCESS_S_MAX), lambda _: None)
            wanted = asyncio.create_task(want(node))
        await wanted

    asyncio.run(story())


def test_groups_are_found_without_the_list_of_groups(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
            await KvClient(client, "orders").put(b"k", b"v")
        (tmp_path / "n1" / "NODE").unlink()
        for _ in range(2):
            async with running(settings(tmp_path, "n1")) as node:
                assert sorted(node.groups) == ["default", "orders"]
                assert node.groups["orders"].status().last_index > 1

    asyncio.run(story())


def test_groups_are_created_grown_and_shrunk_while_it_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
            running(settings(tmp_path, "n3", join=True)) as three,
            client_of(one) as client,
        ):
            with pytest.raises(OperationRefused, match="the address of node n2 is not known here"):
                await client.ask_json("orders", ClientOperation.CREATE, members=["n1", "n2"])
            two.transport.learn({"n1": str(one.transport.address)})
            await until(lambda: "n2" in one.transport.connected)
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1", "n2"])
            orders = KvClient(client, "orders")
            await orders.put(b"a", b"1")
            with pytest.raises(OperationRefused, match="group orders is there already"):
                await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
            book = {"n3": str(three.transport.address)}
            await client.ask_json("orders", ClientOperation.CHANGE, change="+n3", book=book)
            await client.ask_json("orders", ClientOperation.TRANSFER, to="n2")
            await client.ask_json("orders", ClientOperation.CHANGE, change="-n1")
            async with asyncio.timeout(PROCESS_S_MAX):
                found = await client.ask_json("orders", ClientOperation.MEMBERS)
                while found["members"] != "voters n2 n3":
                    await asyncio.sleep(0.02)
                    found = await client.ask_json("orders", ClientOperation.MEMBERS)
            assert sorted(found["book"]) == ["n2", "n3"], "members only"
            async with client_of(three) as other:
                assert (await KvClient(other, "orders").get(b"a")).value == b"1"
            async with asyncio.timeout(PROCESS_S_MAX), client_of(one) as first:
                seen = await first.ask_json("", ClientOperation.OVERVIEW)
                while len(seen["groups"]) > 1:
                    await asyncio.sleep(0.02)
                    seen = await first.ask_json("", ClientOperation.OVERVIEW)
            assert [group["group"] for group in seen["groups"]] == ["default"]
            assert seen["connected"] == ["n2", "n3"]

    asyncio.run(story())


def test_a_client_is_sent_to_the_leader_by_any_member(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
            client_of(one) as client,
        ):
            book = {"n2": str(two.transport.address)}
            await client.ask_json("default", ClientOperation.CHANGE, change="+n2", book=book)
            await until(lambda: "default" in two.groups and two.groups["default"].leader)
            async with client_of(two) as other:
                index, _ = await other.ask("default", ClientOperation.PROPOSE, b"")
                assert index > 0
                with pytest.raises(
                    OperationRefused, match="there is no group 'nothing' on node n2"
                ):
                    await other.ask("nothing", ClientOperation.PROPOSE, b"")

    asyncio.run(story())


def test_without_a_majority_nothing_is_done_and_the_client_gets_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        peers = {"n2": "127.0.0.1:1", "n3": "127.0.0.1:2"}
        async with running(settings(tmp_path, "n1", peers=peers)) as node:
            why = await refusal(
                node, NoAnswer, lambda client: client.ask("default", ClientOperation.PROPOSE, b"")
            )
            assert "no leader is known" in why

    asyncio.run(story())


def test_a_client_with_too_many_requests_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "ASKED_MAX", 4)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            replies = await asyncio.gather(*(kv.put(b"k%d" % n, bytes(9000)) for n in range(300)))
            assert all(reply.outcome is KvOutcome.DONE for reply in replies)
            monkeypatch.setattr(client_requests, "COMMAND_BYTES_MAX", 100)
            with pytest.raises(OperationRefused, match="larger than the limit 100"):
                await kv.put(b"k", bytes(200))

    asyncio.run(story())


def test_requests_are_answered_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_requests, "PORTION", 3)
    monkeypatch.setattr(client_requests, "ASKED_MAX", 4)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            portions: list[int] = []
            begin = node.client_requests._start_portion

            def counted() -> None:
                before = len(node.client_requests._queue)
                begin()
                portions.append(before - len(node.client_requests._queue))

            monkeypatch.setattr(node.client_requests, "_start_portion", counted)
            asks = [client.ask_json("default", ClientOperation.MEMBERS) for _ in range(20)]
            asks.append(client.ask_json("default", ClientOperation.BACKUP, read="\ud800"))
            answers: list[Any] = await asyncio.gather(*asks, return_exceptions=True)
            *found, refused = answers
            assert [each["members"] for each in found] == ["voters n1"] * 20
            assert isinstance(refused, OperationRefused), "although its text cannot be encoded"
            assert max(portions) == 3

    asyncio.run(story())


def test_a_request_that_fails_ends_its_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise KeyError("no such thing")

    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as node,
            client_of(node) as client,
            client_of(node) as other,
        ):
            await KvClient(other, "default").put(b"k", b"v")
            monkeypatch.setattr(node.client_requests, "_do", failing)
            with pytest.raises(MayHaveHappened, match="sent and not answered"):
                await client.ask_json("default", ClientOperation.SNAPSHOT)
            assert (await KvClient(other, "default").get(b"k")).value == b"v"

    asyncio.run(story())


def test_only_the_too_large_request_of_a_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "COMMAND_BYTES_MAX", 100)
    # So that replies to a run go out one by one.
    monkeypatch.setattr(client_requests, "REPLIES_BYTES_MAX", 10)

    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            kv = KvClient(client, "default")
            sizes = (5, 6, 200, 7)
            puts = (kv.put(b"k%d" % size, bytes(size)) for size in sizes)
            found = await asyncio.gather(*puts, return_exceptions=True)
            assert [isinstance(each, OperationRefused) for each in found] == [
                size > 100 for size in sizes
            ]
            assert [row.key for row in await kv.scan(b"k", 9)] == [b"k5", b"k6", b"k7"]
            replies = await asyncio.gather(*(kv.put(b"k5", b"v%d" % n) for n in range(5)))
            assert [reply.revision - replies[0].revision for reply in replies] == [0, 1, 2, 3, 4]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("operation", "given", "why"),
    [
        (ClientOperation.CREATE, {"members": 5}, "members is 5, must be a list"),
        (ClientOperation.CREATE, {"members": ["n2"]}, "the address of node n2 is not known here"),
        (ClientOperation.CHANGE, {"change": "n2"}, "must be like +n4"),
        (
            ClientOperation.CHANGE,
            {"change": "+n2", "book": {"n2": "far"}},
            "address 'far' must be like",
        ),
        (
            ClientOperation.CHANGE,
            {"change": "+n2", "book": {"": "h:1"}},
            "member name '' is invalid",
        ),
        (99, {}, "operation 99 is not known"),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(
    tmp_path: Path, operation: ClientOperation, given: dict[str, Any], why: str
) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as node, client_of(node) as client:
            group = "orders" if operation == ClientOperation.CREATE else "default"
            with pytest.raises(OperationRefused, match=re.escape(why)):
                await client.ask(group, operation, json.dumps(given).encode())
            with pytest.raises(OperationRefused, match="not JSON"):
                await client.ask("default", ClientOperation.OVERVIEW, b"{")
            assert node.identity.book == {}
            assert list(node.groups) == ["default"]

    asyncio.run(story())


def test_a_start_on_a_full_disk_names_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    given = settings(tmp_path, "n1")
    with monkeypatch.context() as patch:
        patch.setattr("lithify.fs.local.os.pwrite", full)
        with pytest.raises(WriteFailed, match=re.escape(f"{given.data}/LOCK: No space left on ")):
            RaftNode(given, LocalFileSystem(), kv_machine)

    async def story() -> None:
        # Nothing is left that the next start trips over, the lock least of all.
        async with running(given) as node, client_of(node) as client:
            await KvClient(client, "default").put(b"key", b"value")

    asyncio.run(story())


def test_a_directory_belongs_to_one_process_and_one_node_for_good(tmp_path: Path) -> None:
    async def story() -> None:
        given = settings(tmp_path, "n1")
        async with running(given):
            with pytest.raises(LogLocked, match="raft node, pid"):
                RaftNode(given, LocalFileSystem(), kv_machine)
        other = RaftNodeSettings("n2", given.data, given.listen)
        with pytest.raises(InvalidInput, match="belongs to node n1 of cluster raft, not to n2"):
            RaftNode(other, LocalFileSystem(), kv_machine)

    asyncio.run(story())
