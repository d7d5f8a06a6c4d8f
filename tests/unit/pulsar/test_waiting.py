"""Waiting for the disk happens in threads: the command waits, all others continue."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar.broker import Broker
from lithify.pulsar.connection_limits import ConnectionLimits
from lithify.pulsar.listener import listen
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command, next_frame
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.definitions.definitions import NamespaceDefinition
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.topics import Topics, TopicSettings
from tests.unit.log.helpers import PATIENCE_S
from tests.unit.pulsar.frames import LIMIT_BYTES, entry, send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from lithify.pulsar.connection import ClientConnection

Type = wire.BaseCommand
Error = wire.ServerError


def in_a_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(story)
    def run(**fixtures: Any) -> None:
        asyncio.run(story(**fixtures))

    return run


class WatchedFileSystem(FaultyFileSystem):
    """Knows in which thread a directory or cursor was made durable, and can hold that up."""

    def __init__(self) -> None:
        super().__init__(MemoryFileSystem())
        self.threads: list[tuple[str, threading.Thread]] = []
        self.held = ""
        self.holding = threading.Event()
        self.go = threading.Event()
        self._inject = self._injector.run
        self._injector.run = self._watch  # type: ignore[method-assign, assignment]

    def _watch(self, name: str, paths: tuple[str, ...], *actions: Any) -> Any:
        # The appends of a round of the loop are made durable in the loop: these not.
        if name in {"fsync", "fdatasync"} and "/log/" not in paths[0]:
            self._note(paths[0])
        return self._inject(name, paths, *actions)

    def sync_dir(self, path: str) -> None:
        self._note(path)
        super().sync_dir(path)

    def _note(self, path: str) -> None:
        self.threads.append((path, threading.current_thread()))
        if self.held and self.held in path:
            self.holding.set()
            assert self.go.wait(PATIENCE_S)

    def hold(self, part: str) -> None:
        self.holding.clear()
        self.go.clear()
        # Last: another thread may be held from here on.
        self.held = part

    def let_go(self) -> None:
        self.held = ""
        self.go.set()

    async def is_held(self) -> None:
        assert await asyncio.to_thread(self.holding.wait, PATIENCE_S)

    def in_loop(self) -> list[str]:
        here = threading.current_thread()
        return [path for path, thread in self.threads if thread is here]


class Client:
    """A connection to a broker that listens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._data = b""

    def send(self, *frames: bytes | wire.BaseCommand) -> None:
        for each in frames:
            self._writer.write(each if isinstance(each, bytes) else encode_command(each))

    async def answer(self) -> wire.BaseCommand:
        async with asyncio.timeout(PATIENCE_S):
            while (found := next_frame(memoryview(self._data), LIMIT_BYTES)) is None:
                self._data += await self._reader.read(2**16)
        self._data = self._data[found[1] :]
        command: wire.BaseCommand = wire.BaseCommand.FromString(bytes(found[0].command))
        return command

    def hang_up(self) -> None:
        self._writer.transport.abort()

    async def answers(self, count: int) -> list[wire.BaseCommand]:
        return [await self.answer() for _ in range(count)]

    async def ping(self) -> None:
        self.send(wire.BaseCommand(type=Type.PING, ping=wire.CommandPing()))
        assert (await self.answer()).type == Type.PONG

    async def join(self, topic: str = "orders", producer_id: int = 3) -> wire.BaseCommand:
        self.send(producer(topic, producer_id))
        return await self.answer()

    def send_numbers(self, *numbers: int) -> None:
        self.send(*(send(entry(sequence_id=n), sequence_id=n) for n in numbers))


def producer(topic: str = "orders", producer_id: int = 3) -> wire.BaseCommand:
    command = wire.BaseCommand(type=Type.PRODUCER)
    command.producer.topic = topic
    command.producer.producer_id = producer_id
    command.producer.request_id = 1
    command.producer.producer_name = f"p{producer_id}"
    return command


def subscribe(topic: str, consumer_id: int) -> wire.BaseCommand:
    command = wire.BaseCommand(type=Type.SUBSCRIBE)
    command.subscribe.topic = topic
    command.subscribe.subscription = f"s{consumer_id}"
    command.subscribe.subType = wire.CommandSubscribe.Shared
    command.subscribe.consumer_id = consumer_id
    command.subscribe.request_id = 2
    return command


class Served:
    """A broker at a port."""

    def __init__(self, fs: WatchedFileSystem, broker: Broker, port: int) -> None:
        self.fs = fs
        self.broker = broker
        self.topics = broker.topics
        self.connections: set[ClientConnection] = set()
        self._port = port
        self._clients: list[Client] = []

    async def client(self, token: bytes = b"") -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        self._clients.append(client)
        connect = wire.BaseCommand(type=Type.CONNECT)
        connect.connect.client_version = "test"
        connect.connect.protocol_version = 20
        if token:
            connect.connect.auth_method_name, connect.connect.auth_data = "token", token
            connect.connect.feature_flags.supports_auth_refresh = True
        client.send(connect)
        assert (await client.answer()).type == Type.CONNECTED
        return client

    def hang_up(self) -> None:
        for client in self._clients:
            client.hang_up()

    def numbers(self, topic: str = "orders") -> list[int]:
        return [message.sequence_id for message in self.topics.get(topic).read()]


@asynccontextmanager
async def served(*, deduplication: bool = False) -> AsyncIterator[Served]:
    fs = WatchedFileSystem()
    topics = Topics(
        fs,
        "/data",
        settings=TopicSettings(
            log=LogSettings(segment_bytes_max=4096), deduplication=deduplication
        ),
        clock=ManualClock(),
        events=ignore_events,
        owner="test",
    )
    broker = Broker(topics, name="n", version="test")
    connections: set[ClientConnection] = set()
    server = await listen(broker, "127.0.0.1", 0, connections)
    fs.threads.clear()
    node = Served(fs, broker, server.sockets[0].getsockname()[1])
    node.connections = connections
    try:
        yield node
    finally:
        fs.let_go()
        server.close()
        node.hang_up()
        for each in set(connections):
            each.abort()
        # Once round the loop, in which the sockets are closed.
        await asyncio.sleep(0)
        await server.wait_closed()
        topics.close()


@in_a_loop
async def test_creating_a_topic_and_rolling_it_never_wait_in_the_loop() -> None:
    async with served() as node:
        client = await node.client()
        assert (await client.join()).type == Type.PRODUCER_SUCCESS
        assert [path for path, _ in node.fs.threads], "the definition and the topic's files"
        for start in range(0, 200, 10):
            client.send_numbers(*range(start, start + 10))
            receipts = await client.answers(10)
            assert [each.send_receipt.sequence_id for each in receipts] == list(
                range(start, start + 10)
            )
        assert node.fs.in_loop() == []
        assert len(node.topics.get("orders").log.manifest.segments) > 3
        assert node.numbers() == list(range(200))


@in_a_loop
async def test_while_a_topic_rolls_its_producers_wait_in_order_and_others_continue() -> None:
    async with served() as node:
        client, other = await node.client(), await node.client()
        await client.join()
        await other.join("another")
        client.send_numbers(*range(20))
        await client.answers(20)
        node.fs.hold("orders")
        client.send_numbers(*range(20, 100))
        await node.fs.is_held()
        client.send(wire.BaseCommand(type=Type.PING, ping=wire.CommandPing()))
        await other.ping()
        other.send_numbers(1)
        assert (await other.answer()).send_receipt.sequence_id == 1
        node.fs.let_go()
        answers = await client.answers(81)
        assert sorted(each.type for each in answers) == [Type.SEND_RECEIPT] * 80 + [Type.PONG]
        receipts = [each for each in answers if each.type == Type.SEND_RECEIPT]
        assert [each.send_receipt.sequence_id for each in receipts] == list(range(20, 100))
        assert node.numbers() == list(range(100))


@in_a_loop
async def test_two_clients_that_create_one_topic_get_the_same() -> None:
    async with served() as node:
        clients = [await node.client() for _ in range(2)]
        node.fs.hold("/data")
        for number, client in enumerate(clients):
            client.send(producer("new", number))
        await node.fs.is_held()
        node.fs.let_go()
        for client in clients:
            assert (await client.answer()).type == Type.PRODUCER_SUCCESS
        assert len(node.topics.opened()) == 1
        assert len(node.topics.get("new").producers.joined) == 2


@in_a_loop
async def test_a_client_that_hangs_up_while_it_waits_leaves_nothing_behind() -> None:
    async with served() as node:
        client, other = await node.client(), await node.client()
        node.fs.hold("/data")
        client.send(producer("new"))
        await node.fs.is_held()
        client.hang_up()
        await other.ping()
        node.fs.let_go()
        assert (await other.join("new", 4)).type == Type.PRODUCER_SUCCESS
        joined = node.topics.get("new").producers.joined
        while list(joined) != ["p4"]:
            await other.ping()


@in_a_loop
async def test_a_failure_in_a_thread_is_sent_to_the_client() -> None:
    async with served() as node:
        client = await node.client()
        node.fs.add(Fault("rename", "*definitions*", count=None))
        answer = await client.join()
        assert answer.type == Type.ERROR
        assert answer.error.error == Error.PersistenceError
        node.fs.clear()
        assert (await client.join()).type == Type.PRODUCER_SUCCESS
        client.send_numbers(*range(20))
        await client.answers(20)
        node.fs.add(Fault("rename", "*orders/log*", count=None))
        client.send_numbers(*range(20, 70))
        while (answer := await client.answer()).type == Type.SEND_RECEIPT:
            pass
        assert answer.type == Type.CLOSE_PRODUCER
        node.fs.clear()


# --- schemas and cursors ----------------------------------------------------------------------


def with_schema(command: wire.BaseCommand) -> wire.BaseCommand:
    part = command.producer if command.type == Type.PRODUCER else command.subscribe
    part.schema.CopyFrom(wire.Schema(type=wire.Schema.String, name="text", schema_data=b""))
    return command


@in_a_loop
async def test_schemas_and_cursors_are_written_in_threads() -> None:
    async with served() as node:
        client = await node.client()
        client.send(with_schema(subscribe("orders", 1)))
        assert (await client.answer()).type == Type.SUCCESS
        start = with_schema(producer("bills"))
        start.producer.initial_subscription_name = "all"
        client.send(start)
        assert (await client.answer()).type == Type.PRODUCER_SUCCESS
        asked = wire.BaseCommand(type=Type.GET_OR_CREATE_SCHEMA)
        asked.getOrCreateSchema.topic = "news"
        asked.getOrCreateSchema.request_id = 5
        asked.getOrCreateSchema.schema.CopyFrom(start.producer.schema)
        client.send(asked)
        answer = await client.answer()
        assert answer.getOrCreateSchemaResponse.schema_version == bytes(8)
        for part in ("orders/cursors", "orders/schemas", "bills/schemas", "news/schemas"):
            assert any(part in path for path, _ in node.fs.threads), part
        assert node.fs.in_loop() == []
        assert list(node.topics.get("orders").subscriptions) == ["s1"]
        assert list(node.topics.get("bills").subscriptions) == ["all"]


@in_a_loop
async def test_a_subscription_is_there_although_its_client_hung_up() -> None:
    async with served() as node:
        client, other = await node.client(), await node.client()
        await other.join()
        node.fs.hold("cursors")
        client.send(subscribe("orders", 1))
        await node.fs.is_held()
        client.hang_up()
        await other.ping()
        node.fs.let_go()
        while list(node.topics.get("orders").subscriptions) != ["s1"]:
            await other.ping()


@in_a_loop
async def test_a_cursor_that_cannot_be_written_is_refused_and_not_there() -> None:
    async with served() as node:
        client = await node.client()
        await client.join()
        node.fs.add(Fault("fdatasync", "*cursors*", count=None))
        client.send(subscribe("orders", 1))
        answer = await client.answer()
        assert (answer.type, answer.error.error) == (Type.ERROR, Error.PersistenceError)
        node.fs.clear()
        assert not node.topics.get("orders").subscriptions


@in_a_loop
async def test_a_subscription_that_cannot_be_deleted_is_still_there() -> None:
    async with served() as node:
        client = await node.client()
        client.send(subscribe("orders", 1))
        assert (await client.answer()).type == Type.SUCCESS
        node.fs.add(Fault("mutating", "*cursors*", count=None))
        leave = wire.BaseCommand(type=Type.UNSUBSCRIBE)
        leave.unsubscribe.consumer_id, leave.unsubscribe.request_id = 1, 3
        client.send(leave)
        answer = await client.answer()
        assert (answer.type, answer.error.error) == (Type.ERROR, Error.PersistenceError)
        assert (await client.answer()).type == Type.CLOSE_CONSUMER, "so that it subscribes again"
        node.fs.clear()
        assert list(node.topics.get("orders").subscriptions) == ["s1"]
        client.send(subscribe("orders", 1))
        assert (await client.answer()).type == Type.SUCCESS
        client.send(leave)
        assert (await client.answer()).type == Type.SUCCESS
        assert not node.topics.get("orders").subscriptions
        assert node.fs.in_loop() == []


@in_a_loop
async def test_no_client_may_take_the_name_of_the_compacted_view() -> None:
    async with served() as node:
        client = await node.client()
        taken = subscribe("orders", 1)
        taken.subscribe.subscription = "__compaction"
        client.send(taken)
        answer = await client.answer()
        assert (answer.type, answer.error.error) == (Type.ERROR, Error.NotAllowedError)
        assert "__compaction" in answer.error.message


@in_a_loop
async def test_all_is_settled_when_no_thread_is_at_work() -> None:
    async with served() as node:
        client, other = await node.client(), await node.client()
        node.fs.hold("/data")
        client.send(producer("new"))
        await node.fs.is_held()
        settled = asyncio.ensure_future(node.broker.settled())
        await other.ping()
        assert not settled.done()
        node.fs.let_go()
        await settled
        assert node.topics.exists("new")


# --- deduplication, switched while clients are there ------------------------------------------


def deduplicate(node: Served, *, on: bool) -> None:
    name = Namespace("public", "default")
    definition = NamespaceDefinition({"deduplication": on})
    node.topics.definitions.change(lambda d: d.with_namespace(name, definition))
    node.fs.threads.clear()


@in_a_loop
async def test_deduplication_is_switched_on_and_off_under_a_producer() -> None:
    async with served() as node:
        client = await node.client()
        await client.join()
        client.send_numbers(7, 7)
        await client.answers(2)
        deduplicate(node, on=True)
        # Its numbers may have begun again since 7: only what comes from here on counts.
        client.send_numbers(3, 4, 4)
        last = (await client.answers(3))[-1].send_receipt
        assert last.message_id.ledgerId == 2**64 - 1, "it was there already"
        assert node.numbers() == [7, 7, 3, 4]
        assert node.topics.get("orders").writer.last_sequence_id("p3") == 4
        deduplicate(node, on=False)
        client.send_numbers(4)
        await client.answers(1)
        assert node.numbers() == [7, 7, 3, 4, 4]
        deduplicate(node, on=True)
        client.send_numbers(2)
        await client.answers(1)
        assert node.numbers()[-1] == 2, "what was known before it was off is forgotten"
        assert node.fs.in_loop() == []


# --- limits -----------------------------------------------------------------------------------


def limit(node: Served, **limits: int) -> None:
    node.broker.limits = replace(ConnectionLimits(), **limits)


@pytest.mark.parametrize(
    ("setting", "first", "second"),
    [
        ("connection_producers_max", producer("orders", 1), producer("orders", 2)),
        ("connection_consumers_max", subscribe("orders", 1), subscribe("orders", 2)),
        ("connection_topics_created_max", producer("one", 1), producer("two", 2)),
        ("connection_topics_created_max", subscribe("one", 1), subscribe("two", 2)),
    ],
)
@in_a_loop
async def test_a_connection_is_refused_what_is_over_a_limit(
    setting: str, first: wire.BaseCommand, second: wire.BaseCommand
) -> None:
    async with served() as node:
        limit(node, **{setting: 1})
        client = await node.client()
        client.send(first)
        assert (await client.answer()).type in {Type.PRODUCER_SUCCESS, Type.SUCCESS}
        client.send(second)
        answer = await client.answer()
        assert answer.type == Type.ERROR
        assert answer.error.error == Error.NotAllowedError
        assert setting in answer.error.message
        assert not node.topics.exists("two")
        # The limit is this connection's alone, and it can still use what there is.
        client.send(first)
        assert (await client.answer()).type in {Type.PRODUCER_SUCCESS, Type.SUCCESS}
        other = await node.client()
        other.send(second)
        assert (await other.answer()).type in {Type.PRODUCER_SUCCESS, Type.SUCCESS}


@in_a_loop
async def test_ids_of_disconnected_producers_are_kept_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lithify.pulsar.producer_commands.GONE_MAX", 3)
    async with served() as node:
        client = await node.client()
        for number in range(10):
            await client.join(producer_id=number)
            for each in list(node.topics.get("orders").producers.joined.values()):
                node.topics.get("orders").producers.remove(each)
                node.broker.disconnect_producer(each)
            assert (await client.answer()).type == Type.CLOSE_PRODUCER
        # Its message was on the way: no reason to hang up.
        client.send(send(entry(), producer_id=9))
        await client.ping()
        client.send(send(entry(), producer_id=1))
        assert await client._reader.read() == b""
