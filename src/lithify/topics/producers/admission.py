"""Who may join a topic that says how many may: the counts of `topics/definitions/policies.py`.

Pure decisions.

A producer that takes over the place of its earlier connection, and a subscription that is there
already, count once. 0 is no limit. Called by the broker before it lets somebody in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import CONFLICT, InvalidInput
from lithify.topics.producers.producers import ProducerBusy
from lithify.topics.subscriptions.subscription import ConsumerRefused

if TYPE_CHECKING:
    from lithify.topics.topic import Topic

__all__ = ["TooManySubscriptions", "check_consumer", "check_producer", "check_subscription"]


class TooManySubscriptions(InvalidInput):
    """The topic has as many as it may have."""

    exit_code = CONFLICT


def check_producer(topic: Topic, name: str) -> None:
    """Raise `ProducerBusy` if one more is too many."""
    limit = topic.policies().producers_max
    joined = topic.producers.joined
    others = len(joined) - (name in joined) + len(topic.producers.waiting)
    if 0 < limit <= others:
        raise ProducerBusy(f"topic {topic.name} has {others} producers, the limit is {limit}")


def check_subscription(topic: Topic, name: str) -> None:
    """Raise `TooManySubscriptions` if one of that name would be one too many."""
    limit = topic.policies().subscriptions_max
    count = len(topic.subscriptions)
    if name not in topic.subscriptions and 0 < limit <= count:
        raise TooManySubscriptions(
            f"topic {topic.name} has {count} subscriptions, the limit is {limit}"
        )


def check_consumer(topic: Topic, subscription: str) -> None:
    """Raise `ConsumerRefused` if one more is too many for the topic or the subscription."""
    policies = topic.policies()
    limit = policies.consumers_max
    if limit > 0:
        count = sum(len(each.consumers) for each in topic.subscriptions.values())
        if count >= limit:
            raise ConsumerRefused(f"topic {topic.name} has {count} consumers, the limit is {limit}")
    limit, found = policies.subscription_consumers_max, topic.subscriptions.get(subscription)
    if found is not None and 0 < limit <= len(found.consumers):
        raise ConsumerRefused(
            f"subscription {subscription} of {topic.name} has {len(found.consumers)} consumers, "
            f"the limit is {limit}"
        )
