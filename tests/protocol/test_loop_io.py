"""The event loop of a node waits for no disk, whatever clients ask for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pulsar
import pytest

from lithify.node.node import Node
from lithify.node.settings import NodeSettings
from lithify.pulsar.authorization import FREE, NEEDS
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.settings import Durability
from lithify.topics.subscriptions.subscription import SubscriptionType
from tests.patience import PROCESS_S_MAX
from tests.protocol import harness
from tests.protocol.raw import RawClient, Type, send_frame
from tests.protocol.watched_disk import NodeInThread, WatchedDisk
from tests.unit.pulsar.frames import batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.protocol.harness import Case

Subscribe = wire.CommandSubscribe
LATEST = 2**63 - 1
VALUE = bytes(500)
BATCHES = 1100
"""More than a consumer's connection remembers the sizes of."""


def settings_of(path: Path) -> NodeSettings:
    return NodeSettings(
        str(path / "data"), pulsar_port=0, http_port=0, segment_bytes_max=64 * 2**10
    )


def fill(settings: NodeSettings, *names: str) -> None:
    """Topics with several segments, of which a part is compacted, and a subscription each."""
    with Node(replace(settings, durability=Durability.NONE)) as node:
        for name in names:
            topic = node.topics.create(name)
            for number in range(400):
                topic.append(key=f"k{number % 50}", value=VALUE)
            topic.compact()
            for number in range(100):
                topic.append(key=f"k{number % 50}", value=VALUE)
            for each in ("s", "view"):
                compacted = each == "view"
                topic.subscription(
                    each, SubscriptionType.EXCLUSIVE, durable=True, start=0, compacted=compacted
                )


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> WatchedDisk:
    return WatchedDisk(monkeypatch)


class Telling(RawClient):
    """A client that knows which commands it has sent, and asks for anything."""

    def __init__(self, port: int) -> None:
        self.told: set[int] = {int(Type.SEND)}
        super().__init__(port)

    def send(self, data: bytes) -> None:
        super().send(data)
        size = int.from_bytes(data[4:8], "big")
        self.told.add(int(wire.BaseCommand.FromString(data[8 : 8 + size]).type))

    def tell(self, kind: int, part: str, **fields: Any) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.Type.ValueType(kind))
        message = getattr(command, part)
        message.SetInParent()
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(message, name).extend(value)
            elif hasattr(value, "CopyFrom"):
                getattr(message, name).CopyFrom(value)
            else:
                setattr(message, name, value)
        self.send(encode_command(command))

    def ask(self, answer: int, kind: int, part: str, **fields: Any) -> wire.BaseCommand:
        self.tell(kind, part, request_id=self._request(), **fields)
        return self.until(answer)

    def until(self, kind: int) -> wire.BaseCommand:
        """The next command of this type; deliveries may come before it."""
        for command in self.frames():
            assert command.type != Type.ERROR or kind == Type.ERROR, command
            if command.type == kind:
                return command
        raise AssertionError(f"the broker hung up before command {kind}")

    def consume(self, topic: str, count: int, consumer_id: int, **fields: Any) -> list[Any]:
        """Subscribe and receive; the ids."""
        kind = fields.pop("kind", Subscribe.Exclusive)
        name = fields.pop("name", "s")
        permits = fields.pop("permits", count)
        self.ask_to_subscribe(topic, name, kind, consumer_id, **fields)
        self.until(Type.SUCCESS)
        self.flow(permits, consumer_id)
        return [self.until(Type.MESSAGE).message.message_id for _ in range(count)]

    def ack(self, ids: list[Any], consumer_id: int, kind: int = wire.CommandAck.Individual) -> None:
        fields = {"consumer_id": consumer_id, "message_id": ids, "ack_type": kind}
        answer = self.ask(Type.ACK_RESPONSE, Type.ACK, "ack", **fields)
        assert not answer.ackResponse.HasField("error"), answer


def produce(client: Telling) -> None:
    """Schemas, an initial subscription, enough for several segments, and batches."""
    schema = wire.Schema(type=wire.Schema.String, name="text", schema_data=b"")
    fields = {"topic": "new", "schema": schema}
    client.ask(
        Type.GET_OR_CREATE_SCHEMA_RESPONSE,
        Type.GET_OR_CREATE_SCHEMA,
        "getOrCreateSchema",
        **fields,
    )
    client.ask(
        Type.PRODUCER_SUCCESS,
        Type.PRODUCER,
        "producer",
        producer_id=1,
        initial_subscription_name="first",
        **fields,
    )
    client.ask(Type.GET_SCHEMA_RESPONSE, Type.GET_SCHEMA, "getSchema", topic="orders")
    client.ask(Type.PRODUCER_SUCCESS, Type.PRODUCER, "producer", producer_id=2, topic="batches")
    for start in range(0, 400, 200):
        client.send(b"".join(send_frame(start + n, VALUE) for n in range(200)))
        for _ in range(200):
            client.until(Type.SEND_RECEIPT)
    pair = batch([b"one", b"two"])
    for start in range(0, BATCHES, 100):
        frames = (
            send_frame(start + n, pair, 2, num_messages=2, num_messages_in_batch=2)
            for n in range(100)
        )
        client.send(b"".join(frames))
        for _ in range(100):
            client.until(Type.SEND_RECEIPT)
    client.ask(Type.SUCCESS, Type.CLOSE_PRODUCER, "close_producer", producer_id=2)


def look_up(client: Telling) -> None:
    for kind, part, answer in (
        (Type.PARTITIONED_METADATA, "partitionMetadata", Type.PARTITIONED_METADATA_RESPONSE),
        (Type.LOOKUP, "lookupTopic", Type.LOOKUP_RESPONSE),
    ):
        client.ask(answer, kind, part, topic="orders")
    client.ask(
        Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        Type.GET_TOPICS_OF_NAMESPACE,
        "getTopicsOfNamespace",
        namespace="public/default",
    )
    client.tell(Type.PONG, "pong")
    client.ping()


def consume(client: Telling) -> None:
    """Every type of subscription, compacted and not, and all that a consumer may send."""
    ids = client.consume("orders", 500, 1)
    client.ack(ids[:50], 1)
    client.ack([ids[99]], 1, wire.CommandAck.Cumulative)
    client.ask(
        Type.GET_LAST_MESSAGE_ID_RESPONSE,
        Type.GET_LAST_MESSAGE_ID,
        "getLastMessageId",
        consumer_id=1,
    )
    client.ask(Type.CONSUMER_STATS_RESPONSE, Type.CONSUMER_STATS, "consumerStats", consumer_id=1)
    client.ask(Type.SUCCESS, Type.SEEK, "seek", consumer_id=1, message_publish_time=1)
    for number, kind in enumerate((Subscribe.Shared, Subscribe.Key_Shared, Subscribe.Failover), 2):
        ids = client.consume("orders", 100, number, kind=kind, name=f"s{number}")
        again = {"consumer_id": number, "message_ids": ids[:10]}
        client.tell(
            Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, "redeliverUnacknowledgedMessages", **again
        )
        client.flow(20, number)
        client.until(Type.MESSAGE)
        client.ack(ids[10:20], number)
        fields = {"consumer_id": number, "message_id": ids[5]}
        client.ask(Type.SUCCESS, Type.SEEK, "seek", **fields)
    ids = client.consume("orders", 60, 5, name="view", read_compacted=True)
    client.ack(ids[:30], 5)
    client.ask(Type.SUCCESS, Type.UNSUBSCRIBE, "unsubscribe", consumer_id=5)
    client.consume("orders", 60, 6, name="reader", durable=False, read_compacted=True)
    client.ask(Type.SUCCESS, Type.CLOSE_CONSUMER, "close_consumer", consumer_id=6)
    client.consume("orders", 10, 7, name="back", start_message_rollback_duration_sec=3600)
    ids = client.consume("batches", BATCHES, 8, permits=2 * BATCHES)
    for each in (ids[0], ids[-1]):
        # Of two messages the second is left.
        each.ack_set.append(2)
        client.ack([each], 8)


@pytest.mark.parametrize("cold", [False, True], ids=["cached", "cold"])
def test_no_command_reads_or_syncs_files_in_the_loop(
    tmp_path: Path, disk: WatchedDisk, *, cold: bool
) -> None:
    settings = settings_of(tmp_path)
    fill(settings, "orders")
    disk.cold = cold
    with NodeInThread(settings, disk) as node, Telling(node.pulsar_port) as client:
        look_up(client)
        produce(client)
        consume(client)
        assert (FREE | NEEDS.keys()) - client.told == {Type.AUTH_RESPONSE}
        disk.loop_thread = 0
    assert disk.in_loop == []


def test_no_request_about_subscriptions_reads_or_syncs_files_in_the_loop(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    settings = settings_of(tmp_path)
    fill(settings, "orders")
    disk.cold = True
    requests = [
        ("PUT", "subscription/t"),
        ("POST", "subscription/t/resetcursor/1"),
        ("POST", "subscription/t/skip/3"),
        ("POST", "subscription/t/expireMessages/0"),
        ("POST", "subscription/t/skip_all"),
        ("GET", "subscription/s/position/3"),
        ("GET", "lastMessageId"),
        ("GET", "messageid/1"),
        ("GET", "ledger/1/entry/2"),
        ("DELETE", "subscription/t"),
        ("POST", "subscription/view/skip/3"),
        ("GET", "stats"),
        ("POST", "trim"),
    ]
    with NodeInThread(settings, disk) as node:
        base = f"http://127.0.0.1:{node.http_port}/admin/v2/persistent/public/default/orders"
        for method, path in requests:
            answer = httpx.request(method, f"{base}/{path}", timeout=PROCESS_S_MAX)
            assert answer.is_success, (path, answer.text)
        assert httpx.get(f"http://127.0.0.1:{node.http_port}/metrics").is_success
        disk.loop_thread = 0
    assert disk.in_loop == []


def test_producing_over_http_rolls_no_segment_in_the_loop(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    """Each of the callers fills what the others have made ready."""
    body = {"messages": [{"payload": "x" * 1000}] * 500}
    with NodeInThread(settings_of(tmp_path), disk) as node:
        url = f"http://127.0.0.1:{node.http_port}/topics/persistent/public/default/orders"

        def produce_some(_: int) -> list[int]:
            answer = httpx.post(url, json=body, timeout=PROCESS_S_MAX)
            return [row["errorCode"] for row in answer.json()["messagePublishResults"]]

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(produce_some, range(16))) == [[0] * 500] * 16
        disk.loop_thread = 0
    assert disk.in_loop == []


def real_client(case: Case) -> None:
    """What the client does by itself, in a process of its own."""
    producer = case.client.create_producer("real")
    for number in range(50):
        producer.send(b"%d" % number, partition_key=str(number % 5))
    consumer = case.earliest(topic="real")
    harness.receive_all(consumer, 50)
    consumer.seek(pulsar.MessageId.earliest)
    harness.receive_all(consumer, 50)
    consumer.seek(int(time.time() * 1000) - 3_600_000)
    harness.receive_all(consumer, 50)
    consumer.unsubscribe()
    view = case.client.create_reader("orders", pulsar.MessageId.earliest, is_read_compacted=True)
    while view.has_message_available():
        view.read_next(harness.RECEIVE_MS)
    view.close()


def test_the_real_client_has_nothing_read_or_synced_in_the_loop(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    settings = settings_of(tmp_path)
    fill(settings, "orders")
    with NodeInThread(settings, disk) as node:
        ports = str(node.pulsar_port), str(node.http_port)
        done = subprocess.run(
            [sys.executable, harness.__file__, *ports, __file__, "real_client", "{}"],
            cwd=harness.ROOT,
            env={**os.environ, "PYTHONPATH": str(harness.ROOT)},
            capture_output=True,
            text=True,
            timeout=PROCESS_S_MAX,
            check=False,
        )
        disk.loop_thread = 0
    assert done.returncode == 0, done.stdout + done.stderr
    assert disk.in_loop == []


# --- a disk that stops ------------------------------------------------------------------------


def dispatch(client: Telling) -> Callable[[], object]:
    client.flow(10)
    return lambda: client.until(Type.MESSAGE)


def seek_by_time(client: Telling) -> Callable[[], object]:
    client.tell(Type.SEEK, "seek", request_id=90, consumer_id=1, message_publish_time=1)
    return lambda: client.until(Type.SUCCESS)


def unsubscribe(client: Telling) -> Callable[[], object]:
    client.tell(Type.UNSUBSCRIBE, "unsubscribe", request_id=90, consumer_id=1)
    return lambda: client.until(Type.SUCCESS)


def partial_ack(client: Telling) -> Callable[[], object]:
    part = wire.MessageIdData(ledgerId=1, entryId=3, ack_set=[2])
    kind = wire.CommandAck.Individual
    client.tell(Type.ACK, "ack", request_id=90, consumer_id=1, ack_type=kind, message_id=[part])
    return lambda: client.until(Type.ACK_RESPONSE)


def last_message(client: Telling) -> Callable[[], object]:
    client.tell(Type.GET_LAST_MESSAGE_ID, "getLastMessageId", request_id=90, consumer_id=1)
    return lambda: client.until(Type.GET_LAST_MESSAGE_ID_RESPONSE)


def subscribe_compacted(client: Telling) -> Callable[[], object]:
    """The cursor moves over what is not retained."""
    client.ask_to_subscribe("slow", "view", consumer_id=2, read_compacted=True)
    return lambda: client.until(Type.SUCCESS)


@pytest.fixture
def two_topics(tmp_path: Path, disk: WatchedDisk) -> Iterator[NodeInThread]:
    settings = settings_of(tmp_path)
    fill(settings, "slow", "quick")
    with NodeInThread(settings, disk) as node:
        yield node


@pytest.mark.parametrize(
    "ask",
    [dispatch, seek_by_time, unsubscribe, partial_ack, last_message, subscribe_compacted],
    ids=lambda each: each.__name__,
)
def test_while_the_disk_of_one_topic_hangs_others_are_served(
    two_topics: NodeInThread, disk: WatchedDisk, ask: Callable[[Telling], Callable[[], object]]
) -> None:
    port = two_topics.pulsar_port
    with Telling(port) as client, Telling(port) as other, Telling(port) as stranger:
        client.subscribe("slow")
        other.subscribe("quick")
        other.producer("quick")
        with disk.holding("/slow/"):
            answered = ask(client)
            disk.wait_until_held()
            stranger.ping()
            other.send(send_frame(0, VALUE))
            other.until(Type.SEND_RECEIPT)
            other.flow(1000)
            for _ in range(501):
                other.until(Type.MESSAGE)
            client.tell(Type.CONSUMER_STATS, "consumerStats", request_id=91, consumer_id=1)
            if ask is dispatch:
                # Messages come when they come: commands do not wait for them.
                client.until(Type.CONSUMER_STATS_RESPONSE)
            stranger.ping()
        answered()
        if ask is not dispatch:
            # What comes behind a command on the same connection stays behind it.
            client.until(Type.CONSUMER_STATS_RESPONSE)


def new_subscription(client: Telling) -> Callable[[], object]:
    client.ask_to_subscribe("slow", "new", consumer_id=2)
    return lambda: client.until(Type.SUCCESS)


def end_of_subscription(client: Telling) -> Callable[[], object]:
    client.tell(Type.UNSUBSCRIBE, "unsubscribe", request_id=90, consumer_id=1)
    return lambda: client.until(Type.SUCCESS)


def new_schema(client: Telling) -> Callable[[], object]:
    schema = wire.Schema(type=wire.Schema.String, name="text", schema_data=b"")
    fields = {"topic": "slow", "producer_id": 2, "request_id": 90, "schema": schema}
    client.tell(Type.PRODUCER, "producer", **fields)
    return lambda: client.until(Type.PRODUCER_SUCCESS)


@pytest.mark.parametrize(
    ("ask", "files"),
    [
        (new_subscription, "/slow/cursors/"),
        (end_of_subscription, "/slow/cursors/"),
        (new_schema, "/slow/schemas"),
    ],
    ids=["new subscription", "end of subscription", "new schema"],
)
def test_messages_of_a_topic_do_not_wait_for_its_subscriptions_and_schemas(
    two_topics: NodeInThread,
    disk: WatchedDisk,
    ask: Callable[[Telling], Callable[[], object]],
    files: str,
) -> None:
    port = two_topics.pulsar_port
    with Telling(port) as client, Telling(port) as producer:
        client.subscribe("slow")
        producer.producer("slow")
        with disk.holding(files):
            answered = ask(client)
            disk.wait_until_held()
            for number in range(10):
                producer.send(send_frame(number, VALUE))
                producer.until(Type.SEND_RECEIPT)
        answered()
