"""Policies of single topics, and how many clients a topic may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.topics.admission import (
    TooManySubscriptions,
    check_consumer,
    check_producer,
    check_subscription,
)
from lithify.topics.producers.producers import Producer, ProducerBusy
from lithify.topics.subscriptions.subscription import Consumer, ConsumerRefused, SubscriptionType
from tests.http.node import ORDERS, HttpNode

if TYPE_CHECKING:
    from collections.abc import Iterator

AT = "/persistent/public/default/orders"
NAMESPACE = "/namespaces/public/default"


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode() as node:
        yield node


def test_a_topic_has_its_own_retention_and_time_to_live(node: HttpNode) -> None:
    topic = node.topic()
    hour = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
    minute = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 10}
    node.do("POST", f"{NAMESPACE}/retention", hour)
    node.do("POST", f"{NAMESPACE}/messageTTL", 100)
    assert node.get(f"{AT}/retention") is None
    assert node.get(f"{AT}/messageTTL") is None
    assert node.get(f"{AT}/retention?applied=true") == hour
    assert node.get(f"{AT}/messageTTL?applied=true") == 100
    node.do("POST", f"{AT}/retention", minute)
    node.do("POST", f"{AT}/messageTTL?messageTTL=5")
    assert node.get(f"{AT}/retention") == node.get(f"{AT}/retention?applied=true") == minute
    held = topic.policies()
    assert (held.retention_ms, held.retention_bytes) == (60_000, 10 * 2**20)
    assert held.message_ttl_ms == 5000
    assert "-1 s" in node.refused(412, "POST", f"{AT}/messageTTL?messageTTL=-1")
    node.do("DELETE", f"{AT}/retention")
    node.do("DELETE", f"{AT}/messageTTL")
    assert topic.policies().retention_ms == 3_600_000
    assert topic.policies().message_ttl_ms == 100_000
    assert node.topics.definitions.current.topics[ORDERS].settings == {}


def test_a_topic_has_its_own_backlog_quota(node: HttpNode) -> None:
    topic = node.topic()
    wanted = {"limitSize": 4096, "limitTime": -1, "policy": "producer_exception"}
    node.do("POST", f"{AT}/backlogQuota", wanted)
    assert node.get(f"{AT}/backlogQuotaMap") == {"destination_storage": {"limit": 4096, **wanted}}
    assert topic.policies().backlog_bytes_max == 4096
    assert "not of time" in node.refused(
        501, "POST", f"{AT}/backlogQuota", {**wanted, "limitTime": 1}
    )
    node.do("DELETE", f"{AT}/backlogQuota")
    assert node.get(f"{AT}/backlogQuotaMap") == {}


@pytest.mark.parametrize(
    ("of_topic", "of_namespace", "name"),
    [
        ("maxProducers", "maxProducersPerTopic", "producers_max"),
        ("maxConsumers", "maxConsumersPerTopic", "consumers_max"),
        ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "subscriptions_max"),
        ("maxConsumersPerSubscription",) * 2 + ("subscription_consumers_max",),
    ],
)
def test_counts_of_a_topic_come_before_those_of_its_namespace(
    node: HttpNode, of_topic: str, of_namespace: str, name: str
) -> None:
    topic = node.topic()
    assert node.get(f"{AT}/{of_topic}") is None
    assert node.get(f"{NAMESPACE}/{of_namespace}") is None
    node.do("POST", f"{NAMESPACE}/{of_namespace}", 7)
    assert node.get(f"{NAMESPACE}/{of_namespace}") == 7
    assert node.get(f"{AT}/{of_topic}?applied=true") == getattr(topic.policies(), name) == 7
    node.do("POST", f"{AT}/{of_topic}", 3)
    assert node.get(f"{AT}/{of_topic}") == getattr(topic.policies(), name) == 3
    assert "must be 0" in node.refused(412, "POST", f"{AT}/{of_topic}", -1)
    assert "must be 0" in node.refused(412, "POST", f"{NAMESPACE}/{of_namespace}", -1)
    node.do("DELETE", f"{AT}/{of_topic}")
    assert getattr(topic.policies(), name) == 7
    node.do("DELETE", f"{NAMESPACE}/{of_namespace}")
    assert getattr(topic.policies(), name) == 0
    assert "does not exist" in node.refused(
        404, "POST", f"/persistent/public/default/nowhere/{of_topic}", 1
    )


def test_the_policies_of_a_partition_are_those_of_its_topic(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 2)
    node.do("POST", f"{AT}-partition-1/maxProducers", 3)
    assert node.get(f"{AT}/maxProducers") == 3
    assert node.topic(f"{ORDERS}-partition-0").policies().producers_max == 3


def test_one_client_too_many_is_refused(node: HttpNode) -> None:
    topic = node.topic()
    topic.producers.add(Producer("a"))
    subscription = topic.subscription("s", SubscriptionType.SHARED, durable=True, start=0)
    subscription.add(Consumer("c"), SubscriptionType.SHARED)
    check_producer(topic, "b")
    check_consumer(topic, "s")
    check_subscription(topic, "t")
    for what in ("maxProducers", "maxConsumers", "maxSubscriptionsPerTopic"):
        node.do("POST", f"{AT}/{what}", 1)
    with pytest.raises(ProducerBusy, match="has 1 producers, the limit is 1"):
        check_producer(topic, "b")
    check_producer(topic, "a")
    with pytest.raises(ConsumerRefused, match="has 1 consumers, the limit is 1"):
        check_consumer(topic, "other")
    with pytest.raises(TooManySubscriptions, match="has 1 subscriptions, the limit is 1"):
        check_subscription(topic, "t")
    check_subscription(topic, "s")
    node.do("POST", f"{AT}/maxConsumers", 0)
    check_consumer(topic, "s")
    node.do("POST", f"{AT}/maxConsumersPerSubscription", 1)
    with pytest.raises(ConsumerRefused, match="subscription s of"):
        check_consumer(topic, "s")
    check_consumer(topic, "other")
