"""Raft nodes in processes of their own, and a minimal client.

The client has one connection to the leader and sends each put as soon as one before it is answered.
It uses the wire's own frames, without the futures and retries of `RaftClient`: one process feeds
nodes that have two cores between them, and should not be what is measured. So requests are made
before the clock starts, and answers, which all have the same size, are checked as columns.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from lithify.raft.client.client import RaftClient
from lithify.raft.kv.format import put
from lithify.raft.net.client_operations import Address, ClientOperation
from lithify.raft.net.control_frames import WIRE_VERSION, ClientRequest, Hello
from lithify.raft.net.wire_format import (
    FRAME_HEADER_BYTES,
    decode_frame,
    encode_frame,
    encode_message,
    frame_bytes,
    join_frame,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.checksum import Buffer

__all__ = [
    "ask_process_many",
    "connect",
    "free_port",
    "propose_many",
    "put_many",
    "raft_members",
]

GROUP = "default"
FRAME_ASKS = 64
PUT_REPLY_BYTES = 9


def free_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def raft_members(directory: str, count: int) -> Iterator[Address]:
    """The address of the leader, until the block ends."""
    book = {f"n{number}": Address("127.0.0.1", free_port()) for number in range(1, count + 1)}
    with ExitStack() as stack:
        for name, address in book.items():
            options = ["--id", name, "--listen", str(address), "--data", f"{directory}/{name}"]
            for peer, at in book.items():
                options += ["--peer", f"{peer}={at}"] if peer != name else []
            command = [sys.executable, "-m", "lithify", "raft", "serve", *options]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("raft"), "a node did not start"
        leader = asyncio.run(_leader(list(book.values())))
        yield book[leader]


async def _leader(addresses: list[Address]) -> str:
    """Who leads, once a first command was done."""
    async with RaftClient(addresses) as client:
        await client.ask(GROUP, ClientOperation.PROPOSE, put(b"first", b""))
        found = await client.ask_json(GROUP, ClientOperation.MEMBERS)
    return str(found["leader"])


def put_many(address: Address, keys: int, count: int, in_flight: int, value: bytes) -> float:
    """The seconds that this many puts take."""
    return asyncio.run(_put_many(address, keys, count, in_flight, value))


def propose_many(
    address: Address, group: str, commands: list[bytes], in_flight: int, reply_bytes: int
) -> float:
    """The seconds that these commands take."""
    return asyncio.run(_ask_many(address, group, commands, in_flight, reply_bytes))


def ask_process_many(
    address: Address, requests: list[bytes], in_flight: int, reply_bytes: int
) -> float:
    """The seconds that these requests to the process of a node take."""
    operation = ClientOperation.PROCESS
    return asyncio.run(_ask_many(address, "", requests, in_flight, reply_bytes, operation))


async def _put_many(address: Address, keys: int, count: int, in_flight: int, value: bytes) -> float:
    commands = [put(b"k%07d" % (number % keys), value) for number in range(count)]
    return await _ask_many(address, GROUP, commands, in_flight, PUT_REPLY_BYTES)


async def _ask_many(
    address: Address,
    group: str,
    commands: list[bytes],
    in_flight: int,
    reply_bytes: int,
    operation: ClientOperation = ClientOperation.PROPOSE,
) -> float:
    client = await connect(address, group, commands, reply_bytes, operation)
    began_s = time.perf_counter()
    client.send(in_flight)
    await client.done
    took_s = time.perf_counter() - began_s
    client.close()
    return took_s


async def connect(
    address: Address,
    group: str,
    commands: list[bytes],
    reply_bytes: int,
    operation: ClientOperation = ClientOperation.PROPOSE,
) -> _Proposals:
    """A client that is ready to send requests, whose replies all have the same size."""
    loop = asyncio.get_running_loop()
    asks: list[list[Buffer]] = [[] for _ in commands]
    for number, pieces in enumerate(asks):
        encode_message(group, ClientRequest(number, operation, commands[number]), pieces)
    answer = _answer(group, reply_bytes)
    client = _Proposals([b"".join(pieces) for pieces in asks], answer, loop.create_future())
    await loop.create_connection(lambda: client, address.host, address.port)
    await client.welcomed
    return client


def _answer(group: str, reply_bytes: int) -> np.dtype[np.void]:
    """The answer to a command, as `raft/net/wire_format.py` writes it."""
    return np.dtype(
        [
            ("prefix", f"V{2 + len(group)}"),
            ("number", "<i8"),
            ("outcome", "<i8"),
            ("log_index", "<i8"),
            ("length", "<u4"),
            ("reply", f"V{reply_bytes}"),
        ]
    )


class _Proposals(asyncio.Protocol):
    """Sends requests that were made before; after the first ones, each when one is answered."""

    def __init__(
        self, asks: list[bytes], answer: np.dtype[np.void], done: asyncio.Future[None]
    ) -> None:
        self.follows = True
        """Does the next request follow each answer?"""
        self._asks = asks
        self._answer = answer
        self._sent = self._answered = 0
        self._received = b""
        self.welcomed = asyncio.get_running_loop().create_future()
        self.done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(encode_frame([("", Hello(WIRE_VERSION, "", "", "", "{}"))]))

    def connection_lost(self, exc: Exception | None) -> None:
        for waits in (self.welcomed, self.done):
            if not waits.done():
                waits.set_exception(exc or ConnectionError("the node hung up"))

    def close(self) -> None:
        self._transport.close()

    def send(self, count: int) -> None:
        """A number of further puts, in frames as the client of a node makes them."""
        asks = self._asks[self._sent : self._sent + count]
        self._sent += len(asks)
        for start in range(0, len(asks), FRAME_ASKS):
            self._transport.write(join_frame([*asks[start : start + FRAME_ASKS]]))

    def data_received(self, data: bytes) -> None:
        received, at, answered = self._received + data, 0, 0
        with memoryview(received) as view:
            while (size := frame_bytes(view[at:], 2**20)) and at + size <= len(received):
                answered += self._take(received[at : at + size])
                at += size
        self._received = received[at:]
        self._answered += answered
        if self.follows:
            self.send(answered)
        if self._answered == len(self._asks) and not self.done.done():
            self.done.set_result(None)

    def _take(self, frame: bytes) -> int:
        """The number of answers in a frame; all puts are answered alike."""
        if not self.welcomed.done():
            ((_, welcome),) = decode_frame(memoryview(frame), "", "")
            assert not welcome.refusal, welcome
            self.welcomed.set_result(None)
            return 0
        answers = np.frombuffer(frame, self._answer, offset=FRAME_HEADER_BYTES)
        assert not answers["outcome"].any(), decode_frame(memoryview(frame), "", "")
        return len(answers)
