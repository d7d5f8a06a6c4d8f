"""Nodes connect over real sockets, and other connections do them no harm."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from lithify.fs import MemoryFileSystem
from lithify.raft.core import Config
from lithify.raft.core.messages import AppendRequest, Commit
from lithify.raft.entry import Entry
from lithify.raft.net import transport as transport_module
from lithify.raft.net.channel import UnsentChannels
from lithify.raft.net.client_operations import Address
from lithify.raft.net.control_frames import (
    HEARS_COMMITS,
    WATCHES_NODES,
    WIRE_VERSION,
    ClientRequest,
    ClientResponse,
    Credentials,
    Hello,
    Welcome,
)
from lithify.raft.net.peer_link import PeerLink
from lithify.raft.net.peer_recognition import MARKS_MAX
from lithify.raft.net.transport import RaftCannotListen
from lithify.raft.net.wire_format import decode_frame, encode_frame, frame_bytes
from lithify.raft.node.identity import NodeIdentity
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from tests.patience import PROCESS_S_MAX
from tests.unit.raft.authority import Authority
from tests.unit.raft.net.nodes import (
    HERE,
    Listener,
    Node,
    beat,
    closed,
    frames,
    greeted,
    has_failed,
    is_connected,
    running,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from lithify.fs import File


def test_a_node_learns_all_addresses_from_one_node() -> None:
    async def story() -> None:
        a, b, c = Node("a"), Node("b"), Node("c")
        async with running(a, b, c):
            b.transport.learn({"a": a.at})
            c.transport.learn({"a": a.at})
            for node in (a, b, c):
                others = sorted({"a", "b", "c"} - {node.identity.node})
                await until(partial(is_connected, node, others))
            b.transport.send("orders", beat("b", "c"))
            await until(lambda: c.heard == [("orders", beat("b", "c"))])

    asyncio.run(story())


def test_a_peer_that_is_down_is_unreachable_until_it_starts() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with running(b):
            at = b.at
        async with running(a):
            a.transport.learn({"b": at})
            a.transport.send("orders", beat("a", "b"))
            a.transport.send("orders", beat("a", "nobody"))
            assert a.unreachable == [("orders", "b"), ("orders", "nobody")]
            again = Node("b")
            async with running(again):
                again.transport.learn({"a": a.at})
                # It has another port now, and says so itself.
                await until(lambda: a.transport.connected == ["b"])
                a.transport.send("orders", beat("a", "b"))
                await until(lambda: again.heard)

    asyncio.run(story())


async def has_closed(node: Node) -> bool:
    """Is it closed within a time that is long for it?"""
    closing = asyncio.create_task(node.transport.close())
    done, _ = await asyncio.wait({closing}, timeout=PROCESS_S_MAX)
    return bool(done)


@pytest.mark.parametrize("turns", range(6))
def test_a_node_stops_while_a_peer_connects(turns: int) -> None:
    """A link that waits to connect again is notified by both, in the same turns of the loop."""

    async def story() -> None:
        a = Node("a")
        await a.transport.start(HERE)
        a.transport.learn({"b": "127.0.0.1:1"})
        await until(partial(has_failed, a, "b"))
        a.transport.links["b"].hurry()
        for _ in range(turns):
            await asyncio.sleep(0)
        assert await has_closed(a)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"version": 9}, "version 9 of the protocol, this node speaks 1"),
        ({"node": "b", "cluster": "other"}, "this is a node of cluster raft, not of other"),
        ({"node": "b", "to": "c"}, "this is node a, not c"),
        ({"node": "a"}, "there is another node a"),
    ],
)
def test_refused_nodes_get_the_reason(changed: dict[str, Any], refusal: str) -> None:
    async def story() -> None:
        a = Node("a")
        async with running(a):
            reader, writer = await greeted(a, **changed)
            welcome = Welcome(WATCHES_NODES, "a", refusal, "")
            assert await frames(reader) == ([[("", welcome)]], True)
            await closed(writer)

    asyncio.run(story())


MEMBERS = Config(frozenset(("a", "b")))


def test_another_directory_under_the_name_of_a_member_is_refused_by_both_ends() -> None:
    async def story() -> None:
        a, b, other = Node("a"), Node("b"), Node("b")
        for node in (a, b):
            node.transport.handlers = replace(node.transport.handlers, configs=lambda: [MEMBERS])
        async with running(a):
            async with running(b):
                b.transport.learn({"a": a.at})
                await until(lambda: a.transport.connected == ["b"])
                at = a.identity.book["b"]
            async with running(other):
                other.transport.learn({"a": a.at})
                await until(lambda: "b" in a.transport.refused)
                await until(lambda: "a" in other.transport.refused_by)
                other.transport.send("g", beat("b", "a"))
                assert a.identity.book["b"] == at, "nothing that it says counts"
                # Nor is one heard that shows nothing, as nodes of earlier versions do.
                reader, writer = await greeted(a, node="b", to="a")
                writer.write(encode_frame([("g", beat("b", "a"))]))
                assert (await frames(reader))[1]
                await closed(writer)
            assert a.heard == []
            assert a.identity.recognition.known == {"b": b.identity.recognition.own}
            # What was recorded is there after a restart.
            assert again(a).recognition.known == a.identity.recognition.known

    asyncio.run(story())


def again(node: Node) -> NodeIdentity:
    identity = node.identity
    return NodeIdentity(node.fs, "d", identity.node, identity.cluster)


def started(node: Node, times: int = 1) -> Node:
    """The next process on the same directory, after this many starts."""
    made = Node(node.identity.node, fs=node.fs)
    for _ in range(times):
        made.identity.start(is_seen=True)
    return with_members(made)


def with_members(node: Node) -> Node:
    node.transport.handlers = replace(node.transport.handlers, configs=lambda: [MEMBERS])
    return node


async def meet(node: Node, other: Node) -> bool:
    """Two nodes connect, in both directions, or one refuses the other."""
    for each, to in ((node, other), (other, node)):
        each.transport.learn({to.identity.node: to.at})
    name, own = other.identity.node, node.identity.node
    await until(
        lambda: (
            (is_connected(node, [name]) and is_connected(other, [own]))
            or own in other.transport.refused
        )
    )
    return own not in other.transport.refused


@pytest.mark.parametrize("loops", [1, MARKS_MAX - 1, MARKS_MAX, MARKS_MAX + 1, 3 * MARKS_MAX])
def test_an_older_copy_is_refused_however_often_it_starts(loops: int) -> None:
    """The others were away meanwhile; so were they while the genuine one started as often."""

    async def story() -> None:
        a, b = started(Node("a")), started(Node("b"))
        async with running(a, b):
            assert await meet(b, a)
        a, b = started(a), started(b)
        assert isinstance(b.fs, MemoryFileSystem)
        copy = Node("b", fs=b.fs.kill_clone())
        b = started(b)
        async with running(a, b):
            assert await meet(b, a)
            await until(lambda: b.identity.recognition.starts_known["a"].number == 3)
        a, b = started(a), started(b, loops)
        async with running(a, b):
            assert await meet(b, a)
            start = b.identity.recognition.starts.number
            await until(lambda: b.identity.recognition.starts_known["a"].number == start)
        # More often than the genuine one, so that numbers alone do not tell.
        a, copy = started(a), started(copy, 2 * loops)
        async with running(a, copy):
            assert not await meet(copy, a)
            await until(lambda: copy.outdated)
        a, b = started(a), started(b, loops)
        async with running(a, b):
            assert await meet(b, a)
            assert not b.outdated

    asyncio.run(story())


def test_a_node_of_an_earlier_version_shows_no_record_and_is_accepted() -> None:
    async def story() -> None:
        a, b = started(Node("a")), started(Node("b"))
        async with running(a, b):
            assert await meet(b, a)
        b = started(b, MARKS_MAX + 9)
        b.identity.recognition.starts_known = {}
        made = b.transport.introduction

        def introduction(name: str, version: int, refusal: str = "") -> Any:
            shown = made(name, version, refusal)
            return replace(shown, met_starts="{}") if isinstance(shown, Credentials) else shown

        b.transport.introduction = introduction  # type: ignore[method-assign]
        a = started(a)
        async with running(a, b):
            assert await meet(b, a)

    asyncio.run(story())


def test_a_repeated_refusal_of_a_node_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    structlog.reset_defaults()

    async def story() -> None:
        a, b, other = with_members(Node("a")), with_members(Node("b")), with_members(Node("b"))
        async with running(a, b):
            b.transport.learn({"a": a.at})
            await until(lambda: a.transport.connected == ["b"])
        a = with_members(Node("a", fs=a.fs))
        async with running(a, other):
            refusals = 0
            made = other.transport.disowned_by

            def disowned_by(name: str, reason: str) -> None:
                nonlocal refusals
                refusals += 1
                made(name, reason)

            other.transport.disowned_by = disowned_by  # type: ignore[method-assign]
            caplog.clear()
            other.transport.learn({"a": a.at})
            await until(lambda: refusals >= 4)

    asyncio.run(story())
    lines = [each.getMessage() for each in caplog.records if "identity" in each.getMessage()]
    for what in ("node refused", "this node is refused", "not connected node='a'"):
        assert len([line for line in lines if line.startswith(what)]) == 1, what
    assert not [line for line in lines if line.startswith("connection closed")]


class Watched(MemoryFileSystem):
    """Knows which threads replace `NODE`, and has them wait."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.may_write = threading.Event()
        self.may_write.set()

    def open_append(self, path: str, *, exclusive: bool = False, uncached: bool = False) -> File:
        assert self.may_write.wait(PROCESS_S_MAX)
        self.threads.add(threading.get_ident())
        return super().open_append(path, exclusive=exclusive, uncached=uncached)


def test_a_start_of_a_peer_is_recorded_outside_the_loop_before_it_is_accepted() -> None:
    async def story() -> None:
        fs = Watched()
        a, b = started(Node("a", fs=fs)), started(Node("b"))
        async with running(a, b):
            assert await meet(b, a)
        b = started(b)
        async with running(a_again := started(a), b):
            await until(lambda: not a_again.saving.is_writing)
            fs.threads.clear()
            fs.may_write.clear()
            b.transport.learn({"a": a_again.at})
            met = a_again.identity.recognition.starts_shown
            await until(lambda: met["b"].number == 2)
            # The loop continues; b hears nothing, and says nothing.
            for _ in range(20):
                await asyncio.sleep(0.005)
                assert b.transport.connected == []
            assert again(a_again).recognition.starts_shown["b"].number == 1
            fs.may_write.set()
            await until(lambda: b.transport.connected == ["a"])
            assert again(a_again).recognition.starts_shown["b"].number == 2
        assert threading.get_ident() not in fs.threads

    asyncio.run(story())


def test_a_peer_is_not_accepted_while_its_start_cannot_be_recorded() -> None:
    async def story() -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        a, b = started(Node("a", fs=fs)), started(Node("b"))
        async with running(a, b):
            fs.add(Fault("write", "*NODE*", count=None, kind="ENOSPC"))
            b.transport.learn({"a": a.at})
            await until(lambda: "b" in a.identity.recognition.starts_shown)
            await until(lambda: has_failed(b, "a"))
            assert b.transport.connected == []
            fs.clear()
            await until(lambda: b.transport.connected == ["a"])
            assert again(a).recognition.starts_shown["b"].number == 1
            # The next connection of the same start does not wait for what is about others.
            fs.add(Fault("write", "*NODE*", count=None, kind="ENOSPC"))
            a.saving.changed()
            before = b.transport.links["a"].channel
            a.transport.disconnect("to connect again")
            await until(lambda: b.transport.links["a"].channel not in (None, before))
            assert not a.identity.is_durable
            fs.clear()

    asyncio.run(story())


def test_a_connection_ends_when_members_change_and_its_node_is_another_one() -> None:
    async def story() -> None:
        a, b = Node("a"), Node("b")
        async with running(a, b):
            b.transport.learn({"a": a.at})
            await until(lambda: a.transport.connected == ["b"])
            added = Config(MEMBERS.voters, identities=frozenset({("b", "0d" * 16)}))
            a.transport.handlers = replace(a.transport.handlers, configs=lambda: [added])
            a.transport.recheck()
            await until(lambda: a.transport.connected == [])
            assert "0d0d" in a.transport.refused["b"]

    asyncio.run(story())


def test_a_node_that_is_being_recorded_is_not_refused_when_members_change() -> None:
    async def story() -> None:
        fs = Watched()
        a, b = Node("a", fs=fs), Node("b")
        async with running(a, b):
            fs.may_write.clear()
            b.transport.learn({"a": a.at})
            await until(lambda: "b" in a.identity.recognition.known)
            members = Config(MEMBERS.voters)
            a.transport.handlers = replace(a.transport.handlers, configs=lambda: [members])
            a.transport.recheck()
            fs.may_write.set()
            assert a.transport.refused == {}
            await until(lambda: b.transport.connected == ["a"])

    asyncio.run(story())


HOSTILE = {
    "nothing of it": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a large frame": b"\xff\xff\xff\x7f" + bytes(4),
    "a wrong checksum": b"\x01\0\0\0" + bytes(5),
    "no greeting": bytes(encode_frame([("g", ClientRequest(1, 1, b""))])),
    "an empty frame": bytes(encode_frame([])),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_peer_that_breaks_the_protocol_is_disconnected(what: str) -> None:
    async def story() -> None:
        a = Node("a")
        async with running(a):
            address = a.transport.address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(HOSTILE[what])
            assert await frames(reader) == ([], True)
            await closed(writer)
            good, other = await greeted(a)
            other.write(encode_frame([("g", ClientRequest(7, 1, b"x"))]))
            answer = ("g", ClientResponse(7, 0, 0, b"x"))
            found, hung_up = await frames(good, answer)
            assert (found[-1][-1], hung_up) == (answer, False)
            await closed(other)

    asyncio.run(story())


def test_a_client_cannot_send_as_a_node_nor_a_node_as_a_client() -> None:
    async def story() -> None:
        a = Node("a")
        async with running(a):
            reader, writer = await greeted(a)
            writer.write(encode_frame([("g", beat("b", "a"))]))
            assert (await frames(reader))[1]
            await closed(writer)
            reader, writer = await greeted(a, node="b", to="a")
            writer.write(encode_frame([("g", ClientRequest(1, 1, b""))]))
            assert (await frames(reader))[1]
            assert a.heard == []
            await closed(writer)

    asyncio.run(story())


def test_heartbeats_of_many_groups_are_one_frame() -> None:
    async def story() -> None:
        peer = Listener()
        server = await asyncio.start_server(peer.welcome, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        a = Node("a")
        async with running(a):
            a.transport.learn({"b": f"127.0.0.1:{port}"})
            await until(lambda: a.transport.connected)
            (reader,) = peer.readers
            for number in range(500):
                a.transport.send(f"g{number}", beat("a", "b"))
            await asyncio.sleep(0)
            data = b""
            while b"g499" not in data:
                more = await reader.read(2**20)
                assert more, "the connection has ended"
                data += more
            start = data.index(b"g0") - 10
            size = frame_bytes(memoryview(data)[start:], 2**20)
            messages = decode_frame(memoryview(data)[start : start + size], "a", "b")
            assert [group for group, _ in messages] == [f"g{number}" for number in range(500)]
        await peer.close()
        server.close()
        await server.wait_closed()

    asyncio.run(story())


def test_a_node_of_an_earlier_version_gets_a_commit_as_an_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        a, b, commit = Node("a"), Node("b"), Commit("a", "b", 4, 7)
        async with running(a, b):
            a.transport.learn({"b": b.at})
            await until(lambda: is_connected(a, ["b"]))
            a.transport.send("g", commit)
            monkeypatch.setattr(PeerLink, "version", HEARS_COMMITS - 1)
            a.transport.send("g", commit)
            await until(lambda: len(b.heard) == 2)
            assert b.heard == [("g", commit), ("g", AppendRequest("a", "b", 4, 7, 4, [], 7))]

    asyncio.run(story())


def test_the_messages_of_one_event_are_sent_together_and_to_nodes_first() -> None:
    class Sent:
        def __init__(self, node: str) -> None:
            self.node = node

        def flush(self) -> None:
            order.append(self.node)

    async def story() -> None:
        unsent = UnsentChannels()
        unsent.hold()
        for node in ("", "b", "", "c"):
            unsent.add(Sent(node))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert order == []
        unsent.send()
        assert order == ["b", "c", "", ""]
        unsent.add(Sent("d"))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert order[4:] == ["d"]

    order: list[str] = []
    asyncio.run(story())


def test_a_peer_that_does_not_read_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "UNSENT_BYTES_MAX", 2**20)

    async def story() -> None:
        peer = Listener()
        server = await asyncio.start_server(peer.welcome, "127.0.0.1", 0, limit=2**10)
        port = server.sockets[0].getsockname()[1]
        a = Node("a")
        async with running(a):
            a.transport.learn({"b": f"127.0.0.1:{port}"})
            await until(lambda: a.transport.connected)
            entry = Entry(1, 1, bytes(100_000))
            for _ in range(200):
                a.transport.send("g", AppendRequest("a", "b", 1, 0, 0, [entry], 0))
                await asyncio.sleep(0)
            assert a.unreachable, "Raft is told, and sends again later"
            link = a.transport.links["b"]
            assert link.channel is not None
            assert link.channel.unsent_bytes <= 2**20 + 200_000
        await peer.close()
        server.close()
        await server.wait_closed()

    asyncio.run(story())


def test_an_address_in_use_is_refused_by_name() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(RaftCannotListen, match=rf"127\.0\.0\.1:{port}"):
                await Node("a").transport.start(Address("127.0.0.1", port))

    asyncio.run(story())


# --- TLS ----------------------------------------------------------------------------------------


def test_with_tls_both_ends_show_certificates(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")

    async def story() -> None:
        a, b = Node("a", tls=authority.tls("a")), Node("b", tls=authority.tls("b"))
        liar = Node("c", tls=authority.tls("d"))
        stranger = Node("e", tls=other.tls("e"))
        plain = Node("f")
        async with running(a, b, liar, stranger, plain):
            for node in (b, liar, stranger, plain):
                node.transport.learn({"a": a.at})
            await until(lambda: a.transport.connected == ["b"])
            await until(lambda: b.transport.connected == ["a"])
            a.transport.send("g", beat("a", "b"))
            await until(lambda: b.heard)
            for node in (liar, stranger, plain):
                await until(partial(has_failed, node, "a"))
                assert node.transport.connected == []
            assert sorted(a.identity.book) == ["b"], "no node is known that was not accepted"

    asyncio.run(story())


def test_a_node_stops_while_a_refused_connection_is_reset(tmp_path: Path) -> None:
    """The connection is closed twice then: by the refusal, and by the stop."""
    authority = Authority(tmp_path, "ours")

    async def story() -> None:
        a = Node("a", tls=authority.tls("a"))
        await a.transport.start(HERE)
        context = authority.tls("b").context(server=False)
        address = a.transport.address
        _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        # It does not hear the goodbye, so the connection is there until it is reset.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        hello = Hello(WIRE_VERSION + 1, "raft", "", "", "{}")
        writer.write(encode_frame([("", hello)]))
        await until(lambda: any(channel.closed for channel in a.transport.channels))
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        asyncio.get_running_loop().call_soon(writer.transport.abort)
        assert await has_closed(a)

    asyncio.run(story())
