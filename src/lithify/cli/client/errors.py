"""Errors of a client's requests, and the exit codes of commands by HTTP status.

A response with an error raises `Refused`, with the exit code of the same error in the process: 2
for an invalid request, 3 for a missing object, 4 for a refusal, 1 for a failure, 5 if the node did
not find another one that it needs. A request without a response raises `NodeNotReached`, or
`AnswerLost` if a change was sent.
"""

from __future__ import annotations

from http import HTTPStatus

from lithify.errors import LithifyError
from lithify.exit_codes import CONFLICT, FAILED, NOT_FOUND, OUTCOME_UNKNOWN, UNREACHABLE, USAGE

__all__ = ["SERVER_ERRORS", "AnswerLost", "NodeNotReached", "Redirected", "Refused"]

SERVER_ERRORS = 500

_EXIT_CODES: dict[int, int] = {
    HTTPStatus.BAD_REQUEST: USAGE,
    HTTPStatus.NOT_FOUND: NOT_FOUND,
    HTTPStatus.NOT_ACCEPTABLE: USAGE,
    HTTPStatus.GONE: NOT_FOUND,
    HTTPStatus.PRECONDITION_FAILED: USAGE,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: USAGE,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: USAGE,
    HTTPStatus.UNPROCESSABLE_ENTITY: USAGE,
    HTTPStatus.GATEWAY_TIMEOUT: OUTCOME_UNKNOWN,
}
"""Exit codes by status. Other statuses: 4xx is a refusal, 5xx a failure."""

_UNREACHABLE = frozenset(
    (
        "CatalogStopped",
        "MemberNotReached",
        "MetastoreUnavailable",
        "NoAnswer",
        "NoQuorum",
        "SparkUnreachable",
    )
)
"""Errors of a node that needs another one, or a quorum, and did nothing. They share their status
with failures of the node itself."""


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


class Redirected(LithifyError):
    """Another node has the data, and the client cannot send the request there."""

    exit_code = CONFLICT

    def __init__(self, url: str, location: str) -> None:
        super().__init__(f"{url} does not have the data: send the request to its owner, {location}")


class Refused(LithifyError):
    """A request was answered with an error; `kind` is the class of that error."""

    def __init__(self, reason: str, status: int = HTTPStatus.CONFLICT, kind: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.kind = kind or type(self).__name__
        code = _EXIT_CODES.get(status, FAILED if status >= SERVER_ERRORS else CONFLICT)
        self.exit_code = UNREACHABLE if kind in _UNREACHABLE else code
