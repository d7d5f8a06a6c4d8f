"""Processes that the rows of `topics.py` talk to or wait for: `python -m bench.peers WHAT …`.

    echo                     a bare asyncio server: for each frame one reply of a receipt's size
    sendfile PATH            sends the file to each client, with `sendfile`
    produce URL TOPIC COUNT  the real client sends messages of 1 KiB in batches; prints the seconds

The first two print their port and serve until they are killed. They are the raw sides: the least
that a server in Python has to do for the same bytes. Nothing of Lithify is imported here, so that
they start quickly.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time

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
        """A client has connected."""
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
    import pulsar  # noqa: PLC0415  (only this function needs it)

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


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["echo"]:
            asyncio.run(echo())
        case ["sendfile", path]:
            sendfile(path)
        case ["produce", url, topic, count]:
            produce(url, topic, int(count))
        case other:
            sys.exit(f"unknown: {other}")
