"""The worst frames of every command of the Pulsar protocol, legal or not.

`WORST` has a function for each command that a broker takes. It is called with a `Crowd` (clients
at a node, and topics with what hurts in them) and sends the frames that cost the node most:
as many ids, properties, ranges or characters as fit, thousands of tiny frames in one segment,
answers that are long. It returns when the node has carried them out or has hung up.
"""

from __future__ import annotations

import itertools
import json
import threading
from typing import TYPE_CHECKING

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, encode_payload
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata
from tests.protocol.raw import RawClient, Type, send_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.hostile.node import WatchedNode

TINY = 3000
"""Messages of a few bytes in a topic."""
LARGE = 2_400_000
"""Bytes of a frame that is below the largest one."""

EMPTY = 870_000
EMPTY_MESSAGE = b"\0\0\0\x02\x18\0"
"""Of a batch: as many fit into the largest message."""

END = 2**40
"""The id of the last request."""

_numbers = itertools.count()


class Crowd:
    """A node, and clients that come and go."""

    def __init__(self, node: WatchedNode) -> None:
        self.node = node
        with RawClient(node.port) as client:
            client.producer("full")
            client.send(b"".join(send_frame(number, b"") for number in range(TINY)))
            for _ in range(TINY):
                client.expect(Type.SEND_RECEIPT)

    def topic(self) -> str:
        """A topic that was never used."""
        return f"new-{next(_numbers)}"

    def client(self) -> RawClient:
        return RawClient(self.node.port)

    def consumer(
        self, kind: wire.CommandSubscribe.SubType = wire.CommandSubscribe.Shared
    ) -> RawClient:
        """One with a new subscription at the start of the full topic."""
        client = self.client()
        client.subscribe("full", self.topic(), kind)
        return client

    def send(self, client: RawClient, frames: Iterable[bytes]) -> None:
        """Send frames together, and wait until all were carried out or the node has hung up."""
        end = _command(Type.CONSUMER_STATS, "consumerStats", consumer_id=2**60, request_id=END)
        data = b"".join((*frames, encode_command(end)))
        sending = threading.Thread(target=_send_all, args=(client, data))
        sending.start()
        with client:
            for answer in client.frames():
                if answer.consumerStatsResponse.request_id == END:
                    break
            sending.join()


def _send_all(client: RawClient, data: bytes) -> None:
    try:
        client.send(data)
    except OSError:
        # The node has hung up, as the reader sees.
        return


def _command(kind: int, part: str, **fields: object) -> wire.BaseCommand:
    command = wire.BaseCommand(type=wire.BaseCommand.Type.ValueType(kind))
    inner = getattr(command, part)
    inner.SetInParent()
    for name, value in fields.items():
        setattr(inner, name, value)
    return command


def _many(command: wire.BaseCommand, size: int = 2**20) -> bytes:
    frame = encode_command(command)
    return frame * (size // len(frame))


def _properties(values: object, count: int) -> None:
    for _ in range(count):
        values.add(key="", value="")  # type: ignore[attr-defined]


def _connect(crowd: Crowd) -> None:
    command = _command(Type.CONNECT, "connect", client_version="c", protocol_version=20)
    command.connect.auth_data = b"a" * LARGE
    crowd.send(RawClient(crowd.node.port, connect=False), [encode_command(command)])
    command.connect.auth_data = b"a" * 30_000
    crowd.send(RawClient(crowd.node.port, connect=False), [_many(command)])


def _auth_response(crowd: Crowd) -> None:
    command = _command(Type.AUTH_RESPONSE, "authResponse")
    command.authResponse.response.auth_data = b"a" * LARGE
    crowd.send(crowd.client(), [encode_command(command)])
    crowd.send(crowd.client(), [_many(_command(Type.AUTH_RESPONSE, "authResponse"))])


def _tiny(kind: int, part: str) -> Callable[[Crowd], None]:
    def send(crowd: Crowd) -> None:
        crowd.send(crowd.client(), [_many(_command(kind, part))])

    return send


def _acks(cumulative: bool, count: int, error: int | None = None, **more: object) -> bytes:
    command = _command(Type.ACK, "ack", consumer_id=1, ack_type=int(cumulative))
    if error is not None:
        command.ack.validation_error = wire.CommandAck.ValidationError.ValueType(error)
    # Every second one, from the end: each is a range of its own, before all others.
    for number in range(count):
        entry = 2 * ((count - number) % (TINY // 2))
        command.ack.message_id.add(ledgerId=1, entryId=entry, **more)
    return encode_command(command)


def _ack(crowd: Crowd) -> None:
    for kind in (wire.CommandSubscribe.Shared, wire.CommandSubscribe.Exclusive):
        crowd.send(crowd.consumer(kind), [_acks(cumulative=False, count=300_000)])
        crowd.send(crowd.consumer(kind), [_acks(cumulative=False, count=40_000)])
        crowd.send(crowd.consumer(kind), [_acks(cumulative=True, count=40_000)])
        crowd.send(crowd.consumer(kind), [_acks(cumulative=False, count=20_000, ack_set=[1])])
        crowd.send(crowd.consumer(kind), [_acks(False, 1, ack_set=[1] * 200_000)])
        crowd.send(crowd.consumer(kind), [_acks(cumulative=False, count=40_000, error=1)])
        one = _acks(cumulative=False, count=1)
        crowd.send(crowd.consumer(kind), [one * (2**18 // len(one))])
    held = crowd.consumer()
    held.flow(TINY)
    crowd.send(held, [_acks(cumulative=False, count=40_000)])


def _redeliver(crowd: Crowd) -> None:
    name = "redeliverUnacknowledgedMessages"
    kind = Type.REDELIVER_UNACKNOWLEDGED_MESSAGES
    all_of_them = encode_command(_command(kind, name, consumer_id=1))
    for count in (300_000, 50_000):
        command = _command(kind, name, consumer_id=1)
        for number in range(count):
            command.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=1, entryId=number)
        client = crowd.consumer()
        client.flow(2**31 - 1)
        crowd.send(client, [encode_command(command)])
    for subscription in (wire.CommandSubscribe.Shared, wire.CommandSubscribe.Key_Shared):
        client = crowd.consumer(subscription)
        client.flow(2**31 - 1)
        crowd.send(client, [all_of_them * 500])


def _flow(crowd: Crowd) -> None:
    for kind in wire.CommandSubscribe.SubType.values():
        client = crowd.consumer(kind)
        crowd.send(
            client, [_many(_command(Type.FLOW, "flow", consumer_id=1, messagePermits=2**31))]
        )


def _subscribe_command(topic: str, consumer_id: int = 1) -> wire.BaseCommand:
    command = _command(Type.SUBSCRIBE, "subscribe", topic=topic, subscription="s")
    command.subscribe.subType = wire.CommandSubscribe.Key_Shared
    command.subscribe.consumer_id = consumer_id
    command.subscribe.request_id = consumer_id
    return command


def _subscribe(crowd: Crowd) -> None:
    topic = crowd.topic()
    for field in ("metadata", "subscription_properties"):
        command = _subscribe_command(topic)
        _properties(getattr(command.subscribe, field), 80_000)
        crowd.send(crowd.client(), [encode_command(command)])
    command = _subscribe_command(topic)
    command.subscribe.keySharedMeta.keySharedMode = wire.KeySharedMeta.STICKY
    for start in range(0, 60_000, 2):
        command.subscribe.keySharedMeta.hashRanges.add(start=start, end=start)
    crowd.send(crowd.client(), [encode_command(command)])
    for kind in (wire.CommandSubscribe.Shared, wire.CommandSubscribe.Failover):
        frames = []
        for number in range(1500):
            command = _subscribe_command(topic, number)
            command.subscribe.subscription = f"kind-{kind}"
            command.subscribe.subType = kind
            frames.append(encode_command(command))
        # Closed, all of them leave at once.
        crowd.send(crowd.client(), frames)
    _schemas(crowd, "subscribe", _subscribe_command)


def _producer_command(topic: str, producer_id: int = 1) -> wire.BaseCommand:
    fields = {"topic": topic, "producer_id": producer_id, "request_id": producer_id}
    return _command(Type.PRODUCER, "producer", **fields)


def _producer(crowd: Crowd) -> None:
    topic = crowd.topic()
    command = _producer_command(topic)
    _properties(command.producer.metadata, 80_000)
    crowd.send(crowd.client(), [encode_command(command)])
    crowd.send(crowd.client(), [encode_command(_producer_command(topic, n)) for n in range(1500)])
    _schemas(crowd, "producer", _producer_command)


def bad_schemas() -> list[bytes]:
    """Definitions that take long to parse or to compare with each other."""
    arrays = [{"type": "array", "items": ["int", f"n{n}"]} for n in range(90)]
    names = [{"type": "fixed", "name": f"n{n}", "size": n} for n in range(90)]
    union = json.dumps([*names, *arrays, "string"]).encode()
    other = json.dumps([*names, *({"type": "map", "values": a} for a in arrays)]).encode()
    deep = b"[" * 120_000
    nested = b'{"type":"array","items":' * 400 + b'"int"' + b"}" * 400
    return [union, other, union + b" ", b"[" + b"[]," * 80_000 + b"1]", deep, nested]


def _schemas(
    crowd: Crowd, part: str, make: Callable[[str], wire.BaseCommand], kind: int = wire.Schema.Avro
) -> None:
    topic = crowd.topic()
    for definition in bad_schemas():
        command = make(topic)
        schema = getattr(command, part).schema
        schema.name = "s"
        schema.type = wire.Schema.Type.ValueType(kind)
        schema.schema_data = definition
        crowd.send(crowd.client(), [encode_command(command)])
    command = make(topic)
    schema = getattr(command, part).schema
    schema.name, schema.schema_data = "s", b""
    schema.type = wire.Schema.String
    _properties(schema.properties, 80_000)
    crowd.send(crowd.client(), [encode_command(command)])


def _get_or_create_schema(crowd: Crowd) -> None:
    def make(topic: str) -> wire.BaseCommand:
        name = "getOrCreateSchema"
        return _command(Type.GET_OR_CREATE_SCHEMA, name, topic=topic, request_id=1)

    _schemas(crowd, "getOrCreateSchema", make)


def _get_schema(crowd: Crowd) -> None:
    command = _command(Type.GET_SCHEMA, "getSchema", topic="full", request_id=1)
    crowd.send(crowd.client(), [_many(command)])
    command.getSchema.topic = "t" * 500_000
    crowd.send(crowd.client(), [encode_command(command)])


def _send(crowd: Crowd) -> None:
    first, second = crowd.topic(), crowd.topic()
    client = crowd.client()
    client.producer(first)
    command = _producer_command(second, 2)
    client.send(encode_command(command))
    client.expect(Type.PRODUCER_SUCCESS)
    # In turn, so that no two frames are of one producer; then some with a bad checksum.
    turns = [send_frame(number, b"", 1 + number % 2) for number in range(5000)]
    bad = bytearray(send_frame(0, b"x"))
    bad[-1] ^= 1
    crowd.send(client, [*turns, bytes(bad) * 5000])
    client = crowd.client()
    client.producer(first)
    crowd.send(client, [send_frame(number, b"") for number in range(20_000)])
    client = crowd.client()
    client.producer(first)
    metadata = MessageMetadata(producer_name="raw", sequence_id=1, publish_time=1)
    metadata.num_messages_in_batch = 2**31 - 1
    _properties(metadata.properties, 400_000)
    command = _command(Type.SEND, "send", producer_id=1, sequence_id=1, num_messages=2**31 - 1)
    crowd.send(client, encode_payload(command, encode_entry(metadata, b"x" * LARGE)))  # type: ignore[arg-type]
    client = crowd.client()
    client.producer(first)
    metadata = MessageMetadata(producer_name="raw", sequence_id=1, publish_time=1)
    metadata.num_messages_in_batch = EMPTY
    command = _command(Type.SEND, "send", producer_id=1, sequence_id=1, num_messages=EMPTY)
    batch = b"".join(encode_payload(command, encode_entry(metadata, EMPTY_MESSAGE * EMPTY)))
    # The second one is not what it says.
    crowd.send(client, [batch, send_frame(2, b"a"), batch[:-1] + b"\x01"])


def _lookup(crowd: Crowd) -> None:
    for kind, part in (
        (Type.LOOKUP, "lookupTopic"),
        (Type.PARTITIONED_METADATA, "partitionMetadata"),
    ):
        for topic in ("full", "t" * 500_000, "/" * 500_000, "persistent://" + "a/" * 200_000):
            command = _command(kind, part, topic=topic, request_id=1)
            crowd.send(crowd.client(), [_many(command)])


def _topics_of_namespace(crowd: Crowd) -> None:
    name = "getTopicsOfNamespace"
    command = _command(Type.GET_TOPICS_OF_NAMESPACE, name, namespace="public/default", request_id=1)
    crowd.send(crowd.client(), [_many(command, 2**15)])
    command.getTopicsOfNamespace.topics_pattern = "(a+)+$" * 1000
    crowd.send(crowd.client(), [_many(command)])
    command.getTopicsOfNamespace.namespace = "/" * 500_000
    crowd.send(crowd.client(), [encode_command(command)])


def _seek(crowd: Crowd) -> None:
    for time in (None, 0, 1, 2**63):
        command = _command(Type.SEEK, "seek", consumer_id=1, request_id=1)
        if time is None:
            command.seek.message_id.SetInParent()
            command.seek.message_id.ledgerId = 1
            command.seek.message_id.entryId = 2**62
            command.seek.message_id.ack_set.extend([1] * 100_000)
        else:
            command.seek.message_publish_time = time
        crowd.send(crowd.consumer(), [encode_command(command) * 2])
        command.seek.message_id.Clear() if time is None else None
    command = _command(Type.SEEK, "seek", consumer_id=1, request_id=1, message_publish_time=1)
    crowd.send(crowd.consumer(), [_many(command)])


def _of_consumer(kind: int, part: str) -> Callable[[Crowd], None]:
    def send(crowd: Crowd) -> None:
        command = _command(kind, part, consumer_id=1, request_id=1)
        client = crowd.consumer()
        client.flow(2**31 - 1)
        crowd.send(client, [_many(command)])

    return send


def _close_producer(crowd: Crowd) -> None:
    command = _command(Type.CLOSE_PRODUCER, "close_producer", producer_id=1, request_id=1)
    crowd.send(crowd.client(), [_many(command)])


WORST: dict[int, Callable[[Crowd], None]] = {
    Type.CONNECT: _connect,
    Type.AUTH_RESPONSE: _auth_response,
    Type.PING: _tiny(Type.PING, "ping"),
    Type.PONG: _tiny(Type.PONG, "pong"),
    Type.ACK: _ack,
    Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: _redeliver,
    Type.FLOW: _flow,
    Type.SUBSCRIBE: _subscribe,
    Type.PRODUCER: _producer,
    Type.SEND: _send,
    Type.LOOKUP: _lookup,
    Type.PARTITIONED_METADATA: _lookup,
    Type.GET_TOPICS_OF_NAMESPACE: _topics_of_namespace,
    Type.GET_SCHEMA: _get_schema,
    Type.GET_OR_CREATE_SCHEMA: _get_or_create_schema,
    Type.SEEK: _seek,
    Type.UNSUBSCRIBE: _of_consumer(Type.UNSUBSCRIBE, "unsubscribe"),
    Type.CLOSE_CONSUMER: _of_consumer(Type.CLOSE_CONSUMER, "close_consumer"),
    Type.CLOSE_PRODUCER: _close_producer,
    Type.CONSUMER_STATS: _of_consumer(Type.CONSUMER_STATS, "consumerStats"),
    Type.GET_LAST_MESSAGE_ID: _of_consumer(Type.GET_LAST_MESSAGE_ID, "getLastMessageId"),
}
