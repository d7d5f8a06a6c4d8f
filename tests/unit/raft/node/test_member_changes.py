"""Operators' mistakes on real sockets and files.

Nodes that do not run, addresses that are wrong, directories that were replaced: each is refused by
name, and the group continues.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.exit_codes import FAILED
from lithify.fs.checked_lines import encode_line
from lithify.raft.core import AppendRequest, Diverged, Heartbeat
from lithify.raft.entry import Entry
from lithify.raft.group.removed_members import MemberRemoved
from lithify.raft.kv.client import KvClient
from lithify.raft.kv.format import KvOutcome
from lithify.raft.net.client_operations import (
    ClientOperation,
    MayHaveHappened,
    NoAnswer,
    OperationRefused,
    PartlyDone,
    parse_address,
)
from lithify.raft.net.peer_recognition import Standing
from lithify.raft.node import member_changes
from tests.ports import free_port
from tests.unit.raft.net.nodes import Listener, until
from tests.unit.raft.node.test_node import client_of, members_of, refusal, running, settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from lithify.raft.client.client import RaftClient
    from lithify.raft.core import RaftMessage
    from lithify.raft.node.node import RaftNode
    from lithify.raft.node.settings import RaftNodeSettings
    from lithify.raft.storage.wal.wal import WalEvent


class Three:
    """Three nodes, each of which can be stopped and started for itself."""

    def __init__(self, directory: Path, names: Iterable[str]) -> None:
        self.directory = directory
        self.ports = {name: free_port() for name in names}
        self.stacks: dict[str, AsyncExitStack] = {}
        self.nodes: dict[str, RaftNode] = {}
        self.held = False
        """Do nodes that start hold their members?"""

    def at(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def given(self, name: str) -> RaftNodeSettings:
        peers = {other: self.at(other) for other in self.ports if other != name}
        given = settings(self.directory, name, peers=peers)
        # On a busy machine shorter ticks unseat leaders in the middle of a story.
        listen = parse_address(self.at(name))
        return replace(given, listen=listen, tick_ms=50, holds=lambda _: self.held)

    async def start(self, name: str) -> RaftNode:
        stack = self.stacks[name] = AsyncExitStack()
        node = await stack.enter_async_context(running(self.given(name)))
        self.nodes[name] = node
        return node

    async def stop(self, name: str) -> None:
        await self.stacks.pop(name).aclose()
        del self.nodes[name]

    async def leader(self) -> RaftNode:
        def found() -> list[RaftNode]:
            return [node for node in self.nodes.values() if leads(node)]

        await until(found)
        return found()[0]

    async def others(self) -> list[str]:
        leader = await self.leader()
        return sorted(name for name in self.nodes if name != leader.identity.node)


def leads(node: RaftNode) -> bool:
    return "default" in node.groups and bool(node.groups["default"].leading_term)


@asynccontextmanager
async def three(directory: Path, names: Iterable[str] = ("n1", "n2", "n3")) -> AsyncIterator[Three]:
    world = Three(directory, names)
    try:
        for name in world.ports:
            await world.start(name)
        yield world
    finally:
        for name in list(world.nodes):
            await world.stop(name)


async def change(client: RaftClient, text: str, **book: str) -> Any:
    return await client.ask_json("default", ClientOperation.CHANGE, change=text, book=book)


def test_a_node_that_does_not_run_is_not_added_while_another_voter_is_dead(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as world:
            (_, dead) = await world.others()
            await world.stop(dead)
            leader = await world.leader()
            async with client_of(leader) as client:
                for _ in range(3):
                    with pytest.raises(OperationRefused, match="node n4 was not reached at"):
                        await change(client, "+n4", n4=f"127.0.0.1:{free_port()}")
                await KvClient(client, "default").put(b"k", b"v")
            assert members_of(leader) == ["voters n1 n2 n3"]
            assert "n4" not in leader.identity.book

    asyncio.run(story())


def test_without_a_leader_a_change_is_not_done_for_certain(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as world:
            for name in await world.others():
                await world.stop(name)
            (left,) = world.nodes.values()
            await until(lambda: not left.groups["default"].leader)
            async with client_of(left, timeout_s=1) as client:
                with pytest.raises(NoAnswer, match="no leader is known"):
                    await change(client, "-n2")

    asyncio.run(story())


def test_a_change_that_loses_its_leader_after_the_first_step_is_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as world, AsyncExitStack() as stack:
            leader = await world.leader()
            four = await stack.enter_async_context(running(settings(tmp_path, "n4", join=True)))
            # It becomes a learner, and never has the log.
            four.transport.handlers = four.transport.handlers.__class__(
                lambda *_: None,
                four.transport.handlers.asked,
                lambda *_: None,
                lambda *_: None,
            )
            async with client_of(leader, timeout_s=5) as client:
                book = {"n4": str(four.transport.address)}
                asked = asyncio.create_task(change(client, "+n4", **book))
                await until(lambda: "n4" in leader.groups["default"].config.learners)
                for name in await world.others():
                    await world.stop(name)
                # The client has learned of n4, and asks all members in turn: which answers are in
                # the error depends on who was asked last.
                why = "(no leader is known|there is no group 'default' on node n4)"
                unknown = f"{why}.*; it may have taken effect or not"
                with pytest.raises(MayHaveHappened, match=unknown):
                    await asked

    asyncio.run(story())


def test_a_client_learns_the_addresses_of_the_members(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as world:
            named = await world.leader()
            async with client_of(named) as client:
                kv = KvClient(client, "default")
                await kv.put(b"k", b"v")
                # Its answer comes after that to the client's own question on the connection.
                await client.ask_json("default", ClientOperation.MEMBERS)
                await world.stop(named.identity.node)
                assert (await kv.get(b"k")).value == b"v"
                await kv.put(b"k", b"w")

    asyncio.run(story())


def test_a_healthy_voter_is_not_removed_while_another_is_dead(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as world:
            alive, dead = await world.others()
            await world.stop(dead)
            leader = await world.leader()
            group = leader.groups["default"]
            await until(lambda: "silent" in group.status().progress[dead])
            async with client_of(leader) as client:
                with pytest.raises(
                    OperationRefused, match=f"-{alive} would lose the quorum: {dead} of"
                ):
                    await change(client, f"-{alive}")
                await KvClient(client, "default").put(b"k", b"v")
                await change(client, f"-{dead}")
                await KvClient(client, "default").put(b"k", b"w")

    asyncio.run(story())


def test_a_learner_that_does_not_answer_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_changes, "CHANGE_S", 1.0)

    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            client_of(one) as client,
            AsyncExitStack() as stack,
        ):
            two = await stack.enter_async_context(running(settings(tmp_path, "n2", join=True)))
            at = str(two.transport.address)
            # It is there when it is checked, and says nothing to its leader.
            two.transport.handlers = two.transport.handlers.__class__(
                lambda *_: None,
                two.transport.handlers.asked,
                lambda *_: None,
                lambda *_: None,
            )
            with pytest.raises(
                OperationRefused, match="n2 did not answer within 1 s and was removed again"
            ):
                await change(client, "+n2", n2=at)
            assert members_of(one) == ["voters n1"]
            await KvClient(client, "default").put(b"k", b"v")

    asyncio.run(story())


def test_a_creation_ends_without_a_group_if_a_member_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.raft.node.client_requests.LOOK_S", 0.2)
    monkeypatch.setattr("lithify.raft.node.client_requests.CHANGE_S", 0.5)

    async def story() -> None:
        mute = Listener("n2")
        server = await asyncio.start_server(mute.welcome, "127.0.0.1", 0)
        async with running(settings(tmp_path, "n1")) as one, client_of(one) as client:
            one.transport.learn({"n2": f"127.0.0.1:{free_port()}"})
            with pytest.raises(OperationRefused, match="node n2 was not reached"):
                await client.ask_json("orders", ClientOperation.CREATE, members=["n1", "n2"])
            one.transport.learn({"n2": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"})
            with pytest.raises(
                OperationRefused, match=r"orders was not created within 0.5 s: n2 does not"
            ):
                await client.ask_json("orders", ClientOperation.CREATE, members=["n1", "n2"])
            assert list(one.groups) == ["default"]
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
        await mute.close()
        server.close()

    asyncio.run(story())


def test_an_address_is_taken_only_if_the_right_node_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        other = settings(tmp_path / "other", "n4", join=True, cluster="other")
        async with three(tmp_path) as world, running(other) as stranger:
            leader = await world.leader()
            (peer, third) = await world.others()
            before = dict(leader.identity.book)
            wrong: list[tuple[str, str, str]] = [
                (peer, f"127.0.0.1:{free_port()}", f"{peer} is a member already"),
                (peer, world.at(third), f"{peer} is a member already"),
                ("n4", world.at(third), f"this is node {third}, not n4"),
                ("n4", str(stranger.transport.address), "a node of cluster other"),
            ]
            async with client_of(leader) as client:
                for name, at, why in wrong:
                    with pytest.raises(OperationRefused, match=why):
                        await change(client, f"+{name}", **{name: at})
                for at in (f"127.0.0.1:{free_port()}", world.at(third)):
                    with pytest.raises(
                        OperationRefused, match=f"node {peer} was not reached at {at}"
                    ):
                        await client.ask_json("default", ClientOperation.MOVE, book={peer: at})
                with pytest.raises(OperationRefused, match="does not add node n1"):
                    await change(client, "-n9", n1="127.0.0.1:1")
                assert leader.identity.book == before
                assert peer in leader.transport.connected
                await KvClient(client, "default").put(b"k", b"v")

    asyncio.run(story())


def test_a_member_at_another_address_is_moved_after_a_check(tmp_path: Path) -> None:
    async def forward(port: int, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        inner, writer = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(2**16):
                target.write(data)
            target.close()

        await asyncio.gather(pump(reader, writer), pump(inner, out), return_exceptions=True)

    async def story() -> None:
        async with three(tmp_path) as world:
            leader = await world.leader()
            (peer, _) = await world.others()
            port = world.ports[peer]
            server = await asyncio.start_server(
                lambda reader, writer: forward(port, reader, writer), "127.0.0.1", 0
            )
            at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client_of(leader) as client:
                await client.ask_json("default", ClientOperation.MOVE, book={peer: at})
                assert leader.identity.book[peer] == at
            server.close()

    asyncio.run(story())


async def wiped(world: Three, name: str) -> RaftNode:
    await world.stop(name)
    shutil.rmtree(world.directory / name)
    return await world.start(name)


def test_an_empty_directory_under_an_old_name_forks_nothing(tmp_path: Path) -> None:
    """Acknowledged by two of three; one of them loses its disk, the other one is away."""

    async def story() -> None:
        async with three(tmp_path) as world:
            leader = await world.leader()
            behind, lost = await world.others()
            await until(lambda: leader.groups["default"].status().commit > 0)
            await world.stop(behind)
            async with client_of(leader) as client:
                await KvClient(client, "default").put(b"k", b"acknowledged")
            first = leader.identity.node
            await world.stop(first)
            two = await wiped(world, lost)
            three_ = await world.start(behind)
            # Both are there and could elect one of them, without what was acknowledged.
            await until(lambda: lost in three_.transport.refused)
            await until(lambda: behind in two.transport.refused_by)
            assert two.identity.recognition.standing is Standing.DISOWNED
            await asyncio.sleep(60 * 0.02)
            assert not any(map(leads, world.nodes.values()))
            one = await world.start(first)
            leader = await world.leader()
            assert leader.identity.node in (first, behind)
            async with client_of(leader) as client:
                kv = KvClient(client, "default")
                assert (await kv.get(b"k")).value == b"acknowledged"
                await until(lambda: lost in one.transport.refused)
                async with client_of(one) as other:
                    seen = await other.ask_json("", ClientOperation.OVERVIEW)
                assert "its data directory was replaced" in seen["refused"][lost]
                with pytest.raises(OperationRefused, match="is a member already"):
                    await change(client, f"+{lost}", **{lost: "127.0.0.1:1"})
                await change(client, f"-{lost}")
                await change(client, f"+{lost}", **{lost: world.at(lost)})
                await until(lambda: members_of(two) == ["voters n1 n2 n3"])
                assert two.groups["default"].overview()["may_vote"]
                await kv.put(b"k", b"later")
            await world.stop(first if leader.identity.node != first else behind)
            async with client_of(*world.nodes.values()) as client:
                assert (await KvClient(client, "default").get(b"k")).value == b"later"

    asyncio.run(story())


def test_a_member_whose_directory_was_replaced_is_not_added_before_it_is_removed(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with three(tmp_path) as world, client_of(await world.leader()) as client:
            (lost, _) = await world.others()
            await KvClient(client, "default").put(b"k", b"v")
            assert await change(client, f"+{lost}", **{lost: world.at(lost)}) == {
                "index": 0,
                "already": True,
            }
            await world.stop(lost)
            repeated = await change(client, f"+{lost}", **{lost: world.at(lost)})
            assert repeated["already"]
            shutil.rmtree(world.directory / lost)
            stack = world.stacks[lost] = AsyncExitStack()
            empty = replace(world.given(lost), join=True, peers={})
            world.nodes[lost] = await stack.enter_async_context(running(empty))
            with pytest.raises(
                OperationRefused, match=f"was replaced. Remove {lost} from its groups"
            ):
                await change(client, f"+{lost}", **{lost: world.at(lost)})
            await change(client, f"-{lost}")
            added = await change(client, f"+{lost}", **{lost: world.at(lost)})
            assert "already" not in added

    asyncio.run(story())


def test_a_directory_without_an_identity_opens_and_serves(tmp_path: Path) -> None:
    """As the version before has written it."""

    async def story() -> None:
        async with three(tmp_path) as world, client_of(await world.leader()) as client:
            await KvClient(client, "default").put(b"k", b"v")
        for name in ("n1", "n2", "n3"):
            path = tmp_path / name / "NODE"
            value = json.loads(path.read_text().partition(" ")[2])
            for new in ("identity", "standing", "known", "stopped"):
                del value[new]
            path.write_bytes(encode_line(json.dumps(value | {"version": 3})))
        async with three(tmp_path) as world:
            leader = await world.leader()
            async with client_of(leader) as client:
                assert (await KvClient(client, "default").get(b"k")).value == b"v"
            await until(lambda: len(leader.identity.recognition.known) == 2)

    asyncio.run(story())


def test_a_node_with_a_group_of_its_own_is_not_added_and_loses_nothing(tmp_path: Path) -> None:
    """Both groups have the key `default`: every cluster begins with it."""

    async def story() -> None:
        async with (
            three(tmp_path) as world,
            running(settings(tmp_path, "n4")) as alone,
            client_of(alone) as own,
        ):
            await KvClient(own, "default").put(b"k", b"of n4")
            leader = await world.leader()
            async with client_of(leader) as client:
                with pytest.raises(
                    OperationRefused, match="node n4 has a group default already, with the"
                ):
                    await change(client, "+n4", n4=str(alone.transport.address))
            assert members_of(leader) == ["voters n1 n2 n3"]
            # A leader that asks nothing takes it for an empty node.
            group = alone.groups["default"]
            term = group.term + 1
            for word in (
                AppendRequest("n1", "n4", term, 0, 0, [Entry(1, term, b"")], 1),
                MemberRemoved("n1", "n4", term, 99, ended=False),
                MemberRemoved("n1", "n4", 0, 0, ended=True),
            ):
                alone.transport.handlers.heard([("default", word)])
            assert alone.groups["default"] is group
            assert group.stopped is None
            assert (await KvClient(own, "default").get(b"k")).value == b"of n4"

    asyncio.run(story())


@pytest.mark.parametrize("names", [("m1", "m2", "m3"), ("n1", "n2", "n4")])
def test_a_member_of_another_cluster_is_not_added(tmp_path: Path, names: tuple[str, ...]) -> None:
    async def story() -> None:
        async with three(tmp_path / "a") as world, three(tmp_path / "b", names) as other:
            there, leader = await other.leader(), await world.leader()
            name = next(each for each in names if each not in world.ports)
            async with client_of(there) as client:
                await KvClient(client, "default").put(b"k", b"there")
            async with client_of(leader) as client:
                await KvClient(client, "default").put(b"k", b"here")
                with pytest.raises(
                    OperationRefused, match=f"node {name} has a group default already"
                ):
                    await change(client, f"+{name}", **{name: other.at(name)})
            assert members_of(leader) == ["voters n1 n2 n3"]
            # Nor does it follow a second leader of its term, or believe one who is no member.
            member = other.nodes[name]
            group = member.groups["default"]
            await until(lambda: group.leader)
            term, commit = group.term, group.status().commit
            member.transport.handlers.heard([("default", Heartbeat("n9", name, term, commit, 0))])
            removed = MemberRemoved("n9", name, term, 99, ended=False)
            member.transport.handlers.heard([("default", removed)])
            assert group.leader == there.identity.node
            assert member.groups["default"] is group

    asyncio.run(story())


def test_a_node_that_does_not_know_that_it_was_removed_is_added_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with three(tmp_path) as world, client_of(await world.leader()) as client:
            (name, _) = await world.others()
            member = world.nodes[name]
            heard, kept = member.transport.handlers.heard, member.groups["default"]

            def but_the_removal(messages: list[tuple[str, RaftMessage]]) -> None:
                heard([each for each in messages if not isinstance(each[1], MemberRemoved)])

            handlers = replace(member.transport.handlers, heard=but_the_removal)
            member.transport.handlers = handlers
            await change(client, f"-{name}")
            assert member.groups["default"] is kept
            await change(client, f"+{name}", **{name: world.at(name)})

    asyncio.run(story())


def test_a_member_with_another_history_stops_and_the_node_continues(tmp_path: Path) -> None:
    async def story() -> None:
        given = settings(tmp_path, "n1")
        async with running(given) as one, client_of(one) as client:
            await client.ask_json("orders", ClientOperation.CREATE, members=["n1"])
            await KvClient(client, "default").put(b"k", b"v")
            other = AppendRequest("n2", "n1", 9, 0, 0, [Entry(1, 9, b"")], 1)
            group = one.groups["default"]
            group.receive(other)
            one.mark(group)
            assert isinstance(group.stopped, Diverged)
            await until(lambda: "default" in one.identity.stopped)
            await check_stopped(one, client)
        async with running(given) as one, client_of(one) as client:
            await check_stopped(one, client)

    async def check_stopped(one: RaftNode, client: RaftClient) -> None:
        seen = await client.ask_json("default", ClientOperation.OVERVIEW)
        assert (seen["role"], "two histories" in seen["stopped"]) == ("stopped", True)
        refused = (NoAnswer, OperationRefused)
        get = await refusal(one, refused, lambda asked: KvClient(asked, "default").get(b"k"))
        put = await refusal(one, refused, lambda asked: KvClient(asked, "default").put(b"k", b"w"))
        assert "two histories" in get
        assert "two histories" in put
        orders = KvClient(client, "orders")
        assert (await orders.put(b"k", b"v")).outcome is KvOutcome.DONE

    asyncio.run(story())


def nothing_written() -> list[WalEvent]:
    time.sleep(0.01)
    return []


def test_a_slow_learner_is_reported_as_a_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_changes, "CHANGE_S", 0.5)

    async def story() -> None:
        async with (
            running(settings(tmp_path, "n1")) as one,
            running(settings(tmp_path, "n2", join=True)) as two,
            client_of(one) as client,
        ):
            await KvClient(client, "default").put(b"k", b"v")
            wal, flush = two.storage.wal, two.storage.wal.flush
            # It answers, but its disk is so slow that it has nothing.
            monkeypatch.setattr(wal, "flush", nothing_written)
            book = {"n2": str(two.transport.address)}
            with pytest.raises(PartlyDone) as raised:
                await client.ask_json("default", ClientOperation.CHANGE, change="+n2", book=book)
            assert raised.value.exit_code == FAILED
            said = str(raised.value)
            assert said.startswith("n2 was added as a learner and stays one")
            assert "has 0 of" in said
            assert "Repeat the command" in said
            found = await client.ask_json("default", ClientOperation.MEMBERS)
            assert found["members"].startswith("voters n1, learners n2")
            monkeypatch.setattr(wal, "flush", flush)
            monkeypatch.setattr(member_changes, "CHANGE_S", 20.0)
            await client.ask_json("default", ClientOperation.CHANGE, change="+n2")
            found = await client.ask_json("default", ClientOperation.MEMBERS)
            assert found["members"].startswith("voters n1 n2")

    asyncio.run(story())
