"""Readers, table views and the last message."""

from __future__ import annotations

import time
from typing import Any

import pulsar

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.patience import wait_until
from tests.protocol.harness import (
    RECEIVE_MS,
    Case,
    Server,
    in_client,
    moment_ms,
    numbers,
    receive_all,
    send_all,
)
from tests.protocol.raw import RawClient, Type, send_frame


def read_all(reader: Any) -> list[bytes]:
    values = []
    while reader.has_message_available():
        values.append(bytes(reader.read_next(RECEIVE_MS).data()))
    return values


@in_client
def test_every_start_position(case: Case) -> None:
    for batched in (False, True):
        topic = f"{case.topic}{batched}"
        ids = case.fill(
            50, topic=topic, batching_enabled=batched, batching_max_publish_delay_ms=1000
        )

        def values(start: Any, inclusive: bool, topic: str = topic) -> list[bytes]:
            reader = case.client.create_reader(topic, start, start_message_id_inclusive=inclusive)
            found = read_all(reader)
            reader.close()
            return found

        assert values(pulsar.MessageId.earliest, False) == numbers(50)
        assert values(pulsar.MessageId.earliest, True) == numbers(50)
        assert values(ids[20], False) == numbers(21, 50)
        assert values(ids[20], True) == numbers(20, 50)
        assert values(ids[49], False) == []
        assert values(ids[49], True) == [b"49"]
        assert values(pulsar.MessageId.latest, False) == []
        assert values(pulsar.MessageId.latest, True) == [b"49"]


@in_client
def test_an_empty_topic(case: Case) -> None:
    for start in (pulsar.MessageId.earliest, pulsar.MessageId.latest):
        reader = case.client.create_reader(case.topic, start)
        assert not reader.has_message_available()
        case.client.create_producer(case.topic).send(b"0")
        assert reader.has_message_available()
        assert reader.read_next(RECEIVE_MS).data() == b"0"
        assert not reader.has_message_available()


@in_client
def test_seeking_readers(case: Case) -> None:
    ids = case.fill(10)
    now_ms = moment_ms()
    send_all(case.client.create_producer(case.topic), numbers(10, 20))
    reader = case.client.create_reader(case.topic, pulsar.MessageId.earliest)
    assert read_all(reader) == numbers(20)
    reader.seek(ids[4])
    assert read_all(reader) == numbers(5, 20)
    reader.seek(now_ms)
    assert read_all(reader) == numbers(10, 20)
    reader.seek(pulsar.MessageId.earliest)
    assert read_all(reader) == numbers(20)
    reader.seek(now_ms + 3_600_000)
    assert read_all(reader) == []


@in_client
def test_the_last_message_id(case: Case) -> None:
    consumer = case.earliest()
    assert consumer.get_last_message_id().entry_id() == -1
    (last,) = case.fill(1)
    found = consumer.get_last_message_id()
    assert (found.ledger_id(), found.entry_id()) == (last.ledger_id(), last.entry_id())
    assert found.batch_index() == -1
    last = case.fill(10, batching_enabled=True, batching_max_publish_delay_ms=1000)[-1]
    found = consumer.get_last_message_id()
    assert (found.entry_id(), found.batch_index()) == (last.entry_id(), 9)


@in_client
def test_a_table_view(case: Case) -> None:
    producer = case.client.create_producer(case.topic)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"k{number % 10}")
    producer.send(b"", partition_key="k3")
    view = case.client.create_table_view(case.topic)
    assert len(view) == 9
    assert view.get("k5") == b"25"
    assert view.get("k3") is None
    producer.send(b"new", partition_key="k3")
    wait_until(lambda: view.get("k3") == b"new")


@in_client
def test_a_partitioned_reader(case: Case) -> None:
    case.fill(30, topic="parted-reader")
    reader = case.client.create_reader("parted-reader", pulsar.MessageId.earliest)
    assert sorted(read_all(reader), key=int) == numbers(30)


@in_client
def test_keys_go_to_one_partition(case: Case) -> None:
    assert case.client.get_topic_partitions("parted-keys") == [
        f"persistent://public/default/parted-keys-partition-{number}" for number in range(3)
    ]
    producer = case.client.create_producer("parted-keys")
    for number in range(100):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 10}")
    producer.flush()
    consumer = case.earliest(topic="parted-keys")
    places: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for _ in range(100):
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        places.setdefault(message.partition_key(), set()).add(message.message_id().partition())
        order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert len(places) == 10
    assert all(len(found) == 1 for found in places.values())
    assert set.union(*places.values()) == {0, 1, 2}
    assert all(found == sorted(found) for found in order.values())


@in_client
def test_partitions_of_every_subscription_type(case: Case) -> None:
    case.fill(60, topic="parted-all")
    for kind in ("Exclusive", "Shared", "Failover", "KeyShared"):
        consumer = case.earliest(
            kind, topic="parted-all", consumer_type=getattr(pulsar.ConsumerType, kind)
        )
        assert sorted(receive_all(consumer, 60), key=int) == numbers(60)
        consumer.unsubscribe()


def test_a_reader_starts_at_a_time_in_the_past(broker: Server) -> None:
    topic = "rolled-back"
    now_ms = time.time_ns() // 10**6
    with RawClient(broker.port) as client:
        client.producer(topic)
        for number, ago_s in enumerate((3600, 1800, 60, 1)):
            sent_ms = now_ms - 1000 * ago_s
            client.send(send_frame(number, b"%d" % number, publish_time=sent_ms))
            client.expect(Type.SEND_RECEIPT)
        for consumer_id, (seconds, first) in enumerate(
            ((7200, 0), (2400, 1), (600, 2), (20, 3), (2**64 - 1, 0)), 1
        ):
            client.ask_to_subscribe(
                topic,
                f"reader-{consumer_id}",
                consumer_id=consumer_id,
                durable=False,
                start_message_rollback_duration_sec=seconds,
                initialPosition=wire.CommandSubscribe.Latest,
            )
            client.expect(Type.SUCCESS)
            client.flow(1, consumer_id)
            assert client.expect(Type.MESSAGE).message.message_id.entryId == first, seconds


def test_rolling_back_moves_no_subscription_that_exists(broker: Server) -> None:
    topic = "rolled-back-durable"
    with RawClient(broker.port) as client:
        client.producer(topic)
        for number in range(2):
            client.send(send_frame(number, b"x", publish_time=time.time_ns() // 10**6))
            client.expect(Type.SEND_RECEIPT)
        client.subscribe(topic)
        client.flow(2)
        ack = wire.BaseCommand(type=Type.ACK)
        ack.ack.consumer_id = 1
        ack.ack.ack_type = wire.CommandAck.Individual
        ack.ack.message_id.add().CopyFrom(client.expect(Type.MESSAGE).message.message_id)
        client.expect(Type.MESSAGE)
        client.send(encode_command(ack))
        client.ping()
    with RawClient(broker.port) as client:
        client.ask_to_subscribe(topic, start_message_rollback_duration_sec=3600)
        client.expect(Type.SUCCESS)
        client.flow(2)
        assert client.expect(Type.MESSAGE).message.message_id.entryId == 1
