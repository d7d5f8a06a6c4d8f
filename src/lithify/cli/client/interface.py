"""The interface of clients: requests of a verb and their responses.

Only `Client.send` differs between a node and this process: it sends one request and returns a
response with a streamed body. The body of a request is either JSON or a stream of pieces.

A status of 300 or more raises `Refused` (`errors.py`).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from lithify.cli.client.errors import SERVER_ERRORS, AnswerLost, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

__all__ = ["TIMEOUT_S", "Answer", "Client"]

TIMEOUT_S = 30.0
ERROR = "x-lithify-error"
"""The header of a refusal that has the class of the error, as in `http/error_responses.py`."""


class Answer(ABC):
    """A response whose status has arrived, and whose body is being received."""

    status: int
    headers: Mapping[str, str]
    """Headers, by names in lower case."""

    @abstractmethod
    def pieces(self) -> Iterator[bytes]:
        """The body, in pieces as they arrive; raises an error if the rest cannot arrive."""

    def read(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces())


class Client(ABC):
    """Sends the requests of a command, one at a time."""

    name: str
    """The name of the node or the directory, for messages."""

    @abstractmethod
    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None,
        timeout_s: float | None,
    ) -> AbstractContextManager[Answer]:
        """Send a request; returns the response, of any status. Called by `open`."""

    @abstractmethod
    def start_spark(self, status_path: str) -> None:
        """Start the Spark session that runs need, if the status of the log can be read.

        A node starts its own.
        """

    def finish(self) -> bool:
        """Wait for what changes have begun, if nothing continues it after the command.

        Returns whether it is finished. A node finishes it by itself.
        """
        return False

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        json_body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        pieces: Iterable[bytes] | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Iterator[Answer]:
        """Send a request and return the response to read; raises `Refused` if it is an error."""
        body: bytes | Iterable[bytes] | None = pieces
        given = dict(headers or {})
        if json_body is not None:
            body = json.dumps(json_body).encode()
            given["content-type"] = "application/json"
        sending = self.send(method, path, headers=given, body=body, timeout_s=timeout_s)
        with sending as answer:
            if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
                reason = _reason(answer.read())
                if reason is None and answer.status >= SERVER_ERRORS and method != "GET":
                    # Not the application's: the node has stopped while it worked on the request.
                    raise AnswerLost(self.name, f"it answers with {answer.status}")
                reason = reason or f"{self.name} answers with {answer.status}"
                raise Refused(reason, answer.status, answer.headers.get(ERROR, ""))
            yield answer

    def call(self, method: str, path: str, json_body: object = None, **options: Any) -> Any:
        """The JSON of a response; None if its body is empty."""
        with self.open(method, path, json_body, **options) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _reason(body: bytes) -> str | None:
    """The reason in the body of a refusal, if it has one."""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return None
