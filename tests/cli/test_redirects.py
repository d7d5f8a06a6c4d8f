"""The command line follows the redirects of nodes, also with a body that it can read only once."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from lithify.cli.client import http_client
from lithify.cli.client.errors import Redirected
from lithify.cli.client.http_client import NodeClient
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    Script = Callable[[BinaryIO, Callable[[bytes], object]], object]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
DONE = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}"
PIECES = (b"first", b"second")
CHUNKED = b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"


class OneRequest:
    """A node that answers one request as a script says."""

    def __init__(self, script: Script) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._script = script
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listening:
            connection, _ = self._listening.accept()
        connection.settimeout(PROCESS_S_MAX)
        with connection, connection.makefile("rb") as stream:
            while stream.readline().strip():
                pass
            self._script(stream, connection.sendall)

    def close(self) -> None:
        self._thread.join()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def node(stack: ExitStack, script: Script) -> OneRequest:
    found = OneRequest(script)
    stack.callback(found.close)
    return found


def redirecting(owner: str) -> bytes:
    return b"HTTP/1.1 307 Moved\r\nlocation: %b/b\r\ncontent-length: 0\r\n\r\n" % owner.encode()


def test_a_stream_goes_to_the_owner_whole(stack: ExitStack) -> None:
    received: list[bytes] = []

    def take(stream: BinaryIO, send: Callable[[bytes], object]) -> None:
        send(CONTINUE)
        received.append(stream.read(len(CHUNKED)))
        send(DONE)

    owner = node(stack, take)
    asked = node(stack, lambda _, send: send(redirecting(owner.url)))
    assert NodeClient(asked.url).call("POST", "/b", pieces=iter(PIECES)) == {}
    assert received == [CHUNKED]


def test_a_node_that_says_nothing_gets_the_stream(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "CONTINUE_S", 0.01)
    received: list[bytes] = []

    def take(stream: BinaryIO, send: Callable[[bytes], object]) -> None:
        received.append(stream.read(len(CHUNKED)))
        send(CONTINUE + DONE)

    silent = node(stack, take)
    assert NodeClient(silent.url).call("POST", "/b", pieces=iter(PIECES)) == {}
    assert received == [CHUNKED]


def test_a_redirect_after_the_stream_was_read_names_the_owner(stack: ExitStack) -> None:
    def take(stream: BinaryIO, send: Callable[[bytes], object]) -> None:
        send(CONTINUE)
        stream.read(len(CHUNKED))
        send(redirecting("http://owner:1"))

    asked = node(stack, take)
    with pytest.raises(Redirected, match="http://owner:1/b"):
        NodeClient(asked.url).call("POST", "/b", pieces=iter(PIECES))
