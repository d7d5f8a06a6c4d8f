"""Processes that the rows of `topics.py` talk to or wait for: `python -m bench.peers WHAT …`.

    echo                     a bare asyncio server: for each frame one reply of a receipt's size
    sendfile PATH            sends the file to whoever connects, with `sendfile`
    produce URL TOPIC COUNT  the real client sends messages of 1 KiB in batches; prints the seconds
    start DIRECTORY          starts a node and opens one of its topics; prints the seconds
    open DIRECTORY           opens every topic of a data directory; prints the seconds

The first two print their port and serve until they are killed. They are the raw sides: the least
that a server in Python has to do for the same bytes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time

import uvicorn  # noqa: F401  (a node imports it when it starts, which is not to count)

from lithify.fs import MemoryFileSystem
from lithify.http.app import create_app
from lithify.node import serving  # noqa: TC001  (for the same reason)
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.topics.subscription import SubscriptionType

MESSAGE = bytes(1024)
REPLY = bytes(33)
"""As large as the receipts of the first entries of a topic."""

BUFFER_BYTES = 2**20
"""What the node's grows to under such a peer."""


class Echo(asyncio.BufferedProtocol):
    """Hops from frame to frame and answers."""

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._stop = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Behind what is left of a frame."""
        return self._view[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        """Answer what is whole."""
        assert self._transport is not None
        stop = self._stop + nbytes
        buffer, start, count = self._buffer, 0, 0
        while start + 4 <= stop:
            end = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            if end > stop:
                break
            start, count = end, count + 1
        if count:
            self._transport.write(REPLY * count)
        self._view[: stop - start] = self._view[start:stop]
        self._stop = stop - start


async def echo() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def sendfile(path: str) -> None:
    size = os.path.getsize(path)
    with socket.create_server(("127.0.0.1", 0)) as listening, open(path, "rb") as file:
        print(listening.getsockname()[1], flush=True)
        while True:
            peer, _ = listening.accept()
            with peer:
                file.seek(0)
                assert peer.sendfile(file) == size


def produce(url: str, topic: str, count: int) -> None:
    import pulsar  # noqa: PLC0415  (nobody else here needs it)

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=10_000
    )
    problems = []

    def sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            problems.append(result)

    began_s = time.perf_counter()
    for _ in range(count):
        producer.send_async(MESSAGE, sent)
    producer.flush()
    print(time.perf_counter() - began_s)
    client.close()
    assert not problems, problems[0]


def start(directory: str) -> None:
    """From a process with its code loaded until a topic that nobody has used is open."""
    _load_code()
    began_s = time.perf_counter()
    node = Node(NodeSettings(directory, pulsar_port=0, http_port=0))

    def ready(_: serving.Addresses) -> None:
        node.topics.get(next(reversed(node.topics.definitions.current.topics)))
        _print_and_exit(time.perf_counter() - began_s)

    asyncio.run(node.serve(stop=asyncio.Event(), ready=ready, make_app=create_app))


def open_all(directory: str) -> None:
    _load_code()
    node = Node(NodeSettings(directory))
    began_s = time.perf_counter()
    for name in node.topics.unopened():
        node.topics.get(name)
    _print_and_exit(time.perf_counter() - began_s)


def _load_code() -> None:
    """Compiled kernels are loaded when they are first used: by a topic in memory."""
    memory = MemoryFileSystem()
    for _ in range(2):
        with Node(NodeSettings("/data"), fs=memory) as node:
            topic = node.topics.get("t", create=True)
            topic.subscription("s", SubscriptionType.EXCLUSIVE, durable=True, start=0)
            topic.append(value=MESSAGE)


def _print_and_exit(seconds: float) -> None:
    print(seconds, flush=True)
    # What closing costs is of no interest, and what is killed is read again just as well.
    os._exit(0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["echo"]:
            asyncio.run(echo())
        case ["sendfile", path]:
            sendfile(path)
        case ["produce", url, topic, count]:
            produce(url, topic, int(count))
        case ["start", directory]:
            start(directory)
        case ["open", directory]:
            open_all(directory)
        case other:
            sys.exit(f"unknown: {other}")
