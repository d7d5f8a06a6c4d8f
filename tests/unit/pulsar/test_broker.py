"""Disconnected readers: their subscription is kept for a bounded time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar.broker import RETURN_SECONDS_MAX, Broker
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.topics import Topics, TopicSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.checksum import Buffer

Type = wire.BaseCommand
SOON = RETURN_SECONDS_MAX - 1


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock is moved by hand."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let what is due by then happen."""
        self.now_s += seconds
        for _ in range(3):
            self.run_until_complete(asyncio.sleep(0))


class Connection:
    """A client's session with a broker, and the broker's loop."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.sent: list[bytes] = []
        self.topics = Topics(
            MemoryFileSystem(),
            "/data",
            settings=TopicSettings(),
            clock=ManualClock(),
            events=ignore_events,
            owner="test",
        )
        self.topic = self.topics.create("orders")
        self.session = Broker(self.topics, name="b", version="test").session(self._take)
        connect = wire.BaseCommand(type=Type.CONNECT)
        connect.connect.client_version = "test"
        connect.connect.protocol_version = 20
        self.receive(connect)

    def _take(self, data: Buffer) -> None:
        self.sent.append(bytes(data))

    def receive(self, command: wire.BaseCommand) -> None:
        data = np.frombuffer(bytearray(encode_command(command)), np.uint8)

        async def within() -> None:
            self.session.receive(data, 0, len(data))

        self.loop.run_until_complete(within())
        self.loop.advance(0)

    def subscribe(self, *, durable: bool = False) -> None:
        command = wire.BaseCommand(type=Type.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription = "orders", "reader"
        request.subType = wire.CommandSubscribe.Exclusive
        request.consumer_id, request.request_id = 1, 1
        request.durable = durable
        self.receive(command)

    def seek(self) -> None:
        command = wire.BaseCommand(type=Type.SEEK)
        command.seek.consumer_id, command.seek.request_id = 1, 2
        command.seek.message_id.ledgerId = command.seek.message_id.entryId = 0
        self.receive(command)

    def let_go(self) -> None:
        async def within() -> None:
            self.session.close_unauthorized(lambda _where, _action: False)

        self.loop.run_until_complete(within())

    @property
    def is_known(self) -> bool:
        return "reader" in self.topic.subscriptions


@pytest.fixture
def client() -> Iterator[Connection]:
    loop = ManualLoop()
    connection = Connection(loop)
    yield connection
    connection.topics.close()
    loop.close()


def test_the_subscription_of_a_reader_that_does_not_reconnect_is_deleted(
    client: Connection,
) -> None:
    client.subscribe()
    client.seek()
    client.loop.advance(SOON)
    assert client.is_known
    client.loop.advance(2)
    assert not client.is_known


def test_a_reader_that_returns_stays_and_each_seek_gives_it_the_whole_time(
    client: Connection,
) -> None:
    client.subscribe()
    client.seek()
    client.loop.advance(SOON)
    client.subscribe()
    client.seek()
    client.loop.advance(SOON)
    assert client.is_known
    client.subscribe()
    client.loop.advance(10 * RETURN_SECONDS_MAX)
    assert client.is_known


def test_a_reader_disconnected_for_another_reason_is_deleted_too(
    client: Connection,
) -> None:
    client.subscribe()
    client.let_go()
    client.loop.advance(SOON)
    assert client.is_known
    client.loop.advance(2)
    assert not client.is_known


def test_a_durable_subscription_is_not_deleted_on_disconnect(client: Connection) -> None:
    client.subscribe(durable=True)
    client.seek()
    client.loop.advance(10 * RETURN_SECONDS_MAX)
    assert client.is_known
