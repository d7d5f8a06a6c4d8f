"""Proxies the read of a blob that this store does not have to another replica.

A read is a get, a head, or the request for everything but the content (`/info`).

1. Ask the replicas in the order of the list.
2. The first replica that has the blob serves it: its response is forwarded, piece by piece, with
   its headers. The replica evaluates ranges and conditions.
3. A replica that reports the blob as deleted or expired ends the search. A replica without the
   blob, or that does not respond, is skipped.
4. If no replica has the blob, it is not found.

Called by the read routes, in a thread.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from lithify.blobs.errors import BlobNotFound, ReplicaUnreachable
from lithify.blobs.replication.http_peer import Stream
from lithify.http.blobs.content import Content
from lithify.http.error_responses import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.client import HTTPResponse

    from starlette.datastructures import Headers

    from lithify.blobs.replication.http_peer import HttpPeer
    from lithify.blobs.store import BlobStore
    from lithify.blobs.visibility import Include

__all__ = ["GET", "HEAD", "INFO", "BlobRequest", "open_at_replica"]

PIECE_BYTES = 2**20

_REQUEST_HEADERS = ("range", "if-range", "if-match", "if-none-match")
_NOT_PASSED_ON = frozenset(("connection", "date", "keep-alive", "server", "transfer-encoding"))
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
class BlobRequest:
    """The kind of read."""

    method: str
    part: str = ""
    """The path after the blob's id."""


GET = BlobRequest("GET")
HEAD = BlobRequest("HEAD")
INFO = BlobRequest("GET", "/info")


class ReplicaBlob:
    """A blob that another replica sends, with the interface of `Pieces`."""

    def __init__(
        self, blob_id: str, stream: Stream, left_bytes: int, release: Callable[[], None]
    ) -> None:
        self.blob_id = blob_id
        self._stream = stream
        self._left_bytes = left_bytes
        self.close = release

    def __iter__(self) -> Iterator[bytes]:
        while self._left_bytes:
            piece = self._stream.read(min(PIECE_BYTES, self._left_bytes))
            if not piece:
                why = (
                    f"it closed the connection {self._left_bytes} bytes before "
                    "the end of the content"
                )
                raise ReplicaUnreachable(self._stream.url, why)
            self._left_bytes -= len(piece)
            yield piece


def open_at_replica(
    request: BlobRequest,
    store: BlobStore,
    blob_id: str,
    include: Include,
    headers: Headers,
    connect: Callable[[str], HttpPeer],
) -> Content:
    """Open a blob at the first replica that has it.

    `connect` raises `ReplicaUnreachable` for one that must not be asked.
    """
    asked = {name: headers[name] for name in _REQUEST_HEADERS if name in headers}
    for url in store.replication.peers:
        with ExitStack() as stack:
            try:
                peer = connect(url)
                answer = stack.enter_context(
                    peer.blob(request.method, blob_id, request.part, include, asked)
                )
                if answer.status == HTTPStatus.GONE:
                    raise RequestRefused(HTTPStatus.GONE, _reason(answer))
                if answer.status not in _THERE:
                    continue
                stream = Stream(url, answer)
                first = stream.read(PIECE_BYTES)
            except ReplicaUnreachable:
                continue
            passed_on = [
                (key.lower().encode("latin-1"), value.encode("latin-1"))
                for key, value in answer.getheaders()
                if key.lower() not in _NOT_PASSED_ON
            ]
            left = int(answer.getheader("content-length", "0")) - len(first)
            status = HTTPStatus(answer.status)
            if left <= 0 or request is HEAD:
                return Content(status, passed_on, None, first)
            blob = ReplicaBlob(blob_id, stream, left, stack.pop_all().close)
            return Content(status, passed_on, blob, first, left)
    raise BlobNotFound(blob_id)


def _reason(answer: HTTPResponse) -> str:
    try:
        return str(json.loads(answer.read())["reason"])
    except (ValueError, KeyError, TypeError):
        return "it is deleted or expired"
