"""Sending connected clients away, so that what they use can be moved or removed.

A client that is sent away looks its topic up and connects again by itself. Those who follow a topic
over HTTP are woken when it is closed, so that they look for it again.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from lithify.claims import Claimed
from lithify.http.paths import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.pulsar.broker import Broker
    from lithify.topics.names import TopicName
    from lithify.topics.subscription import Subscription
    from lithify.topics.topic import Topic

__all__ = [
    "delete_topic",
    "put_out_all",
    "put_out_consumers",
    "put_out_of_topic",
    "put_out_producers",
    "unload",
]

WAIT_S = 1.0
"""A thread is not kept for longer: what it waits for may need one of the same threads."""


def put_out_consumers(broker: Broker, subscription: Subscription) -> None:
    """Send the consumers of a subscription away."""
    for consumer in list(subscription.consumers):
        broker.consumer_put_out(consumer)


def put_out_of_topic(broker: Broker, topic: Topic) -> None:
    """Send the consumers and producers of a topic away."""
    for subscription in list(topic.subscriptions.values()):
        put_out_consumers(broker, subscription)
    put_out_producers(broker, topic)


def put_out_producers(broker: Broker, topic: Topic) -> None:
    """Send the producers of a topic away."""
    producers = topic.producers
    # Those that wait go first: they must not take the place of one that leaves.
    for producer in [*producers.waiting, *producers.joined.values()]:
        producers.remove(producer)
        broker.producer_put_out(producer)


def put_out_all(broker: Broker, names: list[TopicName]) -> None:
    """Send everybody away who uses one of these topics."""
    opened = broker.topics.opened()
    for name in names:
        if name in opened:
            put_out_of_topic(broker, opened[name])


async def delete_topic(broker: Broker, name: TopicName, *, force: bool) -> None:
    """Delete a topic, which nobody may use any more; `force` sends its clients away first."""
    if not broker.topics.exists(name):
        # Nobody uses it. Whether it was lost is known after a look at the disk.
        await broker.call(name, partial(broker.topics.delete_lost, name))
        return

    def take() -> Callable[[], None]:
        if force:
            put_out_all(broker, parts_of(broker, name))
        return broker.topics.deleting(name, wait=False)

    await _take_out(broker, parts_of(broker, name), take)


async def unload(broker: Broker, names: list[TopicName]) -> None:
    """Send everybody away who uses one of these topics, and close them; use opens them again."""

    def take() -> Callable[[], None]:
        put_out_all(broker, names)
        return broker.topics.unloading(names, wait=False)

    await _take_out(broker, names, take)


async def _take_out(
    broker: Broker, names: list[TopicName], take: Callable[[], Callable[[], None]]
) -> None:
    """Take topics out of use in the loop, where clients join them, and do the rest in a thread."""
    try:
        while True:
            try:
                finish = take()
                break
            except Claimed:
                await asyncio.to_thread(broker.topics.wait_for_others, names, WAIT_S)
        await broker.release(finish)
    finally:
        for name in names:
            broker.tell_followers(name)
