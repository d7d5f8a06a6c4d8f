"""Loads the compiled kernels before the first client connects.

Kernels are compiled on their first call and stored in a cache beside the package. On a new
installation that takes half a minute, longer than the timeout of a client. Loading them from the
cache takes up to a second, by which the first message would be delayed.

So before a node listens, it connects to itself over a file system in memory. It produces small,
batched and large messages, consumes and acknowledges them, and reads the topic again. These are the
code paths of real messages, so every kernel on them is called with the right types. Compaction is
not included: it runs in a separate process, and no client waits for its first run.

Called by `server.py`, in a thread: compiling blocks its thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from lithify.clock import SystemClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar.broker import Broker
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, encode_payload, next_frame
from lithify.topics.messages.message import new_entry
from lithify.topics.topics import Topics, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.checksum import Buffer

__all__ = ["warm_up"]

TOPIC = "warm-up"
SIZES_BYTES = (10, 10, 10, 10, 200_000, 10)
"""Sizes of the messages: runs of small ones and large ones use different code paths."""

_Type = wire.BaseCommand


def warm_up() -> None:
    """Exchange the messages; the results are discarded."""
    topics = Topics(
        MemoryFileSystem(),
        "/warm-up",
        settings=TopicSettings(),
        clock=SystemClock(),
        events=ignore_events,
        owner="warm-up",
    )
    try:
        asyncio.run(_converse(topics))
    finally:
        topics.close()


async def _converse(topics: Topics) -> None:
    broker = Broker(topics, name="warm-up", version="")
    received = bytearray()
    session = broker.session(lambda data: received.extend(bytes(data)))

    def send_frames(*frames: Buffer) -> None:
        data = np.frombuffer(bytearray().join(frames), dtype=np.uint8)
        session.receive(data, 0, len(data))

    send_frames(*map(encode_command, (_connect(), _producer(), _subscribe())))
    for number in range(len(SIZES_BYTES)):
        send_frames(*_send(number))
    send_frames(*(part for number in range(3) for part in _send(number)))
    while session.unanswered:
        await asyncio.sleep(0)
    send_frames(encode_command(_flow()))
    topic = topics.get(TOPIC)
    while topic.delivered()[0] < len(SIZES_BYTES):
        # One iteration of the loop sends the receipts of durable messages, then delivers them.
        await asyncio.sleep(0)
    for each in list(_acks(bytes(received))):
        send_frames(encode_command(each))
    session.close()
    topic.log.roll()
    for _ in topic.read():
        pass
    await broker.settled()


def _connect() -> wire.BaseCommand:
    return wire.BaseCommand(
        type=_Type.CONNECT, connect=wire.CommandConnect(client_version="", protocol_version=20)
    )


def _producer() -> wire.BaseCommand:
    request = wire.CommandProducer(topic=TOPIC, producer_id=0, request_id=1)
    return wire.BaseCommand(type=_Type.PRODUCER, producer=request)


def _subscribe() -> wire.BaseCommand:
    request = wire.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=wire.CommandSubscribe.Exclusive, request_id=2
    )
    request.consumer_id = 0
    return wire.BaseCommand(type=_Type.SUBSCRIBE, subscribe=request)


def _flow() -> wire.BaseCommand:
    request = wire.CommandFlow(consumer_id=0, messagePermits=len(SIZES_BYTES))
    return wire.BaseCommand(type=_Type.FLOW, flow=request)


def _send(number: int) -> list[Buffer]:
    entry = new_entry(
        value=bytes(SIZES_BYTES[number]),
        key=f"key {number}",
        properties={"a": "b"},
        event_time_ms=1,
        producer=TOPIC,
        sequence_id=number,
        publish_time_ms=1,
    )
    request = wire.CommandSend(producer_id=0, sequence_id=number, num_messages=1)
    return encode_payload(wire.BaseCommand(type=_Type.SEND, send=request), entry)


def _acks(received: Buffer) -> Iterator[wire.BaseCommand]:
    """An acknowledgement of each MESSAGE among the received frames."""
    rest = memoryview(received)
    while (found := next_frame(rest, len(rest))) is not None:
        frame, size = found
        rest = rest[size:]
        command = wire.BaseCommand.FromString(bytes(frame.command))
        if command.type == _Type.MESSAGE:
            request = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Individual)
            request.message_id.append(command.message.message_id)
            yield wire.BaseCommand(type=_Type.ACK, ack=request)
