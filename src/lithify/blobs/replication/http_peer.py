"""HTTP client for another replica.

    peer = HttpPeer("http://node-2:8080/blobs/photos", token="…")

| what     | request to the URL of the store                                                   |
|----------|-----------------------------------------------------------------------------------|
| changes  | POST …/replication/changes {"replica": …, "token": …, "limit": …, "settled": …}   |
| records  | POST …/replication/records {"ids": […]}, answered by a stream                     |
| unknown  | POST …/replication/unknown {"ids": […]}                                           |
| a blob   | GET or HEAD …/ID?replicas=false, GET …/ID/info?…: the replica asks no other one   |

Created by `peers.py` only, for the peers that the operator names. Redirects are not followed: the
token is for one address. Each request has its own connection; none stays open. A read waits at most
`TIMEOUT_S` for the next bytes. The error of a refused request contains the body of the answer.

Called by the replicator's thread, and by gets of blobs that the store does not have.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from lithify.blobs.errors import ReplicaAnswerInvalid, ReplicaUnreachable
from lithify.blobs.replication.tokens_and_pages import BlobChanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lithify.blobs.replication.tokens_and_pages import Token

__all__ = ["NAMESPACE", "HttpPeer", "Stream"]

TIMEOUT_S = 10.0
NAMESPACE = "x-lithify-namespace"
"""The header with the namespace of the requesting store."""
ANSWER_BYTES_MAX = 64 * 2**20
"""Of JSON; a page of changes may exceed its limit by one bucket."""
REASON_BYTES_MAX = 1000


class Stream:
    """The body of an answer as a stream."""

    def __init__(self, url: str, answer: HTTPResponse) -> None:
        self.url = url
        self._answer = answer

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        try:
            return self._answer.read1(size)
        except (OSError, HTTPException) as error:
            raise ReplicaUnreachable(self.url, _text_of(error)) from error


class HttpPeer:
    """See the module."""

    def __init__(self, url: str, token: str = "", namespace: str = "") -> None:
        """`token` is sent to the replica if not empty; `namespace` is that of the caller."""
        self.url = url
        self._token = token
        self._namespace = namespace

    def changes(
        self, replica: str, token: Token | None, limit: int, *, settled: bool
    ) -> BlobChanges:
        """See `Peer`."""
        row = None if token is None else token.to_row()
        request = {"replica": replica, "token": row, "limit": limit, "settled": settled}
        return BlobChanges.from_json(self._post("changes", request))

    def unknown(self, blob_ids: Sequence[str]) -> list[str]:
        """See `Peer`."""
        answer = self._post("unknown", {"ids": list(blob_ids)})
        unknown = answer.get("unknown") if isinstance(answer, dict) else None
        if not isinstance(unknown, list) or not set(unknown) <= set(blob_ids):
            raise ReplicaAnswerInvalid(f"{self.url} does not say which blobs are unknown to it")
        return unknown

    @contextmanager
    def records(self, blob_ids: Sequence[str]) -> Iterator[Stream]:
        """See `Peer`."""
        with self._request("POST", "/replication/records", {"ids": list(blob_ids)}) as answer:
            self._check(answer)
            yield Stream(self.url, answer)

    @contextmanager
    def blob(
        self, method: str, blob_id: str, part: str, include: str, headers: Mapping[str, str]
    ) -> Iterator[HTTPResponse]:
        """The answer for a blob, or for a `part` of it like /info, with any status."""
        path = f"/{quote(blob_id, safe='')}{part}?replicas=false&include={include}"
        with self._request(method, path, None, headers) as answer:
            yield answer

    def _post(self, what: str, value: Any) -> Any:
        with self._request("POST", f"/replication/{what}", value) as answer:
            self._check(answer)
            data = answer.read(ANSWER_BYTES_MAX)
        try:
            return json.loads(data)
        except ValueError as error:
            raise ReplicaAnswerInvalid(f"{self.url} does not answer with JSON: {error}") from error

    def _check(self, answer: HTTPResponse) -> None:
        if answer.status != HTTPStatus.OK:
            reason = answer.read(REASON_BYTES_MAX).decode(errors="replace")
            raise ReplicaUnreachable(self.url, f"{answer.status} {reason}")

    @contextmanager
    def _request(
        self, method: str, path: str, value: Any, more: Mapping[str, str] | None = None
    ) -> Iterator[HTTPResponse]:
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        headers = dict(more or {})
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._namespace:
            headers[NAMESPACE] = self._namespace
        body = None
        if value is not None:
            body = json.dumps(value).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, parts.path + path, body, headers)
            yield connection.getresponse()
        except (OSError, HTTPException) as error:
            raise ReplicaUnreachable(self.url, _text_of(error)) from error
        finally:
            connection.close()


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__
