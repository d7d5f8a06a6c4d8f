"""Raft nodes in processes of their own, and a client of theirs that costs next to nothing.

The client has one connection to the leader and sends each put as soon as one before it is answered.
It uses the wire's own frames, without the futures and retries of `RaftClient`: one process feeds
nodes that have two cores between them, and should not be what is measured.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from lithify.raft.channel import Channel
from lithify.raft.client import RaftClient
from lithify.raft.kv_format import put
from lithify.raft.operations import Address, Operation, Outcome
from lithify.raft.transport import check_welcome, connect
from lithify.raft.wire import WIRE_VERSION, Ask, Hello

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["free_port", "put_many", "raft_members"]

GROUP = "default"


def free_port() -> int:
    """A port that nobody listens at now."""
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
        await client.ask(GROUP, Operation.PROPOSE, put(b"first", b""))
        found = await client.ask_json(GROUP, Operation.MEMBERS)
    return str(found["leader"])


def put_many(address: Address, keys: int, count: int, in_flight: int, value: bytes) -> float:
    """The seconds that so many puts take."""
    return asyncio.run(_put_many(address, keys, count, in_flight, value))


async def _put_many(address: Address, keys: int, count: int, in_flight: int, value: bytes) -> float:
    client = _Puts(keys, count, value)
    await connect(address, Hello(WIRE_VERSION, "", "", "", "{}"), client.channel, None)
    await client.welcomed.wait()
    began_s = time.perf_counter()
    client.send(in_flight)
    await client.done
    took_s = time.perf_counter() - began_s
    client.channel.close()
    return took_s


class _Puts:
    """Sends puts, each as soon as one before it is answered."""

    def __init__(self, keys: int, count: int, value: bytes) -> None:
        self._keys = keys
        self._count = count
        self._value = value
        self._sent = self._answered = 0
        self.channel = Channel(self._receive, self._lost)
        self.welcomed = asyncio.Event()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, count: int) -> None:
        """So many more."""
        for number in range(self._sent, min(self._sent + count, self._count)):
            command = put(b"k%07d" % (number % self._keys), self._value)
            self.channel.send(GROUP, Ask(number, Operation.PROPOSE, command))
            self._sent += 1

    def _receive(self, channel: Channel, messages: list[tuple[str, Any]]) -> None:
        if not channel.greeted:
            check_welcome(channel, messages, "")
            channel.greet("", "")
            self.welcomed.set()
            return
        for _, answer in messages:
            assert answer.outcome == Outcome.DONE, answer
        self._answered += len(messages)
        self.send(len(messages))
        if self._answered == self._count:
            self.done.set_result(None)

    def _lost(self, channel: Channel) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(channel.reason))
