"""A command that waited for the disk sees what changed meanwhile."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from lithify.clock import ManualClock
from lithify.positions import unpack
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.messages.entry_flags import FLAG_DELAYED
from lithify.topics.permissions import Permissions, with_grant
from lithify.topics.subscriptions.cursor_changes import AckedUpTo
from lithify.topics.subscriptions.dispatch import DISPATCH_ENTRIES_MAX
from lithify.topics.subscriptions.subscription import Consumer, SubscriptionType
from lithify.topics.token_authentication import TokenKey
from tests.unit.log.helpers import PATIENCE_S
from tests.unit.pulsar.frames import entry
from tests.unit.pulsar.test_waiting import (
    Client,
    Error,
    Served,
    Type,
    in_a_loop,
    producer,
    served,
    subscribe,
    with_schema,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.topics.disk_steps import DiskCall, Steps
    from lithify.topics.subscriptions.subscription import Subscription
    from lithify.topics.topic import Topic

ORDERS = TopicName.parse("orders")
PUBLIC = Namespace("public", "default")
SECRET = b"a secret of more than thirty-two bytes"
JOINED = {Type.SUBSCRIBE: Type.SUCCESS, Type.PRODUCER: Type.PRODUCER_SUCCESS}

both = pytest.mark.parametrize(
    "command", [subscribe("orders", 1), producer("orders", 1)], ids=["consumer", "producer"]
)


class Pause:
    """A call for a thread that waits until it is told to continue."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._go = threading.Event()

    def find(self, *_: object, **__: object) -> Callable[[], None] | None:
        """As `preparation` of a log or of cursors."""
        return None if self._go.is_set() else self.wait

    def wait(self) -> None:
        self._begun.set()
        assert self._go.wait(PATIENCE_S)

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, PATIENCE_S)

    def end(self) -> None:
        self._go.set()


def who_joined(node: Served) -> int:
    topic = node.topics.get("orders")
    consumers = sum(len(each.consumers) for each in topic.subscriptions.values())
    return consumers + len(topic.producers.joined)


# --- the topic --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("closed", [False, True], ids=["closed later", "closed"])
@in_a_loop
async def test_a_client_joins_the_topic_that_is_opened_after_an_unload(
    command: wire.BaseCommand, *, closed: bool
) -> None:
    async with served() as node:
        client, other = await node.client(), await node.client()
        before = node.topics.create("orders")
        node.fs.hold("schemas")
        client.send(with_schema(command))
        await node.fs.is_held()
        close = node.topics.unloading([ORDERS])
        if closed:
            close()
        node.fs.let_go()
        if not closed:
            await other.ping()
            await asyncio.to_thread(close)
        assert (await client.answer()).type == JOINED[command.type]
        assert node.topics.get("orders") is not before
        assert who_joined(node) == 1


@both
@pytest.mark.parametrize("auto_create", [True, False])
@in_a_loop
async def test_a_command_waiting_for_a_deleted_topic_is_answered_as_if_sent_later(
    command: wire.BaseCommand, monkeypatch: pytest.MonkeyPatch, *, auto_create: bool
) -> None:
    async with served() as node:
        client = await node.client()
        before = node.topics.create("orders")
        pause = Pause()
        monkeypatch.setattr(before.writer, "preparation", pause.find)
        client.send(command)
        await pause.is_reached()
        node.topics.settings = replace(node.topics.settings, auto_create=auto_create)
        await asyncio.to_thread(node.topics.deleting(ORDERS))
        pause.end()
        answer = await client.answer()
        if auto_create:
            assert answer.type == JOINED[command.type]
            assert who_joined(node) == 1
        else:
            assert (answer.type, answer.error.error) == (Type.ERROR, Error.TopicNotFound)


# --- permissions ------------------------------------------------------------------------------


def grant(node: Served, *actions: str) -> None:
    node.topics.definitions.change(lambda d: with_grant(d, PUBLIC, "ann", list(actions)))


def token(node: Served) -> bytes:
    expires_s = node.topics.now_ms() // 1000 + 60
    return jwt.encode({"sub": "ann", "exp": expires_s}, SECRET).encode()


async def known_client(node: Served) -> Client:
    grant(node, "produce", "consume")
    node.broker.access = Permissions(
        TokenKey.secret(SECRET),
        superusers=[],
        definitions=lambda: node.topics.definitions.current,
        clock=node.topics.clock,
    )
    return await node.client(token(node))


@pytest.mark.parametrize("held", ["schemas", "cursors"])
@both
@in_a_loop
async def test_a_permission_revoked_while_a_command_waits_is_missing(
    command: wire.BaseCommand, held: str
) -> None:
    async with served() as node:
        client = await known_client(node)
        node.topics.create("orders")
        asked = wire.BaseCommand()
        asked.CopyFrom(command)
        if asked.type == Type.PRODUCER:
            asked.producer.initial_subscription_name = "s1"
        node.fs.hold(held)
        client.send(with_schema(asked))
        await node.fs.is_held()
        grant(node)
        node.fs.let_go()
        answer = await client.answer()
        assert (answer.type, answer.error.error) == (Type.ERROR, Error.AuthorizationError)
        assert who_joined(node) == 0
        # What was being written then is there, but nothing is created after that.
        assert ("s1" in node.topics.get("orders").subscriptions) is (held == "cursors")


@both
@in_a_loop
async def test_a_command_waits_for_a_new_token_if_the_old_one_expires_while_it_waits(
    command: wire.BaseCommand,
) -> None:
    async with served() as node:
        client = await known_client(node)
        node.topics.create("orders")
        node.fs.hold("schemas")
        client.send(with_schema(command))
        await node.fs.is_held()
        assert isinstance(node.topics.clock, ManualClock)
        node.topics.clock.advance(61)
        node.fs.let_go()
        assert (await client.answer()).type == Type.AUTH_CHALLENGE
        assert who_joined(node) == 0
        answer = wire.BaseCommand(type=Type.AUTH_RESPONSE)
        answer.authResponse.response.auth_method_name = "token"
        answer.authResponse.response.auth_data = token(node)
        client.send(answer)
        assert (await client.answer()).type == JOINED[command.type]
        assert who_joined(node) == 1


# --- a consumer that is put out ---------------------------------------------------------------


async def consumer_of_ten(node: Served, client: Client) -> tuple[Topic, Subscription]:
    topic = node.topics.create("orders")
    for number in range(10):
        topic.append(key="k", value=b"%d" % number)
    command = subscribe("orders", 1)
    command.subscribe.initialPosition = wire.CommandSubscribe.Earliest
    client.send(command)
    assert (await client.answer()).type == Type.SUCCESS
    return topic, topic.subscriptions["s1"]


def ids(topic: Topic) -> list[wire.MessageIdData]:
    places = [unpack(topic.last_position - 9 + n) for n in range(10)]
    return [wire.MessageIdData(ledgerId=ledger, entryId=number) for ledger, number in places]


@pytest.mark.parametrize("where", ["between pieces", "before a record"])
@in_a_loop
async def test_an_ack_of_a_disconnected_consumer_does_not_undo_a_reset(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async with served() as node:
        client = await node.client()
        topic, subscription = await consumer_of_ten(node, client)
        pause = Pause()
        if where == "before a record":
            monkeypatch.setattr(topic.cursors, "preparation", pause.find)
        else:
            monkeypatch.setattr("lithify.pulsar.consumer_commands.STEP_COST", 3)
            pieces = held_turns(node, monkeypatch)
        ack = wire.BaseCommand(type=Type.ACK)
        ack.ack.consumer_id, ack.ack.request_id = 1, 5
        ack.ack.ack_type = wire.CommandAck.Individual
        ack.ack.message_id.extend(reversed(ids(topic)))
        client.send(ack)
        if where == "before a record":
            await pause.is_reached()
            monkeypatch.undo()
        else:
            while not pieces:
                await asyncio.sleep(0)
            monkeypatch.undo()
            assert subscription.cursor.is_acked(topic.last_position)
        node.broker.disconnect_consumer(next(iter(subscription.consumers)))
        topic.seek(subscription, 0)
        pause.end()
        if where != "before a record":
            pieces.pop()()
        assert [each.type for each in await client.answers(2)] == [
            Type.CLOSE_CONSUMER,
            Type.ACK_RESPONSE,
        ]
        first = topic.last_position - 9
        assert not [n for n in range(10) if subscription.cursor.is_acked(first + n)]


def held_turns(node: Served, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Turns that sessions ask for from now on, until the test has them."""
    turns: list[Callable[[], None]] = []
    monkeypatch.setattr(node.broker, "soon", lambda _, then: turns.append(then))
    return turns


@in_a_loop
async def test_entries_are_not_redelivered_for_a_disconnected_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lithify.pulsar.consumer_commands.REDELIVERED_A_STEP", 3)
    async with served() as node:
        client = await node.client()
        topic, subscription = await consumer_of_ten(node, client)
        asked: list[int] = []
        monkeypatch.setattr(subscription, "redeliver", lambda _, some: asked.extend(some))
        turns = held_turns(node, (holding := pytest.MonkeyPatch()))
        again = wire.BaseCommand(type=Type.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        again.redeliverUnacknowledgedMessages.consumer_id = 1
        again.redeliverUnacknowledgedMessages.message_ids.extend(ids(topic))
        client.send(again)
        while not turns:
            await asyncio.sleep(0)
        holding.undo()
        node.broker.disconnect_consumer(next(iter(subscription.consumers)))
        turns.pop()()
        assert (await client.answer()).type == Type.CLOSE_CONSUMER
        await client.ping()
        assert len(asked) == 3


@in_a_loop
async def test_a_consumer_disconnected_during_a_search_by_time_does_not_seek(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as node:
        client = await node.client()
        topic, subscription = await consumer_of_ten(node, client)
        topic.acknowledge(subscription, AckedUpTo(topic.last_position))
        pause = Pause()
        found = topic.reader.times.find(1)

        def find_time(*_: object, **__: object) -> int:
            pause.wait()
            return found

        monkeypatch.setattr(topic.reader.times, "find", find_time)
        seek = wire.BaseCommand(type=Type.SEEK)
        seek.seek.consumer_id, seek.seek.request_id, seek.seek.message_publish_time = 1, 5, 1
        client.send(seek)
        await pause.is_reached()
        node.broker.disconnect_consumer(next(iter(subscription.consumers)))
        pause.end()
        assert [each.type for each in await client.answers(2)] == [Type.CLOSE_CONSUMER, Type.ERROR]
        assert subscription.cursor.mark_delete == topic.last_position


# --- a subscription that is removed -----------------------------------------------------------


@pytest.mark.parametrize("created", [False, True], ids=["removed", "created again"])
@in_a_loop
async def test_a_consumer_joins_the_subscription_that_has_the_name(
    monkeypatch: pytest.MonkeyPatch, *, created: bool
) -> None:
    async with served() as node:
        client = await node.client()
        topic = node.topics.create("orders")
        kind = SubscriptionType.FAILOVER
        before = topic.subscription("s1", kind, durable=True, start=0)
        pause, set_compacted = Pause(), topic.cursors.set_compacted

        def slow(name: str, *, compacted: bool) -> None:
            pause.wait()
            set_compacted(name, compacted=compacted)

        monkeypatch.setattr(topic.cursors, "set_compacted", slow)
        client.send(subscribe_compacted(1))
        await pause.is_reached()
        ends = topic.unsubscribing(before)
        changes: list[asyncio.Task[Any]] = [asyncio.create_task(node.broker.run(ends))]
        if created:
            new = topic.creating("s1", kind, durable=True, start=0)
            changes.append(asyncio.create_task(node.broker.run(new)))
        await asyncio.sleep(0)
        pause.end()
        await asyncio.gather(*changes)
        assert (await client.answer()).type == Type.SUCCESS
        assert topic.subscriptions["s1"] is not before
        assert (len(before.consumers), who_joined(node)) == (0, 1)


def compacted(node: Served) -> Topic:
    topic = node.topics.create("orders")
    for number in range(60):
        topic.append(key=f"k{number % 5}", value=b"x")
    topic.log.roll()
    topic.compact()
    return topic


def subscribe_compacted(consumer_id: int) -> wire.BaseCommand:
    command = subscribe("orders", 1)
    command.subscribe.consumer_id = consumer_id
    command.subscribe.subType = wire.CommandSubscribe.Failover
    command.subscribe.read_compacted = True
    command.subscribe.initialPosition = wire.CommandSubscribe.Earliest
    return command


def pause_reads(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> Pause:
    pause, read = Pause(), topic.service.read_compacted_entries

    def slow(*args: Any) -> Any:
        pause.wait()
        return read(*args)

    monkeypatch.setattr(topic.service, "read_compacted_entries", slow)
    return pause


@in_a_loop
async def test_a_subscription_removed_while_its_cursor_moves_over_gaps_is_created_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as node:
        client = await node.client()
        topic = compacted(node)
        pause = pause_reads(topic, monkeypatch)
        client.send(subscribe_compacted(1))
        await pause.is_reached()
        before = topic.subscriptions["s1"]
        topic.unsubscribe(before)
        pause.end()
        assert (await client.answer()).type == Type.SUCCESS
        assert topic.subscriptions["s1"] is not before
        assert (len(before.consumers), who_joined(node)) == (0, 1)


@in_a_loop
async def test_the_next_consumer_gets_the_messages_if_the_first_hangs_up_while_it_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as node:
        other = await node.client()
        others = set(node.connections)
        client = await node.client()
        topic = compacted(node)
        pause = pause_reads(topic, monkeypatch)
        client.send(subscribe_compacted(1))
        await pause.is_reached()
        flow = wire.BaseCommand(type=Type.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 2, 100
        other.send(subscribe_compacted(2), flow)
        answers = await other.answers(2)
        assert [each.type for each in answers] == [Type.SUCCESS, Type.ACTIVE_CONSUMER_CHANGE]
        # Nothing is read from a client that waits: the broker is the one to hang up.
        for each in set(node.connections) - others:
            each.abort()
        await other.ping()
        pause.end()
        while (await other.answer()).type != Type.MESSAGE:
            pass


# --- turns ------------------------------------------------------------------------------------


@in_a_loop
async def test_a_session_that_returns_from_a_thread_waits_for_its_turn() -> None:
    async with served() as node:
        client, other = await node.client(), await node.client()
        node.fs.hold("/data")
        client.send(producer("new"), wire.BaseCommand(type=Type.PING, ping=wire.CommandPing()))
        await node.fs.is_held()
        holding = pytest.MonkeyPatch()
        turns = held_turns(node, holding)
        node.fs.let_go()
        assert (await client.answer()).type == Type.PRODUCER_SUCCESS
        await other.ping()
        assert len(turns) == 1
        holding.undo()
        turns.pop()()
        assert (await client.answer()).type == Type.PONG


@in_a_loop
async def test_a_dispatch_that_delivers_nothing_ends_its_turn() -> None:
    async with served() as node:
        topic = node.topics.create("orders")
        later = bytes(entry(deliver_at_time=node.topics.now_ms() + 3_600_000))
        for _ in range(5):
            size = DISPATCH_ENTRIES_MAX
            topic.writer.append_entries(
                [later] * size, times=[1] * size, counts=[1] * size, flags=FLAG_DELAYED
            ).result()
        subscription = topic.subscription("s", SubscriptionType.SHARED, durable=True, start=0)
        consumer = Consumer(name="c")
        topic.join(subscription, consumer, SubscriptionType.SHARED)
        consumer.grant(10_000)
        turns = [each for each in driven(topic.dispatching(subscription)) if each is None]
        assert len(turns) >= 4
        assert subscription.read_position == topic.last_position + 1


def driven(steps: Steps[Any]) -> Iterator[DiskCall | None]:
    """What an operation yields; its calls are made here."""
    result: object = None
    while True:
        try:
            wanted = steps.send(result)
        except StopIteration:
            return
        yield wanted
        call = None if wanted is None else wanted.find()
        result = None if call is None else call()
