"""Reading over HTTP: the messages of a topic as lines of JSON, without a subscription.

    GET /topics/persistent/TENANT/NAMESPACE/TOPIC/messages
        ?start=LEDGER:ENTRY     from this message on; default: the first one
        &last=N                 instead: the last N
        &limit=N                at most this many
        &follow=true            and later ones, until the caller disconnects

A row has the format of `topics/messages/message_json.py`. Without `follow` the response ends at the
message that was the last one at the time of the request. A row with an `error` and no `id` is the
reason for an early end.

Memory: a reader has one piece of about a megabyte, which a thread reads, and which is sent before
the next one is read; a waiting reader has none. Callers share `READERS_MAX` places; a client that
does not receive its data loses its place (`http/fair_shares.py`). If the topic is unloaded in the
meantime, it is opened again. The response ends when the topic is deleted, and when the caller's
token expires or its permission is revoked.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from lithify.errors import LithifyError, LogClosed
from lithify.http.auth import authorize, caller_of, expires_ms_of
from lithify.http.error_responses import RequestRefused
from lithify.http.fair_shares import Shares, client_time
from lithify.http.long_responses import sent_pieces
from lithify.http.paths import BrokerDep, TopicPath, topic_at
from lithify.logger import get_logger
from lithify.positions import POSITION_MAX
from lithify.pulsar.broker import Broker
from lithify.pulsar.wall_clock_timers import LOOK_S
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.reading.message_pages import ReadStart, place_of, place_of_last, read_rows
from lithify.topics.topic import Topic
from lithify.topics.topics import TopicNotFound

__all__ = ["READERS_MAX", "router"]

router = APIRouter(prefix="/topics/persistent/{tenant}/{namespace}/{topic}", tags=["messages"])

READERS_MAX = 64
LAST_MAX = 100_000

log = get_logger("lithify.http")

Count = Annotated[int | None, Query(ge=0, le=2**62)]


@router.get("/messages", response_class=StreamingResponse)
async def messages(
    request: Request,
    name: TopicPath,
    broker: BrokerDep,
    start: str | None = None,
    last: Annotated[int | None, Query(ge=0, le=LAST_MAX)] = None,
    limit: Count = None,
    *,
    follow: bool = False,
) -> StreamingResponse:
    """Messages as lines of JSON; with `follow` also later ones."""
    if start is not None and last is not None:
        raise RequestRefused(
            HTTPStatus.BAD_REQUEST, "start and last are both given: give one of them"
        )
    readers: Shares = request.app.state.readers
    caller = caller_of(request)
    readers.take(caller)
    try:
        topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
        place = ReadStart() if start is None else place_of(start)
        if last is not None:
            place = await asyncio.to_thread(place_of_last, topic.log, last)
    except BaseException:
        readers.release(caller)
        raise
    reading = _Reading(
        broker=broker,
        name=name,
        place=place,
        follows=follow,
        through=POSITION_MAX if follow else topic.last_position,
        left=POSITION_MAX if limit is None else limit,
        request=request,
    )
    return _Answer(reading.lines(), partial(readers.release, caller))


class _Answer(StreamingResponse):
    """The answer to a reader, which holds a place until it ends."""

    def __init__(self, lines: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with client_time():
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            log.info("a client receives nothing of a topic and is disconnected", path=scope["path"])
        finally:
            self._release()


@dataclass(slots=True)
class _Reading:
    """The progress of one reader."""

    broker: Broker
    name: TopicName
    place: ReadStart
    follows: bool
    through: int
    left: int
    request: Request

    async def lines(self) -> AsyncIterator[bytes]:
        """The body of the answer in pieces."""
        try:
            while self.left > 0 and not self.broker.ending:
                # Repeated for each piece: the token may have expired, or the permission been
                # revoked.
                await authorize(self.request)
                # Registered before the topic is read, so that no message in between is missed.
                expected = self.broker.next_arrival(self.name)
                try:
                    topic = await topic_at(self.broker, self.name)
                    found = await asyncio.to_thread(self._read, topic)
                except LogClosed:
                    # It was unloaded in the meantime, or deleted, which the next iteration detects.
                    continue
                if found:
                    async for piece in sent_pieces(found):
                        yield piece
                elif self.follows:
                    await self._wait(expected)
                else:
                    return
        except TopicNotFound:
            return
        except LithifyError as error:
            # The status has already been sent.
            yield json.dumps({"error": str(error)}).encode() + b"\n"

    async def _wait(self, expected: asyncio.Future[None]) -> None:
        """Wait for news, or until it is time to check whether the token has expired."""
        seconds = None
        expires_ms = expires_ms_of(self.request)
        if expires_ms is not None:
            left_ms = expires_ms - self.broker.topics.now_ms()
            # The clock may jump in the meantime.
            seconds = min(max(left_ms, 0) / 1000, LOOK_S)
        # Several tasks wait for the same future, which must not be cancelled with one of them.
        await asyncio.wait({expected}, timeout=seconds)

    def _read(self, topic: Topic) -> bytes:
        rows, self.place = read_rows(
            topic.log,
            self.place,
            partition=topic.name.partition,
            through=self.through,
            limit=self.left,
        )
        self.left -= len(rows)
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
