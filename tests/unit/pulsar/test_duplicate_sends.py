"""A disk that fails under a topic with deduplication: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar.broker import Broker
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, next_frame
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.topics import Topics, TopicSettings
from tests.patience import PROCESS_S_MAX
from tests.unit.pulsar.frames import LIMIT_BYTES, array, entry, send

if TYPE_CHECKING:
    from lithify.fs import FileSystem

Type = wire.BaseCommand


class Client:
    """A session in this process, and what it has answered."""

    def __init__(self, broker: Broker) -> None:
        self.answers: list[wire.BaseCommand] = []
        self.session = broker.session(self._take)
        command = wire.BaseCommand(type=Type.CONNECT)
        command.connect.client_version = "test"
        command.connect.protocol_version = 20
        self.send(encode_command(command))

    def _take(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while (found := next_frame(view, LIMIT_BYTES)) is not None:
            self.answers.append(wire.BaseCommand.FromString(bytes(found[0].command)))
            view = view[found[1] :]

    def send(self, data: bytes) -> None:
        assert self.session.receive(array(data), 0, len(data)) == len(data)

    async def answered(self, count: int) -> list[wire.BaseCommand]:
        """The next answers."""
        async with asyncio.timeout(PROCESS_S_MAX):
            while len(self.answers) < count:
                await asyncio.sleep(0)
        found, self.answers = self.answers[:count], self.answers[count:]
        return found

    async def join(self) -> int:
        """Join as producer 3 named p; the last sequence id."""
        command = wire.BaseCommand(type=Type.PRODUCER)
        command.producer.topic = "orders"
        command.producer.producer_id = 3
        command.producer.request_id = 1
        command.producer.producer_name = "p"
        self.send(encode_command(command))
        while True:
            (answer,) = await self.answered(1)
            if answer.type == Type.PRODUCER_SUCCESS:
                return int(answer.producer_success.last_sequence_id)

    def send_numbers(self, *numbers: int) -> None:
        self.send(b"".join(send(entry(sequence_id=n), sequence_id=n) for n in numbers))


def open_topics(fs: FileSystem) -> Topics:
    kept = TopicSettings(log=LogSettings(segment_bytes_max=1024), deduplication=True)
    return Topics(
        fs, "/data", settings=kept, clock=ManualClock(), events=ignore_events, owner="test"
    )


def sequence_ids(topics: Topics) -> list[int]:
    return [message.sequence_id for message in topics.get("orders").read()]


@pytest.mark.parametrize("operation", ["fdatasync", "write*", "rename"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_after_a_failure_everything_is_sent_again_and_there_once(operation: str, nth: int) -> None:
    async def story() -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        topics = open_topics(fs)
        client = Client(Broker(topics, name="n", version="test"))
        assert await client.join() == -1
        fs.add(Fault(operation, "*/log/*", nth=nth))
        # Three receives, so that later ones are in progress when an earlier one fails.
        client.answers.clear()
        for start in (0, 20, 40):
            client.send_numbers(*range(start, start + 20))
            await asyncio.sleep(0)
        known = 0
        while known < 60:
            (answer,) = await client.answered(1)
            if answer.type == Type.SEND_RECEIPT:
                assert answer.send_receipt.sequence_id == known
                known += 1
            elif answer.type == Type.CLOSE_PRODUCER:
                assert await client.join() >= known - 1
                client.answers.clear()
                client.send_numbers(*range(known, 60))
        assert sequence_ids(topics) == list(range(60))
        topics.close()
        topics = open_topics(fs)
        assert topics.get("orders").writer.last_sequence_id("p") == 59
        topics.close()

    asyncio.run(story())
