"""Subscriptions: list, create, delete, move, skip, expire, peek.

For a partitioned topic each request applies to all partitions, except that a position belongs to
one partition.
"""

import asyncio
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Response

from lithify.http.error_responses import RequestRefused
from lithify.http.message_ids import LATEST, MessageIdBody
from lithify.http.messages.entry_response import peek_response
from lithify.http.paths import BrokerDep, SubscriptionPath, TopicPath, topic_at, topics_at
from lithify.pulsar.broker import Broker
from lithify.topics.definitions.definitions import AlreadyDefined
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.disk_steps import Steps
from lithify.topics.subscriptions.cursor_changes import AckedUpTo
from lithify.topics.subscriptions.subscription import Subscription, SubscriptionType
from lithify.topics.topic import Topic

__all__ = ["router"]

router = APIRouter(
    prefix="/admin/v2/persistent/{tenant}/{namespace}/{topic}", tags=["subscriptions"]
)

_Found = list[tuple[Topic, Subscription]]


def _done() -> Response:
    return Response(status_code=204)


async def _found(broker: Broker, name: TopicName, subscription: str) -> _Found:
    """The subscription in each partition that has it; 404 if none has."""
    rows = [
        (topic, topic.subscriptions[subscription])
        for topic in await topics_at(broker, name)
        if subscription in topic.subscriptions
    ]
    if not rows:
        reason = f"topic {name} has no subscription {subscription}"
        raise RequestRefused(HTTPStatus.NOT_FOUND, reason)
    return rows


async def _move(broker: Broker, topic: Topic, subscription: Subscription, position: int) -> None:
    """Move a subscription to a position."""

    def steps() -> Steps[None]:
        yield from broker.disconnecting(subscription)
        yield from topic.seeking(subscription, position)

    await broker.run(steps())


def _removing(broker: Broker, topic: Topic, subscription: Subscription) -> Steps[None]:
    yield from broker.disconnecting(subscription)
    yield from topic.unsubscribing(subscription)


async def _skip_below(
    broker: Broker, topic: Topic, subscription: Subscription, position: int
) -> None:
    """Acknowledge all entries below a position."""
    last = min(position - 1, topic.last_position)
    if last > subscription.acked.mark_delete:
        await broker.run(topic.acknowledging(subscription, AckedUpTo(last)))
        broker.dispatch(topic, subscription)


async def _expire(broker: Broker, found: _Found, seconds: int) -> None:
    """Acknowledge the messages older than `seconds`."""
    if seconds < 0:
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, f"{seconds} s: must be 0 or more")
    time_ms = broker.topics.now_ms() - seconds * 1000
    for topic, subscription in found:
        position = await broker.run(topic.reader.times.finding(time_ms))
        await _skip_below(broker, topic, subscription, position)


# --- subscriptions ----------------------------------------------------------------------------


@router.get("/subscriptions")
async def subscriptions(name: TopicPath, broker: BrokerDep) -> list[str]:
    """The names of the subscriptions."""
    found = {each for topic in await topics_at(broker, name) for each in topic.subscriptions}
    return sorted(found)


@router.put("/subscription/{subscription}", status_code=204)
async def create_subscription(
    name: TopicPath,
    subscription: SubscriptionPath,
    broker: BrokerDep,
    start: Annotated[MessageIdBody | None, Body()] = None,
) -> Response:
    """Create a durable subscription; without a message id it begins after the last message."""
    topics = await topics_at(broker, name)
    if any(subscription in topic.subscriptions for topic in topics):
        raise AlreadyDefined(f"topic {name} already has a subscription {subscription}")
    start = start or MessageIdBody(ledger_id=LATEST, entry_id=LATEST)
    begin = [start.position(topic) for topic in topics]
    kind = SubscriptionType.EXCLUSIVE
    for topic, position in zip(topics, begin, strict=True):
        await broker.run(topic.creating(subscription, kind, durable=True, start=position))
    return _done()


@router.delete("/subscription/{subscription}", status_code=204)
async def delete_subscription(
    name: TopicPath, subscription: SubscriptionPath, broker: BrokerDep, *, force: bool = False
) -> Response:
    """Delete a subscription; `force` disconnects its consumers first."""
    found = await _found(broker, name, subscription)
    if not force and any(each.consumers for _, each in found):
        reason = f"subscription {subscription} of {name} has consumers"
        raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, reason)
    for topic, each in found:
        await broker.run(_removing(broker, topic, each))
    return _done()


@router.post("/subscription/{subscription}/resetcursor", status_code=204)
async def reset_to_id(
    name: TopicPath,
    subscription: SubscriptionPath,
    broker: BrokerDep,
    target: Annotated[MessageIdBody, Body()],
) -> Response:
    """Restart at a message."""
    found = await _found(broker, name, subscription)
    if len(found) > 1 and target.ledger_id not in {-1, LATEST}:
        reason = f"topic {name} is partitioned: name a partition of it"
        raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, reason)
    positions = [target.position(topic) for topic, _ in found]
    for (topic, each), position in zip(found, positions, strict=True):
        await _move(broker, topic, each, position)
    return _done()


@router.post("/subscription/{subscription}/resetcursor/{timestamp}", status_code=204)
async def reset_to_time(
    name: TopicPath, subscription: SubscriptionPath, broker: BrokerDep, timestamp: int
) -> Response:
    """Restart at the first message published at or after a time in milliseconds.

    A subscription that is read compacted restarts at the first retained one.
    """
    for topic, each in await _found(broker, name, subscription):
        position = await broker.run(topic.reader.times.finding(timestamp, compacted=each.compacted))
        await _move(broker, topic, each, position)
    return _done()


@router.post("/subscription/{subscription}/skip_all", status_code=204)
async def skip_all(name: TopicPath, subscription: SubscriptionPath, broker: BrokerDep) -> Response:
    """Acknowledge all messages."""
    for topic, each in await _found(broker, name, subscription):
        await _skip_below(broker, topic, each, topic.log.next_position)
    return _done()


@router.post("/subscription/{subscription}/skip/{number}", status_code=204)
async def skip(
    name: TopicPath, subscription: SubscriptionPath, broker: BrokerDep, number: int
) -> Response:
    """Acknowledge the next `number` unacknowledged entries, or all."""
    if number < 0:
        raise RequestRefused(
            HTTPStatus.PRECONDITION_FAILED, f"{number} messages: must be 0 or more"
        )
    topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
    [(_, found)] = await _found(broker, topic.name, subscription)
    last = await _after_entries(topic, found, number)
    await _skip_below(broker, topic, found, last + 1)
    return _done()


async def _after_entries(topic: Topic, subscription: Subscription, number: int) -> int:
    """The position of the last of the next `number` unacknowledged entries."""
    cursor = subscription.cursor
    at = cursor.mark_delete
    while number:
        positions = await asyncio.to_thread(_positions_from, topic, at + 1)
        if not positions:
            break
        for at in positions:
            number -= not cursor.is_acked(at)
            if not number:
                break
    return at


def _positions_from(topic: Topic, start: int) -> list[int]:
    """The positions of the entries in the next piece of the log."""
    with topic.log.snapshot("skip") as snapshot:
        frames = next(snapshot.read_frames(start), None)
        positions: list[int] = [] if frames is None else frames.positions.tolist()
    return positions


@router.post("/subscription/{subscription}/expireMessages/{seconds}", status_code=204)
async def expire(
    name: TopicPath, subscription: SubscriptionPath, broker: BrokerDep, seconds: int
) -> Response:
    """Acknowledge the messages that are older than this."""
    await _expire(broker, await _found(broker, name, subscription), seconds)
    return _done()


@router.post("/all_subscription/expireMessages/{seconds}", status_code=204)
async def expire_all(name: TopicPath, broker: BrokerDep, seconds: int) -> Response:
    """Acknowledge the messages older than `seconds`, for every subscription."""
    found = [
        (topic, each)
        for topic in await topics_at(broker, name)
        for each in list(topic.subscriptions.values())
    ]
    await _expire(broker, found, seconds)
    return _done()


@router.get("/subscription/{subscription}/position/{number}")
async def peek(
    name: TopicPath, subscription: SubscriptionPath, broker: BrokerDep, number: int
) -> Response:
    """Read an unacknowledged message, the first is 1; nothing changes."""
    topic = await topic_at(broker, name, HTTPStatus.METHOD_NOT_ALLOWED)
    [(_, found)] = await _found(broker, topic.name, subscription)
    return await asyncio.to_thread(peek_response, topic, found.cursor.copy(), number)
