"""A connection's buffer, and what a producer is answered, over a socket of this machine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar import connection
from lithify.pulsar.broker import Broker
from lithify.pulsar.connection_limits import STRANGER_BYTES
from lithify.pulsar.listener import listen
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, next_frame
from lithify.settings import Durability, LogSettings
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.topics import Topics, TopicSettings
from tests.unit.pulsar.frames import LIMIT_BYTES, entry, send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Type = wire.BaseCommand


class Client:
    """A producer, id 3, of the topic "orders"."""

    def __init__(
        self,
        topics: Topics,
        connections: set[connection.ClientConnection],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.topics = topics
        self._connections = connections
        self._reader = reader
        self.writer = writer

    @property
    def buffer_bytes(self) -> int:
        (connection,) = self._connections
        return len(connection._buffer)

    async def ask(self, command: wire.BaseCommand) -> wire.BaseCommand:
        self.writer.write(encode_command(command))
        return await self.answer()

    async def answer(self) -> wire.BaseCommand:
        size = await self._reader.readexactly(4)
        rest = await self._reader.readexactly(int.from_bytes(size, "big"))
        found = next_frame(memoryview(size + rest), LIMIT_BYTES)
        assert found is not None
        answer: wire.BaseCommand = wire.BaseCommand.FromString(bytes(found[0].command))
        return answer


@asynccontextmanager
async def producing(durability: Durability) -> AsyncIterator[Client]:
    topics = Topics(
        MemoryFileSystem(),
        "/data",
        settings=TopicSettings(log=LogSettings(durability=durability)),
        clock=ManualClock(),
        events=ignore_events,
        owner="test",
    )
    connections: set[connection.ClientConnection] = set()
    broker = Broker(topics, name="b", version="test")
    server = await listen(broker, "127.0.0.1", 0, connections)
    streams = await asyncio.open_connection(*server.sockets[0].getsockname())
    client = Client(topics, connections, *streams)
    connect = wire.BaseCommand(type=Type.CONNECT)
    connect.connect.client_version = "test"
    connect.connect.protocol_version = 20
    assert (await client.ask(connect)).type == Type.CONNECTED
    join = wire.BaseCommand(type=Type.PRODUCER)
    join.producer.topic, join.producer.producer_id, join.producer.request_id = "orders", 3, 1
    assert (await client.ask(join)).type == Type.PRODUCER_SUCCESS
    try:
        yield client
    finally:
        client.writer.close()
        await client.writer.wait_closed()
        while connections:
            await asyncio.sleep(0)
        server.close()
        await server.wait_closed()
        topics.close()


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.ALWAYS])
def test_receipts_come_in_order_whether_or_not_the_disk_is_waited_for(
    durability: Durability,
) -> None:
    async def story() -> None:
        async with producing(durability) as client:
            frames = [send(entry(), producer_id=3, sequence_id=i) for i in range(2000)]
            bad = bytearray(frames[1000])
            bad[-1] ^= 1
            frames[1000] = bytes(bad)
            client.writer.write(b"".join(frames))
            answers = [await client.answer() for _ in frames]
        refused = answers.pop(1000)
        assert (refused.type, refused.send_error.sequence_id) == (Type.SEND_ERROR, 1000)
        assert [each.send_receipt.sequence_id for each in answers] == [
            i for i in range(2000) if i != 1000
        ]
        assert [each.send_receipt.message_id.entryId for each in answers] == list(range(1999))

    asyncio.run(story())


def test_a_peer_that_fills_its_buffer_gets_a_larger_one_and_no_larger_than_needed() -> None:
    async def story() -> None:
        async with producing(Durability.NONE) as client:
            assert client.buffer_bytes == STRANGER_BYTES
            small = send(entry(bytes(50_000)), producer_id=3)
            for _ in range(200):
                client.writer.write(small)
            for _ in range(200):
                await client.answer()
            assert client.buffer_bytes == connection.RECEIVE_BYTES_FULL
            client.writer.write(send(entry(bytes(3 * 2**20)), producer_id=3))
            await client.answer()
            assert client.buffer_bytes == 4 * 2**20
            topic = client.topics.get(TopicName.parse("orders"))
            sizes = [len(message.value or b"") for message in topic.read()]
            assert sizes == [50_000] * 200 + [3 * 2**20]

    asyncio.run(story())
