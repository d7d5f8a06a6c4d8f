"""Converts errors to HTTP responses: a status, and {"reason": …} as body.

The statuses are those that Pulsar's tools expect; below /blobs they are those of HTTP. The header
`x-lithify-error` has the class of the error, so that programs can distinguish errors.
"""

from __future__ import annotations

import errno
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from h11 import LocalProtocolError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lithify.blobs.errors import (
    BlobDeleted,
    BlobDeletedForever,
    BlobExists,
    BlobExpired,
    BlobNotDeleted,
    BlobNotFound,
    BlobStoreExists,
    BlobStoreFull,
    BlobStoreNotFound,
    BlobTooLarge,
    RangeNotSatisfiable,
    ShapeDiffers,
)
from lithify.catalog.errors import (
    CatalogVersionNotFound,
    CatalogVersionTrimmed,
    InvalidDefinitionsText,
    ObjectExists,
    ObjectInUse,
    ObjectNotFound,
    WrongIndexStatus,
)
from lithify.compaction.scheduling.run_queue import RequestUnknown
from lithify.errors import (
    InvalidInput,
    LithifyError,
    LogClosed,
    RunRefused,
    UnclaimedDirectory,
)
from lithify.exit_codes import CONFLICT, NOT_FOUND, OUTCOME_UNKNOWN, UNREACHABLE, USAGE
from lithify.logger import get_logger
from lithify.metastore.errors import TimeCompacted
from lithify.ownership import NotOwner
from lithify.tables.errors import IndexNotAvailable, TooManyTransactions
from lithify.tables.low_watermark import TimeTooOld
from lithify.topics.definitions.definitions import AlreadyDefined, NotDefined, NotEmpty
from lithify.topics.permissions import NotAuthorized
from lithify.topics.producers.producers import ProducerBusy
from lithify.topics.schemas.schemas import IncompatibleSchema
from lithify.topics.token_authentication import NotAuthenticated
from lithify.topics.topics import TooManyTopics, TopicNotFound

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

_GONE = (ClientDisconnect, LocalProtocolError)
"""The client disconnected, or sent invalid HTTP, before its request was answered."""

__all__ = ["ERROR", "RequestRefused", "add_error_handlers", "refusal", "status_of"]

ERROR = "x-lithify-error"

log = get_logger("lithify.http")


class RequestRefused(LithifyError):
    """A request was refused with the given status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        self.status = status
        super().__init__(reason)


_STATUS: tuple[tuple[type[LithifyError], HTTPStatus], ...] = (
    (NotAuthenticated, HTTPStatus.UNAUTHORIZED),
    (NotAuthorized, HTTPStatus.FORBIDDEN),
    (TopicNotFound, HTTPStatus.NOT_FOUND),
    (NotDefined, HTTPStatus.NOT_FOUND),
    (TooManyTopics, HTTPStatus.SERVICE_UNAVAILABLE),
    (AlreadyDefined, HTTPStatus.CONFLICT),
    (CatalogVersionTrimmed, HTTPStatus.GONE),
    (UnclaimedDirectory, HTTPStatus.CONFLICT),
    (NotEmpty, HTTPStatus.CONFLICT),
    (IncompatibleSchema, HTTPStatus.CONFLICT),
    (ProducerBusy, HTTPStatus.CONFLICT),
    (RunRefused, HTTPStatus.CONFLICT),
    (RequestUnknown, HTTPStatus.NOT_FOUND),
    (BlobNotFound, HTTPStatus.NOT_FOUND),
    (BlobStoreNotFound, HTTPStatus.NOT_FOUND),
    (BlobDeleted, HTTPStatus.GONE),
    (BlobDeletedForever, HTTPStatus.GONE),
    (BlobExpired, HTTPStatus.GONE),
    (BlobExists, HTTPStatus.CONFLICT),
    (BlobNotDeleted, HTTPStatus.CONFLICT),
    (BlobStoreExists, HTTPStatus.CONFLICT),
    (ShapeDiffers, HTTPStatus.CONFLICT),
    (BlobStoreFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (BlobTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (RangeNotSatisfiable, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE),
    # A topic or store was closed during a request: a retry finds it open again, or missing.
    (LogClosed, HTTPStatus.SERVICE_UNAVAILABLE),
    (TimeTooOld, HTTPStatus.GONE),
    (TimeCompacted, HTTPStatus.GONE),
    (TooManyTransactions, HTTPStatus.TOO_MANY_REQUESTS),
)

_STATUS_BY_ERRNO = {
    errno.ENOSPC: HTTPStatus.INSUFFICIENT_STORAGE,
    errno.EDQUOT: HTTPStatus.INSUFFICIENT_STORAGE,
    errno.EROFS: HTTPStatus.SERVICE_UNAVAILABLE,
    errno.EMFILE: HTTPStatus.SERVICE_UNAVAILABLE,
    errno.ENFILE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Statuses of errors whose `cause` is an `OSError`, by errno."""

_STATUS_BY_EXIT_CODE = {
    USAGE: HTTPStatus.PRECONDITION_FAILED,
    NOT_FOUND: HTTPStatus.NOT_FOUND,
    CONFLICT: HTTPStatus.CONFLICT,
    UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    OUTCOME_UNKNOWN: HTTPStatus.GATEWAY_TIMEOUT,
}
"""Statuses of all other errors; a failure is an internal error."""

_BY_EXIT_CODE = (
    CatalogVersionNotFound,
    IndexNotAvailable,
    InvalidDefinitionsText,
    ObjectExists,
    ObjectInUse,
    ObjectNotFound,
    WrongIndexStatus,
)
"""Invalid input that is not simply invalid."""

_OWN_PATHS = ("/blobs/", "/cluster/", "/catalog/", "/tables/")
"""Paths that no tool of Pulsar uses: there an invalid request is 400, where those expect 412."""


def status_of(error: LithifyError) -> HTTPStatus:
    """The status of the first matching class, otherwise that of the error's exit code."""
    if isinstance(error, RequestRefused):
        return error.status
    cause = getattr(error, "cause", None)
    if isinstance(cause, OSError):
        return _STATUS_BY_ERRNO.get(cause.errno or 0, HTTPStatus.INTERNAL_SERVER_ERROR)
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    if isinstance(error, InvalidInput) and not isinstance(error, _BY_EXIT_CODE):
        return HTTPStatus.PRECONDITION_FAILED
    return _STATUS_BY_EXIT_CODE.get(error.exit_code, HTTPStatus.INTERNAL_SERVER_ERROR)


def add_error_handlers(app: FastAPI) -> None:
    """Register handlers that return every error in the same format."""
    app.add_exception_handler(LithifyError, _lithify_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _defect)


def _reason(status: int, reason: str) -> JSONResponse:
    # The reason may quote the request, and JSON can contain surrogates that cannot be encoded.
    sendable = reason.encode(errors="backslashreplace").decode()
    return JSONResponse({"reason": sendable}, status)


async def _lithify_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LithifyError)
    return refusal(request, error)


def refusal(request: Request, error: LithifyError) -> Response:
    """The response to a refused or failed request."""
    status = status_of(error)
    if status is HTTPStatus.PRECONDITION_FAILED and not isinstance(error, RequestRefused):
        is_own = f"{request.scope['path']}/".startswith(_OWN_PATHS)
        status = HTTPStatus.BAD_REQUEST if is_own else status
    request.app.state.broker.topics.damage.record(error)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request failed", path=request.url.path, reason=str(error))
    if isinstance(error, NotOwner):
        status = (
            HTTPStatus.TEMPORARY_REDIRECT if error.urls.http else HTTPStatus.SERVICE_UNAVAILABLE
        )
    answer = _reason(status, str(error))
    answer.headers[ERROR] = type(error).__name__
    if isinstance(error, NotOwner) and error.urls.http:
        answer.headers["Location"] = f"{error.urls.http}{_target(request)}"
    if status is HTTPStatus.UNAUTHORIZED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, RangeNotSatisfiable):
        answer.headers["Content-Range"] = f"bytes */{error.size_bytes}"
    return answer


def _target(request: Request) -> str:
    """The path and the query, as the client sent them."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


async def _bad_request(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    if isinstance(first.get("input"), bytes):
        # The body was not parsed.
        reason = f"{where} must be JSON, and the header Content-Type say application/json"
        return _reason(HTTPStatus.BAD_REQUEST, reason)
    return _reason(HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}")


async def _http_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    assert isinstance(error, HTTPException)
    answer = _reason(error.status_code, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


async def _defect(request: Request, error: Exception) -> Response:
    if isinstance(error, _GONE):
        return _reason(HTTPStatus.BAD_REQUEST, "the request was incomplete")
    # The details are for the log, not for the client.
    log.error("request failed", path=request.url.path, exc_info=error)
    return _reason(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
