"""A serving node, and a scripted client.

For the rows that measure a node through its socket: `topics.py`, `reading.py`, `compaction.py`. The
node has a process of its own, or a thread of this one where a row has to reach its parts.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.http.app import create_app
from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, next_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.node.server import Addresses

__all__ = [
    "FRAME_BYTES_MAX",
    "RECEIVE_BYTES",
    "Served",
    "ask",
    "client",
    "connected",
    "serving",
    "serving_here",
    "take_command",
]

RECEIVE_BYTES = 2**20
FRAME_BYTES_MAX = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Served:
    """A node that serves."""

    process: subprocess.Popen[str]
    pulsar: str
    http: str

    @property
    def port(self) -> int:
        """Of the wire protocol."""
        return int(self.pulsar.rpartition(":")[2])

    def delete(self, topic: str) -> None:
        """Delete a topic, even if it is in use."""
        path = f"{self.http}/admin/v2/persistent/public/default/{topic}?force=true"
        with urllib.request.urlopen(urllib.request.Request(path, method="DELETE")):
            pass

    def memory_mb(self) -> float:
        """What its process has in memory now."""
        with open(f"/proc/{self.process.pid}/status") as status:
            (line,) = (line for line in status if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024 / 1e6


@contextmanager
def serving(directory: str, durability: str) -> Iterator[Served]:
    """A node until the block ends; ledgers of topics are not rolled for their size."""
    environment = {
        **os.environ,
        "LITHIFY_DURABILITY": durability,
        "LITHIFY_SEGMENT_BYTES_MAX": str(2**32 - 1),
        "LITHIFY_LOG_LEVEL": "warning",
    }
    options = ("--data", directory, "--pulsar-port", "0", "--http-port", "0")
    command = [sys.executable, "-m", "lithify", "serve", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            addresses = dict(process.stdout.readline().split() for _ in range(2))
            yield Served(process, addresses["pulsar"], addresses["http"])
        finally:
            process.terminate()


@contextmanager
def serving_here(directory: str) -> Iterator[tuple[Node, str]]:
    """(a node that serves from a thread until the block ends, where it answers HTTP)."""
    found: queue.Queue[Addresses] = queue.Queue()
    with Node(NodeSettings(directory, pulsar_port=0, http_port=0)) as node:
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        serve = node.serve(stop=stop, ready=found.put, make_app=create_app)
        thread = threading.Thread(target=loop.run_until_complete, args=(serve,))
        thread.start()
        try:
            http = found.get(timeout=60).http
            assert http is not None
            yield node, http
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection to any server."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield connection


@contextmanager
def client(port: int) -> Iterator[socket.socket]:
    """A connection to a node, past CONNECT."""
    with connected(port) as connection:
        command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
        command.connect.client_version = "bench"
        command.connect.protocol_version = 20
        ask(connection, command, wire.BaseCommand.CONNECTED)
        yield connection


def ask(connection: socket.socket, command: wire.BaseCommand, expected: int) -> None:
    """Send a command and take the answer, which must be of this type."""
    connection.sendall(encode_command(command))
    answer = take_command(connection)
    assert answer.type == expected, answer


def take_command(connection: socket.socket) -> wire.BaseCommand:
    """The next command, as soon as its frame is whole; what was received behind it is dropped."""
    received = b""
    while (found := next_frame(memoryview(received), FRAME_BYTES_MAX)) is None:
        more = connection.recv(RECEIVE_BYTES)
        assert more, "the node hung up"
        received += more
    answer = wire.BaseCommand.FromString(bytes(found[0].command))
    assert isinstance(answer, wire.BaseCommand)
    return answer
