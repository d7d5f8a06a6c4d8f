"""Unload, terminate, trim, truncate, skip: what is done to a topic as a whole."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lithify.topics.compaction.compaction_service import LogCompactionService
from lithify.topics.definitions.policies import Policies
from lithify.topics.producers.producers import Producer
from lithify.topics.subscriptions.cursor_changes import Acked
from lithify.topics.subscriptions.subscription import Consumer, SubscriptionType
from lithify.topics.topic import TopicTerminated
from tests.http.node import ORDERS, HttpNode
from tests.unit.log.helpers import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from lithify.topics.topic import Topic

AT = "/persistent/public/default/orders"


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode() as node:
        yield node


def values(topic: Topic) -> list[bytes | None]:
    return [message.value for message in topic.read()]


# --- unload -----------------------------------------------------------------------------------


def test_unloading_closes_a_topic_and_use_opens_it_again(node: HttpNode) -> None:
    topic = node.topic(messages=3)
    topic.producers.add(Producer("p"))
    node.do("PUT", f"{AT}/unload")
    assert topic.log.closed
    assert topic.producers.joined == {}
    assert node.topics.opened() == {}
    assert node.get(f"{AT}/internalStats")["numberOfEntries"] == 3
    again = node.topic()
    assert again is not topic
    assert values(again) == [b"v0", b"v1", b"v2"]
    node.do("PUT", "/namespaces/public/default/unload")
    assert node.topics.opened() == {}
    assert "does not exist" in node.refused(404, "PUT", "/persistent/public/default/no/unload")


def test_unloading_closes_all_partitions(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 2)
    parts = [node.topic(f"{ORDERS}-partition-{number}", 1) for number in (0, 1)]
    node.do("PUT", f"{AT}/unload")
    assert [part.log.closed for part in parts] == [True, True]


# --- terminate --------------------------------------------------------------------------------


def test_a_terminated_topic_refuses_messages_and_is_readable(node: HttpNode) -> None:
    topic = node.topic(messages=3)
    topic.subscription("s", SubscriptionType.EXCLUSIVE, durable=True, start=0)
    topic.producers.add(Producer("p"))
    answer = node.ask("POST", f"/admin/v2{AT}/terminate")
    assert answer.json() == {"ledgerId": 1, "entryId": 2, "partitionIndex": -1}
    assert topic.producers.joined == {}, "they were sent away"
    with pytest.raises(TopicTerminated, match="orders is terminated"):
        topic.append(value=b"late")
    node.do("PUT", f"{AT}/unload")
    with pytest.raises(TopicTerminated):
        node.topic().append(value=b"late")
    reason = node.ask("POST", f"/topics{AT}", json={"messages": [{"payload": "late"}]})
    assert (reason.status_code, "terminated" in reason.text) == (412, True)
    assert node.get(f"{AT}/internalStats")["state"] == "Terminated"
    assert node.get(f"{AT}/stats")["subscriptions"]["s"]["msgBacklog"] == 3
    assert len(values(node.topic())) == 3
    again = node.ask("POST", f"/admin/v2{AT}/terminate")
    assert again.json() == answer.json(), "a second time changes nothing"
    node.do("DELETE", AT)
    node.topic().append(value=b"a new topic of that name")


def test_partitions_are_terminated_one_by_one_or_together(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 3)
    first, second, third = (node.topic(f"{ORDERS}-partition-{n}", 1) for n in range(3))
    assert "partitioned" in node.refused(405, "POST", f"{AT}/terminate")
    assert node.ask("POST", f"/admin/v2{AT}-partition-1/terminate").json()["partitionIndex"] == 1
    assert [each.writer.terminated for each in (first, second, third)] == [False, True, False]
    found = node.ask("POST", f"/admin/v2{AT}/terminate/partitions").json()
    assert [row["entryId"] for _, row in sorted(found.items())] == [0, 0, 0]
    assert [each.writer.terminated for each in (first, second, third)] == [True, True, True]
    node.do("POST", f"{AT}/partitions", 4)
    node.topic(f"{ORDERS}-partition-3", 1)
    node.topic("plain")
    assert "not partitioned" in node.refused(
        405, "POST", "/persistent/public/default/plain/terminate/partitions"
    )


# --- trim and truncate ------------------------------------------------------------------------


def test_trimming_deletes_what_retention_allows(node: HttpNode) -> None:
    topic = node.topic(messages=40)
    topic.policies = lambda: Policies(retention_ms=0)
    subscription = topic.subscription("s", SubscriptionType.SHARED, durable=True, start=0)
    topic.maintain()
    node.do("POST", f"{AT}/trim")
    assert len(values(topic)) == 40, "nothing of it is acknowledged"
    node.do("POST", f"{AT}/subscription/s/skip/25")
    assert subscription.cursor.mark_delete > 0
    node.do("POST", f"{AT}/trim")
    left = values(topic)
    assert left[-15:] == [b"v%d" % number for number in range(25, 40)]
    assert len(left) < 40
    assert topic.log.manifest.retired == ()


def test_truncating_deletes_everything_up_to_now(node: HttpNode) -> None:
    topic = node.topic(messages=40)
    subscription = topic.subscription("s", SubscriptionType.SHARED, durable=True, start=0)
    node.do("DELETE", f"{AT}/truncate")
    assert values(topic) == []
    assert node.get(f"{AT}/stats")["subscriptions"]["s"]["msgBacklog"] == 0
    assert [ref.sealed for ref in topic.log.manifest.segments] == [False]
    node.topic(messages=2)
    node.do("PUT", f"{AT}/unload")
    assert values(node.topic()) == [b"v0", b"v1"]
    subscription = node.topic().subscriptions["s"]
    subscription.add(Consumer("c", permits=10), SubscriptionType.SHARED)
    assert len(node.topic().dispatch(subscription)) == 2


def test_truncating_deletes_the_compacted_view_too(node: HttpNode) -> None:
    topic = node.topic(messages=5)
    topic.append(key="a", value=b"1")
    topic.compact()
    assert len(list(topic.read(compacted=True))) == 6
    node.do("DELETE", f"{AT}/truncate")
    assert list(topic.read(compacted=True)) == []
    assert topic.get("a") is None
    assert topic.log.manifest.view is None
    assert topic.log.manifest.retired == ()
    topic.append(key="b", value=b"2")
    topic.compact()
    assert [message.key for message in topic.read(compacted=True)] == [b"b"]


class Elsewhere(LogCompactionService):
    """A service that keeps what is compacted somewhere else."""

    kept = True

    @property
    def last_compacted_position(self) -> int:
        return 0 if self.kept else -1

    def delete_compacted(self) -> None:
        self.kept = False


@pytest.mark.parametrize("what", ["truncate", "subscription/__compaction"])
def test_the_compaction_service_of_a_third_party_deletes_its_view(
    node: HttpNode, what: str
) -> None:
    topic = node.topic(messages=1)
    topic.service = service = Elsewhere(topic.log, topic.compaction)
    node.do("DELETE", f"{AT}/{what}")
    assert not service.kept
    assert "no compacted view" in node.refused(404, "DELETE", f"{AT}/subscription/__compaction")


def test_truncating_keeps_producers() -> None:
    with HttpNode(deduplication=True) as node:
        node.topic(messages=5)
        known = node.topic().writer.deduplication
        assert known is not None
        assert known.last_sequence_id("library") == 4
        node.do("DELETE", f"{AT}/truncate")
        node.do("PUT", f"{AT}/unload")
        again = node.topic().writer.deduplication
        assert again is not None
        assert again.last_sequence_id("library") == 4


def test_truncating_all_partitions(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 2)
    parts = [node.topic(f"{ORDERS}-partition-{number}", 3) for number in (0, 1)]
    node.do("POST", f"{AT}/trim")
    node.do("DELETE", f"{AT}/truncate")
    assert [values(part) for part in parts] == [[], []]


# --- skip -------------------------------------------------------------------------------------


def test_skipping_counts_unacknowledged_messages(node: HttpNode) -> None:
    topic = node.topic(messages=40)
    subscription = topic.subscription("s", SubscriptionType.SHARED, durable=True, start=0)

    def backlog() -> int:
        return int(node.get(f"{AT}/stats")["subscriptions"]["s"]["msgBacklog"])

    at = f"{AT}/subscription/s/skip"
    node.do("POST", f"{at}/0")
    assert backlog() == 40
    node.do("POST", f"{at}/3")
    assert backlog() == 37
    subscription.add(Consumer("c", permits=100), SubscriptionType.SHARED)
    fifth = topic.dispatch(subscription)[1].entry.position
    topic.acknowledge(subscription, Acked(fifth))
    node.do("POST", f"{at}/2")
    assert backlog() == 34, "the fourth and the sixth"
    node.do("POST", f"{at}/1000")
    assert backlog() == 0
    assert "0 or more" in node.refused(412, "POST", f"{at}/-1")
    assert "no subscription" in node.refused(404, "POST", f"{AT}/subscription/no/skip/1")


def test_skipping_in_a_partitioned_topic_needs_a_partition(node: HttpNode) -> None:
    node.do("PUT", f"{AT}/partitions", 2)
    node.do("PUT", f"{AT}/subscription/s")
    assert "partitioned" in node.refused(405, "POST", f"{AT}/subscription/s/skip/1")
    node.do("POST", f"{AT}-partition-0/subscription/s/skip/1")


# --- few threads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", f"{AT}/unload"), ("DELETE", AT)], ids=["unload", "delete"]
)
def test_waiting_opens_of_a_topic_leave_a_thread_for_its_close(
    node: HttpNode, method: str, path: str
) -> None:
    """They are in the queue of the threads before it, and want to open what it has taken."""
    node.topic(messages=3)
    node.do("PUT", f"{AT}/unload")
    go = threading.Event()

    async def story() -> list[httpx.Response]:
        threads = 2
        pool = ThreadPoolExecutor(threads)
        node.loop.set_default_executor(pool)
        busy = [pool.submit(go.wait, PATIENCE_S) for _ in range(threads)]
        asked = [asyncio.ensure_future(node.asks("GET", f"/admin/v2{AT}/stats")) for _ in "abc"]
        asked.append(asyncio.ensure_future(node.asks(method, f"/admin/v2{path}")))
        async with asyncio.timeout(PATIENCE_S):
            # All have gone as far as they can without a thread.
            for _ in range(100):
                await asyncio.sleep(0)
            go.set()
            answers = await asyncio.gather(*asked)
        assert all(each.result() for each in busy)
        return answers

    *stats, taken = node.loop.run_until_complete(story())
    assert taken.status_code == 204
    # Those who have waited for a deletion find nothing.
    assert {each.status_code for each in stats} <= {200, 404}
