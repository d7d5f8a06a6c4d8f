"""Messages over HTTP: produced and read as JSON, in bounded pieces, without a subscription."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lithify.http import fair_shares
from lithify.http.fair_shares import Shares
from lithify.http.messages import produce, read
from lithify.pulsar.consumer_commands import Consuming
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import ZLIB, MessageMetadata, SingleMessageMetadata
from lithify.topics.producers.producers import AccessMode, Producer
from lithify.topics.reading.message_pages import read_rows
from lithify.topics.subscriptions.subscription import Consumer, Delivery, SubscriptionType
from tests.http.node import ORDERS, HttpNode
from tests.patience import PROCESS_S_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, MutableMapping

AT = "/topics/persistent/public/default/orders"


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode() as node:
        yield node


def send(node: HttpNode, *messages: object, path: str = AT) -> list[str]:
    answer = node.ask("POST", path, json={"messages": messages})
    assert answer.status_code == 200, answer.text
    results = answer.json()["messagePublishResults"]
    assert [row["errorCode"] for row in results] == [0] * len(messages)
    return [row["messageId"] for row in results]


def rows(node: HttpNode, query: str = "", path: str = AT) -> list[dict[str, Any]]:
    answer = node.ask("GET", f"{path}/messages?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def refusal(node: HttpNode, status: int, body: Any, path: str = AT) -> str:
    answer = node.ask("POST", path, json=body)
    assert answer.status_code == status, answer.text
    return str(answer.json()["reason"])


def test_produced_messages_are_read(node: HttpNode) -> None:
    data = base64.b64encode(b"\xff\x00").decode()
    sent = send(
        node,
        {"payload": "paid", "key": "4711", "properties": {"by": "card"}, "eventTime": "17"},
        {"payloadBase64": data, "keyBase64": data},
        {"key": "4711"},
    )
    assert sent == ["1:0:-1", "1:1:-1", "1:2:-1"]
    first, second, third = rows(node)
    assert (first["id"], first["key"], first["value"]) == ("1:0", "4711", "paid")
    assert (first["properties"], first["event_time_ms"]) == ({"by": "card"}, 17)
    assert (second["key_base64"], second["value_base64"]) == (data, data)
    assert (third["key"], third["value"]) == ("4711", None), "a tombstone"


def test_produced_messages_reach_subscriptions(node: HttpNode) -> None:
    topic = node.topic()
    subscription = topic.subscription("s", SubscriptionType.EXCLUSIVE, durable=True, start=0)
    consumer = Consumer("c", permits=10)
    subscription.add(consumer, SubscriptionType.EXCLUSIVE)
    delivered: list[int] = []

    class Client(Consuming):
        def deliver(self, consumer_id: int, deliveries: Iterable[Delivery]) -> None:
            delivered.extend(delivery.entry.position for delivery in deliveries)

    session = node.broker.session(lambda _: None)
    node.broker.consumer_joined(consumer, Client(session), 1)
    send(node, {"payload": "a"}, {"payload": "b"})
    # The segment is opened in a thread.
    node.loop.run_until_complete(node.broker.settled())
    assert delivered == [1 << 32, (1 << 32) + 1]


def test_the_first_and_last_position_of_a_read(node: HttpNode) -> None:
    node.topic(messages=40)
    ids = [row["id"] for row in rows(node)]
    assert len(ids) == 40
    assert len({each.split(":")[0] for each in ids}) > 2, "several ledgers"
    assert [row["id"] for row in rows(node, f"start={ids[17]}")] == ids[17:]
    assert [row["id"] for row in rows(node, f"start={ids[17]}&limit=3")] == ids[17:20]
    for last in (0, 1, 7, 39, 40, 41):
        assert [row["id"] for row in rows(node, f"last={last}")] == ids[max(0, 40 - last) :]
    for query, status in (("start=5", 412), ("start=9:1&last=1", 400), ("last=-1", 400)):
        assert node.ask("GET", f"{AT}/messages?{query}").status_code == status


def test_the_last_messages_of_batches_are_counted_one_by_one(node: HttpNode) -> None:
    topic = node.topic()
    single = SingleMessageMetadata(payload_size=1).SerializeToString()
    head = len(single).to_bytes(4, "big") + single
    for values in (b"abcd", b"efgh", b"ijkl"):
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        metadata.num_messages_in_batch = 4
        batch = b"".join(head + bytes([value]) for value in values)
        topic.writer.append_entries([encode_entry(metadata, batch)], times=[1], counts=[4]).result()
    assert [row["value"] for row in rows(node, "last=6")] == list("ghijkl")
    assert rows(node, "last=6")[0]["id"] == "1:1:2"


def test_pieces_are_bounded_and_nothing_is_lost_between_them(
    node: HttpNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.topic(messages=30)
    sizes: list[int] = []

    def small(*given: Any, **more: Any) -> Any:
        found = read_rows(*given, bytes_max=1000, **more)
        sizes.append(len(found[0]))
        return found

    monkeypatch.setattr(read, "read_rows", small)
    assert [row["value"] for row in rows(node)] == [f"v{number}" for number in range(30)]
    assert max(sizes) == 4


def test_an_entry_that_cannot_be_opened_does_not_hide_the_rest(node: HttpNode) -> None:
    topic = node.topic(messages=1)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.compression = ZLIB
    topic.writer.append_entries([encode_entry(metadata, b"junk")], times=[1], counts=[1]).result()
    node.topic(messages=1)
    first, second, third = rows(node)
    assert (first["id"], third["id"]) == ("1:0", "1:2")
    assert second["id"] == "1:1"
    assert "compressed" in second["error"]


def test_a_partitioned_topic_spreads_by_key(node: HttpNode) -> None:
    node.do("PUT", "/persistent/public/default/orders/partitions", 3)
    keyed = [send(node, {"payload": "x", "key": key})[0] for key in ("a", "a", "b", "b")]
    parts = [each.rpartition(":")[2] for each in keyed]
    assert parts[0] == parts[1]
    assert parts[2] == parts[3]
    turns = [each.rpartition(":")[2] for each in send(node, *[{"payload": "x"}] * 6)]
    assert sorted(turns) == ["0", "0", "1", "1", "2", "2"]
    assert send(node, {"payload": "y"}, path=f"{AT}/partitions/1")[0].endswith(":1")
    assert rows(node, path=f"{AT}-partition-1")[-1]["value"] == "y"
    assert "number 3 does not exist" in refusal(
        node, 404, {"messages": [{"payload": "y"}]}, f"{AT}/partitions/3"
    )
    assert node.ask("GET", f"{AT}/messages").status_code == 405


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": []}, "at least 1"),
        ({"messages": [{"payload": "a"}], "valueSchema": "x"}, "body.valueSchema: Extra"),
        ({"messages": [{"payload": 5}]}, "body.messages.0.payload"),
        ({"messages": [{"payload": "a", "payloadBase64": "YQ=="}]}, "give one of them"),
        ({"messages": [{"payloadBase64": "?"}]}, "body.messages.0.payloadBase64"),
        (None, "body: "),
    ],
)
def test_a_body_that_is_wrong_changes_nothing(node: HttpNode, body: Any, text: str) -> None:
    assert text in refusal(node, 400, body)
    assert not node.topics.exists(ORDERS)


def test_limits_are_named(node: HttpNode) -> None:
    node.broker.max_message_bytes = 1000
    big = {"messages": [{"payload": "small"}, {"payload": "x" * 990}]}
    assert "message 1 has" in refusal(node, 413, big)
    assert "2000 bytes" in refusal(node, 413, {"messages": [{"payload": "x" * 3000}]})
    assert not node.topics.exists(ORDERS), "nothing was written"
    many = {"messages": [{"payload": ""}] * (produce.MESSAGES_MAX + 1)}
    node.broker.max_message_bytes = 2**20
    assert "at most 10000" in refusal(node, 400, many)
    node.topic()
    node.app.state.readers = Shares(0, "readers")
    assert node.ask("GET", f"{AT}/messages").status_code == 429


def test_a_topic_that_does_not_exist(node: HttpNode) -> None:
    assert node.ask("GET", f"{AT}/messages").status_code == 404
    assert send(node, {"payload": "a"}) == ["1:0:-1"], "created by use"
    with HttpNode(auto_create=False) as strict:
        assert "does not exist" in refusal(strict, 404, {"messages": [{"payload": "a"}]})


def test_an_exclusive_producer_is_not_disturbed(node: HttpNode) -> None:
    node.topic().producers.add(Producer("p", mode=AccessMode.EXCLUSIVE))
    assert "exclusive access" in refusal(node, 409, {"messages": [{"payload": "a"}]})


def test_readers_that_come_at_once_are_counted_before_they_wait(node: HttpNode) -> None:
    node.topic().append(value=b"a")
    # One caller may have half of them.
    node.app.state.readers = Shares(4, "readers")

    async def ask_all() -> list[int]:
        asked = [node.asks("GET", f"{AT}/messages?last=1") for _ in range(10)]
        return [answer.status_code for answer in await asyncio.gather(*asked)]

    for _ in range(2):
        # The second time shows that all of the first have left.
        assert sorted(node.loop.run_until_complete(ask_all())) == [200] * 2 + [429] * 8


def test_readers_of_one_caller_leave_places_to_others(node: HttpNode) -> None:
    """Reading on and on, and not at all: a caller has half of the places at most."""
    node.topic().append(value=b"a")
    released = asyncio.Event()

    async def read_slowly(client: tuple[str, int]) -> int:
        """The status of a reader that takes nothing until it is told to."""
        statuses: list[int] = []

        async def receive() -> MutableMapping[str, Any]:
            await released.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            statuses.append(message.get("status", 0))
            if message.get("more_body"):
                begun.release()
                await released.wait()
            elif statuses[0] == 429:
                begun.release()

        path = f"{AT}/messages"
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": b"follow=true", "headers": [], "client": client}
        await node.app(scope, receive, send)
        return statuses[0]

    begun = asyncio.Semaphore(0)

    async def story() -> None:
        places = read.READERS_MAX
        greedy = [asyncio.create_task(read_slowly(("10.0.0.1", 1))) for _ in range(places)]
        for _ in range(places):
            await begun.acquire()
        other = asyncio.create_task(read_slowly(("10.0.0.2", 1)))
        await begun.acquire()
        released.set()
        assert await other == 200
        assert Counter(await asyncio.gather(*greedy)) == {200: places // 2, 429: places // 2}

    node.loop.run_until_complete(asyncio.wait_for(story(), 60))


def test_a_slow_reader_loses_its_slot(node: HttpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.topic().append(value=b"a")
    node.app.state.readers = Shares(2, "readers")
    monkeypatch.setattr(fair_shares, "STALL_S", 0.1)

    async def story() -> None:
        async def receive() -> MutableMapping[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        path = f"{AT}/messages"
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": b"follow=true", "headers": [], "client": ("10.0.0.1", 1)}
        for _ in range(3):
            await node.app(scope, receive, send)

    node.loop.run_until_complete(asyncio.wait_for(story(), 60))


def test_slow_requests_of_one_caller_do_not_delay_another(node: HttpNode) -> None:
    async def story() -> None:
        ended, begun = asyncio.Event(), asyncio.Semaphore(0)

        async def slow_body() -> AsyncIterator[bytes]:
            yield b'{"messages":['
            begun.release()
            await ended.wait()
            yield b'{"payload":"slow"}]}'

        other = httpx.ASGITransport(node.app, client=("10.0.0.9", 1))
        headers = {"Content-Type": "application/json"}
        slow = [
            asyncio.create_task(node.asks("POST", AT, content=slow_body(), headers=headers))
            for _ in range(produce.REQUESTS_MAX + 1)
        ]
        for _ in range(produce.REQUESTS_MAX // 2):
            await begun.acquire()
        async with httpx.AsyncClient(transport=other, base_url="http://node") as client:
            body = {"messages": [{"payload": "quick"}]}
            answer = await asyncio.wait_for(client.post(AT, json=body), PROCESS_S_MAX)
        assert answer.status_code == 200
        ended.set()
        assert {each.status_code for each in await asyncio.gather(*slow)} == {200}

    node.loop.run_until_complete(story())


def test_a_topic_that_is_unloaded_between_two_pieces_is_opened_again(node: HttpNode) -> None:
    count = 3 * produce.APPENDED_MAX
    first = node.topic()

    async def story() -> httpx.Response:
        body = {"messages": [{"payload": str(number)} for number in range(count)]}
        asked = asyncio.create_task(node.asks("POST", AT, json=body))
        while not first.writer.messages_in:
            await asyncio.sleep(0)
        unloaded = await node.asks("PUT", "/admin/v2/persistent/public/default/orders/unload")
        assert unloaded.status_code == 204
        return await asked

    answer = node.loop.run_until_complete(story())
    results = answer.json()["messagePublishResults"]
    assert {row["errorCode"] for row in results} == {0}, results[-1]
    assert node.topic() is not first
    assert [int(row["value"]) for row in rows(node)] == list(range(count))
    assert [row["id"] for row in rows(node)] == [row["messageId"][:-3] for row in results]
