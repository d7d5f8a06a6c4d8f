"""Compacted reads by the real client: readers, table views and durable consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from tests.patience import PROCESS_S_MAX, wait_until
from tests.protocol.harness import (
    RECEIVE_MS,
    Case,
    in_client,
    moment_ms,
    nothing_comes,
)
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.protocol.harness import Server

EARLIEST = pulsar.MessageId.earliest
CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
Pair = tuple[str, bytes]


def compact(case: Case) -> None:
    httpx.post(f"{case.admin}/compact/{case.topic}", timeout=PROCESS_S_MAX).raise_for_status()


def send(case: Case, pairs: Iterable[Pair], **options: Any) -> list[Any]:
    """Send keyed messages, all in one batch if they are batched; their ids."""
    pairs = list(pairs)
    options = {
        "batching_enabled": False,
        "batching_max_messages": max(2, len(pairs)),
        "batching_max_publish_delay_ms": 10_000 if len(pairs) > 1 else 1,
        **options,
    }
    producer = case.client.create_producer(case.topic, **options)
    ids: list[Any] = []
    for key, value in pairs:
        producer.send_async(value, lambda _, found: ids.append(found), partition_key=key)
    wait_until(lambda: len(ids) == len(pairs))
    producer.close()
    return ids


def reader(case: Case, start: Any = EARLIEST, **options: Any) -> Any:
    return case.client.create_reader(case.topic, start, is_read_compacted=True, **options)


def rest_of(reading: Any) -> list[Pair]:
    """What a reader finds until it has read everything."""
    found = []
    while reading.has_message_available():
        message = reading.read_next(RECEIVE_MS)
        found.append((message.partition_key(), bytes(message.data())))
    return found


def rounds(*numbers: int, keys: int = 10) -> list[Pair]:
    """Every key once a round."""
    return [(f"k{key}", b"%d:%d" % (number, key)) for number in numbers for key in range(keys)]


def newest(pairs: Iterable[Pair]) -> dict[str, bytes]:
    return {key: value for key, value in dict(pairs).items() if value}


def table(case: Case) -> dict[str, bytes]:
    view = case.client.create_table_view(case.topic)
    found: dict[str, bytes] = {}
    view.for_each(lambda key, value: found.__setitem__(key, bytes(value)))
    view.close()
    return found


@pytest.mark.parametrize("codec", list(CODECS))
@in_client
def test_partly_live_batches(case: Case, codec: str) -> None:
    """Some stay as they are with a dead set, others are rewritten: to a reader it is the same."""
    sent: list[Pair] = []
    options = {"batching_enabled": True, "compression_type": CODECS[codec]}
    for keys in (10, 7, 1):
        sent += rounds(keys, keys=keys)
        send(case, rounds(keys, keys=keys), **options)
        compact(case)
        found = rest_of(reader(case))
        assert len(found) == 10
        assert newest(found) == newest(sent)
        assert table(case) == newest(sent)
    plain = case.client.create_reader(case.topic, EARLIEST)
    assert rest_of(plain) == sent


@pytest.mark.parametrize("batched", [False, True])
@in_client
def test_a_topic_that_ends_in_tombstones(case: Case, batched: bool) -> None:
    send(case, rounds(0), batching_enabled=batched)
    send(case, [(f"k{key}", b"") for key in range(5, 10)], batching_enabled=batched)
    compact(case)
    left = rounds(0, keys=5)
    assert rest_of(reader(case)) == left
    assert table(case) == newest(left)
    last = reader(case)
    for _ in left:
        last.read_next(RECEIVE_MS)
    assert not last.has_message_available()
    send(case, [(f"k{key}", b"") for key in range(5)], batching_enabled=batched)
    assert table(case) == {}
    assert rest_of(last) == [(f"k{key}", b"") for key in range(5)]
    compact(case)
    assert rest_of(reader(case)) == []
    assert table(case) == {}
    send(case, rounds(9, keys=1))
    assert rest_of(reader(case)) == rounds(9, keys=1)


@in_client
def test_everything_above_the_horizon_is_read(case: Case) -> None:
    send(case, rounds(0, 1))
    compact(case)
    send(case, rounds(2, 3))
    assert rest_of(reader(case)) == rounds(1, 2, 3)
    assert rest_of(case.client.create_reader(case.topic, EARLIEST)) == rounds(0, 1, 2, 3)


@in_client
def test_a_reader_that_was_there_before_a_run_sees_the_deletes_above_its_position(
    case: Case,
) -> None:
    send(case, rounds(0))
    compact(case)
    reading = reader(case, receiver_queue_size=1)
    assert reading.read_next(RECEIVE_MS).partition_key() == "k0"
    deleted = [("k0", b""), ("k5", b"")]
    send(case, deleted)
    compact(case)
    found = rest_of(reading)
    assert [pair for pair in found if not pair[1]] == deleted
    assert {**dict(found), "k0": b""} == {**dict(rounds(0)), **dict(deleted)}


@pytest.mark.parametrize("batched", [False, True])
@in_client
def test_reading_from_every_id_including_dropped_ones(case: Case, batched: bool) -> None:
    gone = send(case, rounds(0), batching_enabled=batched)
    kept = send(case, rounds(1), batching_enabled=batched)
    compact(case)
    assert rest_of(reader(case, gone[3])) == rounds(1)
    assert rest_of(reader(case, kept[3])) == rounds(1)[4:]
    assert rest_of(reader(case, kept[3], start_message_id_inclusive=True)) == rounds(1)[3:]
    assert rest_of(reader(case, kept[9])) == []
    assert rest_of(reader(case, pulsar.MessageId.latest)) == []
    latest = reader(case, pulsar.MessageId.latest, start_message_id_inclusive=True)
    assert rest_of(latest) == rounds(1)[9:]


@in_client
def test_seeking(case: Case) -> None:
    gone = send(case, rounds(0))
    between_ms = moment_ms()
    send(case, rounds(1, keys=5))
    compact(case)
    retained = rounds(0)[5:] + rounds(1, keys=5)
    reading = reader(case)
    assert rest_of(reading) == retained
    for target, expected in (
        (gone[2], retained),
        (gone[6], retained[2:]),
        (between_ms, retained[5:]),
        (EARLIEST, retained),
        (between_ms + 3_600_000, []),
        (0, retained),
    ):
        reading.seek(target)
        assert rest_of(reading) == expected


@in_client
def test_a_run_while_a_reader_is_in_the_middle(case: Case) -> None:
    """No message twice, none missed: what it did not see yet comes as it was or newer."""
    send(case, rounds(0), batching_enabled=True)
    compact(case)
    reading = reader(case, receiver_queue_size=1)
    first = reading.read_next(RECEIVE_MS)
    found = [(first.partition_key(), bytes(first.data()))]
    for number in range(1, 4):
        send(case, rounds(number, keys=10 - number), batching_enabled=number % 2 == 0)
        compact(case)
        message = reading.read_next(RECEIVE_MS)
        found.append((message.partition_key(), bytes(message.data())))
    found += rest_of(reading)
    assert len(found) == len(set(found))
    sent = rounds(0)
    for number in range(1, 4):
        sent += rounds(number, keys=10 - number)
    assert newest(found) == newest(sent)


def acknowledge_each(consumer: Any, messages: list[Any]) -> None:
    for message in messages:
        consumer.acknowledge(message)


def acknowledge_last(consumer: Any, messages: list[Any]) -> None:
    consumer.acknowledge_cumulative(messages[-1])


def acknowledge_backward(consumer: Any, messages: list[Any]) -> None:
    acknowledge_each(consumer, messages[::-1])


WAYS = {"each": acknowledge_each, "last": acknowledge_last, "backward": acknowledge_backward}


def pairs_of(messages: list[Any]) -> list[Pair]:
    return [(each.partition_key(), bytes(each.data())) for each in messages]


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@in_client
def test_a_durable_consumer_gets_to_the_end(
    case: Case, way: str, by_index: bool, kind: str
) -> None:
    """However it acknowledges: mark-delete passes what is gone, and then nothing comes again.

    Only one that acknowledges one by one and not by index sees a batch a second time.
    """
    send(case, rounds(0), batching_enabled=True)
    send(case, rounds(1, keys=5))
    ids = send(case, [*rounds(2, keys=3), ("k9", b"")], batching_enabled=True)
    compact(case)
    retained = rounds(0)[5:9] + rounds(1, keys=5)[3:] + rounds(2, keys=3)
    options = {
        "consumer_type": getattr(pulsar.ConsumerType, kind),
        "is_read_compacted": True,
        "batch_index_ack_enabled": by_index,
    }
    consumer = case.earliest(**options)
    messages = [consumer.receive(RECEIVE_MS) for _ in retained]
    assert pairs_of(messages) == retained
    assert [each.message_id().batch_index() for each in messages[:4]] == [5, 6, 7, 8]
    last = consumer.get_last_message_id()
    assert last.entry_id() == ids[2].entry_id()
    assert last.batch_index() == messages[-1].message_id().batch_index() == 2
    assert nothing_comes(consumer)
    WAYS[way](consumer, messages)
    if way != "last" and not by_index:
        again = [consumer.receive(RECEIVE_MS) for _ in range(4)]
        assert pairs_of(again) == retained[:4]
        WAYS[way](consumer, again)
    case.wait_for_backlog("s", 0)
    consumer.close()
    consumer = case.earliest(**options)
    assert nothing_comes(consumer)
    send(case, rounds(3, keys=1))
    assert consumer.receive(RECEIVE_MS).data() == b"3:0"


@in_client
def test_an_unacknowledgeable_batch_at_the_end_is_sent_to_the_next_consumer(
    case: Case,
) -> None:
    send(case, [*rounds(0, keys=4), ("k0", b"")], batching_enabled=True)
    compact(case)
    for _ in range(2):
        consumer = case.earliest(is_read_compacted=True)
        messages = [consumer.receive(RECEIVE_MS) for _ in range(3)]
        assert pairs_of(messages) == rounds(0, keys=4)[1:]
        acknowledge_each(consumer, messages)
        consumer.close()
    case.wait_for_backlog("s", 0)
    assert nothing_comes(case.earliest(is_read_compacted=True))


@in_client
def test_messages_acknowledged_by_index_are_not_redelivered(case: Case) -> None:
    send(case, rounds(0), batching_enabled=True)
    send(case, rounds(1, keys=4))
    compact(case)
    options: dict[str, Any] = {"is_read_compacted": True, "batch_index_ack_enabled": True}
    consumer = case.earliest(**options)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    # Two of the six of the batch, and all of the others but one.
    acknowledge_each(consumer, messages[:2] + messages[6:9])
    case.wait_for_backlog("s", 2)
    consumer.close()
    consumer = case.earliest(**options)
    left = messages[2:6] + messages[9:]
    again = [consumer.receive(RECEIVE_MS) for _ in left]
    assert [m.message_id() for m in again] == [m.message_id() for m in left]
    assert nothing_comes(consumer)
    acknowledge_each(consumer, again)
    case.wait_for_backlog("s", 0)


@pytest.mark.parametrize("by_index", [False, True])
@in_client
def test_a_durable_consumer_that_seeks_into_a_batch(case: Case, by_index: bool) -> None:
    ids = send(case, rounds(0), batching_enabled=True)
    send(case, rounds(1, keys=4))
    compact(case)
    options: dict[str, Any] = {"is_read_compacted": True, "batch_index_ack_enabled": by_index}
    consumer = case.earliest(**options)
    messages = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    acknowledge_each(consumer, messages)
    consumer.seek(ids[7])
    found = [consumer.receive(RECEIVE_MS) for _ in range(6)]
    assert pairs_of(found) == rounds(0)[8:] + rounds(1, keys=4)


@in_client
def test_a_durable_subscription_starts_at_the_given_position(case: Case) -> None:
    send(case, rounds(0, 1))
    compact(case)
    latest = case.client.subscribe(case.topic, "latest", is_read_compacted=True)
    earliest = case.earliest("earliest", is_read_compacted=True)
    assert nothing_comes(latest)
    found = [earliest.receive(RECEIVE_MS) for _ in range(10)]
    assert [m.data() for m in found] == [value for _, value in rounds(1)]
    send(case, rounds(2, keys=1))
    assert latest.receive(RECEIVE_MS).data() == b"2:0"


@in_client
def test_a_queue_smaller_than_the_batches(case: Case) -> None:
    """Permits are released for what is masked: nothing stands still."""
    for number in range(20):
        send(case, rounds(number, keys=100 - number), batching_enabled=True)
    compact(case)
    for size in (1, 3, 1000):
        found = rest_of(reader(case, receiver_queue_size=size))
        assert len(found) == 100
    consumer = case.earliest(is_read_compacted=True, receiver_queue_size=3)
    assert len({consumer.receive(RECEIVE_MS).partition_key() for _ in range(100)}) == 100


@pytest.mark.parametrize("kind", [wire.CommandSubscribe.Shared, wire.CommandSubscribe.Key_Shared])
def test_consumers_that_share_cannot_read_compacted(
    broker: Server, kind: wire.CommandSubscribe.SubType
) -> None:
    """The real client refuses that itself."""
    with RawClient(broker.port) as client:
        command = wire.BaseCommand(type=Type.SUBSCRIBE)
        command.subscribe.topic = "shared-compacted"
        command.subscribe.subscription = "s"
        command.subscribe.subType = kind
        command.subscribe.consumer_id = command.subscribe.request_id = 1
        command.subscribe.read_compacted = True
        client.send(encode_command(command))
        answer = client.expect(Type.ERROR).error
        assert answer.error == wire.ServerError.NotAllowedError
        assert "only exclusive and failover" in answer.message
        client.subscribe("shared-compacted")


def fill(case: Case) -> None:
    case.topic = "kept"
    send(case, rounds(0, 1), batching_enabled=True)
    send(case, rounds(2, keys=5), batching_enabled=True)
    send(case, [("k9", b"")])
    compact(case)
    consumer = case.earliest(is_read_compacted=True)
    for _ in range(3):
        consumer.receive(RECEIVE_MS)


def look(case: Case) -> None:
    case.topic = "kept"
    expected = newest([*rounds(0, 1, 2)[:25], ("k9", b"")])
    assert newest(rest_of(reader(case))) == expected
    assert table(case) == expected
    consumer = case.earliest(is_read_compacted=True, batch_index_ack_enabled=True)
    found = [consumer.receive(RECEIVE_MS) for _ in expected]
    assert {m.partition_key(): bytes(m.data()) for m in found} == expected
    acknowledge_each(consumer, found)
    case.wait_for_backlog("s", 0)


def look_again(case: Case) -> None:
    case.topic = "kept"
    consumer = case.earliest(is_read_compacted=True, batch_index_ack_enabled=True)
    assert nothing_comes(consumer)
    send(case, rounds(7, keys=1))
    consumer.acknowledge(consumer.receive(RECEIVE_MS))
    case.wait_for_backlog("s", 0)
    assert table(case) == newest([*rounds(0, 1, 2)[:25], ("k9", b""), ("k0", b"7:0")])


def test_a_killed_broker_resumes_where_it_was(own_broker: Callable[..., Server]) -> None:
    server = own_broker(http=True)
    for part in (fill, look, look_again, look_again):
        server.run_case(part)
        server.kill()
        server.start()


@in_client
def test_a_plain_consumer_gets_the_whole_log_after_a_compacted_one(case: Case) -> None:
    """As the last step of Pulsar's own test of compaction has it."""
    case.client.subscribe(case.topic, "s", is_read_compacted=True).close()
    sent = rounds(0, 1, 2)
    send(case, sent)
    compact(case)
    consumer = case.client.subscribe(case.topic, "s", is_read_compacted=True)
    found = [consumer.receive(RECEIVE_MS) for _ in newest(sent)]
    assert {m.partition_key(): bytes(m.data()) for m in found} == newest(sent)
    consumer.close()
    consumer = case.client.subscribe(case.topic, "s")
    every = [consumer.receive(RECEIVE_MS) for _ in sent]
    assert [(m.partition_key(), bytes(m.data())) for m in every] == sent
    assert nothing_comes(consumer)
