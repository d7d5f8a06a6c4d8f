"""Limits of the bodies of requests: bytes, and values in JSON.

A parser and a validator take time for each value, and a validator more for each invalid one: one
mebibyte of `0,0,0,…` takes seconds. So values are counted before the body is parsed
(`json_values.py`).

The store limits the contents of blobs. Called by the application and by `messages/produce.py`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import HTTPException

from lithify.json_values import count_json_values

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["BodyLimit", "check_json_values"]

BODY_BYTES_MAX = 2**20
VALUES_MAX = 5_000
"""Limit of the values in a JSON body: a validator that reports all of them takes 20 ms."""
PRODUCED = "/topics/"
BLOBS = "/blobs/"


class BodyLimit:
    """Refuses a request whose body is larger than the limit of its route.

    A body without messages or a blob is JSON: it is read here, and refused if it has more values
    than any route accepts. So it is bounded before it is parsed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request and count its bytes as they are read."""
        if scope["type"] != "http" or _is_content(scope):
            # The content of a blob, which its store counts.
            await self._app(scope, receive, send)
            return
        size_bytes = 0
        produced = scope["path"].startswith(PRODUCED)
        limit_bytes = BODY_BYTES_MAX
        if produced:
            # JSON with Base64 takes up to a third more than the message; the rest is for the
            # framing.
            limit_bytes = 2 * scope["app"].state.broker.max_message_bytes

        async def counted() -> Message:
            nonlocal size_bytes
            message = await receive()
            size_bytes += len(message.get("body", b""))
            if size_bytes > limit_bytes:
                detail = f"the body is larger than the limit, {limit_bytes} bytes"
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
            return message

        parts: list[bytes] = []

        async def checked() -> Message:
            """Return the whole body at once; later messages are passed on."""
            message = await counted()
            while message["type"] == "http.request" and message.get("more_body"):
                parts.append(message.get("body", b""))
                message = await counted()
            if message["type"] != "http.request" or not (parts or message.get("body")):
                return message
            body = b"".join((*parts, message.get("body", b"")))
            parts.clear()
            check_json_values(body, VALUES_MAX)
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, counted if produced else checked, send)


def _is_content(scope: Scope) -> bool:
    path: str = scope.get("path", "")
    return (
        scope.get("method") == "POST"
        and path.startswith(BLOBS)
        and "/" not in path.removeprefix(BLOBS)
    )


def check_json_values(body: bytes, limit: int) -> None:
    """Raise `HTTPException` if a body has more than `limit` values, or keys and texts."""
    count = count_json_values(body, limit)
    if count > limit:
        reason = f"the body has {count} values or more, the limit is {limit}"
        # FastAPI reports any other error while it reads a body as invalid JSON.
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
