"""Many scripted clients in one event loop: the real client starts threads for each connection.

A producer sends numbers and keeps some of them in flight. A consumer acknowledges what it receives.
Both disconnect at random times, also in the middle of a frame, and reconnect: a producer resends
what it has no receipt for, a consumer resumes its subscription.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.messages.message import parse_entry
from tests.protocol.raw import Type, send_frame

if TYPE_CHECKING:
    import random

CONNECT = wire.BaseCommand(type=Type.CONNECT)
CONNECT.connect.client_version = "crowd"
CONNECT.connect.protocol_version = 20
PONG = wire.BaseCommand(type=Type.PONG)
PONG.pong.SetInParent()

UNDER_WAY_MAX = 20
PERMITS = 100
LIFE_MESSAGES = (20, 400)
"""After this many messages, at least and at most, a client hangs up."""


class HungUp(Exception):
    """The client has had enough of this connection."""


class Link:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Link:
        link = cls(*await asyncio.open_connection("127.0.0.1", port))
        link.say(CONNECT)
        await link.hear(Type.CONNECTED)
        return link

    def say(self, command: wire.BaseCommand) -> None:
        self._writer.write(encode_command(command))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def next(self) -> tuple[wire.BaseCommand, bytes]:
        """The next command and its entry; the broker's questions are answered on the way."""
        while True:
            frame = await self._reader.readexactly(
                int.from_bytes(await self._reader.readexactly(4), "big")
            )
            size = int.from_bytes(frame[:4], "big")
            command = wire.BaseCommand.FromString(frame[4 : 4 + size])
            if command.type != Type.PING:
                return command, frame[4 + size :]
            self.say(PONG)

    async def hear(self, kind: int) -> wire.BaseCommand:
        """The next command, which is of this type."""
        command, _ = await self.next()
        assert command.type == kind, command
        return command

    def hang_up(self) -> None:
        self._writer.transport.abort()


@dataclass
class Crowd:
    """What all of them share."""

    port: int
    rng: random.Random
    stopping: bool = False
    lives: int = 0
    receipts: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """By topic: what the broker has confirmed."""
    came: dict[tuple[str, str], dict[bytes, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """By topic and subscription: what came, in the order in which it came first."""

    def life(self) -> int:
        self.lives += 1
        return self.rng.randint(*LIFE_MESSAGES)

    @property
    def missing(self) -> int:
        """How much was confirmed and has not come to every subscription."""
        return sum(
            len(self.receipts[topic].difference(came)) for (topic, _), came in self.came.items()
        )

    async def produce(self, topic: str, name: str) -> None:
        """Send until it is time to stop and everything has its receipt."""
        first = 0
        while not self.stopping or first % UNDER_WAY_MAX:
            link = await Link.open(self.port)
            join = wire.BaseCommand(type=Type.PRODUCER)
            join.producer.topic = topic
            join.producer.producer_id = join.producer.request_id = 1
            link.say(join)
            await link.hear(Type.PRODUCER_SUCCESS)
            life = self.life()
            while life > 0 and (not self.stopping or first % UNDER_WAY_MAX):
                # A round that was cut short by a disconnect is completed first.
                stop = first - first % UNDER_WAY_MAX + UNDER_WAY_MAX
                life -= stop - first
                frames = [send_frame(n, b"%s %d" % (name.encode(), n)) for n in range(first, stop)]
                link.send(b"".join(frames))
                if life <= 0 and not self.stopping:
                    # Some receipts are not waited for, and half a frame comes last.
                    link.send(send_frame(stop, bytes(100))[:50])
                    stop = self.rng.randint(first, stop)
                for number in range(first, stop):
                    receipt = await link.hear(Type.SEND_RECEIPT)
                    assert receipt.send_receipt.sequence_id == number
                    self.receipts[topic].add(b"%s %d" % (name.encode(), number))
                first = stop
            link.hang_up()

    async def consume(self, topic: str, subscription: str, kind: int, name: str) -> None:
        """Take what comes until cancelled."""
        came = self.came[topic, subscription]
        while True:
            link = await Link.open(self.port)
            try:
                await self._join(link, topic, subscription, kind, name)
                await self._take(link, came, kind)
            except HungUp:
                continue
            finally:
                link.hang_up()

    async def _join(self, link: Link, topic: str, subscription: str, kind: int, name: str) -> None:
        join = wire.BaseCommand(type=Type.SUBSCRIBE)
        join.subscribe.topic = topic
        join.subscribe.subscription = subscription
        join.subscribe.subType = wire.CommandSubscribe.SubType.ValueType(kind)
        join.subscribe.consumer_id = join.subscribe.request_id = 1
        join.subscribe.consumer_name = name
        join.subscribe.initialPosition = wire.CommandSubscribe.Earliest
        link.say(join)
        answer, _ = await link.next()
        if answer.type == Type.ERROR:
            # Its own last connection is still being closed.
            assert answer.error.error == wire.ServerError.ConsumerBusy, answer
            raise HungUp
        assert answer.type == Type.SUCCESS, answer

    async def _take(self, link: Link, came: dict[bytes, None], kind: int) -> None:
        single = kind in {wire.CommandSubscribe.Exclusive, wire.CommandSubscribe.Failover}
        flow = wire.BaseCommand(type=Type.FLOW)
        flow.flow.consumer_id = 1
        flow.flow.messagePermits = PERMITS
        link.say(flow)
        for taken in range(1, self.life()):
            command, entry = await link.next()
            while command.type == Type.ACTIVE_CONSUMER_CHANGE:
                command, entry = await link.next()
            assert command.type == Type.MESSAGE, command
            came.setdefault(bytes(parse_entry(entry)[1]))
            ack = wire.BaseCommand(type=Type.ACK)
            ack.ack.consumer_id = 1
            ack.ack.ack_type = wire.CommandAck.AckType.ValueType(single)
            ack.ack.message_id.append(command.message.message_id)
            link.say(ack)
            if taken % PERMITS == 0:
                link.say(flow)
        raise HungUp
