"""The exact position where consumers resume after kill -9, known by receipts of acknowledgements.

The real client sends while the broker is killed repeatedly. It requests no receipts, so two
scripted consumers receive what it sends: one acknowledges cumulatively, the other one individually,
also single messages of batches. Neither waits for the receipts, so each broker process ends with
some acknowledgements in flight. Afterwards the processes are checked in order. In each:

1. Messages are in order, and none is delivered twice.
2. No message is delivered whose acknowledgement had its receipt in an earlier process.
3. All others are delivered, except those in flight when the broker died. One of these that is not
   delivered was acknowledged, and must not be delivered later.
4. Mark-delete is where the subscription begins: at the entry before the first that comes.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.messages.message import messages_of, parse_entry
from lithify.topics.subscriptions.cursor import bits_from_words, words_from_bits
from tests.protocol.harness import Steps, numbers, send_all
from tests.protocol.raw import RawClient, Type, send_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.protocol.harness import Case, Server

TOPIC = "under-fire"
PERMITS = 200
BATCH = 10
CONFIRMED_MIN = 300
"""This many acknowledgements have their receipts when the broker is killed."""
CONFIRM_SECONDS_MAX = 60

Place = tuple[int, int, int]
"""Ledger, entry and index in its batch of a message."""
Kind = wire.CommandSubscribe


def produce(case: Case) -> None:
    """Send numbers, in batches and one by one, until told to stop."""
    steps = Steps()
    alone = case.client.create_producer(TOPIC)
    batched = case.client.create_producer(TOPIC, batching_enabled=True)
    sent = 0
    while not steps.stop.is_set():
        send_all(batched, numbers(sent, sent + BATCH))
        alone.send(b"%d" % (sent + BATCH))
        sent += BATCH + 1
    print("sent", sent)


@dataclass
class Life:
    """What one consumer saw of one life of the broker."""

    mark_delete: tuple[int, int]
    came: list[Place] = field(default_factory=list)
    confirmed: set[Place] = field(default_factory=set)
    under_way: dict[int, set[Place]] = field(default_factory=dict)
    """By the number of the request: acknowledged, but there was no receipt."""


def places_of(command: wire.BaseCommand, entry: bytes) -> dict[Place, bytes]:
    """The messages of a MESSAGE, with their values; those that were acknowledged are left out."""
    found = command.message.message_id
    metadata, payload = parse_entry(entry)
    if not metadata.HasField("num_messages_in_batch"):
        return {(found.ledgerId, found.entryId, 0): bytes(payload)}
    left = bits_from_words(command.message.ack_set) if command.message.ack_set else -1
    return {
        (found.ledgerId, found.entryId, index): bytes(value)
        for index, _, value in messages_of(metadata, payload)
        if left >> index & 1
    }


class Taker:
    """A consumer that lives as long as its subscription, through all lives of the broker."""

    def __init__(
        self, subscription: str, kind: wire.CommandSubscribe.SubType, rng: random.Random
    ) -> None:
        self.lives: list[Life] = []
        self._subscription = subscription
        self._kind = kind
        self._rng = rng
        self._requests = 100
        self._confirmed_enough = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    # --- one life ---------------------------------------------------------------------------

    def join(self, port: int) -> RawClient:
        """Take the subscription up and note where it stands."""
        client = RawClient(port)
        client.subscribe(TOPIC, self._subscription, self._kind)
        where = client.last_message_id().consumer_mark_delete_position
        self.lives.append(Life((_signed(where.ledgerId), _signed(where.entryId))))
        return client

    def start(self, port: int) -> None:
        """Take messages, and acknowledge most of them, until the broker dies."""
        client = self.join(port)
        self._confirmed_enough.clear()
        self._thread = threading.Thread(target=self._live, args=(client,))
        self._thread.start()

    def wait(self) -> None:
        """Until many acknowledgements have their receipts."""
        assert self._confirmed_enough.wait(CONFIRM_SECONDS_MAX), self._error

    def end(self) -> None:
        """The broker is dead: the connection ends by itself."""
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _live(self, client: RawClient) -> None:
        try:
            with client:
                client.flow(PERMITS)
                for command, entry in client.frames_and_entries():
                    self._take(client, command, entry)
        except (BrokenPipeError, ConnectionResetError):
            pass
        except BaseException as error:  # noqa: BLE001  (raised again where the thread is joined)
            self._error = error
        finally:
            if self._error is not None:
                self._confirmed_enough.set()

    def _take(self, client: RawClient, command: wire.BaseCommand, entry: bytes) -> None:
        life = self.lives[-1]
        if command.type == Type.ACK_RESPONSE:
            assert not command.ackResponse.HasField("error"), command
            life.confirmed |= life.under_way.pop(command.ackResponse.request_id)
            if len(life.confirmed) >= CONFIRMED_MIN:
                self._confirmed_enough.set()
            return
        if command.type == Type.PING:
            client.pong()
            return
        assert command.type == Type.MESSAGE, command
        places = list(places_of(command, entry))
        life.came += places
        client.flow(len(places))
        if self._kind == Kind.Exclusive:
            if self._rng.random() < 0.2:
                self._acknowledge_up_to_last(client)
        elif chosen := [place for place in places if self._rng.random() < 0.8]:
            left = sum(1 << place[2] for place in places if place not in chosen)
            size = parse_entry(entry)[0].num_messages_in_batch
            self._acknowledge(client, set(chosen), words_from_bits(left, size) if left else [])

    def _acknowledge_up_to_last(self, client: RawClient) -> None:
        # What came before and was not acknowledged is so by this.
        life = self.lives[-1]
        open_ = set(life.came) - life.confirmed
        for places in life.under_way.values():
            open_ -= places
        self._acknowledge(client, open_, [], wire.CommandAck.Cumulative)

    def _acknowledge(
        self,
        client: RawClient,
        places: set[Place],
        left: list[int],
        kind: wire.CommandAck.AckType = wire.CommandAck.Individual,
    ) -> None:
        if not places:
            return
        self._requests += 1
        self.lives[-1].under_way[self._requests] = places
        ledger, number, _ = max(places)
        command = wire.BaseCommand(type=Type.ACK)
        command.ack.consumer_id = 1
        command.ack.ack_type = kind
        command.ack.request_id = self._requests
        command.ack.message_id.add(ledgerId=ledger, entryId=number, ack_set=left)
        client.send(encode_command(command))

    # --- the end ----------------------------------------------------------------------------

    def take_the_rest(self, port: int, last: Place) -> None:
        """Acknowledge all that comes, up to a message, and see every receipt."""
        with self.join(port) as client:
            life = self.lives[-1]
            client.flow(PERMITS)
            frames = client.frames_and_entries()
            while not life.came or life.came[-1] < last:
                command, entry = next(frames)
                if command.type == Type.ACK_RESPONSE:
                    life.confirmed |= life.under_way.pop(command.ackResponse.request_id)
                    continue
                places = list(places_of(command, entry))
                life.came += places
                client.flow(len(places))
                self._acknowledge(client, set(places), [])
            while life.under_way:
                answer = client.expect(Type.ACK_RESPONSE).ackResponse
                life.confirmed |= life.under_way.pop(answer.request_id)

    def finds_only(self, port: int, value: bytes) -> None:
        """The next message that comes is this one."""
        with self.join(port) as client:
            client.flow(PERMITS)
            command, entry = next(client.frames_and_entries())
            assert list(places_of(command, entry).values()) == [value]

    def check(self, there: list[Place]) -> None:
        """Go through the lives; `there` is every message of the topic."""
        acknowledged: set[Place] = set()
        in_doubt: set[Place] = set()
        for number, life in enumerate(self.lives):
            came = set(life.came)
            assert life.came == sorted(came), f"life {number}: order"
            assert not came & acknowledged, f"life {number}: came after its receipt"
            due = [place for place in there if place <= life.came[-1]]
            missing = set(due) - came - acknowledged
            assert missing <= in_doubt, f"life {number}: lost {sorted(missing - in_doubt)[:5]}"
            acknowledged |= missing
            between = [p for p in due if life.mark_delete < p[:2] < life.came[0][:2]]
            assert life.mark_delete < life.came[0][:2], f"life {number}: mark-delete"
            assert not between, f"life {number}: mark-delete is behind {between[:5]}"
            in_doubt = (in_doubt - came - acknowledged).union(*life.under_way.values())
            acknowledged |= life.confirmed


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def everything(port: int) -> dict[Place, bytes]:
    """Every message of the topic."""
    with RawClient(port) as client:
        client.subscribe(TOPIC, "everything")
        last = client.last_message_id().last_message_id
        client.flow(1_000_000)
        found: dict[Place, bytes] = {}
        for command, entry in client.frames_and_entries():
            found |= places_of(command, entry)
            if max(found)[:2] == (last.ledgerId, last.entryId):
                break
    return found


def under_fire(broker: Server, kills: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    takers = [
        Taker("up-to", Kind.Exclusive, random.Random(seed)),
        Taker("scattered", Kind.Shared, random.Random(seed + 1)),
    ]
    producing = broker.start_case(produce)
    broker.heard(producing, "running")
    for _ in range(kills):
        for taker in takers:
            taker.start(broker.port)
        for taker in takers:
            taker.wait()
        broker.kill()
        for taker in takers:
            taker.end()
        broker.start()
    broker.tell(producing, "stop")
    sent = int(broker.finish(producing).split()[-1])
    found = everything(broker.port)
    assert set(found.values()) == {b"%d" % number for number in range(sent)}
    last = max(found)
    for taker in takers:
        taker.take_the_rest(broker.port, last)
        taker.check(sorted(found))
    # Some acknowledgements were in flight when the broker died, or this would prove little.
    assert any(life.under_way for taker in takers for life in taker.lives)
    broker.kill()
    broker.start()
    with RawClient(broker.port) as client:
        client.producer(TOPIC)
        client.send(send_frame(0, b"new"))
        client.expect(Type.SEND_RECEIPT)
    for taker in takers:
        taker.finds_only(broker.port, b"new")
    print("sent", sent, "lives", [len(life.came) for taker in takers for life in taker.lives])


def test_consumers_resume_where_their_receipts_say(own_broker: Callable[..., Server]) -> None:
    under_fire(own_broker(segment_bytes_max=50_000), 3)


@pytest.mark.slow
def test_consumers_resume_after_many_restarts(own_broker: Callable[..., Server]) -> None:
    under_fire(own_broker(segment_bytes_max=50_000), 20)
