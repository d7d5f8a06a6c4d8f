"""Admission to a topic: enforces the limits on producers, consumers and subscriptions.

The limits are those of `topics/definitions/policies.py`; 0 is no limit. A producer that replaces
its own earlier connection, and a subscription that exists, do not count twice. The broker calls
these checks before it admits a client. Pure decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.exit_codes import CONFLICT
from lithify.topics.producers.producers import ProducerBusy
from lithify.topics.subscriptions.subscription import ConsumerRefused

if TYPE_CHECKING:
    from lithify.topics.topic import Topic

__all__ = ["TooManySubscriptions", "check_consumer", "check_producer", "check_subscription"]


class TooManySubscriptions(InvalidInput):
    """The topic has reached its limit of subscriptions."""

    exit_code = CONFLICT


def check_producer(topic: Topic, name: str) -> None:
    """Raise `ProducerBusy` if the producer would exceed the limit."""
    limit = topic.policies().producers_max
    joined = topic.producers.joined
    others = len(joined) - (name in joined) + len(topic.producers.waiting)
    if 0 < limit <= others:
        raise ProducerBusy(f"topic {topic.name} has {others} producers, the limit is {limit}")


def check_subscription(topic: Topic, name: str) -> None:
    """Raise `TooManySubscriptions` if a new subscription would exceed the limit."""
    limit = topic.policies().subscriptions_max
    count = len(topic.subscriptions)
    if name not in topic.subscriptions and 0 < limit <= count:
        raise TooManySubscriptions(
            f"topic {topic.name} has {count} subscriptions, the limit is {limit}"
        )


def check_consumer(topic: Topic, subscription: str) -> None:
    """Raise `ConsumerRefused` if a consumer would exceed a limit of topic or subscription."""
    policies = topic.policies()
    limit = policies.consumers_max
    if limit > 0:
        count = sum(len(each.consumers) for each in topic.subscriptions.values())
        if count >= limit:
            raise ConsumerRefused(f"topic {topic.name} has {count} consumers, the limit is {limit}")
    limit, existing = policies.subscription_consumers_max, topic.subscriptions.get(subscription)
    if existing is not None and 0 < limit <= len(existing.consumers):
        raise ConsumerRefused(
            f"subscription {subscription} of {topic.name} has {len(existing.consumers)} consumers, "
            f"the limit is {limit}"
        )
