"""Dropped groups and removed members: their files are deleted and not recreated."""

from __future__ import annotations

import asyncio
import errno
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from lithify.fs import LocalFileSystem, MemoryFileSystem
from lithify.raft.core import ConfChange, Heartbeat, ProposalDropped
from lithify.raft.group import removed_members
from lithify.raft.group.removed_members import MemberQuery
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.format import KvOutcome
from lithify.raft.net.client_operations import (
    ClientOperation,
    GroupNotFound,
    MayHaveHappened,
    NoAnswer,
    OperationRefused,
)
from lithify.raft.node.identity import NodeIdentity
from lithify.raft.storage.file_names import key_of
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.net.nodes import Listener
from tests.unit.raft.node.test_node import client_of, members_of, refusal, running, settings
from tests.unit.raft.node.test_watches import until

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.raft.client.client import RaftClient
    from lithify.raft.node.node import RaftNode
    from lithify.raft.node.settings import RaftNodeSettings
    from lithify.raft.storage.wal.wal import WalEvent


def directories(tmp_path: Path, node: str) -> list[str]:
    return sorted(each.name.partition("@")[0] for each in (tmp_path / node / "groups").iterdir())


def awaited(*nodes: RaftNode) -> list[list[str]]:
    """Of each dropped group, the members that have not confirmed it."""
    return [names for node in nodes for names in node.identity.dropped.values() if names]


async def three(stack: AsyncExitStack, tmp_path: Path) -> tuple[dict[str, RaftNode], RaftClient]:
    """Nodes that know each other, with a group `orders`, and a client."""
    nodes = {}
    for name in ("n1", "n2", "n3"):
        given = settings(tmp_path, name, join=name != "n1")
        nodes[name] = await stack.enter_async_context(running(given))
        nodes[name].transport.learn({"n1": str(nodes["n1"].transport.address)})
    await until(lambda: nodes["n1"].transport.connected == ["n2", "n3"])
    client = await stack.enter_async_context(client_of(*nodes.values()))
    async with client_of(nodes["n1"]) as first:
        await first.ask_json("orders", ClientOperation.CREATE, members=list(nodes))
    return nodes, client


def test_a_group_is_dropped_on_all_members_and_can_be_recreated(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            nodes, client = await three(stack, tmp_path)
            kv = KvClient(client, "orders")
            await kv.put(b"k", b"old")
            await client.ask_json("orders", ClientOperation.DROP)
            await until(lambda: all("orders" not in node.groups for node in nodes.values()))
            with pytest.raises(OperationRefused, match="there is no group 'orders'"):
                await kv.get(b"k")
            await until(lambda: not any("orders" in directories(tmp_path, name) for name in nodes))
            await until(lambda: not awaited(*nodes.values()))
            async with client_of(nodes["n1"]) as first:
                await first.ask_json("orders", ClientOperation.CREATE, members=list(nodes))
            assert (await kv.get(b"k")).outcome is KvOutcome.ABSENT
            await kv.put(b"k", b"new")
            assert (await kv.get(b"k")).value == b"new"

    asyncio.run(story())


def test_a_member_that_was_down_learns_that_its_group_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.raft.group.group.LONELY_TICKS", 5)
    monkeypatch.setattr("lithify.raft.node.member_notices.TELL_TICKS", 5)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            async with AsyncExitStack() as life:
                nodes, client = await three(life, tmp_path)
                await KvClient(client, "orders").put(b"k", b"old")
                address = nodes["n1"].transport.address
            given: dict[str, Any] = {}
            for name in ("n1", "n2"):
                given[name] = await stack.enter_async_context(running(settings(tmp_path, name)))
                given[name].transport.learn({"n1": str(given["n1"].transport.address)})
            client = await stack.enter_async_context(client_of(*given.values()))
            await client.ask_json("orders", ClientOperation.DROP)
            await until(lambda: all("orders" not in node.groups for node in given.values()))
            await until(lambda: awaited(*given.values()) == [["n3"], ["n3"]])
            peers = {name: str(node.transport.address) for name, node in given.items()}
            book: dict[str, Any] = {"peers": peers}
            third = await stack.enter_async_context(running(settings(tmp_path, "n3", **book)))
            await until(lambda: "orders" not in third.groups)
            await until(lambda: "orders" not in directories(tmp_path, "n3"))
            assert address != given["n1"].transport.address
            await until(lambda: not awaited(*given.values(), third))
        for name in ("n1", "n2", "n3"):
            identity = NodeIdentity(LocalFileSystem(), str(tmp_path / name), name, "raft")
            assert list(identity.dropped.values()) == [[]]

    asyncio.run(story())


class Refusing(LocalFileSystem):
    """Has no room for another list of the groups, if it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False

    def rename(self, source: str, target: str) -> None:
        if self.refuses and target.endswith("/NODE"):
            raise OSError(errno.ENOSPC, "no space left on device")
        super().rename(source, target)


def test_a_member_that_could_not_record_the_drop_does_not_confirm_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.raft.group.group.LONELY_TICKS", 5)
    monkeypatch.setattr("lithify.raft.node.member_notices.TELL_TICKS", 5)

    async def drop(first: RaftNode, client: RaftClient, given: RaftNodeSettings) -> None:
        fs = Refusing()
        async with running(given, fs=fs) as second:
            await until(lambda: first.transport.connected == ["n2"])
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1", "n2"])
            await until(lambda: "orders" in second.groups)
            fs.refuses = True
            await client.ask_json("orders", ClientOperation.DROP)
            await until(lambda: second.has_failed)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(running(settings(tmp_path, "n1")))
            client = await stack.enter_async_context(client_of(first))
            peers = {"n1": str(first.transport.address)}
            given = settings(tmp_path, "n2", join=True, peers=peers)
            with pytest.raises(OSError, match="no space left"):
                await drop(first, client, given)
            await until(lambda: "orders" not in first.groups)
            assert awaited(first) == [["n2"]]
            second = await stack.enter_async_context(running(given))
            await until(lambda: "orders" not in second.groups)
            await until(lambda: not awaited(first, second))

    asyncio.run(story())


def test_a_member_is_notified_of_a_dropped_group_until_it_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when the others were, and has nothing of the group by now."""
    monkeypatch.setattr("lithify.raft.node.member_notices.TELL_TICKS", 5)
    key = "jobs@0a51cc23f08e9b17"

    async def story() -> None:
        async with running(settings(tmp_path, "n1")):
            pass
        identity = NodeIdentity(LocalFileSystem(), str(tmp_path / "n1"), "n1", "raft")
        identity.dropped[key] = ["n2", "n3"]
        identity.save()
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(running(settings(tmp_path, "n1")))
            peers = {"n1": str(first.transport.address)}
            for name, left in (("n2", ["n3"]), ("n3", [])):
                given = settings(tmp_path, name, join=True, peers=peers)
                await stack.enter_async_context(running(given))
                await until(lambda left=left: first.identity.dropped[key] == left)
        identity = NodeIdentity(LocalFileSystem(), str(tmp_path / "n1"), "n1", "raft")
        assert identity.dropped == {key: []}

    asyncio.run(story())


def test_a_removed_leader_does_not_recreate_a_group(tmp_path: Path) -> None:
    """It was cut off before its removal; what it sends comes when all others have forgotten."""

    async def story() -> None:
        async with AsyncExitStack() as stack:
            nodes, client = await three(stack, tmp_path)
            first, second, third = nodes.values()
            key = key_of(first.groups["orders"].name)
            await client.ask_json("orders", ClientOperation.CHANGE, change="-n3")
            await client.ask_json("orders", ClientOperation.DROP)
            await until(lambda: "orders" not in {**first.groups, **second.groups, **third.groups})
            await until(lambda: not awaited(first, second))
            heard: list[Any] = []
            for node in (first, second):
                third.transport.send(key, Heartbeat("n3", node.identity.node, 7, 0, 0))
                third.transport.send(key, MemberQuery("n3", node.identity.node, 7))
            third.notices.receive = lambda *given: heard.append(given)  # type: ignore[method-assign]
            await until(lambda: len(heard) == 2)
            assert "orders" not in {**first.groups, **second.groups}

    asyncio.run(story())


def test_the_oldest_confirmed_drops_are_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lithify.raft.node.identity.KNOWN_MAX", 2)
    fs = MemoryFileSystem()
    fs.mkdir("d")
    identity = NodeIdentity(fs, "d", "n1", "raft")
    for key, others in (("a", []), ("b", ["n2"]), ("c", []), ("d", [])):
        identity.begin(key, ["n1"])
        identity.drop(key, list(others))
    assert identity.dropped == {"b": ["n2"], "c": [], "d": []}
    identity.end_known("b", "n3")
    identity.end_known("b", "n2")
    assert NodeIdentity(fs, "d", "n1", "raft").dropped == {"c": [], "d": []}


async def add_again(client: RaftClient) -> None:
    """Add n3, which unseats the leader: the outcome of that may be unknown."""
    try:
        await client.ask_json("orders", ClientOperation.CHANGE, change="+n3")
    except MayHaveHappened:
        with suppress(OperationRefused):
            await client.ask_json("orders", ClientOperation.CHANGE, change="+n3")


def test_a_removed_member_deletes_its_files_and_can_be_added_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            nodes, client = await three(stack, tmp_path)
            kv = KvClient(client, "orders")
            await kv.put(b"k", b"1")
            await until(lambda: "orders" in nodes["n3"].groups)
            for times in (1, 2):
                await client.ask_json("orders", ClientOperation.CHANGE, change="-n3")
                await until(lambda: "orders" not in nodes["n3"].groups)
                await until(lambda: "orders" not in directories(tmp_path, "n3"))
                await kv.put(b"k", b"without %d" % times)
                await add_again(client)
                await until(lambda: "orders" in nodes["n3"].groups)
                async with client_of(nodes["n3"]) as third:
                    reply = await KvClient(third, "orders").get(b"k")
                    assert reply.value == b"without %d" % times
                (left,) = nodes["n3"].identity.left.values()
                assert left[0] == times

    asyncio.run(story())


def test_a_member_removed_while_down_is_notified_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.raft.group.group.LONELY_TICKS", 5)
    monkeypatch.setattr(removed_members, "LONELY_TICKS", 5)

    async def story() -> None:
        async with AsyncExitStack() as life:
            nodes, client = await three(life, tmp_path)
            await KvClient(client, "orders").put(b"k", b"1")
            await until(lambda: "orders" in nodes["n3"].groups)
        async with AsyncExitStack() as stack:
            given: dict[str, Any] = {}
            for name in ("n1", "n2"):
                given[name] = await stack.enter_async_context(running(settings(tmp_path, name)))
                given[name].transport.learn({"n1": str(given["n1"].transport.address)})
            client = await stack.enter_async_context(client_of(*given.values()))
            await client.ask_json("orders", ClientOperation.CHANGE, change="-n3")
            book: dict[str, Any] = {
                "peers": {n: str(node.transport.address) for n, node in given.items()}
            }
            third = await stack.enter_async_context(running(settings(tmp_path, "n3", **book)))
            await until(lambda: "orders" not in third.groups)
            assert (await KvClient(client, "orders").get(b"k")).value == b"1"

    asyncio.run(story())


async def with_mute_peer(one: RaftNode, stack: AsyncExitStack) -> Listener:
    """Have a node know and reach n2, which takes everything and answers nothing."""
    mute = Listener("n2")
    server = await asyncio.start_server(mute.welcome, "127.0.0.1", 0)
    stack.callback(server.close)
    stack.push_async_callback(mute.close)
    one.transport.learn({"n2": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"})
    return mute


async def begin_to_create(
    one: RaftNode, client: RaftClient, stack: AsyncExitStack
) -> asyncio.Task[Any]:
    """A creation that waits for a member which takes everything and answers nothing."""
    await with_mute_peer(one, stack)
    asked = client.ask_json("orders", ClientOperation.CREATE, members=["n1", "n2"])
    creating = asyncio.create_task(asked)
    await until(lambda: members_of(one)[-1:] == ["voters n1, learners n2"])
    return creating


def test_a_group_is_dropped_while_its_members_are_still_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            AsyncExitStack() as stack,
            running(settings(tmp_path, "n1")) as one,
            client_of(one) as client,
        ):
            creating = await begin_to_create(one, client, stack)
            await client.ask_json("orders", ClientOperation.DROP)
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
            with pytest.raises(
                OperationRefused, match="group orders was dropped while it was created"
            ):
                await creating
            await KvClient(client, "orders").put(b"k", b"v")
            assert members_of(one)[-1] == "voters n1"

    asyncio.run(story())


def test_a_member_removed_before_it_joined_is_not_added_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            AsyncExitStack() as stack,
            running(settings(tmp_path, "n1")) as one,
            client_of(one) as client,
        ):
            creating = await begin_to_create(one, client, stack)
            await client.ask_json("orders", ClientOperation.CHANGE, change="-n2")
            with pytest.raises(MayHaveHappened, match="were removed while it was created"):
                await creating
            assert members_of(one)[-1] == "voters n1"

    asyncio.run(story())


def test_a_request_to_a_busy_leader_is_repeated_at_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its change waits for the disk, and the client learns the address of the silent one."""
    can_write = threading.Event()
    can_write.set()
    asked: list[ConfChange] = []

    async def story() -> None:
        async with (
            AsyncExitStack() as stack,
            running(settings(tmp_path, "n1")) as one,
            client_of(one) as client,
        ):
            mute = await with_mute_peer(one, stack)
            stack.callback(can_write.set)
            flush, begin = one.storage.wal.flush, one.client_requests.changes.begin

            def held() -> list[WalEvent]:
                assert can_write.wait(PROCESS_S_MAX)
                return flush()

            def counted(group: Any, change: ConfChange, book: Any, done: Any) -> None:
                asked.append(change)
                begin(group, change, book, done)

            monkeypatch.setattr(one.storage.wal, "flush", held)
            monkeypatch.setattr(one.client_requests.changes, "begin", counted)
            group = one.create("orders", ["n1"])
            await until(lambda: one.transport.connected and group.may_note)
            can_write.clear()
            group.propose_change(ConfChange.parse("~n2"), lambda _: None)
            one.mark(group)
            await until(lambda: members_of(one)[-1] == "voters n1, learners n2")
            removing = asyncio.create_task(
                client.ask_json("orders", ClientOperation.CHANGE, change="-n2")
            )
            await until(lambda: len(asked) > 5 or len(mute.readers) > 1)
            can_write.set()
            await removing
            assert len(mute.readers) == 1, "the connection of the node"
            assert members_of(one)[-1] == "voters n1"

    asyncio.run(story())


def test_a_change_of_a_group_that_is_dropped_meanwhile_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the node that leads it continues."""

    async def story() -> None:
        async with (
            AsyncExitStack() as stack,
            running(settings(tmp_path, "n1")) as one,
            client_of(one) as client,
        ):
            await with_mute_peer(one, stack)
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])

            async def known(*_: object) -> str:
                return ""

            monkeypatch.setattr(one.client_requests.changes, "_check_node", known)
            adding = asyncio.create_task(
                client.ask_json("orders", ClientOperation.CHANGE, change="+n2")
            )
            await until(lambda: members_of(one)[-1] == "voters n1, learners n2")
            await client.ask_json("orders", ClientOperation.DROP)
            with pytest.raises(GroupNotFound):
                await adding
            await KvClient(client, "default").put(b"k", b"v")

    asyncio.run(story())


def test_requests_that_arrive_with_the_removal_of_a_member_are_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(settings(tmp_path, "n1")) as one, client_of(one) as client:
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
            group, results = one.groups["orders"], list[object]()
            group.propose(b"command", results.append)
            group.propose_change(ConfChange.parse("~n2"), results.append)
            one.leave(group, ended=False)
            assert [type(result) for result in results] == [ProposalDropped] * 2

    asyncio.run(story())


def test_operations_whose_record_the_disk_refuses_are_answered(tmp_path: Path) -> None:
    fs = Refusing()

    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1"), fs=fs) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
            client_of(one) as client,
        ):
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
            await until(lambda: one.identity.recognition.cluster_id)
            fs.refuses = True
            given: Any = {"change": "+n2", "book": {"n2": str(two.transport.address)}}
            with pytest.raises(MayHaveHappened, match="cannot record addresses: no space left"):
                await client.ask_json("orders", ClientOperation.CHANGE, **given)
            with pytest.raises(MayHaveHappened, match="it could not be recorded"):
                await client.ask_json("mail", ClientOperation.CREATE, members=["n1"])
            assert "mail" not in one.groups
            fs.refuses = False
            await client.ask_json("mail", ClientOperation.CREATE, members=["n1"])
        names = [key.partition("@")[0] for key in one.identity.groups]
        assert sorted(names) == ["default", "mail", "orders"]

    asyncio.run(story())


def test_two_groups_created_under_one_name_take_no_commands(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(running(settings(tmp_path, name, join=True)))
                for name in ("n1", "n2")
            ]
            nodes[1].transport.learn({"n1": str(nodes[0].transport.address)})
            await until(lambda: all(node.transport.connected for node in nodes))
            clients = [await stack.enter_async_context(client_of(node)) for node in nodes]
            creating = [
                asyncio.create_task(
                    client.ask_json("orders", ClientOperation.CREATE, members=["n1", "n2"])
                )
                for client in clients
            ]
            await until(lambda: members_of(nodes[0]) == ["voters n1, learners n2"])
            await until(lambda: members_of(nodes[1]) == ["voters n2, learners n1"])
            for node in nodes:
                why = await refusal(
                    node,
                    (NoAnswer, MayHaveHappened),
                    lambda client: KvClient(client, "orders").put(b"k", b"v"),
                )
                assert "is in progress" in why
            await clients[1].ask_json("orders", ClientOperation.DROP)
            with pytest.raises(OperationRefused, match="was dropped while it was created"):
                await creating[1]
            await creating[0]
            await KvClient(clients[1], "orders").put(b"k", b"v")

    asyncio.run(story())
