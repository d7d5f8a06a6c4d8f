"""A client of the node at an address, over HTTP.

Requests have the token in LITHIFY_TOKEN, if it is set. Each request uses a new connection. A node
that does not own a topic or store redirects to the owner; the client follows, to an address with
the same scheme, so that a token that was encrypted stays so. An error before a request was sent, or
of a request that changes nothing, is `NodeNotReached`; after a change was sent it is `AnswerLost`.

A body that is read as it is sent, such as stdin, cannot be sent twice. The node is asked first
whether it wants it (`Expect: 100-continue`): it says so when it begins to read, and answers
otherwise. A node that says nothing within `CONTINUE_S` gets the body; if it redirects after that,
the error names the owner's address.
"""

from __future__ import annotations

import itertools
import os
import select
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http import HTTPStatus
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    InvalidURL,
)
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from lithify.cli.client.errors import AnswerLost, NodeNotReached, Redirected
from lithify.cli.client.interface import Answer, Client
from lithify.errors import InvalidInput, LithifyError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["NodeClient"]

DEFAULT_URL = "http://127.0.0.1:8080"
PIECE_BYTES = 2**20
REDIRECTS_MAX = 3
CONTINUE_S = 5.0
"""How long a node may take to say that it wants a body."""


class NodeClient(Client):
    """A client over HTTP; without a `url` the environment or the default has the address."""

    def __init__(self, url: str | None) -> None:
        self.name = (url or os.environ.get("LITHIFY_URL") or DEFAULT_URL).rstrip("/")
        if not self.name.startswith(("http://", "https://")):
            raise InvalidInput(f"address {self.name!r} must begin with http:// or https://")
        self._parts = urlsplit(self.name)

    def start_spark(self, status_path: str) -> None:
        """See `Client`."""

    @contextmanager
    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None,
        timeout_s: float | None,
    ) -> Iterator[Answer]:
        """See `Client`."""
        netloc, full_path = self._parts.netloc, f"{self._parts.path}{path}"
        with ExitStack() as stack:
            for _ in range(REDIRECTS_MAX + 1):
                connection = stack.enter_context(closing(self._connect(netloc, timeout_s)))
                response = _Response(connection.sock, method=method)
                stack.callback(response.close)
                try:
                    is_used = _send(connection, response, method, full_path, headers, body)
                    response.begin()
                except (HTTPException, ConnectionError, TimeoutError) as error:
                    # Not all of OSError: the pieces of a body may be read from a failing disk.
                    raise _no_answer(self._name_of(netloc), method, error) from error
                location = response.getheader("Location", "")
                if response.status != HTTPStatus.TEMPORARY_REDIRECT or not location:
                    name = self._name_of(netloc)
                    yield _NodeAnswer(response, partial(_no_answer, name, method))
                    return
                owner = urlsplit(location)
                if owner.scheme != self._parts.scheme or is_used:
                    break
                netloc, full_path = owner.netloc, urlunsplit(("", "", *owner[2:]))
            raise Redirected(self.name, location)

    def _connect(self, netloc: str, timeout_s: float | None) -> HTTPConnection:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        try:
            connection = kind(netloc, timeout=timeout_s)
        except InvalidURL as error:
            raise InvalidInput(f"address {self.name!r}: {error}") from error
        try:
            connection.connect()
        except OSError as error:
            raise NodeNotReached(self._name_of(netloc), str(error)) from error
        return connection

    def _name_of(self, netloc: str) -> str:
        """The node of a request, which may be the owner that the named node redirects to."""
        return self.name if netloc == self._parts.netloc else f"{self._parts.scheme}://{netloc}"


class _NodeAnswer(Answer):
    def __init__(
        self, response: HTTPResponse, no_answer: Callable[[Exception], LithifyError]
    ) -> None:
        self._response = response
        self._no_answer = no_answer
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def pieces(self) -> Iterator[bytes]:
        """See `Answer`. Without `readline`, which treats a broken connection as the end."""
        try:
            while piece := self._response.read1(PIECE_BYTES):
                yield piece
        except (OSError, HTTPException, ValueError) as error:
            raise self._no_answer(_Ended(error)) from error
        if self._response.length:
            # The library does not report an early end.
            raise self._no_answer(_Ended(f"{self._response.length} bytes are missing"))


class _Ended(Exception):
    """The error of an incomplete response."""

    def __init__(self, why: object) -> None:
        super().__init__(f"it ended: {why}")


def _no_answer(node: str, method: str, error: Exception) -> LithifyError:
    """The error of a request that was sent."""
    why = str(error) or type(error).__name__
    return (NodeNotReached if method == "GET" else AnswerLost)(node, why)


def _send(
    connection: HTTPConnection,
    response: _Response,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | Iterable[bytes] | None,
) -> bool:
    """Send a request; were pieces of a body used?"""
    connection.putrequest(method, path)
    token = os.environ.get("LITHIFY_TOKEN")
    given = {**headers, **({"authorization": f"Bearer {token}"} if token else {})}
    if body is None or isinstance(body, bytes):
        given["content-length"] = str(len(body or b""))
    else:
        given |= {"transfer-encoding": "chunked", "expect": "100-continue"}
    for name, value in given.items():
        # The library encodes headers as Latin-1; the node decodes their bytes as UTF-8.
        connection.putheader(name, value.encode())
    connection.endheaders(body if isinstance(body, bytes) else None)
    if isinstance(body, bytes | None) or not response.wants_body(connection.sock):
        return False
    _send_pieces(connection, body)
    return True


class _Response(HTTPResponse):
    """A response that may begin with 100 Continue, before the body of the request is sent."""

    _first: tuple[str, int, str] | None = None

    def wants_body(self, sock: socket.socket) -> bool:
        """Wait for the first status. If it is not 100, it is that of the response."""
        ready, _, _ = select.select([sock], [], [], CONTINUE_S)
        if not ready:
            return True
        first = self._read_status()
        if first[1] != HTTPStatus.CONTINUE:
            self._first = first
            return False
        # Its headers, of which there are none, end with an empty line.
        while self.fp.readline().strip():
            pass
        return True

    def _read_status(self) -> tuple[str, int, str]:
        first, self._first = self._first, None
        return first or super()._read_status()  # type: ignore[misc]


def _send_pieces(connection: HTTPConnection, pieces: Iterable[bytes]) -> None:
    for piece in itertools.chain(pieces, (b"",)):
        try:
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        except ConnectionError:
            # A node that refuses a request does not read the rest of it. Its response has arrived.
            return
