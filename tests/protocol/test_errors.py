"""What is refused reaches the client as a typed exception, at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pulsar
import pytest

from tests.protocol.harness import OPERATION_S, Case, Server, in_client

if TYPE_CHECKING:
    from collections.abc import Callable


def raises_at_once(kind: type[Exception], call: Callable[..., object], *values: object) -> None:
    began = time.monotonic()
    with pytest.raises(kind):
        call(*values)
    # A client that is told to try again does so until its time is over.
    assert time.monotonic() - began < OPERATION_S / 2


@in_client
def test_invalid_topic_names(case: Case) -> None:
    for name in (
        "persistent://public/default/../x",
        "persistent://public/default/a/../b",
        "persistent://public/default/" + "x" * 300,
        "persistent://pub lic/default/x",
    ):
        raises_at_once(pulsar.PulsarException, case.client.create_producer, name)
        raises_at_once(pulsar.PulsarException, case.client.subscribe, name, "s")


@in_client
def test_a_namespace_that_does_not_exist(case: Case) -> None:
    name = "persistent://nobody/nowhere/x"
    raises_at_once(pulsar.PulsarException, case.client.create_producer, name)
    raises_at_once(pulsar.PulsarException, case.client.subscribe, name, "s")


@in_client
def test_names_that_are_too_long(case: Case) -> None:
    raises_at_once(pulsar.NotAllowedError, case.client.subscribe, case.topic, "x" * 2000)
    with pytest.raises(pulsar.NotAllowedError):
        case.client.subscribe(case.topic, "s", consumer_name="x" * 2000)
    with pytest.raises(pulsar.NotAllowedError):
        case.client.create_producer(case.topic, producer_name="x" * 2000)


@in_client
def test_an_exclusive_subscription_is_busy(case: Case) -> None:
    case.client.subscribe(case.topic, "s")
    raises_at_once(pulsar.ConsumerBusy, case.client.subscribe, case.topic, "s")
    shared = pulsar.ConsumerType.Shared
    raises_at_once(pulsar.ConsumerBusy, case.connect().subscribe, case.topic, "s", shared)


def refused(case: Case) -> None:
    raises_at_once(pulsar.TopicNotFound, case.client.create_producer, "absent")
    raises_at_once(pulsar.TopicNotFound, case.client.subscribe, "absent", "s")
    earliest = pulsar.MessageId.earliest
    raises_at_once(pulsar.TopicNotFound, case.client.create_reader, "absent", earliest)
    case.client.create_producer("present").send(b"x")
    case.client.create_producer("divided").send(b"x")


def test_topics_are_not_created_where_that_is_off(own_broker: Callable[..., Server]) -> None:
    broker = own_broker(auto_create=False, topics={"present": 0, "divided": 2})
    broker.run_case(refused)
