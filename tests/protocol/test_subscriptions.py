"""Subscription types, where they begin, and what they remember."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import Any

import pulsar
import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.protocol.harness import (
    RECEIVE_MS,
    Case,
    Server,
    in_client,
    nothing_comes,
    numbers,
    receive_all,
    send_all,
)
from tests.protocol.raw import RawClient, Type


@in_client
def test_earliest_and_latest(case: Case) -> None:
    case.fill(5)
    earliest = case.earliest("earliest")
    latest = case.client.subscribe(case.topic, "latest")
    case.client.create_producer(case.topic).send(b"5")
    assert receive_all(earliest, 6) == numbers(6)
    assert receive_all(latest, 1) == [b"5"]
    assert nothing_comes(latest)


@in_client
def test_a_durable_subscription_resumes_where_it_was(case: Case) -> None:
    case.fill(10)
    first = case.earliest()
    assert receive_all(first, 4) == numbers(4)
    first.close()
    second = case.client.subscribe(case.topic, "s")
    assert receive_all(second, 6) == numbers(4, 10)


@in_client
def test_unsubscribing_deletes_the_cursor(case: Case) -> None:
    case.fill(5)
    first = case.earliest()
    receive_all(first, 5)
    first.unsubscribe()
    assert receive_all(case.earliest(), 5) == numbers(5)


@in_client
def test_failover_goes_to_the_next(case: Case) -> None:
    kind = pulsar.ConsumerType.Failover
    case.fill(10)
    first = case.earliest(consumer_type=kind, consumer_name="a")
    second = case.connect().subscribe(case.topic, "s", kind, consumer_name="b")
    assert receive_all(first, 5) == numbers(5)
    assert nothing_comes(second)
    first.close()
    assert receive_all(second, 5) == numbers(5, 10)


@in_client
def test_shared_in_turn(case: Case) -> None:
    kind = pulsar.ConsumerType.Shared
    consumers = [case.earliest(consumer_type=kind) for _ in range(3)]
    case.fill(90)
    values = [value for consumer in consumers for value in receive_all(consumer, 30)]
    assert sorted(values, key=int) == numbers(90)
    assert all(nothing_comes(consumer, 50) for consumer in consumers)


@in_client
def test_a_shared_consumer_leaves_what_it_held(case: Case) -> None:
    kind = pulsar.ConsumerType.Shared
    first = case.earliest(consumer_type=kind)
    case.fill(10)
    receive_all(first, 3)
    held = receive_all(first, 3, ack=False)
    second = case.connect().subscribe(case.topic, "s", kind)
    first.close()
    assert held == numbers(3, 6)
    assert receive_all(second, 7) == numbers(3, 10)


def keyed(case: Case, keys: int, rounds: int) -> None:
    producer = case.client.create_producer(case.topic)
    for number in range(rounds):
        for key in range(keys):
            producer.send_async(b"%d" % number, None, partition_key=f"key-{key}")
    producer.flush()


def take_all(consumers: list[Any], count: int) -> list[dict[str, list[int]]]:
    found: list[dict[str, list[int]]] = [defaultdict(list) for _ in consumers]
    left = count
    quiet_since = time.monotonic()
    while left:
        before = left
        for consumer, rows in zip(consumers, found, strict=True):
            while True:
                try:
                    message = consumer.receive(100)
                except pulsar.Timeout:
                    break
                consumer.acknowledge(message)
                rows[message.partition_key()].append(int(message.data()))
                left -= 1
        if left < before:
            quiet_since = time.monotonic()
        assert time.monotonic() - quiet_since < RECEIVE_MS / 1000, f"{left} messages missing"
    return found


@in_client
def test_key_shared_keeps_each_key_with_one_consumer(case: Case) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [case.earliest(consumer_type=kind) for _ in range(3)]
    keyed(case, 30, 10)
    found = take_all(consumers, 300)
    assert all(rows for rows in found)
    for key in range(30):
        rows = [rows[f"key-{key}"] for rows in found if f"key-{key}" in rows]
        assert rows == [list(range(10))]


@in_client
def test_key_shared_when_a_consumer_leaves(case: Case) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [case.earliest(consumer_type=kind, receiver_queue_size=10) for _ in range(2)]
    keyed(case, 10, 20)
    held = receive_all(consumers[0], 5, ack=False)
    assert len(held) == 5
    consumers[0].close()
    (rows,) = take_all(consumers[1:], 200)
    assert all(rows[f"key-{key}"] == list(range(20)) for key in range(10))


@in_client
def test_key_shared_sticky_ranges(case: Case) -> None:
    def join(*ranges: tuple[int, int]) -> object:
        policy = pulsar.ConsumerKeySharedPolicy(
            key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
        )
        return case.earliest(consumer_type=pulsar.ConsumerType.KeyShared, key_shared_policy=policy)

    consumers = [join((0, 16383), (49152, 65535)), join((16384, 49151))]
    keyed(case, 40, 5)
    found = take_all(consumers, 200)
    assert not set(found[0]) & set(found[1])
    assert all(order == list(range(5)) for rows in found for order in rows.values())
    try:
        join((5, 6))
    except pulsar.PulsarException:
        pass
    else:
        raise AssertionError("overlapping ranges were taken")


@in_client
def test_small_receiver_queues(case: Case) -> None:
    producer = case.client.create_producer(case.topic)
    send_all(producer, numbers(100))
    batches = case.client.create_producer(case.topic, batching_enabled=True)
    send_all(batches, numbers(100, 200))
    for size in (1, 2, 3):
        for kind in ("Exclusive", "Shared", "Failover", "KeyShared"):
            consumer = case.earliest(
                f"{kind}{size}",
                consumer_type=getattr(pulsar.ConsumerType, kind),
                receiver_queue_size=size,
            )
            assert receive_all(consumer, 200) == numbers(200)
            consumer.close()


@in_client
def test_a_receiver_queue_of_none(case: Case) -> None:
    case.fill(20)
    consumer = case.earliest(receiver_queue_size=0)
    for number in range(20):
        message = consumer.receive()
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)


@in_client
def test_cumulative_acknowledgement(case: Case) -> None:
    case.fill(20)
    consumer = case.earliest()
    messages = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    assert receive_all(case.earliest(), 13) == numbers(7, 20)


@in_client
def test_single_acknowledgements_leave_holes(case: Case) -> None:
    case.fill(10)
    consumer = case.earliest()
    for number in range(10):
        message = consumer.receive(RECEIVE_MS)
        if number % 3 == 0:
            consumer.acknowledge(message)
    consumer.close()
    left = [value for value in numbers(10) if int(value) % 3]
    again = case.earliest()
    assert receive_all(again, len(left)) == left
    assert nothing_comes(again)


@in_client
def test_acknowledgements_inside_a_batch(case: Case) -> None:
    case.fill(100, batching_enabled=True, batching_max_publish_delay_ms=1000)
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared):
        options = {"consumer_type": kind, "batch_index_ack_enabled": True}
        consumer = case.earliest(str(kind), **options)
        for number in range(100):
            message = consumer.receive(RECEIVE_MS)
            if number % 2 == 0 or number > 90:
                consumer.acknowledge(message)
        consumer.close()
        left = [value for value in numbers(91) if int(value) % 2]
        again = case.earliest(str(kind), **options)
        assert receive_all(again, len(left)) == left
        assert nothing_comes(again)
        again.close()
        assert nothing_comes(case.earliest(str(kind), **options))


@in_client
def test_cumulative_inside_a_batch(case: Case) -> None:
    case.fill(100, batching_enabled=True, batching_max_publish_delay_ms=1000)
    for exact in (False, True):
        consumer = case.earliest(f"s{exact}", batch_index_ack_enabled=exact)
        messages = [consumer.receive(RECEIVE_MS) for _ in range(60)]
        consumer.acknowledge_cumulative(messages[-1])
        consumer.close()
        again = case.earliest(f"s{exact}", batch_index_ack_enabled=exact)
        first = again.receive(RECEIVE_MS).data()
        assert first == (b"60" if exact else b"0")
        again.close()


@in_client
def test_a_pattern_finds_topics(case: Case) -> None:
    for name in "abc":
        case.fill(3, topic=f"{case.topic}-{name}")
    case.fill(3, topic=f"other-{case.topic}")
    pattern = re.compile(f"persistent://public/default/{case.topic}-.*")
    consumer = case.earliest(topic=pattern)
    assert sorted(receive_all(consumer, 9)) == sorted(numbers(3) * 3)
    assert nothing_comes(consumer)


@pytest.mark.slow  # the client looks for new topics once a minute, whatever it is told
@in_client
def test_a_pattern_finds_new_topics(case: Case) -> None:
    case.fill(3, topic=f"{case.topic}-a")
    consumer = case.earliest(topic=re.compile(f"persistent://public/default/{case.topic}-.*"))
    assert receive_all(consumer, 3) == numbers(3)
    case.fill(1, topic=f"{case.topic}-b")
    assert consumer.receive(80_000).data() == b"0"


@in_client
def test_several_topics_at_once(case: Case) -> None:
    topics = [f"{case.topic}-{name}" for name in "abc"]
    for topic in topics:
        case.fill(3, topic=topic)
    consumer = case.earliest(topic=topics)
    assert sorted(receive_all(consumer, 9)) == sorted(numbers(3) * 3)


@in_client
def test_failover_takes_turns_when_the_active_one_dies(case: Case) -> None:
    """Its connection is cut, not closed: what it had not acknowledged goes to the next."""
    kind = pulsar.ConsumerType.Failover
    case.fill(10)
    client = case.connect()
    first = client.subscribe(
        case.topic,
        "s",
        kind,
        consumer_name="a",
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=5,
    )
    second = case.earliest(consumer_type=kind, consumer_name="b")
    third = case.earliest(consumer_type=kind, consumer_name="c")
    assert receive_all(first, 3) == numbers(3)
    assert receive_all(first, 2, ack=False) == numbers(3, 5)
    case.wait_for_backlog("s", 7)
    client.shutdown()
    assert receive_all(second, 7) == numbers(3, 10)
    second.close()
    case.fill(2)
    assert receive_all(third, 2) == numbers(2)


@pytest.mark.parametrize("durable", [True, False])
def test_readers_and_durable_consumers_do_not_share_a_subscription(
    broker: Server, durable: bool
) -> None:
    topic = f"one-kind-{durable}"
    with RawClient(broker.port) as first, RawClient(broker.port) as second:
        kind = wire.CommandSubscribe.Shared
        first.ask_to_subscribe(topic, kind=kind, durable=durable)
        first.expect(Type.SUCCESS)
        second.ask_to_subscribe(topic, kind=kind, consumer_id=2, durable=not durable)
        error = second.expect(Type.ERROR).error
        assert error.error == wire.ServerError.NotAllowedError
        wanted = "non-durable" if durable else "durable"
        assert f"a {wanted} consumer cannot join" in error.message
        second.ask_to_subscribe(topic, kind=kind, consumer_id=2, durable=durable)
        second.expect(Type.SUCCESS)


def test_a_question_about_partitions_creates_nothing(broker: Server) -> None:
    topic = "persistent://public/default/only-asked-for"
    with RawClient(broker.port) as client:
        flags = client.connected.feature_flags
        assert flags.supports_get_partitioned_metadata_without_auto_creation
        assert flags.supports_auth_refresh
        assert not flags.supports_topic_watchers
        assert partitions_of(client, topic, create=False).error == wire.ServerError.TopicNotFound
        assert topic not in topics_of(client)
        client.producer(topic)
        assert topic in topics_of(client)
        found = partitions_of(client, topic, create=False)
        assert found.response == wire.CommandPartitionedTopicMetadataResponse.Success
        assert found.partitions == 0
        found = partitions_of(client, "parted-keys", create=False)
        assert found.partitions == 3


def partitions_of(client: RawClient, topic: str, *, create: bool) -> Any:
    command = wire.BaseCommand(type=Type.PARTITIONED_METADATA)
    command.partitionMetadata.topic = topic
    command.partitionMetadata.request_id = 1
    command.partitionMetadata.metadata_auto_creation_enabled = create
    client.send(encode_command(command))
    return client.expect(Type.PARTITIONED_METADATA_RESPONSE).partitionMetadataResponse


def topics_of(client: RawClient) -> list[str]:
    command = wire.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.namespace = "public/default"
    command.getTopicsOfNamespace.request_id = 1
    client.send(encode_command(command))
    answer = client.expect(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    return list(answer.getTopicsOfNamespaceResponse.topics)
