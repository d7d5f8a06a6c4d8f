"""What changes while a command waits for the disk counts when the command goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import jwt
import pytest

from lithify.clock import ManualClock
from lithify.pulsar import wire_pb2 as wire
from lithify.topics.access import Access, TokenKey, with_grant
from lithify.topics.names import Namespace, TopicName
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

ORDERS = TopicName.parse("orders")
PUBLIC = Namespace("public", "default")
SECRET = b"a secret of more than thirty-two bytes"
JOINED = {Type.SUBSCRIBE: Type.SUCCESS, Type.PRODUCER: Type.PRODUCER_SUCCESS}

both = pytest.mark.parametrize(
    "command", [subscribe("orders", 1), producer("orders", 1)], ids=["consumer", "producer"]
)


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
async def test_a_client_whose_topic_is_deleted_is_answered_as_if_it_asked_after_that(
    command: wire.BaseCommand, monkeypatch: pytest.MonkeyPatch, *, auto_create: bool
) -> None:
    async with served() as node:
        client = await node.client()
        before = node.topics.create("orders")
        reached, go = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait() -> None:
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

        monkeypatch.setattr(before, "preparation", lambda _: None if go.is_set() else wait)
        client.send(command)
        await reached.wait()
        node.topics.settings = replace(node.topics.settings, auto_create=auto_create)
        await asyncio.to_thread(node.topics.deleting(ORDERS))
        go.set()
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
    node.broker.access = Access(
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
