"""Three members of etcd on this machine, and a minimal client.

The client speaks gRPC over one HTTP/2 connection to the leader, written by hand for the calls that
are measured: headers never change and use no table, so a request is a few constant pieces and the
key. A client in a library would cost more than the server does, on a machine with two cores.

etcd runs as it comes: fsync is on. Its directory and ports are its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
import subprocess
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from bench.raft_client import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "EtcdPorts",
    "etcd_members",
    "find_etcd",
    "get_many",
    "put_many",
    "transact_many",
    "watch_rounds",
]

STARTED_S = 30.0

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
PUT = b"/etcdserverpb.KV/Put"
RANGE = b"/etcdserverpb.KV/Range"
TRANSACT = b"/etcdserverpb.KV/Txn"
WATCH = b"/etcdserverpb.Watch/Watch"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW_BYTES = 65_535
"""What may be sent before the other end has said anything."""


class EtcdPorts(NamedTuple):
    """Where two of the members listen."""

    leader: int
    other: int


def find_etcd() -> str | None:
    """The program, if it is installed."""
    return shutil.which("etcd", path=f"{os.environ.get('PATH', '')}:{os.environ.get('ETCD', '')}")


@contextmanager
def etcd_members(program: str, directory: str, count: int = 3) -> Iterator[EtcdPorts]:
    """The ports of the leader and of another member, until the block ends."""
    ports = [(free_port(), free_port()) for _ in range(count)]
    cluster = ",".join(f"e{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(ports))
    with ExitStack() as stack:
        for number, (client, peer) in enumerate(ports):
            command = [
                program,
                f"--name=e{number}",
                f"--data-dir={directory}/e{number}",
                f"--listen-client-urls=http://127.0.0.1:{client}",
                f"--advertise-client-urls=http://127.0.0.1:{client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster={cluster}",
                "--initial-cluster-state=new",
                "--quota-backend-bytes=8589934592",
                "--logger=zap",
                "--log-outputs=/dev/null",
            ]
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        clients = [client for client, _ in ports]
        leader = _leader(clients)
        yield EtcdPorts(leader, next(each for each in clients if each != leader))


def _leader(ports: list[int]) -> int:
    end_s = time.monotonic() + STARTED_S
    while time.monotonic() < end_s:
        for port in ports:
            url = f"http://127.0.0.1:{port}/v3/maintenance/status"
            try:
                request = urllib.request.Request(url, b"{}", method="POST")
                with urllib.request.urlopen(request, timeout=1) as answer:
                    status = json.load(answer)
            except OSError:
                continue
            if status.get("leader") == status["header"]["member_id"]:
                return port
        time.sleep(0.1)
    raise TimeoutError("etcd has no leader")


def put_many(port: int, keys: int, count: int, in_flight: int, value: bytes) -> float:
    """The seconds that this many puts take."""
    puts = [_put(b"k%07d" % (number % keys), value) for number in range(count)]
    return asyncio.run(_call_many(port, PUT, puts, in_flight))


def get_many(port: int, keys: int, count: int, in_flight: int) -> float:
    """The seconds that this many linearizable gets take."""
    gets = [_field(1, b"k%07d" % (number % keys)) for number in range(count)]
    return asyncio.run(_call_many(port, RANGE, gets, in_flight))


def transact_many(port: int, keys: int, count: int, in_flight: int, value: bytes) -> float:
    """The seconds that this many transactions take, each a comparison that holds and a put."""
    wanted = [_transaction(b"k%07d" % (number % keys), value) for number in range(count)]
    return asyncio.run(_call_many(port, TRANSACT, wanted, in_flight))


async def _call_many(port: int, path: bytes, requests: list[bytes], in_flight: int) -> float:
    client = await _connect(port, path, requests)
    began_s = time.perf_counter()
    client.begin(in_flight)
    await client.done
    client.close()
    return time.perf_counter() - began_s


async def _connect(port: int, path: bytes, requests: list[bytes]) -> _Calls:
    loop = asyncio.get_running_loop()
    client = _Calls(path, requests, loop.create_future())
    await loop.create_connection(lambda: client, "127.0.0.1", port)
    return client


def watch_rounds(ports: EtcdPorts, keys: int, count: int, value: bytes) -> float:
    """The seconds that this many rounds take: a put at the leader, its event at another member."""
    return asyncio.run(_watch_rounds(ports, keys, count, value))


async def _watch_rounds(ports: EtcdPorts, keys: int, count: int, value: bytes) -> float:
    create = _field(1, _field(1, b"k") + _field(2, b"l"))
    watch = await _connect(ports.other, WATCH, [create])
    watch.stays_open = True
    watch.begin(1)
    # The first message says that the watch is there.
    await watch.next_message()
    puts = [_put(b"k%07d" % (number % keys), value) for number in range(count)]
    client = await _connect(ports.leader, PUT, puts)
    client.follows = False
    began_s = time.perf_counter()
    for _ in range(count):
        client.begin(1)
        await watch.next_message()
    took_s = time.perf_counter() - began_s
    for each in (client, watch):
        each.done.cancel()
        each.close()
    return took_s


def _field(number: int, value: bytes) -> bytes:
    """A field of a message that has bytes or another message."""
    size = len(value)
    length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    return bytes((number << 3 | 2,)) + length + value


def _put(key: bytes, value: bytes) -> bytes:
    return _field(1, key) + _field(2, value)


def _transaction(key: bytes, value: bytes) -> bytes:
    # The revision of the last change (2) is below (2) 2^56.
    compare = b"\x08\x02\x10\x02" + _field(3, key) + b"\x30" + b"\x80" * 8 + b"\x01"
    return _field(1, compare) + _field(2, _field(2, _put(key, value)))


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


class _Calls(asyncio.Protocol):
    """Sends requests of one kind; after the first ones, each when one is answered."""

    def __init__(self, path: bytes, requests: list[bytes], done: asyncio.Future[None]) -> None:
        self.follows = True
        """Does the next request follow each answer?"""
        self.stays_open = False
        """Is the request followed by others in the same stream, and answered many times?"""
        self.done = done
        self._requests = requests
        self._count = len(requests)
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._sent = self._answered = self._due = self._with_data = 0
        self._window = _WINDOW_BYTES
        self._received = b""
        # Indexed :method POST and :scheme http; the rest literal, without a table.
        self._headers = (
            b"\x83\x86\x04" + bytes((len(path),)) + path + b"\x01\x091.1.1.1:1"
            b"\x0f\x10\x10application/grpc\x00\x02te\x08trailers"
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # A window for answers that never closes: 4 is the setting of that of a stream.
        settings = struct.pack(">HI", 4, 2**31 - 1)
        more = struct.pack(">I", 2**30)
        frames = (_frame(_SETTINGS, 0, 0, settings), _frame(_WINDOW, 0, 0, more))
        transport.write(b"".join((_PREFACE, *frames)))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("etcd hung up"))

    def begin(self, in_flight: int) -> None:
        self._due += in_flight
        self._send()

    async def next_message(self) -> bytes:
        """The next answer of a stream that stays open."""
        return await self._messages.get()

    def close(self) -> None:
        self._transport.close()

    def _send(self) -> None:
        """As many as are due, and as the other end takes."""
        frames = []
        while self._due and self._sent < self._count:
            request = self._requests[self._sent]
            data = struct.pack(">BI", 0, len(request)) + request
            if self._window < len(data):
                break
            self._window -= len(data)
            stream = 2 * self._sent + 1
            frames.append(_frame(_HEADERS, _END_HEADERS, stream, self._headers))
            ends = 0 if self.stays_open else _END_STREAM
            frames.append(_frame(_DATA, ends, stream, data))
            self._sent += 1
            self._due -= 1
        if frames:
            self._transport.write(b"".join(frames))

    def data_received(self, data: bytes) -> None:
        received, at = self._received + data, 0
        while len(received) - at >= 9:
            length = int.from_bytes(received[at : at + 3])
            if len(received) - at < 9 + length:
                break
            kind, flags, stream = struct.unpack_from(">BBI", received, at + 3)
            self._take(kind, flags, stream, received[at + 9 : at + 9 + length])
            at += 9 + length
        self._received = received[at:]
        self._send()
        if self._answered == self._count and not self.done.done():
            assert self._with_data == self._count, "some requests failed"
            self.done.set_result(None)

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _DATA:
            self._with_data += 1
            if self.stays_open:
                self._messages.put_nowait(body)
        elif kind == _HEADERS and flags & _END_STREAM:
            self._answered += 1
            self._due += self.follows
        elif kind == _WINDOW and stream == 0:
            self._window += int.from_bytes(body)
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._transport.write(_frame(kind, _ACK, 0, body if kind == _PING else b""))
        elif kind == _GOAWAY:
            raise ConnectionError(f"etcd ends the connection: {body!r}")
