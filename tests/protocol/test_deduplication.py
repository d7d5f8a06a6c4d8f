"""With deduplication every message is in the topic once, whatever is killed and sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.protocol.harness import RECEIVE_MS, Case, Server, Steps
from tests.protocol.raw import RawClient, send_frame

if TYPE_CHECKING:
    from collections.abc import Callable

Type = wire.BaseCommand


@pytest.fixture
def deduplicating(own_broker: Callable[..., Server]) -> Server:
    return own_broker(deduplication=True)


def read_all(case: Case, topic: str) -> list[bytes]:
    import pulsar  # noqa: PLC0415

    reader = case.client.create_reader(topic, pulsar.MessageId.earliest)
    values = []
    while reader.has_message_available():
        values.append(bytes(reader.read_next(RECEIVE_MS).data()))
    return values


def send_twice(case: Case) -> None:
    for batched in (False, True):
        topic = f"twice-{batched}"
        producer = case.client.create_producer(topic, producer_name="ann", batching_enabled=batched)
        assert producer.last_sequence_id() == -1
        for _ in range(2):
            # The client takes the number 0 for none.
            for number in range(1, 11):
                producer.send_async(b"%d" % number, lambda *_: None, sequence_id=number)
            producer.flush()
        assert producer.last_sequence_id() == 10
        producer.close()
        # The next one with the same name continues where it ended.
        producer = case.client.create_producer(topic, producer_name="ann")
        assert producer.last_sequence_id() == 10
        producer.send(b"11")
        assert producer.last_sequence_id() == 11
        assert read_all(case, topic) == [b"%d" % number for number in range(1, 12)]


def test_a_resent_message_is_stored_once(deduplicating: Server) -> None:
    deduplicating.run_case(send_twice)


def find_the_last(case: Case) -> None:
    for batched in (False, True):
        producer = case.client.create_producer(f"twice-{batched}", producer_name="ann")
        assert producer.last_sequence_id() == 11


def test_a_killed_broker_knows_the_last_sequence_id(deduplicating: Server) -> None:
    deduplicating.run_case(send_twice)
    deduplicating.kill()
    deduplicating.start()
    deduplicating.run_case(find_the_last)


def chunked(case: Case) -> None:
    producer = case.client.create_producer(
        "large", producer_name="ann", chunking_enabled=True, batching_enabled=False
    )
    value = bytes(range(256)) * 40_000
    producer.send(value)
    producer.send(b"small")
    producer.send(value[::-1])
    assert producer.last_sequence_id() == 2
    consumer = case.earliest(topic="large")
    for expected in (value, b"small", value[::-1]):
        assert consumer.receive(RECEIVE_MS).data() == expected


def test_the_chunks_of_a_message_are_no_duplicates(deduplicating: Server) -> None:
    deduplicating.run_case(chunked)


def produce(case: Case, batched: bool) -> None:
    """Sends until it is stopped; every message must be there once, in order."""
    import pulsar  # noqa: PLC0415

    producer = case.client.create_producer(
        "under-fire", batching_enabled=batched, block_if_queue_full=True, max_pending_messages=200
    )
    failed: list[Any] = []
    steps = Steps()

    def note(result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)
        steps.add()

    sent = 0
    while not steps.stop.is_set():
        producer.send_async(b"%d" % sent, note)
        sent += 1
        if sent % 50 == 0:
            producer.flush()
    producer.flush()
    assert not failed
    assert read_all(case, "under-fire") == [b"%d" % number for number in range(sent)]
    print("sent", sent)


@pytest.mark.parametrize("batched", [False, True])
def test_kill_9_while_producing_doubles_nothing(deduplicating: Server, batched: bool) -> None:
    process = deduplicating.start_case(produce, batched=batched)
    deduplicating.heard(process, "running")
    for _ in range(3):
        deduplicating.let_go_on(process)
        deduplicating.kill()
        deduplicating.start()
    deduplicating.let_go_on(process)
    deduplicating.tell(process, "stop")
    assert "sent" in deduplicating.finish(process)


# --- a client made by hand ------------------------------------------------------------------


def join(client: RawClient, epoch: int) -> int:
    """Join as producer 1, named as in `send_frame`; the last sequence id."""
    command = wire.BaseCommand(type=Type.PRODUCER)
    command.producer.topic = "raw"
    command.producer.producer_id = 1
    command.producer.request_id = epoch
    command.producer.epoch = epoch
    command.producer.producer_name = "raw"
    client.send(encode_command(command))
    return int(client.expect(Type.PRODUCER_SUCCESS).producer_success.last_sequence_id)


def receipts(client: RawClient, count: int) -> list[tuple[int, bool]]:
    """(sequence id, is it a duplicate) of the next receipts."""
    found = []
    for _ in range(count):
        receipt = client.expect(Type.SEND_RECEIPT).send_receipt
        place = receipt.message_id.ledgerId, receipt.message_id.entryId
        found.append((receipt.sequence_id, place == (2**64 - 1, 2**64 - 1)))
    return found


def test_receipts_of_duplicates_come_in_order_and_name_no_place(deduplicating: Server) -> None:
    with RawClient(deduplicating.port) as client:
        assert join(client, 0) == -1
        ids = [0, 1, 1, 2, 0, 3]
        client.send(b"".join(send_frame(number, b"value") for number in ids))
        assert receipts(client, 6) == list(
            zip(ids, [False, False, True, False, True, False], strict=True)
        )
    with RawClient(deduplicating.port) as client:
        assert join(client, 1) == 3


def test_after_a_refused_message_no_later_one_is_accepted_before_it(deduplicating: Server) -> None:
    with RawClient(deduplicating.port) as client:
        join(client, 0)
        bad = bytearray(send_frame(1, b"value"))
        bad[-1] ^= 1
        client.send(send_frame(0, b"value") + bytes(bad) + send_frame(2, b"value"))
        assert receipts(client, 1) == [(0, False)]
        error = client.expect(Type.SEND_ERROR).send_error
        assert (error.sequence_id, error.error) == (1, wire.ServerError.ChecksumError)
        client.expect(Type.CLOSE_PRODUCER)
        assert join(client, 1) == 0
        client.send(b"".join(send_frame(number, b"value") for number in range(3)))
        assert receipts(client, 3) == [(0, True), (1, False), (2, False)]
