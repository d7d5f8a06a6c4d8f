"""Retry and dead letter topics, which clients make of ordinary topics and delayed messages.

The Python client has the dead letter policy, but nothing that tries a message again later through a
retry topic. What the Java client does for it is done here by hand (`Retrying`), with its names of
topics and properties, so that a subscription can be shared with such clients:

1. A consumer of a shared subscription takes the topic and `TOPIC-SUBSCRIPTION-RETRY` together.
2. A message that cannot be handled now is sent to the retry topic, to be delivered after a delay,
   with the number of times it was tried; only then is it acknowledged where it came from.
3. One that was tried too often goes to `TOPIC-SUBSCRIPTION-DLQ` instead.
"""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pulsar

from tests.protocol.harness import RECEIVE_MS, Case, Server, in_client, nothing_comes, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

RETRIES_MAX = 2


class Retrying:
    """A consumer that can put a message off."""

    def __init__(self, case: Case, topic: str, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._topic = topic
        self._retry = case.client.create_producer(f"{topic}-s-RETRY")
        self._dead = case.client.create_producer(f"{topic}-s-DLQ")
        self.consumer = case.earliest(
            topic=[topic, f"{topic}-s-RETRY"], consumer_type=pulsar.ConsumerType.Shared
        )

    def reconsume_later(self, message: Any) -> None:
        """Send it where it is tried again, or never."""
        properties = dict(message.properties())
        tried = int(properties.get("RECONSUMETIMES", 0)) + 1
        properties |= {"RECONSUMETIMES": str(tried), "DELAY_TIME": str(self._delay_ms)}
        properties.setdefault("REAL_TOPIC", message.topic_name())
        properties.setdefault("ORIGIN_MESSAGE_ID", str(message.message_id()))
        options: dict[str, Any] = {
            "properties": properties,
            "partition_key": message.partition_key(),
        }
        if tried > RETRIES_MAX:
            self._dead.send(message.data(), **options)
        else:
            delay = timedelta(milliseconds=self._delay_ms)
            self._retry.send(message.data(), deliver_after=delay, **options)
        self.consumer.acknowledge(message)


@in_client
def test_messages_are_retried_later_and_then_go_to_the_dead_letter_topic(case: Case) -> None:
    """One is handled at once, one the third time it comes, one never."""
    delay_ms = 300
    retrying = Retrying(case, case.topic, delay_ms)
    dead = case.earliest("undertaker", topic=f"{case.topic}-s-DLQ")
    producer = case.client.create_producer(case.topic)
    wrong = {b"good": 0, b"flaky": 2, b"poison": 9}
    ids = {
        value: str(producer.send(value, partition_key=f"key of {value.decode()}"))
        for value in wrong
    }
    came: dict[bytes, list[float]] = {value: [] for value in wrong}
    for _ in range(7):
        message = retrying.consumer.receive(RECEIVE_MS)
        times = came[message.data()]
        assert message.properties().get("RECONSUMETIMES", "0") == str(len(times))
        assert message.topic_name().endswith("-s-RETRY") is bool(times)
        times.append(time.monotonic())
        if len(times) > wrong[message.data()]:
            retrying.consumer.acknowledge(message)
        else:
            retrying.reconsume_later(message)
    assert {value: len(times) for value, times in came.items()} == {
        b"good": 1,
        b"flaky": 3,
        b"poison": 3,
    }
    for times in came.values():
        waited_s = [after - before for before, after in pairwise(times)]
        # The client says when in whole milliseconds, cut off.
        soonest_s = (delay_ms - 1) / 1000
        assert all(soonest_s <= each for each in waited_s), waited_s
    assert nothing_comes(retrying.consumer)
    message = dead.receive(RECEIVE_MS)
    assert (message.data(), message.partition_key()) == (b"poison", "key of poison")
    assert message.properties() == {
        "RECONSUMETIMES": "3",
        "DELAY_TIME": str(delay_ms),
        "REAL_TOPIC": f"persistent://public/default/{case.topic}",
        "ORIGIN_MESSAGE_ID": ids[b"poison"],
    }
    assert nothing_comes(dead)


PUT_OFF_MS = 2000


def put_off(case: Case) -> None:
    retrying = Retrying(case, "killed", PUT_OFF_MS)
    case.client.create_producer("killed").send(b"value")
    message = retrying.consumer.receive(RECEIVE_MS)
    print("due", int(time.time() * 1000) + PUT_OFF_MS)
    retrying.reconsume_later(message)
    # Sends the acknowledgement.
    retrying.consumer.close()


def take_up(case: Case, due_ms: int) -> None:
    retrying = Retrying(case, "killed", PUT_OFF_MS)
    message = retrying.consumer.receive(RECEIVE_MS)
    # The delay began a little after the other process checked its clock.
    assert time.time() * 1000 >= due_ms
    assert message.properties()["RECONSUMETIMES"] == "1"
    assert message.topic_name().endswith("-s-RETRY")
    retrying.consumer.acknowledge(message)
    assert nothing_comes(retrying.consumer)


def test_delayed_messages_survive_kill_9(own_broker: Callable[..., Server]) -> None:
    broker = own_broker()
    due_ms = int(broker.run_case(put_off).split("due ")[-1])
    broker.kill()
    broker.start()
    broker.run_case(take_up, due_ms=due_ms)


@in_client
def test_the_dead_letters_of_the_client_itself(case: Case) -> None:
    """Their topic has the usual name, and they say where they were.

    Not of batches: there the client takes the whole batch for dead, also what was acknowledged.
    """
    consumer = case.earliest(
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1),
    )
    dead = case.earliest("undertaker", topic=f"{case.topic}-s-DLQ")
    ids = dict(zip(numbers(5), map(str, case.fill(5)), strict=True))
    for _ in range(5 + 2):
        message = consumer.receive(RECEIVE_MS)
        if message.data() in {b"1", b"3"}:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    found = [dead.receive(RECEIVE_MS) for _ in range(2)]
    assert sorted(message.data() for message in found) == [b"1", b"3"]
    for message in found:
        assert message.properties() == {
            "REAL_TOPIC": f"persistent://public/default/{case.topic}",
            "ORIGIN_MESSAGE_ID": ids[message.data()],
        }
    assert nothing_comes(consumer)
    assert nothing_comes(dead)
    consumer.close()
    # What went to the other topic is acknowledged on this one.
    assert nothing_comes(case.client.subscribe(case.topic, "s", pulsar.ConsumerType.Shared))
