"""Converts path segments to validated names and to the objects with these names.

Routes match the raw, percent-encoded path (`RawPaths`); each segment is decoded here afterwards. So
the name of a topic may have an encoded slash, and an encoded slash or dot does not split a segment.
`Namespace` and `TopicName` validate every name.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from fastapi import Depends, HTTPException, Request

from lithify.errors import InvalidInput
from lithify.http.error_statuses import RequestRefused
from lithify.http.json_limits import check_json_values
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.topic_names import Namespace, TopicName, check_client_name
from lithify.topics.topic import Topic

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "BodyLimit",
    "BrokerDep",
    "NamespacePath",
    "RawPaths",
    "SubscriptionPath",
    "TenantPath",
    "TopicPath",
    "decoded",
    "parts_of",
    "topic_at",
    "topics_at",
]


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

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
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

        async def counted() -> "Message":
            nonlocal size_bytes
            message = await receive()
            size_bytes += len(message.get("body", b""))
            if size_bytes > limit_bytes:
                detail = f"the body is larger than the limit, {limit_bytes} bytes"
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
            return message

        parts: list[bytes] = []

        async def checked() -> "Message":
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


def _is_content(scope: "Scope") -> bool:
    path: str = scope.get("path", "")
    return (
        scope.get("method") == "POST"
        and path.startswith(BLOBS)
        and "/" not in path.removeprefix(BLOBS)
    )


class RawPaths:
    """Makes routes match the raw path of a request."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Forward the request with the raw path."""
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None:
            scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await self._app(scope, receive, send)


def decoded(part: str) -> str:
    """Percent-decode a path segment."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{part!r} is not UTF-8") from error


async def _broker(request: Request) -> Broker:
    broker = request.app.state.broker
    assert isinstance(broker, Broker)
    return broker


async def _tenant(tenant: str) -> str:
    name = decoded(tenant)
    return Namespace(name, name).tenant


async def _namespace(tenant: str, namespace: str) -> Namespace:
    return Namespace(decoded(tenant), decoded(namespace))


async def _topic(tenant: str, namespace: str, topic: str) -> TopicName:
    return TopicName(Namespace(decoded(tenant), decoded(namespace)), decoded(topic))


async def _subscription(subscription: str) -> str:
    name = decoded(subscription)
    check_client_name("subscription", name)
    return name


BrokerDep = Annotated[Broker, Depends(_broker)]
TenantPath = Annotated[str, Depends(_tenant)]
NamespacePath = Annotated[Namespace, Depends(_namespace)]
TopicPath = Annotated[TopicName, Depends(_topic)]
SubscriptionPath = Annotated[str, Depends(_subscription)]


def parts_of(broker: Broker, name: TopicName) -> list[TopicName]:
    """The partitions of a topic, or the topic itself if it has none."""
    count = broker.topics.partitions(name)
    return [name.partition_name(number) for number in range(count)] if count else [name]


async def topics_at(broker: Broker, name: TopicName) -> list[Topic]:
    """The partitions of a topic, or the topic itself, opened."""
    return [await broker.topic(part) for part in parts_of(broker, name)]


async def topic_at(
    broker: Broker, name: TopicName, status: HTTPStatus = HTTPStatus.NOT_FOUND
) -> Topic:
    """The topic, which must not be partitioned: `status` if it is."""
    if broker.topics.partitions(name):
        raise RequestRefused(status, f"topic {name} is partitioned: name a partition of it")
    return await broker.topic(name)
