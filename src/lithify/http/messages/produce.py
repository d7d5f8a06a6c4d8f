"""Producing over HTTP, for callers without a Pulsar client.

    POST /topics/persistent/TENANT/NAMESPACE/TOPIC
    {"messages": [{"payload": "paid", "key": "4711", "properties": {"by": "card"}}, …]}

    {"messagePublishResults": [{"messageId": "3:17:-1", "errorCode": 0}, …]}

As in Pulsar, with two differences. A payload or key that is not text is sent as `payloadBase64` or
`keyBase64`, and a message without payload is a tombstone. Schemas are not applied; a request with a
schema is refused. In a partitioned topic the hash of the key selects the partition, and messages
without a key are distributed round-robin; …/partitions/N selects one.

1. Authorize the caller, then read the body, for up to `REQUESTS_MAX` requests at a time. This and
   twice the largest message bound the memory. Callers share these places (`http/fair_shares.py`).
2. Check all messages before the first write: a refused request has changed nothing.
3. Work in steps, so that other tasks can run in between. A thread builds large messages.
4. Append the messages in their order, and respond once they are durable, with one result per
   message: a failed write has `errorCode` 1 and the reason. Permission and topic are checked again
   directly before each append. A topic that was unloaded in the meantime is opened again.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
import itertools
import time
from base64 import b64decode
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lithify.errors import LithifyError, LogClosed
from lithify.http.auth import caller_of, check_request
from lithify.http.body_limits import check_json_values
from lithify.http.error_responses import RequestRefused
from lithify.http.fair_shares import Shares, gather
from lithify.http.long_responses import TURN_S, in_turns, json_answer
from lithify.http.paths import BrokerDep, TopicPath
from lithify.log.group_commit import Pending
from lithify.log.segments.frame import HEADER_BYTES
from lithify.positions import unpack
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.disk_steps import Steps
from lithify.topics.messages.message import new_entry
from lithify.topics.permissions import NotAuthorized
from lithify.topics.producers.producers import ProducerBusy
from lithify.topics.subscriptions.key_shared_hash import key_hash
from lithify.topics.token_authentication import NotAuthenticated
from lithify.topics.topic import Topic

__all__ = ["HttpProducer", "router"]

router = APIRouter(prefix="/topics/persistent/{tenant}/{namespace}/{topic}", tags=["messages"])

REQUESTS_MAX = 16
MESSAGES_MAX = 10_000
VALUES_MAX = 20 * MESSAGES_MAX
"""Limit of JSON values in a request, including keys and properties."""
DECODED_BYTES = 2**18
"""Base64 decoded per step; a multiple of 4."""
LARGE_BYTES = 2**16
"""A message with more text is built by a thread."""
APPENDED_BYTES = 2**19
APPENDED_MAX = 1000
"""Limits of messages appended per step, about 1 ms."""

_NOT_ALLOWED = NotAuthenticated, NotAuthorized


def _decoded(text: object) -> bytes:
    """Decode Base64 in pieces: one call would block other threads."""
    if not isinstance(text, str):
        raise ValueError("must be a text")  # noqa: TRY004  (pydantic reports a ValueError)
    if "=" in text[:-2]:
        raise ValueError("padding is not at the end")
    # Strict: invalid Base64 is refused, while pydantic's own type would ignore characters.
    starts = range(0, len(text), DECODED_BYTES)
    return b"".join(b64decode(text[at : at + DECODED_BYTES], validate=True) for at in starts)


Base64 = Annotated[bytes, BeforeValidator(_decoded)]


class NewMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="forbid")
    payload: str | None = None
    payload_bytes: Base64 | None = Field(default=None, alias="payloadBase64")
    key: str | None = None
    key_bytes: Base64 | None = Field(default=None, alias="keyBase64")
    properties: dict[str, str] = {}
    event_time_ms: int = Field(default=0, ge=0, lt=2**63, alias="eventTime")

    @property
    def value(self) -> bytes | None:
        """The payload, from either field."""
        return self.payload_bytes if self.payload is None else self.payload.encode()


class NewMessages(BaseModel):
    """The messages to produce."""

    model_config = ConfigDict(extra="forbid")
    messages: list[NewMessage] = Field(min_length=1, max_length=MESSAGES_MAX)


class NewRows(BaseModel):
    """The body with unvalidated messages, which are validated one by one."""

    model_config = ConfigDict(extra="forbid")
    messages: list[Any] = Field(min_length=1, max_length=MESSAGES_MAX)


_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": NewMessages.model_json_schema()}},
    }
}


async def _body(request: Request) -> list[bytes]:
    """The body in pieces, not joined: that takes milliseconds."""
    chunks = request.stream()
    pieces, ended = [], False
    while not ended:
        piece, ended = await gather(chunks)
        pieces.append(piece)
    return pieces


def _rows(pieces: list[bytes]) -> list[Any]:
    """The messages of a body, not validated."""
    body = b"".join(pieces)
    check_json_values(body, VALUES_MAX)
    try:
        found = NewRows.model_validate_json(body)
    except ValidationError as error:
        raise _bad(error, "body") from error
    return found.messages


def _message(number: int, row: object) -> NewMessage:
    try:
        return NewMessage.model_validate(row)
    except ValidationError as error:
        raise _bad(error, "body", "messages", number) from error


def _bad(error: ValidationError, *place: object) -> RequestRefused:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, (*place, *first["loc"])))
    return RequestRefused(HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}")


class HttpProducer:
    """The producer of all HTTP requests; one per application."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._name = broker.new_name()
        self._sequence = itertools.count()
        self._turn = itertools.count()
        self._requests = Shares(REQUESTS_MAX, "requests that produce")

    async def publish(self, request: Request, name: TopicName, partition: int | None) -> Response:
        """Produce the messages in a request's body; returns the response."""
        async with self._requests.waits(caller_of(request)):
            body = await _body(request)
            rows = await asyncio.to_thread(_rows, body)
            # One publish time for all, also in the log's frames: reads skip segments by time.
            now_ms = self._broker.topics.now_ms()
            made = []
            begun_s = time.perf_counter()
            for number, row in enumerate(rows):
                if _is_large(row):
                    made.append(await asyncio.to_thread(self._made, number, row, now_ms))
                else:
                    made.append(self._made(number, row, now_ms))
                if time.perf_counter() - begun_s > TURN_S:
                    # Let other tasks run.
                    await asyncio.sleep(0)
                    begun_s = time.perf_counter()
            groups = await self._groups(name, partition, [key for key, _ in made])
            results: list[dict[str, Any]] = [{}] * len(made)
            appended: list[tuple[Topic, list[int], Pending | LithifyError]] = []
            for found, numbers in groups:
                topic = found
                for some in _chunks(topic, numbers, [body for _, body in made]):
                    bodies = [made[number][1] for number in some]
                    topic, pending = await self._append(request, topic, bodies, now_ms)
                    if isinstance(pending, _NOT_ALLOWED) and not appended:
                        raise pending
                    appended.append((topic, some, pending))
                    await asyncio.sleep(0)
            for topic, numbers, pending in appended:
                ended = await self._end(topic, pending)
                for number, result in zip(numbers, ended, strict=False):
                    results[number] = result
                await asyncio.sleep(0)
        return await json_answer({"messagePublishResults": results})

    def _made(self, number: int, row: object, now_ms: int) -> tuple[bytes | None, bytes]:
        """(key, entry) of a message; any thread may call it."""
        message = _message(number, row)
        key = message.key_bytes if message.key is None else message.key.encode()
        return key, self._entry(number, message, now_ms)

    def _entry(self, number: int, message: NewMessage, now_ms: int) -> bytes:
        for text, data, what in (
            (message.payload, message.payload_bytes, "payload"),
            (message.key, message.key_bytes, "key"),
        ):
            if text is not None and data is not None:
                reason = f"message {number} has a {what} and a {what}Base64: give one of them"
                raise RequestRefused(HTTPStatus.BAD_REQUEST, reason)
        body = new_entry(
            value=message.value,
            key=message.key_bytes if message.key is None else message.key,
            properties=message.properties,
            event_time_ms=message.event_time_ms,
            producer=self._name,
            sequence_id=next(self._sequence),
            publish_time_ms=now_ms,
        )
        limit = self._broker.max_message_bytes
        if len(body) > limit:
            reason = f"message {number} has {len(body)} bytes, the limit is {limit}"
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        return body

    async def _groups(
        self, name: TopicName, partition: int | None, keys: list[bytes | None]
    ) -> list[tuple[Topic, list[int]]]:
        """Each topic with the numbers of its messages; all topics are checked to be writable."""
        topics = self._broker.topics
        count = topics.partitions(name)
        if partition is not None:
            parts = {name.partition_name(partition): list(range(len(keys)))}
        elif count:
            by_partition = await in_turns(self._by_partition(keys, count))
            parts = {name.partition_name(each): rows for each, rows in by_partition.items()}
        else:
            parts = {name: list(range(len(keys)))}
        create = topics.settings.auto_create and partition is None
        found = []
        for part, rows in parts.items():
            found.append((await self._broker.topic(part, create=create), rows))
        for topic, _ in found:
            _check_writable(topic)
        return found

    def _by_partition(self, keys: list[bytes | None], count: int) -> Steps[dict[int, list[int]]]:
        """The numbers of the messages of each partition."""
        found: dict[int, list[int]] = {}
        for number, key in enumerate(keys):
            turn = next(self._turn) if key is None else key_hash(key)
            found.setdefault(turn % count, []).append(number)
            if not number % APPENDED_MAX:
                yield None
        return found

    async def _append(
        self, request: Request, topic: Topic, bodies: list[bytes], now_ms: int
    ) -> tuple[Topic, Pending | LithifyError]:
        """Append messages; also returns the topic, which may have been reopened."""
        while True:
            try:
                return topic, await self._broker.run(_appending(request, topic, bodies, now_ms))
            except LogClosed as error:
                if self._broker.topics.opened_topic(topic.name) is topic:
                    return topic, error
            except LithifyError as error:
                return topic, error
            try:
                topic = await self._broker.topic(topic.name)
            except LithifyError as error:
                return topic, error

    async def _end(self, topic: Topic, pending: Pending | LithifyError) -> Any:
        """The results of an append, in the order of its messages."""
        try:
            if isinstance(pending, LithifyError):
                raise pending
            await pending
        except LithifyError as error:
            return itertools.repeat({"messageId": "", "errorCode": 1, "errorMsg": str(error)})
        self._broker.dispatch(topic)
        positions = (at for first, last in pending.runs for at in range(first, last + 1))
        return ({"messageId": _text(at, topic), "errorCode": 0} for at in positions)


def _appending(request: Request, topic: Topic, bodies: list[bytes], now_ms: int) -> Steps[Pending]:
    count = len(bodies)
    yield from topic.writer.preparing(sum(len(body) + HEADER_BYTES for body in bodies))
    check_request(request)
    topic.writer.check_open()
    _check_writable(topic)
    return topic.writer.append_entries(bodies, times=[now_ms] * count, counts=[1] * count)


def _check_writable(topic: Topic) -> None:
    topic.writer.check_writable()
    exclusive = topic.producers.exclusive
    if exclusive is not None:
        raise ProducerBusy(f"producer {exclusive.name} has exclusive access to the topic")


def _is_large(row: object) -> bool:
    """Whether a message has so much text that building it takes milliseconds."""
    if not isinstance(row, dict):
        return False
    texts = [*row.values()]
    properties = row.get("properties")
    if isinstance(properties, dict):
        texts += [*properties, *properties.values()]
    return sum(len(each) for each in texts if isinstance(each, str)) > LARGE_BYTES


def _chunks(topic: Topic, numbers: list[int], bodies: list[bytes]) -> Iterator[list[int]]:
    """Split the numbers of messages into groups of one append each."""
    some: list[int] = []
    limit = min(APPENDED_BYTES, topic.writer.append_bytes_max)
    size_bytes = 0
    for number in numbers:
        size_bytes += len(bodies[number]) + HEADER_BYTES
        if some and (size_bytes > limit or len(some) == APPENDED_MAX):
            yield some
            some, size_bytes = [], len(bodies[number]) + HEADER_BYTES
        some.append(number)
    yield some


def _text(position: int, topic: Topic) -> str:
    ledger, entry = unpack(position)
    return f"{ledger}:{entry}:{topic.name.partition}"


async def _publish(request: Request, name: TopicName, partition: int | None = None) -> Response:
    publisher: HttpProducer = request.app.state.publisher
    return await publisher.publish(request, name, partition)


@router.post("", openapi_extra=_BODY, response_model=dict[str, Any])
async def produce(request: Request, name: TopicPath) -> Response:
    """Append messages to a topic."""
    return await _publish(request, name)


@router.post("/partitions/{partition}", openapi_extra=_BODY, response_model=dict[str, Any])
async def produce_to_partition(
    request: Request, name: TopicPath, broker: BrokerDep, partition: int
) -> Response:
    """Append messages to one partition of a topic."""
    count = broker.topics.partitions(name)
    if not 0 <= partition < count:
        reason = f"topic {name} has {count} partitions, number {partition} does not exist"
        raise RequestRefused(HTTPStatus.NOT_FOUND, reason)
    return await _publish(request, name, partition)
