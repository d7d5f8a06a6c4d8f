"""Builds long responses in steps, so that other tasks can run in the event loop in between.

    return await json_answer(await in_turns(topic_stats_steps(topic), broker))

A generator yields after some rows, which ends a step. Steps run for `TURN_S` in sequence; then the
loop runs all other ready callbacks. A disk operation is yielded, and a thread makes it
(`topics/disk_steps.py`). JSON is encoded row by row, because the encoder of the library encodes a
whole value in one call. The body is sent in pieces as well.

Used in the event loop, by routes whose responses have thousands of rows.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from lithify.topics.disk_steps import once

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.types import Receive, Scope, Send

    from lithify.pulsar.broker import Broker
    from lithify.topics.disk_steps import Steps

__all__ = ["TURN_S", "InPieces", "in_turns", "json_answer", "sent_pieces"]

TURN_S = 0.001
SENT_BYTES = 2**18
"""Size of one write to a socket: the server makes two copies of it, and so does the system."""
MADE_BYTES = 2**16

_Result = TypeVar("_Result")


async def in_turns(steps: Steps[_Result], broker: Broker | None = None) -> _Result:
    """Run all steps; returns the result of the generator. Steps with disk calls need a broker."""
    begun_s = time.perf_counter()
    found: Any = None
    error: Exception | None = None
    while True:
        try:
            work = steps.send(found) if error is None else steps.throw(error)
        except StopIteration as ended:
            result: _Result = ended.value
            return result
        found = error = None
        if work is not None:
            assert broker is not None
            try:
                found = await broker.run(once(work))
            except Exception as problem:  # noqa: BLE001  (raised in the steps)
                error = problem
        elif time.perf_counter() - begun_s > TURN_S:
            await asyncio.sleep(0)
        else:
            continue
        begun_s = time.perf_counter()


async def json_answer(value: Any) -> Response:
    """The response with this value as JSON."""
    pieces: list[bytes] = []

    def encode() -> Steps[None]:
        held: list[str] = []
        size = 0
        for part in _json_parts(value):
            held.append(part)
            size += len(part)
            if size >= MADE_BYTES:
                pieces.append("".join(held).encode())
                held, size = [], 0
            yield None
        pieces.append("".join(held).encode())

    await in_turns(encode())
    return InPieces(pieces, media_type="application/json")


class InPieces(Response):
    """A response whose body is a sequence of pieces; they are never joined."""

    def __init__(self, pieces: Sequence[bytes], media_type: str) -> None:
        super().__init__(media_type=media_type)
        self.headers["content-length"] = str(sum(map(len, pieces)))
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the response; other tasks run between the pieces."""
        headers = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def sent_pieces(body: bytes) -> AsyncIterator[bytes]:
    """Split a body into pieces to send in sequence; other tasks run in between."""
    for start in range(0, len(body), SENT_BYTES):
        if start:
            await asyncio.sleep(0)
        yield body[start : start + SENT_BYTES]


def _json_parts(value: Any) -> Iterator[str]:
    """Encode a value as JSON in parts: one per element of a list, or per scalar."""
    if isinstance(value, dict):
        separator = "{"
        for key, each in value.items():
            yield f"{separator}{json.dumps(str(key))}:"
            yield from _json_parts(each)
            separator = ","
        yield "}" if value else "{}"
    elif isinstance(value, list):
        separator = "["
        for each in value:
            yield separator + json.dumps(each, ensure_ascii=False, separators=(",", ":"))
            separator = ","
        yield "]" if value else "[]"
    else:
        yield json.dumps(value, ensure_ascii=False)
