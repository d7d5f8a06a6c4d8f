"""The statistics of a topic, compared with counts of its messages."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.settings import LogSettings
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.disk_steps import run_here
from lithify.topics.ledger_sizes import storage_bytes
from lithify.topics.producers.producers import AccessMode, Producer
from lithify.topics.statistics.throughput import NOTED_A_STEP, Throughput
from lithify.topics.subscriptions.backlog import backlog
from lithify.topics.subscriptions.cursor_changes import Acked, AckedUpTo
from lithify.topics.subscriptions.subscription import Consumer, SubscriptionType
from lithify.topics.topic import Topic
from lithify.topics.topic_statistics import internal_stats_steps, sum_stats, topic_stats

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def topic(fs: MemoryFileSystem, clock: ManualClock) -> Iterator[Topic]:
    topic = Topic.open(
        fs,
        "orders",
        TopicName.parse("orders"),
        settings=LogSettings(segment_bytes_max=1024),
        clock=clock,
        events=ignore_events,
    )
    yield topic
    topic.close()


def positions(topic: Topic) -> list[int]:
    return [message.id.ledger << 32 | message.id.entry for message in topic.read()]


@pytest.mark.parametrize("seed", range(5))
def test_the_backlog_is_what_counting_gives(topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    subscription = topic.subscription("s", SubscriptionType.SHARED, durable=True, start=0)
    for _ in range(60):
        topic.append(value=bytes(chance.randrange(100)))
        there = positions(topic)
        some = chance.choice(there)
        change = Acked(some) if chance.random() < 0.8 else AckedUpTo(some)
        if chance.random() < 0.9:
            topic.acknowledge(subscription, change)
        if chance.random() < 0.1:
            topic.log.roll()
        left = sum(not subscription.cursor.is_acked(position) for position in there)
        entries, size_bytes = backlog(topic.log, subscription.cursor)
        assert entries == left
        assert bool(size_bytes) is bool(left)


def test_the_backlog_of_a_topic_whose_head_was_dropped(topic: Topic) -> None:
    for _ in range(40):
        topic.append(value=bytes(50))
    subscription = topic.subscription("s", SubscriptionType.SHARED, durable=True, start=0)
    topic.log.drop_head(topic.log.manifest.active.first_position)
    assert backlog(topic.log, subscription.cursor)[0] == len(positions(topic))


def test_storage_is_what_the_files_take(fs: MemoryFileSystem, topic: Topic) -> None:
    for _ in range(40):
        topic.append(value=bytes(50))
    names = [name for name in fs.list("orders/log") if name.endswith(".seg")]
    assert len(names) > 2
    taken = sum(fs.stat(f"orders/log/{name}").size for name in names)
    assert storage_bytes(topic.log) == taken


def test_stats_of_partitions_add_up(topic: Topic) -> None:
    topic.producers.add(Producer("p", mode=AccessMode.EXCLUSIVE, messages=2))
    topic.subscription("s", SubscriptionType.KEY_SHARED, durable=True, start=0)
    for _ in range(2):
        topic.append(value=bytes(50))
    one = topic_stats(topic)
    assert one["publishers"][0]["accessMode"] == "Exclusive"
    assert one["subscriptions"]["s"]["type"] == "Key_Shared"
    both = sum_stats({"a": one, "b": one})
    assert both["msgInCounter"] == 4
    assert both["storageSize"] == 2 * one["storageSize"]
    assert both["averageMsgSize"] == one["averageMsgSize"] > 0
    assert len(both["publishers"]) == 2
    assert both["subscriptions"]["s"]["msgBacklog"] == 4
    assert both["metadata"]["partitions"] == 2
    assert one["subscriptions"]["s"]["msgBacklog"] == 2, "the parts stay as they are"


def test_counters_keep_the_messages_of_disconnected_readers(topic: Topic) -> None:
    for _ in range(3):
        topic.append(value=bytes(50))
    subscription = topic.subscription("r", SubscriptionType.EXCLUSIVE, durable=False, start=0)
    reader = Consumer("reader", permits=10)
    subscription.add(reader, SubscriptionType.EXCLUSIVE)
    assert len(topic.dispatch(subscription)) == 3
    before = topic_stats(topic)
    assert before["msgOutCounter"] == 3
    topic.leave(subscription, reader)
    after = topic_stats(topic)
    assert after["subscriptions"] == {}
    counters = ("msgOutCounter", "bytesOutCounter")
    assert [after[name] for name in counters] == [before[name] for name in counters]


def test_rates_are_those_of_the_last_minute(topic: Topic, clock: ManualClock) -> None:
    for _ in range(30):
        topic.append(value=bytes(50))
        clock.advance(1)
        topic.maintain()
    rates = topic_stats(topic)
    assert rates["msgRateIn"] == 1.0
    assert rates["msgThroughputIn"] == rates["bytesInCounter"] / 30
    assert (rates["msgRateOut"], rates["msgThroughputOut"]) == (0.0, 0.0)
    assert sum_stats({"a": rates, "b": rates})["msgRateIn"] == 2.0
    for _ in range(45):
        clock.advance(1)
        topic.maintain()
    assert 0 < topic_stats(topic)["msgRateIn"] < 1
    for _ in range(70):
        clock.advance(1)
        topic.maintain()
    assert topic_stats(topic)["msgRateIn"] == 0.0


def test_a_cursor_with_very_many_ranges_shows_the_first_of_them(topic: Topic) -> None:
    subscription = topic.subscription("s", SubscriptionType.SHARED, durable=False, start=0)
    for position in range(2**33, 2**33 + 4000, 2):
        subscription.cursor.ack(position)
    cursor = run_here(internal_stats_steps(topic))["cursors"]["s"]
    assert cursor["totalNonContiguousDeletedMessagesRange"] == 2000
    assert cursor["individuallyDeletedMessages"].endswith(",…]")
    assert cursor["individuallyDeletedMessages"].count("..") == 1000


def test_the_rates_of_thousands_of_clients_are_sampled_in_steps(
    topic: Topic, clock: ManualClock
) -> None:
    for number in range(2 * NOTED_A_STEP):
        topic.producers.joined[f"p{number}"] = Producer(f"p{number}")
    throughput = Throughput(topic.writer, topic.producers, topic.subscriptions, clock)
    assert list(throughput.noting()) == [], "not due yet"
    clock.advance(60)
    assert list(throughput.noting()) == [None, None]
    assert list(throughput.noting()) == []
