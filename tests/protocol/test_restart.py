"""The broker is killed and started again while the real client continues."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from tests.protocol.harness import (
    RECEIVE_MS,
    Case,
    Server,
    Steps,
    nothing_comes,
    numbers,
    receive_all,
    say,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Place = tuple[int, int, int]
"""Ledger, entry and index in its batch of a message."""


def leave_some(case: Case) -> None:
    """Acknowledge up to 9, then 12 and 14, and some of a batch."""
    case.fill(20, topic="kept")
    case.fill(20, topic="kept", batching_enabled=True, batching_max_publish_delay_ms=1000)
    consumer = case.earliest("cursor", topic="kept", batch_index_ack_enabled=True)
    for number in range(40):
        message = consumer.receive(RECEIVE_MS)
        if number < 10 or number in {12, 14} or (number >= 20 and number % 2):
            consumer.acknowledge(message)
    consumer.close()
    untouched = case.earliest("untouched", topic="kept")
    untouched.receive(RECEIVE_MS)
    gone = case.earliest("gone", topic="kept")
    gone.unsubscribe()


def find_the_rest(case: Case) -> None:
    left = [10, 11, 13, 15, 16, 17, 18, 19]
    expected = [b"%d" % number for number in left] + [b"%d" % number for number in range(0, 20, 2)]
    consumer = case.earliest("cursor", topic="kept", batch_index_ack_enabled=True)
    assert receive_all(consumer, len(expected)) == expected
    untouched = case.client.subscribe("kept", "untouched")
    assert receive_all(untouched, 40) == numbers(20) * 2
    gone = case.client.subscribe("kept", "gone")
    case.client.create_producer("kept").send(b"new")
    assert gone.receive(RECEIVE_MS).data() == b"new"


def test_cursors_are_where_they_were(own_broker: Callable[..., Server]) -> None:
    broker = own_broker()
    broker.run_case(leave_some)
    broker.kill()
    broker.start()
    broker.run_case(find_the_rest)


def place_of(message_id: Any) -> Place:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def produce_and_consume(case: Case, batched: bool) -> None:
    """Continues until it is stopped, and then until nothing is left to acknowledge."""
    producer = case.client.create_producer(
        case.topic, batching_enabled=batched, block_if_queue_full=True, max_pending_messages=200
    )
    consumer = case.earliest("mixed", receiver_queue_size=50)
    taken: dict[int, Place] = {}
    sent = 0
    seen: list[Place] = []
    steps = Steps()
    drained = threading.Event()

    def taken_note(number: int) -> Callable[[Any, Any], None]:
        def note(result: Any, found: Any) -> None:
            assert result == pulsar.Result.Ok, result
            taken[number] = place_of(found)

        return note

    def consume() -> None:
        while not drained.is_set():
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            seen.append(place_of(message.message_id()))
            consumer.acknowledge(message)
            steps.add()

    # If something fails here, the process must not stay because of it.
    consuming = threading.Thread(target=consume, daemon=True)
    consuming.start()
    while not steps.stop.is_set():
        producer.send_async(b"%d" % sent, taken_note(sent))
        sent += 1
        if sent % 50 == 0:
            # Else the consumer would not keep up.
            producer.flush()
    producer.flush()
    # An acknowledgement that the client has not sent yet, or that the broker had not got when it
    # was killed, is none: the message comes again. So only the broker knows when all are there.
    case.wait_for_backlog("mixed", 0)
    drained.set()
    consuming.join()
    assert sorted(taken) == list(range(sent))
    assert len(set(taken.values())) == sent
    check(case, taken, seen, sent)
    go_on(case, consumer)


def check(case: Case, taken: dict[int, Place], seen: list[Place], sent: int) -> None:
    reader = case.client.create_reader(case.topic, pulsar.MessageId.earliest)
    places: dict[Place, int] = {}
    order = []
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS)
        place = place_of(message.message_id())
        assert place not in places
        places[place] = int(message.data())
        order.append(place)
    assert order == sorted(order)
    # What was acknowledged is where the receipt says. In order: a resent message may be there
    # twice, but the places of the receipts ascend as the numbers do.
    assert all(places[place] == number for number, place in taken.items())
    assert [taken[number] for number in range(sent)] == sorted(taken.values())
    assert sorted(set(seen)) == order
    print("sent", sent, "entries read", len(order), "seen again", len(seen) - len(set(seen)))


def go_on(case: Case, consumer: Any) -> None:
    """What the broker has as acknowledged when it is killed does not come again; the rest does."""
    assert nothing_comes(consumer)
    case.fill(40)
    assert receive_all(consumer, 20) == numbers(20)
    case.wait_for_backlog("mixed", 20)
    consumer.close()
    say("left")
    sys.stdin.readline()
    rest = case.client.subscribe(case.topic, "mixed")
    assert receive_all(rest, 20) == numbers(20, 40)
    assert nothing_comes(rest)


def under_fire(broker: Server, kills: int, *, batched: bool) -> None:
    process = broker.start_case(produce_and_consume, batched=batched)
    broker.heard(process, "running")
    for _ in range(kills):
        broker.let_go_on(process)
        broker.kill()
        broker.start()
    broker.let_go_on(process)
    broker.tell(process, "stop")
    broker.heard(process, "left")
    broker.kill()
    broker.start()
    broker.tell(process, "restarted")
    print(broker.finish(process))


def test_killed_while_producing_and_consuming(own_broker: Callable[..., Server]) -> None:
    under_fire(own_broker(segment_bytes_max=200_000, http=True), 2, batched=False)


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
def test_killed_repeatedly(own_broker: Callable[..., Server], batched: bool) -> None:
    under_fire(own_broker(segment_bytes_max=200_000, http=True), 8, batched=batched)
