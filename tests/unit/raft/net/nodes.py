"""Nodes with a transport for tests, and connections made by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from lithify.fs import MemoryFileSystem
from lithify.raft.core.messages import Heartbeat, RaftMessage
from lithify.raft.net.client_operations import Address
from lithify.raft.net.control_frames import (
    WIRE_VERSION,
    ClientRequests,
    ClientResponses,
    Hello,
    Welcome,
)
from lithify.raft.net.transport import Handlers, Tls, Transport
from lithify.raft.net.wire_format import decode_frame, encode_frame, frame_bytes
from lithify.raft.node.identity import NodeIdentity
from lithify.raft.node.identity_saving import IdentitySaving
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lithify.fs import FileSystem
    from lithify.raft.net.channel import Channel
    from lithify.raft.net.cluster_secret import ClusterSecret

HERE = Address("127.0.0.1", 0)


class Node:
    """A transport that records what it reports."""

    def __init__(
        self,
        name: str,
        cluster: str = "raft",
        tls: Tls | None = None,
        fs: FileSystem | None = None,
        secret: ClusterSecret | None = None,
    ) -> None:
        self.heard: list[tuple[str, RaftMessage]] = []
        self.unreachable: list[tuple[str, str]] = []
        self.outdated = 0
        self.alive: list[tuple[str, int]] = []
        fs = self.fs = fs or MemoryFileSystem()
        fs.mkdir("d")
        self.identity = NodeIdentity(fs, "d", name, cluster)
        handlers = Handlers(
            self.heard.extend,
            self.answer,
            lambda group, peer: self.unreachable.append((group, peer)),
            lambda channel: None,
            outdated=self.count_outdated,
            alive=lambda peer, epoch: self.alive.append((peer, epoch)),
        )
        self.saving = IdentitySaving(self.identity)
        self.transport = Transport(self.identity, self.saving, handlers, tls, secret)

    def count_outdated(self) -> None:
        self.outdated += 1

    def answer(self, channel: Channel, group: str, asks: ClientRequests) -> None:
        channel.send(group, ClientResponses(asks.numbers, 0, 0, asks.bodies))

    @property
    def at(self) -> str:
        return str(self.transport.address)


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    try:
        for node in nodes:
            await node.transport.start(HERE)
        yield
    finally:
        for node in nodes:
            await node.transport.close()


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(PROCESS_S_MAX):
        while not true():
            await asyncio.sleep(0.005)


def is_connected(node: Node, others: list[str]) -> bool:
    return node.transport.connected == others


def has_failed(node: Node, other: str) -> str:
    return node.transport.links[other].reason


def beat(sender: str, to: str, term: int = 1) -> Heartbeat:
    return Heartbeat(sender, to, term, 0, 0)


async def greeted(
    target: Node, **changed: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection made by hand, and its greeting."""
    address = target.transport.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    given = {"version": WIRE_VERSION, "cluster": "raft", "node": "", "to": "", "book": "{}"}
    writer.write(encode_frame([("", Hello(**given | changed))]))  # type: ignore[arg-type]
    return reader, writer


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def frames(
    reader: asyncio.StreamReader, last: tuple[str, Any] | None = None
) -> tuple[list[list[tuple[str, Any]]], bool]:
    """(all frames, True) when the other end hangs up; False after the message `last`."""
    found: list[list[tuple[str, Any]]] = []
    data = b""
    while not found or last not in found[-1]:
        try:
            more = await asyncio.wait_for(reader.read(2**16), PROCESS_S_MAX)
        except ConnectionResetError:
            return found, True
        data += more
        while (size := frame_bytes(memoryview(data), 2**26)) and size <= len(data):
            found.append(decode_frame(memoryview(data)[:size], "", ""))
            data = data[size:]
        if not more:
            return found, True
    return found, False


class Listener:
    """A peer made by hand, whose test reads from the connection or not."""

    def __init__(self, name: str = "b") -> None:
        self._name = name
        self.readers: list[asyncio.StreamReader] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(encode_frame([("", Welcome(WIRE_VERSION, self._name, "", "{}"))]))
        self.readers.append(reader)
        self._writers.append(writer)

    async def close(self) -> None:
        for writer in self._writers:
            await closed(writer)
