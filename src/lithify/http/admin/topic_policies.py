"""Policies of single topics, and limits on the clients of a topic, over HTTP.

| of a topic                 | of a namespace             | in the definitions         |
|----------------------------|----------------------------|----------------------------|
| retention, messageTTL      | `namespaces.py`            | `settings_conversion.py`   |
| maxProducers               | maxProducersPerTopic       | producers_max              |
| maxConsumers               | maxConsumersPerTopic       | consumers_max              |
| maxSubscriptionsPerTopic   | maxSubscriptionsPerTopic   | subscriptions_max          |
| maxConsumersPerSubscription| maxConsumersPerSubscription| subscription_consumers_max |

GET returns the value that was set, or null; with `applied=true` the effective one, from any level.
DELETE reverts to the level above. A count of 0 is no limit.
"""

from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from lithify.http.admin.definition_settings import (
    applied_to,
    change_topic_settings,
    topic_settings_of,
)
from lithify.http.admin.settings_conversion import (
    MESSAGE_TTL_MS,
    RETENTION_BYTES,
    RETENTION_MS,
    Retention,
    retention_of,
    ttl_seconds_of,
    ttl_settings,
)
from lithify.http.admin.single_number_routes import add_namespace_number, add_topic_number
from lithify.http.error_responses import RequestRefused
from lithify.http.paths import BrokerDep, TopicPath
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.topic_names import TopicName

__all__ = ["router"]

router = APIRouter(prefix="/admin/v2", tags=["policies"])

_TOPIC = "/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE = "/namespaces/{tenant}/{namespace}"

_COUNTS = (
    ("maxProducers", "maxProducersPerTopic", "producers_max"),
    ("maxConsumers", "maxConsumersPerTopic", "consumers_max"),
    ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "subscriptions_max"),
    ("maxConsumersPerSubscription", "maxConsumersPerSubscription", "subscription_consumers_max"),
)


def _done() -> Response:
    return Response(status_code=204)


def _settings(broker: Broker, name: TopicName, *, applied: bool) -> dict[str, Any]:
    """The effective settings of a topic, or its own."""
    return asdict(applied_to(broker, name)) if applied else topic_settings_of(broker, name)


# --- retention and time to live of a topic ----------------------------------------------------


@router.get(f"{_TOPIC}/retention")
async def retention(
    name: TopicPath, broker: BrokerDep, *, applied: bool = False
) -> dict[str, int] | None:
    """The retention of its acknowledged messages."""
    return retention_of(_settings(broker, name, applied=applied))


@router.post(f"{_TOPIC}/retention", status_code=204)
async def set_retention(
    name: TopicPath, broker: BrokerDep, wanted: Annotated[Retention, Body()]
) -> Response:
    """Set the retention of its acknowledged messages."""
    await change_topic_settings(broker, name, wanted.settings())
    return _done()


@router.delete(f"{_TOPIC}/retention", status_code=204)
async def remove_retention(name: TopicPath, broker: BrokerDep) -> Response:
    """Revert to the setting of the namespace."""
    await change_topic_settings(broker, name, {RETENTION_MS: None, RETENTION_BYTES: None})
    return _done()


@router.get(f"{_TOPIC}/messageTTL")
async def message_ttl(name: TopicPath, broker: BrokerDep, *, applied: bool = False) -> int | None:
    """The seconds after which one of its messages counts as acknowledged."""
    return ttl_seconds_of(_settings(broker, name, applied=applied))


@router.post(f"{_TOPIC}/messageTTL", status_code=204)
async def set_message_ttl(
    name: TopicPath,
    broker: BrokerDep,
    messageTTL: int,  # noqa: N803  (as clients write it)
) -> Response:
    """Set the time to live of messages; 0: never."""
    await change_topic_settings(broker, name, ttl_settings(messageTTL))
    return _done()


@router.delete(f"{_TOPIC}/messageTTL", status_code=204)
async def remove_message_ttl(name: TopicPath, broker: BrokerDep) -> Response:
    """Revert to the setting of the namespace."""
    await change_topic_settings(broker, name, {MESSAGE_TTL_MS: None})
    return _done()


# --- counts -----------------------------------------------------------------------------------


def _checked(what: str, count: int) -> int:
    if not 0 <= count <= 2**31:
        reason = f"{what} is {count}, must be 0 to 2^31"
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, reason)
    return count


def _applied(broker: Broker, name: TopicName) -> dict[str, Any]:
    return asdict(applied_to(broker, name))


for _of_topic, _of_namespace, _setting in _COUNTS:
    add_topic_number(router, _of_topic, _setting, applied_of=_applied, check=_checked)
    add_namespace_number(router, _of_namespace, _setting, check=_checked)
