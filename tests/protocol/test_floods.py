"""A peer that asks for more than it takes is answered as it takes it, and costs no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.protocol.harness import Server

MIB = 2**20
PARTITIONS = 5000
REQUESTS = 200


def test_small_questions_with_large_answers(own_broker: Callable[..., Server]) -> None:
    broker = own_broker(topics={"many": PARTITIONS})
    command = wire.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE)
    question = command.getTopicsOfNamespace
    question.namespace = "public/default"
    with RawClient(broker.port) as client, RawClient(broker.port) as other:
        question.request_id = 0
        client.send(encode_command(command))
        client.expect(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        before = broker.memory_bytes
        frames = []
        for number in range(REQUESTS):
            question.request_id = number
            frames.append(encode_command(command))
        # All of them fit into one receive; the answers are 45 MiB.
        client.send(b"".join(frames))
        other.ping()
        other.ping()
        assert broker.memory_bytes - before < 20 * MIB
        for number in range(REQUESTS):
            answer = client.expect(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            assert answer.getTopicsOfNamespaceResponse.request_id == number
        client.ping()
