"""A look at a blob that this store does not have, answered by another replica.

A look is a get, a head, or the question for everything but the content (`/info`).

1. The replicas are asked one after the other, each for itself, in the order in which they are set.
2. The first one that has the blob serves it: what it sends is passed on, piece by piece, with its
   headers. Ranges and conditions are judged there.
3. The first one that says deleted or expired ends it. One that does not know the blob, or does not
   answer, leaves it to the next.
4. If nobody knows the blob, it is not found.

Belongs into a thread. Called by the routes of looks.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from lithify.blobs.errors import BlobNotFound, ReplicaUnreachable
from lithify.blobs.replication_http import Stream
from lithify.http.blob_content import Content
from lithify.http.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.client import HTTPResponse

    from starlette.datastructures import Headers

    from lithify.blobs.answer import Include
    from lithify.blobs.replication_http import HttpPeer
    from lithify.blobs.store import BlobStore

__all__ = ["GET", "HEAD", "INFO", "Look", "open_elsewhere"]

PIECE_BYTES = 2**20

_ASKED = ("range", "if-range", "if-match", "if-none-match")
_TOLD_BUT = frozenset(("connection", "date", "keep-alive", "server", "transfer-encoding"))
_THERE = frozenset(
    (
        HTTPStatus.OK,
        HTTPStatus.PARTIAL_CONTENT,
        HTTPStatus.NOT_MODIFIED,
        HTTPStatus.PRECONDITION_FAILED,
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    )
)


@dataclass(frozen=True, slots=True)
class Look:
    """What is asked for."""

    method: str
    part: str = ""
    """Of the blob's path, after its id."""


GET = Look("GET")
HEAD = Look("HEAD")
INFO = Look("GET", "/info")


class Elsewhere:
    """A blob that another replica sends; what an answer needs of a blob."""

    def __init__(
        self, blob_id: str, stream: Stream, left_bytes: int, let_go: Callable[[], None]
    ) -> None:
        self.blob_id = blob_id
        self._stream = stream
        self._left_bytes = left_bytes
        self.close = let_go

    def __iter__(self) -> Iterator[bytes]:
        while self._left_bytes:
            piece = self._stream.read(min(PIECE_BYTES, self._left_bytes))
            if not piece:
                why = f"it ended {self._left_bytes} bytes before the content did"
                raise ReplicaUnreachable(self._stream.url, why)
            self._left_bytes -= len(piece)
            yield piece


def open_elsewhere(
    look: Look,
    store: BlobStore,
    blob_id: str,
    include: Include,
    headers: Headers,
    connect: Callable[[str], HttpPeer],
) -> Content:
    """Look at a blob that is not here at the first replica that knows it.

    `connect` raises `ReplicaUnreachable` for one that is not to be asked.
    """
    asked = {name: headers[name] for name in _ASKED if name in headers}
    for url in store.replication.peers:
        with ExitStack() as stack:
            try:
                peer = connect(url)
                answer = stack.enter_context(
                    peer.blob(look.method, blob_id, look.part, include, asked)
                )
                if answer.status == HTTPStatus.GONE:
                    raise Refused(HTTPStatus.GONE, _reason(answer))
                if answer.status not in _THERE:
                    continue
                stream = Stream(url, answer)
                first = stream.read(PIECE_BYTES)
            except ReplicaUnreachable:
                continue
            told = [
                (key.lower().encode("latin-1"), value.encode("latin-1"))
                for key, value in answer.getheaders()
                if key.lower() not in _TOLD_BUT
            ]
            left = int(answer.getheader("content-length", "0")) - len(first)
            status = HTTPStatus(answer.status)
            if left <= 0 or look is HEAD:
                return Content(status, told, None, first)
            blob = Elsewhere(blob_id, stream, left, stack.pop_all().close)
            return Content(status, told, blob, first, left)
    raise BlobNotFound(blob_id)


def _reason(answer: HTTPResponse) -> str:
    try:
        return str(json.loads(answer.read())["reason"])
    except (ValueError, KeyError, TypeError):
        return "it is deleted or expired"
