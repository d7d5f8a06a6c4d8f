"""Which consumer gets which entry, by example; see also `tests/property/test_subscription.py`."""

from __future__ import annotations

import pytest

from lithify.log.segments.frame import LogEntry
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.key_shared_hash import HASH_SLOTS
from lithify.topics.subscriptions.key_shared_slots import KeySharedSlots
from lithify.topics.subscriptions.subscription import (
    UNACKED_MESSAGES_MAX,
    Consumer,
    ConsumerRefused,
    Subscription,
    SubscriptionType,
)
from lithify.topics.subscriptions.undelivered_by_key_slot import Undelivered

SHARED = SubscriptionType.SHARED
KEY_SHARED = SubscriptionType.KEY_SHARED
FAILOVER = SubscriptionType.FAILOVER
EXCLUSIVE = SubscriptionType.EXCLUSIVE
LOW, HIGH = 10, HASH_SLOTS - 10


class Bench:
    """A subscription over a log that is a list; an entry's position is its place in it."""

    def __init__(self, kind: SubscriptionType, partition: int = -1) -> None:
        self.kind = kind
        self.slots: list[int] = []
        self.sizes: list[int] = []
        self.subscription = Subscription(
            "s",
            kind,
            Cursor(-1),
            slot_of=lambda entry: self.slots[entry.position],
            due_ms_of=lambda _: 0,
            partition=partition,
        )

    def append(self, *slots: int, messages: int = 1) -> None:
        self.slots += slots
        self.sizes += [messages] * len(slots)

    def join(self, name: str, permits: int = 100, priority: int = 0, **given: object) -> Consumer:
        consumer = Consumer(name, priority, permits=permits, **given)  # type: ignore[arg-type]
        self.subscription.add(consumer, self.kind)
        return consumer

    def deliver(self) -> list[tuple[str, int]]:
        """(consumer, position) of all that can be delivered now."""
        found: list[tuple[str, int]] = []
        self.redeliveries: list[int] = []
        while (wanted := self.subscription.wants(0)) is not None:
            places = wanted.positions or range(wanted.start, len(self.slots))
            entries = [LogEntry(p, 0, b"", tag=self.sizes[p]) for p in places]
            through = entries[-1].position if entries else -1
            deliveries = self.subscription.offer(entries, 0, wanted=wanted, through=through)
            found += [(each.consumer.name, each.entry.position) for each in deliveries]
            self.redeliveries += [each.redeliveries for each in deliveries]
            if not deliveries:
                break
        return found

    def ack(self, *positions: int) -> None:
        for position in positions:
            self.subscription.cursor.ack(position)
            self.subscription.acknowledged(position)


def test_an_exclusive_subscription_takes_one_consumer() -> None:
    bench = Bench(EXCLUSIVE)
    bench.join("a")
    with pytest.raises(ConsumerRefused, match="has consumer a"):
        bench.join("b")


def test_a_consumer_of_another_type_is_refused_until_all_have_left() -> None:
    bench = Bench(SHARED)
    consumer = bench.join("a")
    with pytest.raises(ConsumerRefused, match="is shared, not failover"):
        bench.subscription.add(Consumer("b"), FAILOVER)
    bench.subscription.remove(consumer)
    bench.subscription.add(Consumer("b"), FAILOVER)


def test_permits_count_messages_and_a_batch_may_overdraw_them() -> None:
    bench = Bench(EXCLUSIVE)
    bench.append(0, 0, 0, messages=3)
    consumer = bench.join("a", permits=4)
    assert bench.deliver() == [("a", 0), ("a", 1)]
    assert consumer.permits == -2
    consumer.permits += 2
    assert bench.deliver() == []
    consumer.permits += 1
    assert bench.deliver() == [("a", 2)]


def test_an_exclusive_consumer_may_leave_any_number_unacknowledged() -> None:
    bench = Bench(EXCLUSIVE)
    bench.append(0, 0, messages=UNACKED_MESSAGES_MAX)
    bench.join("a", permits=UNACKED_MESSAGES_MAX * 2)
    assert len(bench.deliver()) == 2


def test_a_shared_consumer_that_acknowledges_nothing_gets_nothing_more() -> None:
    bench = Bench(SHARED)
    bench.append(0, 0, messages=UNACKED_MESSAGES_MAX)
    bench.join("a", permits=UNACKED_MESSAGES_MAX * 2)
    assert bench.deliver() == [("a", 0)]
    bench.ack(0)
    assert bench.deliver() == [("a", 1)]


def test_a_partly_acknowledged_batch_costs_only_what_remains() -> None:
    bench = Bench(SHARED)
    bench.append(0, messages=4)
    consumer = bench.join("a", permits=10)
    bench.deliver()
    bench.subscription.cursor.ack_batch(0, 0b0110, 4)
    bench.subscription.acknowledged(0)
    assert consumer.unacked_messages == 2
    bench.subscription.redeliver(consumer, [0])
    bench.deliver()
    assert (consumer.permits, consumer.unacked_messages) == (4, 2)


def test_a_paused_consumer_gets_nothing() -> None:
    bench = Bench(SHARED)
    bench.append(0)
    consumer = bench.join("a", paused=True)
    assert bench.deliver() == []
    consumer.paused = False
    assert bench.deliver() == [("a", 0)]


def test_shared_consumers_take_turns_and_the_best_priority_comes_first() -> None:
    bench = Bench(SHARED)
    bench.append(*[0] * 7)
    for name in ("a", "b"):
        bench.join(name, permits=2)
    bench.join("spare", priority=1)
    assert [name for name, _ in bench.deliver()] == ["a", "b", "a", "b", "spare", "spare", "spare"]


def test_redeliveries_are_counted_and_what_a_leaving_consumer_held_goes_to_others() -> None:
    bench = Bench(SHARED)
    bench.append(0, 0)
    first = bench.join("a")
    bench.deliver()
    bench.subscription.redeliver(first, [1, 1, 7])
    assert (bench.deliver(), bench.redeliveries) == ([("a", 1)], [1])
    bench.join("b")
    bench.ack(0)
    bench.subscription.remove(first)
    assert (bench.deliver(), bench.redeliveries) == ([("b", 1)], [1])


def test_an_entry_acknowledged_while_it_waits_is_not_delivered() -> None:
    bench = Bench(SHARED)
    bench.append(0, 0)
    consumer = bench.join("a", permits=2)
    bench.deliver()
    bench.subscription.redeliver(consumer, None)
    bench.ack(0)
    consumer.permits = 5
    assert bench.deliver() == [("a", 1)]


def test_failover_keeps_its_active_consumer_until_a_better_one_comes() -> None:
    bench = Bench(FAILOVER)
    bench.append(0, 0)
    bench.join("b", priority=1)
    bench.join("a", priority=1)
    assert bench.deliver() == [("b", 0), ("b", 1)]
    bench.ack(0)
    best = bench.join("c", priority=0)
    assert bench.deliver() == [("c", 1)]
    bench.subscription.remove(best)
    assert bench.deliver() == [("b", 1)]


def test_the_partitions_of_a_topic_are_spread_over_failover_consumers() -> None:
    active = []
    for partition in range(4):
        bench = Bench(FAILOVER, partition)
        bench.join("b")
        bench.join("a")
        assert bench.subscription.active is not None
        active.append(bench.subscription.active.name)
    assert active == ["a", "b", "a", "b"]


def test_a_key_stays_with_its_consumer_until_all_it_holds_is_acknowledged() -> None:
    bench = Bench(KEY_SHARED)
    bench.append(LOW, HIGH)
    bench.join("a")
    assert bench.deliver() == [("a", 0), ("a", 1)]
    bench.join("b")
    bench.append(LOW, HIGH)
    assert bench.deliver() == [("a", 3)], "the lower half is b's now, but a still holds 0"
    bench.ack(0)
    assert bench.deliver() == [("b", 2)]


def test_a_consumer_without_permits_does_not_block_the_keys_of_others() -> None:
    bench = Bench(KEY_SHARED)
    bench.join("a")
    slow = bench.join("b", permits=0)
    bench.append(LOW, HIGH, LOW, HIGH)
    assert bench.deliver() == [("a", 1), ("a", 3)]
    slow.permits = 1
    assert bench.deliver() == [("b", 0)]
    bench.append(LOW)
    slow.permits = 5
    assert bench.deliver() == [("b", 2), ("b", 4)]


def test_sticky_consumers_get_the_slots_they_request() -> None:
    bench = Bench(KEY_SHARED)
    bench.join("a", slots=[(0, 99)])
    with pytest.raises(ConsumerRefused, match="overlaps"):
        bench.join("b", slots=[(50, 200)])
    with pytest.raises(ConsumerRefused, match="sticky or none"):
        bench.join("b")
    with pytest.raises(ConsumerRefused, match="not within"):
        bench.join("b", slots=[(0, HASH_SLOTS)])
    bench.append(LOW, HIGH)
    assert bench.deliver() == [("a", 0)]
    bench.join("b", slots=[(100, HASH_SLOTS - 1)])
    assert bench.deliver() == [("b", 1)]


def test_slots_are_halved_and_handed_to_a_neighbour() -> None:
    slots: KeySharedSlots[str] = KeySharedSlots()
    for name in ("a", "b", "c"):
        slots.add(name)
    half, quarter = HASH_SLOTS // 2, HASH_SLOTS // 4
    assert slots.stretches("a") == [(half, HASH_SLOTS)]
    assert slots.stretches("b") == [(quarter, half)]
    assert slots.stretches("c") == [(0, quarter)]
    slots.remove("a")
    assert slots.stretches("b") == [(quarter, HASH_SLOTS)]
    slots.remove("c")
    assert slots.stretches("b") == [(0, HASH_SLOTS)]
    slots.remove("b")
    assert slots.owner(5) is None


def test_waiting_entries_are_ordered_by_position() -> None:
    waiting = Undelivered(lambda _: "everybody")
    for position in (5, 1, 9, 3):
        waiting.add(position, 0)
    waiting.discard(3)
    waiting.add(3, 0)
    waiting.discard(1)
    assert waiting.first(0, 2) == [3, 5]
    assert waiting.first(0, 9) == [3, 5, 9]
    waiting.discard_up_to(5)
    assert (len(waiting), waiting.lowest(0), list(waiting.slots_of("everybody"))) == (1, 9, [0])
    waiting.discard(9)
    assert (len(waiting), waiting.lowest(0), list(waiting.slots_of("everybody"))) == (0, None, [])
