"""What producers of the real client do, and that consumers get exactly that."""

from __future__ import annotations

import os
import tempfile
import threading

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.patience import PROCESS_S_MAX
from tests.protocol.harness import (
    RECEIVE_MS,
    Case,
    in_client,
    nothing_comes,
    numbers,
    receive_all,
    send_all,
)

COMPRESSIONS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]


@in_client
def test_every_compression_batched_and_not(case: Case) -> None:
    values = [b"%d " % number * 100 for number in range(50)]
    for name in COMPRESSIONS:
        for batched in (False, True):
            topic = f"{case.topic}-{name}-{batched}"
            producer = case.client.create_producer(
                topic,
                compression_type=getattr(pulsar.CompressionType, name),
                batching_enabled=batched,
            )
            ids = send_all(producer, values)
            assert len({(i.ledger_id(), i.entry_id(), i.batch_index()) for i in ids}) == 50
            assert (max(i.batch_index() for i in ids) > 0) is batched
            consumer = case.earliest(topic=topic)
            assert receive_all(consumer, 50) == values
            consumer.close()


@in_client
def test_everything_of_a_message_arrives(case: Case) -> None:
    for batched in (False, True):
        producer = case.client.create_producer(f"{case.topic}{batched}", batching_enabled=batched)
        producer.send(
            b"value",
            properties={"a": "1", "ü": "ß"},
            partition_key="key",
            ordering_key="order",
            event_timestamp=12345,
        )
        consumer = case.earliest(topic=f"{case.topic}{batched}")
        message = consumer.receive(RECEIVE_MS)
        assert message.properties() == {"a": "1", "ü": "ß"}
        assert message.partition_key() == "key"
        assert message.ordering_key() == "order"
        assert message.event_timestamp() == 12345
        assert message.producer_name() == producer.producer_name()


@in_client
def test_null_and_empty_values(case: Case) -> None:
    for batched in (False, True):
        topic = f"{case.topic}{batched}"
        producer = case.client.create_producer(topic, batching_enabled=batched)
        producer.send(None, partition_key="k")
        producer.send(b"", partition_key="k")
        consumer = case.earliest(topic=topic)
        null, empty = consumer.receive(RECEIVE_MS), consumer.receive(RECEIVE_MS)
        assert null.has_null_value()
        assert not empty.has_null_value()
        assert empty.data() == b""


@in_client
def test_a_message_of_12_mib_in_chunks(case: Case) -> None:
    value = bytes(range(256)) * (12 * 4096)
    producer = case.client.create_producer(case.topic, chunking_enabled=True)
    consumer = case.earliest()
    producer.send(value)
    producer.send(b"next")
    message = consumer.receive(RECEIVE_MS)
    assert message.data() == value
    consumer.acknowledge(message)
    assert receive_all(consumer, 1) == [b"next"]
    consumer.close()
    assert nothing_comes(case.earliest())


@in_client
def test_a_message_above_the_limit_is_refused(case: Case) -> None:
    producer = case.client.create_producer(case.topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 * 2**20))
    producer.send(bytes(5 * 2**20 - 10_000))


@in_client
def test_encrypted_messages_pass_unread(case: Case) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with tempfile.TemporaryDirectory() as directory:
        public, private = f"{directory}/public.pem", f"{directory}/private.pem"
        with open(public, "wb") as file:
            file.write(
                key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
        with open(private, "wb") as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
        reader = pulsar.CryptoKeyReader(public, private)
        for batched in (False, True):
            topic = f"{case.topic}{batched}"
            producer = case.client.create_producer(
                topic, encryption_key="k", crypto_key_reader=reader, batching_enabled=batched
            )
            send_all(producer, numbers(10))
            consumer = case.earliest(topic=topic, crypto_key_reader=reader)
            assert receive_all(consumer, 10) == numbers(10)
        assert os.path.exists(private)


@in_client
def test_names_are_given_or_chosen(case: Case) -> None:
    first, second = (case.client.create_producer(case.topic) for _ in range(2))
    assert first.producer_name() != second.producer_name()
    named = case.client.create_producer(case.topic, producer_name="me")
    assert named.producer_name() == "me"
    assert named.last_sequence_id() == -1
    with pytest.raises(pulsar.ProducerBusy):
        case.connect().create_producer(case.topic, producer_name="me")
    named.close()
    case.client.create_producer(case.topic, producer_name="me").send(b"x")


@in_client
def test_one_exclusive_producer(case: Case) -> None:
    mode = pulsar.ProducerAccessMode
    holder = case.client.create_producer(case.topic, access_mode=mode.Exclusive)
    holder.send(b"0")
    with pytest.raises(pulsar.ProducerFenced):
        case.client.create_producer(case.topic, access_mode=mode.Exclusive)
    with pytest.raises((pulsar.ProducerBusy, pulsar.ProducerFenced)):
        case.client.create_producer(case.topic)
    holder.close()
    case.client.create_producer(case.topic, access_mode=mode.Exclusive).send(b"1")


@in_client
def test_waiting_for_the_topic(case: Case) -> None:
    mode = pulsar.ProducerAccessMode
    holder = case.client.create_producer(case.topic, access_mode=mode.Exclusive)
    made = []

    def wait() -> None:
        made.append(case.client.create_producer(case.topic, access_mode=mode.WaitForExclusive))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    holder.send(b"0")
    holder.close()
    thread.join(PROCESS_S_MAX)
    assert not thread.is_alive()
    made[0].send(b"1")
    assert receive_all(case.earliest(), 2) == numbers(2)


@in_client
def test_fencing_disconnects_other_producers(case: Case) -> None:
    mode = pulsar.ProducerAccessMode
    old = case.client.create_producer(
        case.topic, access_mode=mode.Exclusive, send_timeout_millis=2000
    )
    old.send(b"0")
    new = case.connect().create_producer(case.topic, access_mode=mode.ExclusiveWithFencing)
    new.send(b"1")
    with pytest.raises(pulsar.PulsarException):
        old.send(b"lost")
    new.send(b"2")
    consumer = case.earliest()
    assert receive_all(consumer, 3) == numbers(3)
    assert nothing_comes(consumer)
