"""What fuzzing runs: bytes into sessions of a broker that has no sockets, no disk and no clock.

1. `play` starts a broker on a file system in memory, and a bystander: a client that does nothing
   wrong on a topic of its own.
2. Each piece of bytes is handed to one of a few connections, as the listener would hand it over:
   what is not yet a frame is kept, and an error that Lithify raises on purpose ends a connection.
   Then everything that follows from it happens, before the next piece comes.
3. After each piece broker, topics and sessions must agree on who is there and who holds what, and
   nothing may have been logged as a failure. What was sent must be frames.
4. In the end all connections close. Nothing may be left of them, the bystander gets its messages,
   every topic can be read by subscriptions of all types, and the next process finds on disk what
   this one had.

Any other exception is a finding.

A *secured* broker asks for tokens: of clients that may do everything, read, write, or
nothing (`GRANTS`). A second passes before each piece, so that tokens expire. No client may ever
have a producer or a consumer without the permission.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import structlog

from lithify.clock import ManualClock
from lithify.errors import LithifyError
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar.broker import Broker
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import next_frame
from lithify.settings import Durability, LogSettings
from lithify.topics.definitions.topic_names import Namespace
from lithify.topics.permissions import Action, Permissions, with_grant
from lithify.topics.subscriptions.subscription import SubscriptionType
from lithify.topics.token_authentication import TokenKey
from lithify.topics.topics import Topics, TopicSettings
from tests.fuzz import conversations as say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.topics.subscriptions.subscription import Subscription
    from lithify.topics.topic import Topic

CONNECTIONS = 2
ROUNDS_MAX = 1000
FRAME_BYTES_MAX = 64 * 2**20
GRANTS = {"both": ("produce", "consume"), "reader": ("consume",), "writer": ("produce",)}
Piece = tuple[int, bytes]
"""Which connection, and what it receives."""


class Peer:
    """One connection of which the test is the other end."""

    def __init__(self, broker: Broker) -> None:
        self.sent = bytearray()
        self.session = broker.session(self._take)
        self._left = b""

    def _take(self, data: Buffer) -> None:
        self.sent += data

    def give(self, data: bytes) -> None:
        """Bytes have come."""
        if self.session.closed:
            return
        buffer = np.frombuffer(bytearray(self._left + data), dtype=np.uint8)
        try:
            stop = self.session.receive(buffer, 0, len(buffer))
        except LithifyError:
            self.session.close()
            return
        self._left = buffer[stop:].tobytes()
        # The receive buffer is used again: nothing may still be checking it.
        buffer[:] = 0xEE

    def heard(self) -> list[wire.BaseCommand]:
        """The commands that were sent since it was last asked."""
        commands = []
        view = memoryview(bytes(self.sent))
        while view:
            found = next_frame(view, FRAME_BYTES_MAX)
            assert found is not None, "half a frame was sent"
            commands.append(wire.BaseCommand.FromString(bytes(found[0].command)))
            view = view[found[1] :]
        self.sent.clear()
        return commands


def play(
    pieces: Sequence[Piece], *, deduplication: bool = False, secured: bool = False
) -> list[list[str]]:
    """Play a conversation; the kinds of commands that each connection was sent."""
    fs = MemoryFileSystem()
    with structlog.testing.capture_logs() as logged:
        return asyncio.run(_play(fs, pieces, logged, deduplication=deduplication, secured=secured))


def _access(topics: Topics, clock: Clock) -> Permissions:
    namespace = Namespace.parse("public/default")
    for name, actions in GRANTS.items():
        grant = partial(with_grant, namespace=namespace, principal=name, actions=actions)
        topics.definitions.change(grant)
    return Permissions(
        TokenKey.secret(say.SECRET),
        superusers=["root"],
        definitions=lambda: topics.definitions.current,
        clock=clock,
    )


def _topics(fs: FileSystem, *, deduplication: bool) -> Topics:
    # Without fsync no thread is needed, so that the same bytes always do the same.
    log = LogSettings(durability=Durability.NONE, segment_bytes_max=1024)
    return Topics(
        fs,
        "/data",
        settings=TopicSettings(log=log, deduplication=deduplication),
        clock=ManualClock(),
        events=ignore_events,
        owner="fuzz",
    )


async def _play(
    fs: MemoryFileSystem,
    pieces: Sequence[Piece],
    logged: Sequence[object],
    *,
    deduplication: bool,
    secured: bool,
) -> list[list[str]]:
    topics = _topics(fs, deduplication=deduplication)
    clock = ManualClock()
    access = _access(topics, clock) if secured else None
    broker = Broker(topics, name="fuzz", version="fuzz", access=access)
    bystander = Peer(broker)
    bystander.give(say.connect_as("root"))
    bystander.give(say.producer("bystander") + say.subscribe("bystander"))
    peers = [Peer(broker) for _ in range(CONNECTIONS)]
    kinds: list[list[str]] = [[] for _ in peers]
    for number, data in pieces:
        clock.advance(1)
        peers[number].give(data)
        await _settle(broker)
        assert not logged, logged
        _agree(broker, [*peers, bystander])
        _are_allowed(peers)
        for peer, heard in zip(peers, kinds, strict=True):
            heard += [wire.BaseCommand.Type.Name(each.type) for each in peer.heard()]
    for peer in peers:
        peer.session.close()
    await _settle(broker)
    _agree(broker, [bystander])
    bystander.heard()
    bystander.give(say.send(0) + say.flow())
    await _settle(broker)
    answers = [each.type for each in bystander.heard()]
    assert answers == [wire.BaseCommand.SEND_RECEIPT, wire.BaseCommand.MESSAGE], answers
    await _everybody_can_read(broker)
    bystander.session.close()
    await _settle(broker)
    assert not logged, logged
    _same_after_a_kill(fs, topics, deduplication=deduplication)
    topics.close()
    return kinds


async def _settle(broker: Broker) -> None:
    """Let everything happen that follows from what has happened."""
    for _ in range(ROUNDS_MAX):
        await broker.settled()
        if not (broker.is_dispatching):
            return
        await asyncio.sleep(0)
    raise AssertionError("there is no end to it")


def _agree(broker: Broker, peers: Sequence[Peer]) -> None:
    """Sessions, broker and topics know the same producers and consumers."""
    producers, consumers = set(), set()
    for peer in peers:
        for number, making in peer.session.producing.joined.items():
            producers.add(making.producer)
            assert broker.producers[making.producer] == (peer.session.producing, number)
            known = making.topic.producers
            there = known.joined.get(making.producer.name) is making.producer
            assert there is making.ready, (making, known.joined)
            assert there or making.producer in known.waiting
        for number, taking in peer.session.consuming.joined.items():
            consumers.add(taking.consumer)
            assert broker.consumers[taking.consumer] == (peer.session.consuming, number)
            assert taking.consumer in taking.subscription.consumers
            assert taking.topic.subscriptions[taking.subscription.name] is taking.subscription
        assert peer.session.unanswered == 0
    assert set(broker.producers) == producers
    assert set(broker.consumers) == consumers
    for topic in broker.topics.opened().values():
        assert producers.issuperset((*topic.producers.joined.values(), *topic.producers.waiting))
        for subscription in topic.subscriptions.values():
            assert consumers.issuperset(subscription.consumers)
            _counts_are_right(topic, subscription)


def _are_allowed(peers: Sequence[Peer]) -> None:
    """No client has a producer or a consumer without the permission."""
    for peer in peers:
        gate = peer.session.gate
        if gate.access is None:
            continue
        for action, joined in (
            (Action.PRODUCE, peer.session.producing.joined),
            (Action.CONSUME, peer.session.consuming.joined),
        ):
            for each in joined.values():
                assert gate.principal is not None, each
                gate.access.check(gate.principal, each.topic.name.namespace, action)


def _counts_are_right(topic: Topic, subscription: Subscription) -> None:
    for consumer in subscription.consumers:
        assert consumer.unacked_messages == sum(each.messages for each in consumer.held.values())
        assert all(subscription.holders[position] is consumer for position in consumer.held)
    assert len(subscription.holders) == sum(len(each.held) for each in subscription.consumers)
    assert -1 <= subscription.cursor.mark_delete < topic.log.next_position


async def _everybody_can_read(broker: Broker) -> None:
    """Whatever was written, no subscription of any type stops at it."""
    reader = Peer(broker)
    reader.give(say.connect_as("root"))
    for name in broker.topics.opened():
        for kind in SubscriptionType:
            reader.give(say.subscribe(str(name), f"reads {kind}", kind, kind + 1))
            reader.give(say.flow(kind + 1))
        await _settle(broker)
        for kind in SubscriptionType:
            reader.give(say.unsubscribe(kind + 1))
    assert not reader.session.closed
    reader.session.close()


def _same_after_a_kill(fs: MemoryFileSystem, topics: Topics, *, deduplication: bool) -> None:
    found = _topics(fs.kill_clone(), deduplication=deduplication)
    for name, topic in topics.opened().items():
        again = found.get(name)
        assert again.last_position == topic.last_position
        durable = {each.name: each for each in topic.subscriptions.values() if each.durable}
        assert again.subscriptions.keys() == durable.keys()
        for each in again.subscriptions.values():
            assert each.cursor.mark_delete == durable[each.name].cursor.mark_delete
    found.close()
