"""Which entries retention deletes, and which limits apply."""

from __future__ import annotations

import pytest

from lithify.errors import InvalidSetting
from lithify.log.manifest import SegmentRef
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition, TopicDefinition
from lithify.topics.definitions.policies import Policies, policies_of
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.retention import LogHold, acknowledged_through, first_to_keep

SEGMENTS = (
    SegmentRef(1, "1", 0, 9, 10, 100, 100, time_min=0, time_max=1000, sealed=True),
    SegmentRef(2, "2", 10, 19, 10, 100, 100, time_min=1000, time_max=2000, sealed=True),
    SegmentRef(3, "3", 20),
)
ALL = acknowledged_through([]).position


def acknowledged(*positions: int) -> int:
    return acknowledged_through(LogHold(str(each), each) for each in positions).position


def keep(policies: Policies, acknowledged: int = ALL, now_ms: int = 2500) -> int:
    return first_to_keep(SEGMENTS, 50, acknowledged=acknowledged, policies=policies, now_ms=now_ms)


def test_without_limits_everything_stays() -> None:
    assert keep(Policies()) == 0


@pytest.mark.parametrize(
    ("age_ms", "first"), [(1501, 0), (1500, 10), (501, 10), (500, 20), (0, 20)]
)
def test_retention_by_age(age_ms: int, first: int) -> None:
    assert keep(Policies(retention_ms=age_ms)) == first


@pytest.mark.parametrize(("size", "first"), [(151, 0), (150, 10), (51, 10), (50, 20), (0, 20)])
def test_retention_by_size(size: int, first: int) -> None:
    assert keep(Policies(retention_bytes=size)) == first


@pytest.mark.parametrize(("mark_delete", "first"), [(8, 0), (9, 10), (18, 10), (19, 20), (25, 20)])
def test_only_what_every_durable_subscription_has_acknowledged(
    mark_delete: int, first: int
) -> None:
    assert keep(Policies(retention_ms=0), acknowledged(40, mark_delete)) == first


def test_a_topic_rules_over_its_namespace_and_that_over_the_node() -> None:
    name = TopicName.parse("orders")
    node = Policies(retention_ms=1, retention_bytes=1, message_ttl_ms=1)
    definitions = (
        Definitions.initial()
        .with_namespace(
            Namespace("public", "default"),
            NamespaceDefinition({"retention_ms": 2, "retention_bytes": 2, "message_ttl_ms": None}),
        )
        .with_topic(name, TopicDefinition(4, settings={"retention_ms": 3}))
    )
    expected = Policies(retention_ms=3, retention_bytes=2, message_ttl_ms=1)
    assert policies_of(definitions, name.partition_name(2), node) == expected


def test_limits_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="retention_ms"):
        Policies(retention_ms=-2)
