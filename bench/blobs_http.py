"""Blobs over HTTP against nginx that serves the same bytes as a file.

One client in this process, with several connections that are kept alive, each of which asks for the
same object again as soon as it has it. It reads the length of what comes and throws it away, so
that it costs both sides the same. The object has 1 MiB and is in the page cache; nginx has one
worker and uses sendfile, as one process of ours is compared.

Without nginx on the machine there is no row: it is not a dependency of anything else.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness import Case
from bench.served import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CASES", "FULL", "QUICK", "Sizes", "find_nginx"]

OBJECT_BYTES = 2**20
CONNECTIONS = 4
STARTED_S = 10.0

_NGINX = """
daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log;
user {user};
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;
  client_body_temp_path {directory}/t1; proxy_temp_path {directory}/t2;
  fastcgi_temp_path {directory}/t3; uwsgi_temp_path {directory}/t4; scgi_temp_path {directory}/t5;
  server {{ listen 127.0.0.1:{port}; root {directory}/www; }}
}}
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one round does."""

    rounds: int
    gets: int


FULL = Sizes(rounds=7, gets=1000)
QUICK = Sizes(rounds=1, gets=8)


def http_get(directory: str, sizes: Sizes) -> Iterator[Case]:
    program = find_nginx()
    if program is None:
        print("blob-http-get: nginx not installed", file=sys.stderr)
        return
    content = os.urandom(OBJECT_BYTES)
    node = serving(f"{directory}/data", "always")
    with node as served, _nginx(program, f"{directory}/nginx", content) as port:
        shape = b'{"capacity_bytes":1073741824,"segment_bytes":67108864}'
        _send("PUT", f"{served.http}/blobs/photos", shape)
        place = _send("POST", f"{served.http}/blobs/photos", content)
        ours = int(served.http.rpartition(":")[2])
        yield Case(
            "blob-http-get",
            f"get of 1 MiB objects over HTTP, {CONNECTIONS} connections",
            "nginx that serves the same file",
            0.3,
            sizes.gets,
            "MiB",
            lambda: _get(ours, place, sizes.gets),
            lambda: _get(port, "/object", sizes.gets),
        )


def find_nginx() -> str | None:
    """The program, if it is installed."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _send(method: str, url: str, body: bytes) -> str:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return str(answer.headers.get("Location", ""))


@contextmanager
def _nginx(program: str, directory: str, content: bytes) -> Iterator[int]:
    """The port of a server until the block ends."""
    directory = os.path.abspath(directory)
    os.makedirs(f"{directory}/www")
    with open(f"{directory}/www/object", "wb") as file:
        file.write(content)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    user = "root" if os.getuid() == 0 else "nobody"
    with open(f"{directory}/conf", "w", encoding="ascii") as conf:
        conf.write(_NGINX.format(directory=directory, port=port, user=user))
    command = [program, "-p", directory, "-c", f"{directory}/conf"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield port
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    end_s = time.monotonic() + STARTED_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.01)
        else:
            return


def _get(port: int, path: str, gets: int) -> float:
    """The seconds of this many gets."""
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    buffer = memoryview(bytearray(OBJECT_BYTES))
    left: dict[socket.socket, int | None] = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(min(CONNECTIONS, gets)):
            connection = socket.create_connection(("127.0.0.1", port))
            selector.register(connection, selectors.EVENT_READ)
            left[connection] = None
        began_s, asked, done = time.perf_counter(), len(left), 0
        for connection in left:
            connection.sendall(request)
        while done < gets:
            for key, _ in selector.select():
                connection = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                size = connection.recv_into(buffer)
                assert size, "the connection was closed"
                rest = left[connection]
                rest = _rest(bytes(buffer[:size])) if rest is None else rest - size
                left[connection] = rest
                if rest == 0:
                    done += 1
                    if asked < gets:
                        asked += 1
                        left[connection] = None
                        connection.sendall(request)
        took_s = time.perf_counter() - began_s
    for connection in left:
        connection.close()
    return took_s


def _rest(begun: bytes) -> int:
    """How much is still to come after the first bytes of an answer, which have all its headers."""
    head, _, body = begun.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(length.partition(b":")[2]) - len(body)


CASES: dict[str, Callable[[str, Sizes], Iterator[Case]]] = {"blob-http-get": http_get}
