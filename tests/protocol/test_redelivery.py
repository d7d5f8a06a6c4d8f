"""Messages that come again: refused, not acknowledged in time, sought, or delayed."""

from __future__ import annotations

import time
from datetime import timedelta

import pulsar
import pytest

from tests.protocol.harness import (
    RECEIVE_MS,
    Case,
    in_client,
    moment_ms,
    nothing_comes,
    numbers,
    receive_all,
)


@in_client
def test_negatively_acknowledged_messages_are_redelivered_and_counted(case: Case) -> None:
    case.fill(5)
    consumer = case.earliest(
        consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    for round_ in range(3):
        messages = [consumer.receive(RECEIVE_MS) for _ in range(5)]
        assert [m.data() for m in messages] == numbers(5)
        assert {m.redelivery_count() for m in messages} == {round_}
        for message in messages:
            consumer.negative_acknowledge(message)
    assert receive_all(consumer, 5) == numbers(5)
    assert nothing_comes(consumer)


@in_client
def test_refusing_on_an_exclusive_subscription(case: Case) -> None:
    case.fill(5)
    consumer = case.earliest(negative_ack_redelivery_delay_ms=100)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(5)]
    consumer.negative_acknowledge(messages[2])
    for message in messages[:2] + messages[3:]:
        consumer.acknowledge(message)
    assert consumer.receive(RECEIVE_MS).data() == b"2"


@in_client
def test_all_unacknowledged_again(case: Case) -> None:
    case.fill(10)
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared):
        consumer = case.earliest(str(kind), consumer_type=kind)
        assert receive_all(consumer, 4) == numbers(4)
        receive_all(consumer, 3, ack=False)
        case.wait_for_backlog(str(kind), 6)
        consumer.redeliver_unacknowledged_messages()
        assert sorted(receive_all(consumer, 6)) == numbers(4, 10)
        consumer.close()


@pytest.mark.slow  # the client takes no shorter time than 10 s
@in_client
def test_not_acknowledged_in_time(case: Case) -> None:
    case.fill(3)
    consumer = case.earliest(
        consumer_type=pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000
    )
    first = consumer.receive(RECEIVE_MS)
    receive_all(consumer, 2)
    again = consumer.receive(25_000)
    assert again.message_id() == first.message_id()
    assert again.redelivery_count() == 1


@in_client
def test_the_dead_letter_topic(case: Case) -> None:
    consumer = case.earliest(
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            2, f"{case.topic}-dead", initial_subscription_name="undertaker"
        ),
    )
    case.fill(3)
    for _ in range(7):  # 0 and 2 three times each, 1 once
        message = consumer.receive(RECEIVE_MS)
        if message.data() == b"1":
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    assert nothing_comes(consumer)
    dead = case.client.subscribe(f"{case.topic}-dead", "undertaker")
    assert sorted(receive_all(dead, 2)) == [b"0", b"2"]


@in_client
def test_seeking_by_id_and_time(case: Case) -> None:
    ids = case.fill(10)
    now_ms = moment_ms()
    producer = case.client.create_producer(case.topic)
    for value in numbers(10, 20):
        producer.send(value)
    for kind in ("Exclusive", "Shared", "Failover", "KeyShared"):
        consumer = case.earliest(kind, consumer_type=getattr(pulsar.ConsumerType, kind))
        receive_all(consumer, 15)
        consumer.seek(ids[5])
        # Exclusive of the given one, as the client asks for it.
        assert receive_all(consumer, 3) == numbers(6, 9)
        consumer.seek(now_ms)
        assert receive_all(consumer, 10) == numbers(10, 20)
        consumer.seek(pulsar.MessageId.earliest)
        assert receive_all(consumer, 20) == numbers(20)
        consumer.seek(pulsar.MessageId.latest)
        assert nothing_comes(consumer)
        consumer.close()


@in_client
def test_a_seek_survives_a_reconnect(case: Case) -> None:
    case.fill(10)
    consumer = case.earliest()
    receive_all(consumer, 10)
    consumer.seek(pulsar.MessageId.earliest)
    consumer.close()
    assert receive_all(case.earliest(), 10) == numbers(10)


@in_client
def test_delayed_messages(case: Case) -> None:
    shared = case.earliest("shared", consumer_type=pulsar.ConsumerType.Shared)
    exclusive = case.earliest("exclusive")
    producer = case.client.create_producer(case.topic)
    delays_s = {b"in an hour": 3600.0, b"later": 1.5, b"soon": 1.0, b"now": 0.0}
    due_s = {}
    for value, delay_s in delays_s.items():
        due_s[value] = time.monotonic() + delay_s
        options = {"deliver_after": timedelta(seconds=delay_s)} if delay_s else {}
        producer.send(value, **options)
    # Only shared subscriptions know delays.
    assert receive_all(exclusive, 4) == list(delays_s)
    came_s = {}
    for _ in range(3):
        (value,) = receive_all(shared, 1)
        came_s[value] = time.monotonic()
    assert set(came_s) == {b"now", b"soon", b"later"}
    # The client says when in whole milliseconds, cut off.
    assert all(came_s[value] > due_s[value] - 0.001 for value in came_s), (came_s, due_s)
    assert nothing_comes(shared)
