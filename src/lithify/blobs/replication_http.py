"""Another replica over HTTP, as the one who asks it sees it.

    peer = HttpPeer("http://node-2:8080/blobs/photos", token="…")

| what     | request to the URL of the store                                                   |
|----------|-----------------------------------------------------------------------------------|
| changes  | POST …/replication/changes {"replica": …, "token": …, "limit": …, "settled": …}   |
| records  | POST …/replication/records {"ids": […]}, answered by a stream                     |
| unknown  | POST …/replication/unknown {"ids": […]}                                           |
| a blob   | GET or HEAD …/ID?replicas=false, GET …/ID/info?…: the replica asks no other one   |

Made by `peers.py` only, for the peers that the operator names. Redirects are not followed: the
token is for one address. A connection a request, which keeps nothing open between two. No read
waits longer than `TIMEOUT_S` for the next bytes. What the replica says in the body of a refusal is
in the error.

Called by the replicator's thread and by gets that the store itself cannot answer.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from lithify.blobs.errors import ReplicaTalksNonsense, ReplicaUnreachable
from lithify.blobs.replication_values import Changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lithify.blobs.replication_values import Token

__all__ = ["NAMESPACE", "HttpPeer", "Stream"]

TIMEOUT_S = 10.0
NAMESPACE = "x-lithify-namespace"
"""The header that says of which namespace the store is that asks."""
ANSWER_BYTES_MAX = 64 * 2**20
"""Of JSON; a page of changes has at most those of one bucket more than it was limited to."""
REASON_BYTES_MAX = 1000


class Stream:
    """The body of an answer."""

    def __init__(self, url: str, answer: HTTPResponse) -> None:
        self.url = url
        self._answer = answer

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        try:
            return self._answer.read1(size)
        except (OSError, HTTPException) as error:
            raise ReplicaUnreachable(self.url, _said(error)) from error


class HttpPeer:
    """See the module."""

    def __init__(self, url: str, token: str = "", namespace: str = "") -> None:
        """`token` is shown to the replica, if there is one; `namespace` is that of who asks."""
        self.url = url
        self._token = token
        self._namespace = namespace

    def changes(self, replica: str, token: Token | None, limit: int, *, settled: bool) -> Changes:
        """See `Peer`."""
        row = None if token is None else token.to_row()
        asked = {"replica": replica, "token": row, "limit": limit, "settled": settled}
        return Changes.from_json(self._asked("changes", asked))

    def unknown(self, blob_ids: Sequence[str]) -> list[str]:
        """See `Peer`."""
        answer = self._asked("unknown", {"ids": list(blob_ids)})
        unknown = answer.get("unknown") if isinstance(answer, dict) else None
        if not isinstance(unknown, list) or not set(unknown) <= set(blob_ids):
            raise ReplicaTalksNonsense(f"{self.url} does not say which blobs it does not know")
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
        """The answer to a look at a blob, or at a `part` of it like /info, whatever it is."""
        path = f"/{quote(blob_id, safe='')}{part}?replicas=false&include={include}"
        with self._request(method, path, None, headers) as answer:
            yield answer

    def _asked(self, what: str, value: Any) -> Any:
        with self._request("POST", f"/replication/{what}", value) as answer:
            self._check(answer)
            data = answer.read(ANSWER_BYTES_MAX)
        try:
            return json.loads(data)
        except ValueError as error:
            raise ReplicaTalksNonsense(f"{self.url} answers with no JSON: {error}") from error

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
            raise ReplicaUnreachable(self.url, _said(error)) from error
        finally:
            connection.close()


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
