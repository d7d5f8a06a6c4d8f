"""Counts that clients send: of messages, of permits, and ids at the end of their range.

None of them may change what other clients get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.checksum import crc32c
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.messages.entry_flags import BATCH_MESSAGES_MAX
from lithify.topics.messages.message_pb2 import LZ4, SNAPPY, ZLIB, ZSTD, EncryptionKeys
from tests.protocol.raw import RawClient, Type, send_frame
from tests.unit.topics.segments import batch, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.protocol.harness import Server

INT32_MAX = 2**31 - 1
KEYS = [EncryptionKeys(key="k", value=b"v")]
PAYLOAD = bytes(100)

CLAIMS: dict[str, dict[str, Any]] = {
    "plain": {"num_messages_in_batch": INT32_MAX},
    "none": {"num_messages_in_batch": 0},
    "negative": {"num_messages_in_batch": -1},
    "encrypted": {"num_messages_in_batch": INT32_MAX, "encryption_keys": KEYS},
    "encrypted, more than fit": {"num_messages_in_batch": 17, "encryption_keys": KEYS},
    "no size": {"num_messages_in_batch": 2, "compression": LZ4},
    "more than the size": {
        "num_messages_in_batch": 18, "compression": LZ4, "uncompressed_size": 107,
    },
    "more than the limit": {
        "num_messages_in_batch": BATCH_MESSAGES_MAX + 1, "compression": ZSTD,
        "uncompressed_size": 6 * BATCH_MESSAGES_MAX + 6,
    },
    "lz4": {"num_messages_in_batch": 9000, "compression": LZ4, "uncompressed_size": 54_000},
    "snappy": {"num_messages_in_batch": 2000, "compression": SNAPPY, "uncompressed_size": 12_000},
    "zlib": {"num_messages_in_batch": 50_000, "compression": ZLIB, "uncompressed_size": 300_000},
    "larger than anything": {
        "num_messages_in_batch": 2, "compression": ZSTD, "uncompressed_size": 2**32 - 1,
    },
}  # fmt: skip


class Pair:
    """A producer and a consumer that has asked for ten messages."""

    def __init__(self, broker: Server, topic: str) -> None:
        self.producer, self.consumer = RawClient(broker.port), RawClient(broker.port)
        self.producer.producer(topic)
        self.consumer.subscribe(topic)
        self.consumer.flow(10)
        self.sequence_id = 0

    def send(self, value: bytes, **fields: Any) -> wire.BaseCommand:
        """Send a message; the answer."""
        self.sequence_id += 1
        self.producer.send(send_frame(self.sequence_id, value, **fields))
        return next(self.producer.frames())

    def sends(self, count: int) -> None:
        """This many messages must come."""
        for _ in range(count):
            assert self.send(b"x").type == Type.SEND_RECEIPT
            self.consumer.expect(Type.MESSAGE)


@pytest.fixture
def pair(broker: Server, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(broker, f"counts-{crc32c(request.node.name.encode())}")
    yield pair
    pair.producer.close()
    pair.consumer.close()


@pytest.mark.parametrize("count", [INT32_MAX, -1, 0, -(2**31)])
def test_the_count_of_the_command_costs_no_permits(pair: Pair, count: int) -> None:
    assert pair.send(b"x", num_messages=count).type == Type.SEND_RECEIPT
    pair.consumer.expect(Type.MESSAGE)
    pair.sends(9)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_batch_with_an_impossible_count_is_refused_at_no_cost(pair: Pair, claim: str) -> None:
    answer = pair.send(PAYLOAD, **CLAIMS[claim])
    assert answer.type == Type.SEND_ERROR
    assert answer.send_error.sequence_id == 1
    assert (
        f"batch of {CLAIMS[claim]['num_messages_in_batch']} messages" in answer.send_error.message
    )
    pair.sends(10)


def test_batches_with_a_possible_count_are_accepted(pair: Pair) -> None:
    for fields in (
        {"num_messages_in_batch": 16, "encryption_keys": KEYS},
        {"num_messages_in_batch": 17, "compression": LZ4, "uncompressed_size": 102},
        {"num_messages_in_batch": 4000, "compression": LZ4, "uncompressed_size": 24_000},
        {"num_messages_in_batch": 17_000, "compression": ZLIB, "uncompressed_size": 102_000},
    ):
        assert pair.send(PAYLOAD, **fields).type == Type.SEND_RECEIPT


def test_a_batch_that_the_client_cannot_open_costs_one_message(pair: Pair) -> None:
    claim = {"num_messages_in_batch": 4000, "compression": LZ4, "uncompressed_size": 24_000}
    assert pair.send(PAYLOAD, **claim).type == Type.SEND_RECEIPT
    found = pair.consumer.expect(Type.MESSAGE).message
    ack = wire.BaseCommand(type=Type.ACK)
    ack.ack.consumer_id = 1
    ack.ack.ack_type = wire.CommandAck.Individual
    ack.ack.validation_error = wire.CommandAck.DecompressionError
    ack.ack.message_id.add().CopyFrom(found.message_id)
    # What the client does: it says so once, and asks for one message instead of this one.
    pair.consumer.send(encode_command(ack) * 3)
    pair.consumer.flow(1)
    pair.consumer.ping()
    pair.sends(10)
    assert pair.send(b"x").type == Type.SEND_RECEIPT
    pair.consumer.ping()


def test_permits_without_number_are_not_added_up(pair: Pair) -> None:
    for _ in range(10):
        pair.consumer.flow(2**32 - 1)
    pair.consumer.flow(0)
    pair.consumer.ping()
    pair.sends(20)
    command = wire.BaseCommand(type=Type.CONSUMER_STATS)
    command.consumerStats.consumer_id = 1
    command.consumerStats.request_id = 1
    pair.consumer.send(encode_command(command))
    stats = pair.consumer.expect(Type.CONSUMER_STATS_RESPONSE).consumerStatsResponse
    assert stats.availablePermits == 2**31 - 1 - 20


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_ids_at_the_end_of_their_range_are_ids(broker: Server, number: int) -> None:
    topic = f"large-id-{number}"
    kind = wire.CommandSubscribe.Shared
    with RawClient(broker.port) as large, RawClient(broker.port) as small:
        large.subscribe(topic, kind=kind, consumer_id=number)
        small.subscribe(topic, kind=kind, consumer_id=1)
        large.flow(1000, number)
        small.flow(1000)
        small.ping()
        large.producer(topic, number)
        frames = [send_frame(n, b"x", number) for n in range(100)]
        large.send(b"".join(frames))
        kinds: list[int] = []
        while len(kinds) < 150:
            found = next(large.frames())
            kinds.append(found.type)
            if found.type == Type.MESSAGE:
                assert found.message.consumer_id == number
            else:
                assert found.send_receipt.producer_id == number
        assert kinds.count(Type.MESSAGE) == 50
        for _ in range(50):
            small.expect(Type.MESSAGE)


def test_a_batch_with_the_right_count_is_delivered(pair: Pair) -> None:
    body = batch(*(message(f"k{n}") for n in range(8)))
    command = wire.BaseCommand(type=Type.SEND)
    command.send.producer_id, command.send.sequence_id = 1, 1
    command.send.num_messages = 8
    frame = command.SerializeToString()
    sizes = (4 + len(frame) + len(body)).to_bytes(4, "big") + len(frame).to_bytes(4, "big")
    pair.producer.send(sizes + frame + body)
    pair.producer.expect(Type.SEND_RECEIPT)
    pair.consumer.expect(Type.MESSAGE)
    pair.sequence_id = 1
    pair.sends(2)
