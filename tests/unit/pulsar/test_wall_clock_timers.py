"""Times of the wall clock, which may jump: alarms, and the delayed messages that wait for them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.pulsar import wall_clock_timers
from lithify.pulsar.broker import Broker
from lithify.pulsar.wall_clock_timers import LOOK_S, STALE_MAX, Alarms
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata
from lithify.topics.topic import FLAG_DELAYED
from lithify.topics.topics import Topics, TopicSettings
from tests.unit.pulsar.frames import split_frames
from tests.unit.pulsar.test_broker import ManualLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

Type = wire.BaseCommand


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()


class World:
    """An event loop and a clock, which time moves together and an operator apart."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.clock = ManualClock()
        self.start_ms = self.clock.now_ms()

    def passes(self, seconds: float) -> None:
        """Time goes by, a step at a time."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.loop.advance(0.1)

    async def _in_loop(self, call: object) -> None:
        call()  # type: ignore[operator]


class Ringing(World):
    """Alarms, and those that have gone off."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__(loop)
        self.alarms = Alarms(self.clock)
        self.rang: list[str] = []

    def set(self, name: str, in_s: float) -> None:
        due_ms = self.start_ms + round(in_s * 1000)
        self.loop.run_until_complete(
            self._in_loop(lambda: self.alarms.set(name, due_ms, lambda: self.rang.append(name)))
        )


def test_alarms_fire_in_order_when_they_are_due(loop: ManualLoop) -> None:
    ringing = Ringing(loop)
    for name, in_s in (("c", 30), ("a", 0.5), ("b", 2.05)):
        ringing.set(name, in_s)
    ringing.passes(0.4)
    assert ringing.rang == []
    ringing.passes(0.2)
    assert ringing.rang == ["a"]
    ringing.passes(1.3)
    assert ringing.rang == ["a"]
    ringing.passes(0.3)
    assert ringing.rang == ["a", "b"]
    ringing.passes(30)
    assert ringing.rang == ["a", "b", "c"]
    assert len(ringing.alarms) == 0
    assert ringing.alarms._timer is None, "nothing is left to look for"


def test_a_jump_forward_is_noticed_at_the_next_check(loop: ManualLoop) -> None:
    ringing = Ringing(loop)
    ringing.set("a", 3600)
    ringing.passes(1)
    ringing.clock.jump(3600)
    ringing.passes(LOOK_S)
    assert ringing.rang == ["a"]


def test_after_a_jump_backward_it_takes_longer(loop: ManualLoop) -> None:
    ringing = Ringing(loop)
    ringing.set("a", 10)
    ringing.passes(5)
    ringing.clock.jump(-20)
    ringing.passes(24.8)
    assert ringing.rang == []
    ringing.passes(0.3)
    assert ringing.rang == ["a"]


def test_an_alarm_is_replaced_and_cancelled(loop: ManualLoop) -> None:
    ringing = Ringing(loop)
    ringing.set("a", 1)
    ringing.set("b", 1)
    ringing.set("a", 2)
    ringing.set("a", 3)
    ringing.alarms.cancel("b")
    ringing.alarms.cancel("nobody")
    ringing.passes(2.5)
    assert ringing.rang == []
    ringing.passes(1)
    assert ringing.rang == ["a"]


def test_replaced_alarms_do_not_pile_up(loop: ManualLoop) -> None:
    ringing = Ringing(loop)
    for number in range(3 * STALE_MAX):
        ringing.set("a", 100 + number)
    assert len(ringing.alarms._heap) <= STALE_MAX + 2
    ringing.passes(1)


def test_a_failing_alarm_does_not_stop_the_others(loop: ManualLoop) -> None:
    ringing = Ringing(loop)

    def fail() -> None:
        raise OSError("no")

    loop.run_until_complete(
        ringing._in_loop(lambda: ringing.alarms.set("bad", ringing.start_ms, fail))
    )
    ringing.set("good", 0)
    ringing.passes(0.1)
    assert ringing.rang == ["good"]


def test_many_at_once_leave_the_loop_to_others_in_between(
    loop: ManualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wall_clock_timers, "CALLS_MAX", 2)
    ringing = Ringing(loop)

    def set_all() -> None:
        for number in range(5):
            call = partial(ringing.rang.append, f"{number}")
            ringing.alarms.set(number, ringing.start_ms, call)

    async def set_and_go_on() -> None:
        set_all()
        for _ in range(10):
            ringing.rang.append("other")
            await asyncio.sleep(0)

    loop.run_until_complete(set_and_go_on())
    assert [each for each in ringing.rang if each != "other"] == ["0", "1", "2", "3", "4"]
    between = ringing.rang[ringing.rang.index("0") : ringing.rang.index("4")]
    assert between.count("other") == 2


class Delayed(World):
    """A consumer of a shared subscription that waits, and messages for later."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__(loop)
        topics = Topics(
            MemoryFileSystem(),
            "/data",
            settings=TopicSettings(),
            clock=self.clock,
            events=ignore_events,
            owner="test",
        )
        self._out = bytearray()
        self.topic = topics.create("orders")
        self.broker = Broker(topics, name="b", version="test")
        self.session = self.broker.session(self._out.extend)
        connect = wire.BaseCommand(type=Type.CONNECT)
        connect.connect.client_version = "test"
        self.receive(connect)
        command = wire.BaseCommand(type=Type.SUBSCRIBE)
        command.subscribe.topic, command.subscribe.subscription = "orders", "s"
        command.subscribe.subType = wire.CommandSubscribe.Shared
        command.subscribe.consumer_id, command.subscribe.request_id = 1, 1
        self.receive(command)
        flow = wire.BaseCommand(type=Type.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 100
        self.receive(flow)
        self.came()

    def receive(self, command: wire.BaseCommand) -> None:
        data = np.frombuffer(encode_command(command), np.uint8)
        self.loop.run_until_complete(
            self._in_loop(lambda: self.session.receive(data, 0, len(data)))
        )
        self.loop.advance(0)

    def send(self, in_s: float) -> None:
        """A message that is to be delivered this many seconds after the start."""
        now_ms = self.clock.now_ms()
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=now_ms)
        metadata.deliver_at_time = self.start_ms + round(in_s * 1000)
        body = encode_entry(metadata, b"x")
        self.topic.writer.append_entries(
            [body], times=[now_ms], counts=[1], flags=FLAG_DELAYED
        ).result()
        self.loop.run_until_complete(self._in_loop(lambda: self.broker.dispatch(self.topic)))
        self.loop.advance(0)
        # The segment is opened in a thread.
        self.loop.run_until_complete(self.broker.settled())

    def came(self) -> list[int]:
        """Entries that came since the last call."""
        frames, _ = split_frames(memoryview(bytes(self._out)), 2**20)
        self._out.clear()
        commands = [wire.BaseCommand.FromString(bytes(frame.command)) for frame in frames]
        return [c.message.message_id.entryId for c in commands if c.type == Type.MESSAGE]


def test_delayed_messages_come_when_they_are_due(loop: ManualLoop) -> None:
    delayed = Delayed(loop)
    for in_s in (5, 3, 3600):
        delayed.send(in_s)
    delayed.passes(2.9)
    assert delayed.came() == []
    delayed.passes(0.2)
    assert delayed.came() == [1]
    delayed.passes(2)
    assert delayed.came() == [0]


def test_delayed_messages_follow_a_clock_that_jumps_forward(loop: ManualLoop) -> None:
    delayed = Delayed(loop)
    delayed.send(3600)
    delayed.send(7200)
    delayed.passes(1)
    delayed.clock.jump(3600)
    delayed.passes(LOOK_S)
    assert delayed.came() == [0]
    delayed.clock.jump(3600)
    delayed.passes(LOOK_S)
    assert delayed.came() == [1]


def test_delayed_messages_follow_a_clock_that_jumps_backward(loop: ManualLoop) -> None:
    delayed = Delayed(loop)
    delayed.send(10)
    delayed.clock.jump(-100)
    delayed.passes(60)
    assert delayed.came() == [], "it is not yet the time that the message names"
    delayed.send(-50)
    delayed.passes(LOOK_S)
    assert delayed.came() == [1], "sent by a producer whose clock was set back as well"
    delayed.passes(49)
    assert delayed.came() == [0]
    assert len(delayed.broker.alarms) == 0


def test_no_alarm_is_set_when_the_consumer_has_left(loop: ManualLoop) -> None:
    delayed = Delayed(loop)
    delayed.send(3600)
    assert len(delayed.broker.alarms) == 1
    loop.run_until_complete(delayed._in_loop(delayed.session.close))
    loop.advance(0)
    assert len(delayed.broker.alarms) == 0
