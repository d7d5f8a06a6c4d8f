"""Sending connected clients away, so that what they use can be moved or removed.

A client that is sent away looks its topic up and connects again by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.pulsar.broker import Broker
    from lithify.topics.names import TopicName
    from lithify.topics.subscription import Subscription
    from lithify.topics.topic import Topic

__all__ = ["put_out_all", "put_out_consumers", "put_out_of_topic"]


def put_out_consumers(broker: Broker, subscription: Subscription) -> None:
    """Send the consumers of a subscription away."""
    for consumer in list(subscription.consumers):
        broker.consumer_put_out(consumer)


def put_out_of_topic(broker: Broker, topic: Topic) -> None:
    """Send the consumers and producers of a topic away."""
    for subscription in list(topic.subscriptions.values()):
        put_out_consumers(broker, subscription)
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
