"""Routes for settings of a topic and of its namespace with a single number: GET, set and DELETE.

GET returns the value that was set, or null; for a topic with `applied=true` the effective value.
DELETE reverts to the level above.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from lithify.http.admin.definition_settings import (
    change_settings,
    change_topic_settings,
    settings_of,
    topic_settings_of,
)
from lithify.http.paths import BrokerDep, NamespacePath, TopicPath
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.topic_names import TopicName

__all__ = ["add_namespace_number", "add_topic_number"]

_TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE = "/namespaces/{tenant}/{namespace}"


def _done() -> Response:
    return Response(status_code=204)


def add_topic_number(
    router: APIRouter,
    what: str,
    setting: str,
    *,
    applied_of: Callable[[Broker, TopicName], dict[str, Any]],
    check: Callable[[str, int], int],
) -> None:
    """Add the routes of a topic's setting; `check` may refuse a value."""

    @router.get(f"{_TOPIC}/{what}", summary=f"{what} of a topic")
    async def number(name: TopicPath, broker: BrokerDep, *, applied: bool = False) -> int | None:
        settings = applied_of(broker, name) if applied else topic_settings_of(broker, name)
        found: int | None = settings.get(setting)
        return found

    @router.post(f"{_TOPIC}/{what}", status_code=204, summary=f"Set {what} of a topic")
    async def change(
        name: TopicPath, broker: BrokerDep, wanted: Annotated[int, Body()]
    ) -> Response:
        await change_topic_settings(broker, name, {setting: check(what, wanted)})
        return _done()

    @router.delete(f"{_TOPIC}/{what}", status_code=204, summary=f"Remove {what} of a topic")
    async def remove(name: TopicPath, broker: BrokerDep) -> Response:
        await change_topic_settings(broker, name, {setting: None})
        return _done()


def add_namespace_number(
    router: APIRouter,
    what: str,
    setting: str,
    *,
    check: Callable[[str, int], int],
    method: str = "POST",
) -> None:
    """Add the routes of a namespace's setting; `method` is the one that sets it."""

    @router.get(f"{_NAMESPACE}/{what}", summary=f"{what} of a namespace")
    async def number(name: NamespacePath, broker: BrokerDep) -> int | None:
        found: int | None = settings_of(broker, name).get(setting)
        return found

    @router.api_route(
        f"{_NAMESPACE}/{what}",
        methods=[method],
        status_code=204,
        summary=f"Set {what} of a namespace",
    )
    async def change(
        name: NamespacePath, broker: BrokerDep, wanted: Annotated[int, Body()]
    ) -> Response:
        await change_settings(broker, name, {setting: check(what, wanted)})
        return _done()

    @router.delete(f"{_NAMESPACE}/{what}", status_code=204, summary=f"Remove {what}")
    async def remove(name: NamespacePath, broker: BrokerDep) -> Response:
        await change_settings(broker, name, {setting: None})
        return _done()
