"""A subscription that is read compacted, then by plain consumers of the log."""

from __future__ import annotations

from lithify.topics.definitions.policies import Policies
from lithify.topics.subscriptions.subscription import Consumer
from tests.unit.topics.compaction.test_compacted import EXCLUSIVE, Compacted, bench

__all__ = ["bench"]


def read_the_log(bench: Compacted) -> list[int]:
    """What a plain consumer of the same subscription gets."""
    subscription = bench.topic.subscription("s", EXCLUSIVE, durable=True, start=0)
    consumer = Consumer("plain", permits=1000)
    bench.topic.join(subscription, consumer, EXCLUSIVE)
    found = bench.received(subscription)
    bench.topic.leave(subscription, consumer)
    return found


def test_a_plain_consumer_gets_what_a_compacted_one_has_not_acknowledged(
    bench: Compacted,
) -> None:
    subscription, consumer = bench.read()
    assert bench.received(subscription) == [1, 4, 5]
    bench.topic.leave(subscription, consumer)
    assert read_the_log(bench) == [0, 1, 2, 3, 4, 5]
    bench.reopen()
    assert read_the_log(bench) == [0, 1, 2, 3, 4, 5], "the switch has recorded no gap"


def test_a_plain_consumer_resumes_after_the_acknowledgements_of_a_compacted_one(
    bench: Compacted,
) -> None:
    bench.put("z", value=None)
    bench.compact()
    subscription, consumer = bench.read()
    assert bench.received(subscription) == [1, 4, 5]
    bench.ack(subscription, 1)
    bench.topic.leave(subscription, consumer)
    assert read_the_log(bench) == [2, 3, 4, 5, 0]
    subscription, consumer = bench.read()
    assert bench.received(subscription) == [4, 5], "back to the view"
    bench.ack(subscription, 4, 5)
    bench.topic.leave(subscription, consumer)
    assert read_the_log(bench) == [0], "the tombstone behind the last retained message"


def test_the_log_is_kept_for_a_plain_consumer_that_may_follow(bench: Compacted) -> None:
    bench.topic.policies = lambda: Policies(retention_ms=0, retention_bytes=0)
    subscription, consumer = bench.read()
    bench.received(subscription)
    bench.put("z")
    bench.compact()
    bench.maintain()
    bench.topic.leave(subscription, consumer)
    bench.maintain()
    assert read_the_log(bench) == [0, 1, 2, 3, 4, 5, 0]
