"""Converts path segments to validated names and to the objects with these names.

Routes match the raw, percent-encoded path (`RawPaths`); each segment is decoded here afterwards. So
the name of a topic may have an encoded slash, and an encoded slash or dot does not split a segment.
`Namespace` and `TopicName` validate every name.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from fastapi import Depends, Request

from lithify.errors import InvalidInput
from lithify.http.error_responses import RequestRefused
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.topic_names import Namespace, TopicName, check_client_name
from lithify.topics.topic import Topic

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = [
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
