"""Disconnects the clients of topics, so that these can be moved or removed.

A disconnected client repeats the lookup of its topic and reconnects automatically. Readers that
follow a topic over HTTP are woken, and open it again. In the event loop of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.pulsar.broker import DISCONNECTS_PER_STEP

if TYPE_CHECKING:
    from collections.abc import Collection

    from lithify.pulsar.broker import Broker
    from lithify.topics.disk_steps import Steps
    from lithify.topics.topic import Topic

__all__ = ["disconnect_all", "disconnecting_all", "disconnecting_producers"]


async def disconnect_all(broker: Broker, topics: Collection[Topic]) -> None:
    """Disconnect all clients of topics that are out of use."""
    for topic in topics:
        await broker.run(disconnecting_all(broker, topic))
        broker.notify_followers(topic.name)


def disconnecting_all(broker: Broker, topic: Topic) -> Steps[None]:
    """Disconnect the consumers and producers of a topic, in steps."""
    for number, subscription in enumerate(list(topic.subscriptions.values()), 1):
        yield from broker.disconnecting(subscription)
        if not number % DISCONNECTS_PER_STEP:
            yield None
    yield from disconnecting_producers(broker, topic)


def disconnecting_producers(broker: Broker, topic: Topic) -> Steps[None]:
    """Disconnect the producers of a topic, in steps."""
    producers = topic.producers
    # Waiting producers first: otherwise one would become the exclusive producer on each removal.
    for number, producer in enumerate([*producers.waiting, *producers.joined.values()], 1):
        producers.remove(producer)
        broker.disconnect_producer(producer)
        if not number % DISCONNECTS_PER_STEP:
            yield None
