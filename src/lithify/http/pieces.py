"""Long answers built in pieces, so that other tasks can run in the event loop in between.

    return await json_answer(await in_turns(topic_stats_steps(topic)))

A step is short: the generator that builds the answer yields after some rows. Steps run for
`TURN_S`, then the loop runs all other tasks that are ready. JSON is encoded row by row: the encoder
of the library encodes a value without interruption. The body is sent in pieces of `SENT_BYTES`.

For the event loop, in routes whose answers have thousands of rows.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from starlette.types import Receive, Scope, Send

__all__ = ["TURN_S", "in_turns", "json_answer", "sent_pieces"]

TURN_S = 0.001
SENT_BYTES = 2**18
"""Bytes per write to a socket: the server makes two copies of it, and so does the system."""

_Result = TypeVar("_Result")


async def in_turns(steps: Generator[None, None, _Result]) -> _Result:
    """Run all steps; returns the result of the generator."""
    begun_s = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: _Result = ended.value
            return result
        if time.perf_counter() - begun_s > TURN_S:
            await asyncio.sleep(0)
            begun_s = time.perf_counter()


async def json_answer(value: Any) -> Response:
    """The answer with this value as JSON."""
    parts: list[str] = []

    def encode() -> Generator[None, None, None]:
        for part in _json_parts(value):
            parts.append(part)
            yield

    await in_turns(encode())
    return _InPieces("".join(parts), media_type="application/json")


class _InPieces(Response):
    """An answer whose body is sent in pieces."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        headers = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **headers})
        async for piece in sent_pieces(bytes(self.body)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def sent_pieces(body: bytes) -> AsyncIterator[bytes]:
    """The pieces of a body to send in sequence; other tasks run in between."""
    for start in range(0, len(body), SENT_BYTES):
        if start:
            await asyncio.sleep(0)
        yield body[start : start + SENT_BYTES]


def _json_parts(value: Any) -> Iterator[str]:
    """JSON of a value; a part is an element of a list, or a value that is no list or dict."""
    if isinstance(value, dict):
        mark = "{"
        for key, each in value.items():
            yield f"{mark}{json.dumps(str(key))}:"
            yield from _json_parts(each)
            mark = ","
        yield "}" if value else "{}"
    elif isinstance(value, list):
        mark = "["
        for each in value:
            yield mark + json.dumps(each, ensure_ascii=False, separators=(",", ":"))
            mark = ","
        yield "]" if value else "[]"
    else:
        yield json.dumps(value, ensure_ascii=False)
