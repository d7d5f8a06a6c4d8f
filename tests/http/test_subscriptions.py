"""Subscriptions, statistics, single messages and metrics over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lithify.positions import unpack
from lithify.topics.subscriptions.cursor_changes import Acked
from lithify.topics.subscriptions.subscription import Consumer, SubscriptionType
from tests.http.node import HttpNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.topics.topic import Topic

AT = "/persistent/public/default/orders"


@pytest.fixture
def node() -> Iterator[HttpNode]:
    with HttpNode() as node:
        yield node


def positions(topic: Topic) -> list[int]:
    return [message.id.ledger << 32 | message.id.entry for message in topic.read()]


def backlog(node: HttpNode, name: str = "s") -> int:
    return int(node.get(f"{AT}/stats")["subscriptions"][name]["msgBacklog"])


def test_the_life_of_a_subscription(node: HttpNode) -> None:
    topic = node.topic(messages=5)
    node.do("PUT", f"{AT}/subscription/s")
    node.do("PUT", f"{AT}/subscription/first", {"ledgerId": -1, "entryId": -1})
    assert node.get(f"{AT}/subscriptions") == ["first", "s"]
    assert "already" in node.refused(409, "PUT", f"{AT}/subscription/s")
    assert backlog(node) == 0
    assert backlog(node, "first") == 5
    topic.append(key="k", value=b"v")
    assert backlog(node) == 1
    node.do("DELETE", f"{AT}/subscription/s")
    assert "no subscription s" in node.refused(404, "DELETE", f"{AT}/subscription/s")
    assert topic.cursors.names() == ["first"]


def test_a_subscription_with_consumers_is_deleted_only_by_force(node: HttpNode) -> None:
    topic = node.topic()
    node.do("PUT", f"{AT}/subscription/s")
    topic.subscriptions["s"].add(Consumer("c"), SubscriptionType.SHARED)
    assert "has consumers" in node.refused(412, "DELETE", f"{AT}/subscription/s")
    node.do("DELETE", f"{AT}/subscription/s?force=true")
    assert node.get(f"{AT}/subscriptions") == []


def test_moving_a_subscription_by_id_and_by_time(node: HttpNode) -> None:
    start_ms = node.clock.now_ms()
    topic = node.topic(messages=40)
    ledger, entry = unpack(positions(topic)[25])
    assert ledger > 1, "the log must have several ledgers for this"
    node.do("PUT", f"{AT}/subscription/s")
    reset = f"{AT}/subscription/s/resetcursor"
    node.do("POST", reset, {"ledgerId": ledger, "entryId": entry})
    assert backlog(node) == 15
    node.do("POST", reset, {"ledgerId": ledger, "entryId": entry, "isExcluded": True})
    assert backlog(node) == 14
    node.do("POST", reset, {"ledgerId": ledger, "entryId": entry})
    node.do("POST", reset, {"ledgerId": ledger, "entryId": entry, "excluded": True})
    assert backlog(node) == 14
    node.do("POST", f"{reset}/{start_ms + 10_000}")
    assert backlog(node) == 30
    node.do("POST", reset, {"ledgerId": -1, "entryId": -1})
    assert backlog(node) == 40
    node.do("POST", reset, {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1})
    assert backlog(node) == 0
    node.do("POST", f"{reset}/{start_ms + 10_000_000}")
    assert backlog(node) == 0
    assert "out of range" in node.refused(412, "POST", reset, {"ledgerId": 2**40, "entryId": 0})
    assert "ledgerId" in node.refused(400, "POST", reset, {"entryId": 0})
    assert "no subscription" in node.refused(404, "POST", f"{AT}/subscription/t/resetcursor/1")


def test_skipping_and_expiring(node: HttpNode) -> None:
    node.topic(messages=30)
    for name in ("s", "t"):
        node.do("PUT", f"{AT}/subscription/{name}", {"ledgerId": -1, "entryId": -1})
    node.do("POST", f"{AT}/subscription/s/expireMessages/10")
    assert (backlog(node, "s"), backlog(node, "t")) == (10, 30)
    node.do("POST", f"{AT}/subscription/s/expireMessages/25")
    assert backlog(node, "s") == 10, "what is acknowledged does not come back"
    node.do("POST", f"{AT}/all_subscription/expireMessages/5")
    assert (backlog(node, "s"), backlog(node, "t")) == (5, 5)
    node.do("POST", f"{AT}/subscription/t/skip_all")
    assert (backlog(node, "s"), backlog(node, "t")) == (5, 0)
    assert "0 or more" in node.refused(412, "POST", f"{AT}/subscription/s/expireMessages/-1")


def test_the_backlog_counts_what_is_acknowledged_out_of_order(node: HttpNode) -> None:
    topic = node.topic(messages=40)
    node.do("PUT", f"{AT}/subscription/s", {"ledgerId": -1, "entryId": -1})
    subscription = topic.subscriptions["s"]
    left = 40
    for position in positions(topic)[::-3]:
        topic.acknowledge(subscription, Acked(position))
        left -= 1
        assert backlog(node) == left
    for position in positions(topic):
        topic.acknowledge(subscription, Acked(position))
    assert backlog(node) == 0
    assert node.get(f"{AT}/stats")["subscriptions"]["s"]["backlogSize"] == 0


def test_stats_name_connected_clients(node: HttpNode) -> None:
    topic = node.topic(messages=3)
    node.do("PUT", f"{AT}/subscription/s", {"ledgerId": -1, "entryId": -1})
    consumer = Consumer("c", permits=2)
    topic.subscriptions["s"].add(consumer, SubscriptionType.SHARED)
    while topic.dispatch(topic.subscriptions["s"]):
        pass
    stats = node.get(f"{AT}/stats")
    assert stats["msgInCounter"] == 3
    assert stats["msgOutCounter"] == 2
    assert stats["storageSize"] == topic.log.active_bytes
    found = stats["subscriptions"]["s"]
    assert found["type"] == "Shared"
    assert found["isDurable"] is True
    assert found["unackedMessages"] == 2
    assert found["consumers"][0]["consumerName"] == "c"
    assert found["consumers"][0]["availablePermits"] == 0


def test_internal_stats_show_ledgers_and_cursors(node: HttpNode) -> None:
    topic = node.topic()
    node.do("PUT", f"{AT}/subscription/s")
    empty = node.get(f"{AT}/internalStats")
    assert empty["lastConfirmedEntry"] == "1:-1"
    assert empty["numberOfEntries"] == 0
    assert empty["cursors"]["s"]["markDeletePosition"] == "1:-1"
    assert empty["compactedLedger"]["ledgerId"] == -1
    node.topic(messages=40)
    last_ledger, last_entry = unpack(topic.last_position)
    for position in (positions(topic)[2], positions(topic)[3]):
        topic.acknowledge(topic.subscriptions["s"], Acked(position))
    full = node.get(f"{AT}/internalStats")
    assert full["lastConfirmedEntry"] == f"{last_ledger}:{last_entry}"
    assert full["entriesAddedCounter"] == full["numberOfEntries"] == 40
    assert sum(row["entries"] for row in full["ledgers"]) == 40
    assert [row["ledgerId"] for row in full["ledgers"]] == list(range(1, last_ledger + 1))
    assert full["currentLedgerEntries"] == last_entry + 1
    assert full["pendingAddEntriesCount"] == 0
    cursor = full["cursors"]["s"]
    assert cursor["markDeletePosition"] == "1:-1"
    assert cursor["readPosition"] == "1:0"
    assert cursor["individuallyDeletedMessages"] == "[(1:1..1:3]]"
    assert cursor["totalNonContiguousDeletedMessagesRange"] == 1


def test_single_messages(node: HttpNode) -> None:
    start_ms = node.clock.now_ms()
    topic = node.topic(messages=2)
    topic.append(key="ä b", value=b"special", properties={"Ünï:code\r\n": "x\r\ny %"})
    node.do("PUT", f"{AT}/subscription/s", {"ledgerId": -1, "entryId": -1})
    second = node.ask("GET", f"/admin/v2{AT}/subscription/s/position/2")
    assert second.content == b"v1"
    assert second.headers["X-Pulsar-Message-ID"] == "1:1"
    assert second.headers["X-Pulsar-publish-time"] == str(start_ms + 1000)
    topic.acknowledge(topic.subscriptions["s"], Acked(positions(topic)[1]))
    third = node.ask("GET", f"/admin/v2{AT}/subscription/s/position/2")
    assert third.content == b"special"
    assert third.headers["X-Pulsar-partition-key"] == "%C3%A4 b"
    assert third.headers["X-Pulsar-PROPERTY-%C3%9Cn%C3%AF%3Acode%0D%0A"] == "x%0D%0Ay %25"
    assert "there are fewer messages" in node.refused(404, "GET", f"{AT}/subscription/s/position/3")
    assert "1 to" in node.refused(412, "GET", f"{AT}/subscription/s/position/0")
    assert node.ask("GET", f"/admin/v2{AT}/ledger/1/entry/0").content == b"v0"
    assert "no entry 1:9" in node.refused(404, "GET", f"{AT}/ledger/1/entry/9")
    assert "no entry" in node.refused(404, "GET", f"{AT}/ledger/{2**70}/entry/0")
    assert node.get(f"{AT}/lastMessageId") == {"ledgerId": 1, "entryId": 2, "partitionIndex": -1}
    at = node.get(f"{AT}/messageid/{start_ms + 500}")
    assert (at["ledgerId"], at["entryId"]) == (1, 1)


def test_metrics(node: HttpNode) -> None:
    node.topic(messages=3)
    node.topics.create_partitioned("persistent://public/default/a/b", 4)
    node.do("PUT", f"{AT}/subscription/s", {"ledgerId": -1, "entryId": -1})
    text = node.ask("GET", "/metrics").text
    assert node.ask("GET", "/metrics/").text == text
    where = 'cluster="standalone",namespace="public/default"'
    topic = f'{where},topic="persistent://public/default/orders"'
    lines = text.splitlines()
    assert f"pulsar_topics_count{{{where}}} 5.0" in lines
    assert f"pulsar_in_messages_total{{{topic}}} 3.0" in lines
    assert f"pulsar_subscriptions_count{{{topic}}} 1.0" in lines
    labels = topic.replace("topic=", 'subscription="s",topic=')
    assert f"pulsar_subscription_back_log{{{labels}}} 3.0" in lines
    assert any(line.startswith("pulsar_storage_size{") for line in lines)
