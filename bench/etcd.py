"""Three members of etcd on this machine, and a minimal client.

The client speaks gRPC over one HTTP/2 connection to the leader, written by hand for the one call
that is measured: headers never change and use no table, so a request is three constant pieces and
the key. A client in a library would cost more than the server does, on a machine with two cores.

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
from typing import TYPE_CHECKING

from bench.raft_client import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["etcd_members", "find_etcd", "put_many"]

STARTED_S = 30.0

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW_BYTES = 65_535
"""What may be sent before the other end has said anything."""


def find_etcd() -> str | None:
    """The program, if it is installed."""
    return shutil.which("etcd", path=f"{os.environ.get('PATH', '')}:{os.environ.get('ETCD', '')}")


@contextmanager
def etcd_members(program: str, directory: str, count: int = 3) -> Iterator[int]:
    """The port of the leader, until the block ends."""
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
        yield _leader([client for client, _ in ports])


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
    return asyncio.run(_put_many(port, keys, count, in_flight, value))


async def _put_many(port: int, keys: int, count: int, in_flight: int, value: bytes) -> float:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    client = _Puts(keys, count, value, done)
    await loop.create_connection(lambda: client, "127.0.0.1", port)
    began_s = time.perf_counter()
    client.begin(in_flight)
    await done
    client.close()
    return time.perf_counter() - began_s


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


class _Puts(asyncio.Protocol):
    """Sends puts, each as soon as one before it is answered."""

    def __init__(self, keys: int, count: int, value: bytes, done: asyncio.Future[None]) -> None:
        self._keys = keys
        self._count = count
        self._value = value
        self._done = done
        self._sent = self._answered = self._due = self._with_data = 0
        self._window = _WINDOW_BYTES
        self._received = b""
        path = b"/etcdserverpb.KV/Put"
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
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("etcd hung up"))

    def begin(self, in_flight: int) -> None:
        self._due = in_flight
        self._send()

    def close(self) -> None:
        self._transport.close()

    def _send(self) -> None:
        """As many as are due, and as the other end takes."""
        frames = []
        while self._due and self._sent < self._count:
            key = b"k%07d" % (self._sent % self._keys)
            size = len(self._value)
            put = b"\x0a%c%b\x12%c%c%b" % (len(key), key, size & 127 | 128, size >> 7, self._value)
            data = struct.pack(">BI", 0, len(put)) + put
            if self._window < len(data):
                break
            self._window -= len(data)
            stream = 2 * self._sent + 1
            frames.append(_frame(_HEADERS, _END_HEADERS, stream, self._headers))
            frames.append(_frame(_DATA, _END_STREAM, stream, data))
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
        if self._answered == self._count and not self._done.done():
            assert self._with_data == self._count, "some puts failed"
            self._done.set_result(None)

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _DATA:
            self._with_data += 1
        elif kind == _HEADERS and flags & _END_STREAM:
            self._answered += 1
            self._due += 1
        elif kind == _WINDOW and stream == 0:
            self._window += int.from_bytes(body)
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._transport.write(_frame(kind, _ACK, 0, body if kind == _PING else b""))
        elif kind == _GOAWAY:
            raise ConnectionError(f"etcd ends the connection: {body!r}")
