"""The interface of clients: requests of a verb and their responses.

Only `Client.send` differs between a node and this process: it sends one request and returns a
response with a streamed body. The body of a request is either JSON or a stream of pieces.

A status of 400 or more raises `Refused`, with the exit code of the same error in the process: 2 for
an invalid request, 3 for a missing object, 4 for a refusal, 1 for a failure.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from lithify.errors import (
    CONFLICT,
    FAILED,
    NOT_FOUND,
    OUTCOME_UNKNOWN,
    UNREACHABLE,
    USAGE,
    LithifyError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

__all__ = ["TIMEOUT_S", "Answer", "AnswerLost", "Client", "NodeNotReached", "Refused"]

TIMEOUT_S = 30.0
ERROR = "x-lithify-error"
"""The header of a refusal that has the class of the error, as in `http/errors.py`."""

_SERVER_ERRORS = 500
_EXIT_CODES: dict[int, int] = {
    HTTPStatus.BAD_REQUEST: USAGE,
    HTTPStatus.NOT_FOUND: NOT_FOUND,
    HTTPStatus.NOT_ACCEPTABLE: USAGE,
    HTTPStatus.GONE: NOT_FOUND,
    HTTPStatus.PRECONDITION_FAILED: USAGE,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: USAGE,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: USAGE,
    HTTPStatus.UNPROCESSABLE_ENTITY: USAGE,
}
"""Exit codes by status. Other statuses: 4xx is a refusal, 5xx a failure."""


class NodeNotReached(LithifyError):
    """No node answers at an address."""

    exit_code = UNREACHABLE

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"no node answers at {url} ({why}); --url names another, "
            "--data a data directory that no node serves"
        )


class AnswerLost(LithifyError):
    """A change was sent to a node that did not answer; the change may have been made."""

    exit_code = OUTCOME_UNKNOWN

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url} did not answer ({why}): the request may have taken effect or not")


class Refused(LithifyError):
    """A request was answered with an error; `kind` is the class of that error."""

    def __init__(self, reason: str, status: int = HTTPStatus.CONFLICT, kind: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.kind = kind or type(self).__name__
        self.exit_code = _EXIT_CODES.get(status, FAILED if status >= _SERVER_ERRORS else CONFLICT)


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
                reason = _reason(answer.read()) or f"{self.name} answers with {answer.status}"
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
