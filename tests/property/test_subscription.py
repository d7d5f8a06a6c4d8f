"""A subscription against a naive model that knows every entry and who has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lithify.log.segments.frame import LogEntry
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.cursor_changes import AckedBatch, AckedUpTo
from lithify.topics.subscriptions.key_shared_hash import HASH_SLOTS
from lithify.topics.subscriptions.subscription import Consumer, Subscription, SubscriptionType

if TYPE_CHECKING:
    from lithify.topics.subscriptions.subscription import Delivery

BATCH_MAX = 4
WAITING_MAX = 6
SLOTS = tuple(HASH_SLOTS * part // 5 for part in range(5))


class Dispatching(RuleBasedStateMachine):
    """Appends, joins, leaves, acknowledgements, redeliveries, seeks, retention, time."""

    kind: SubscriptionType

    @initialize(partition=st.sampled_from([-1, 0, 1]))
    def begin(self, partition: int) -> None:
        self.entries: dict[int, LogEntry] = {}
        self.slots: dict[int, int] = {}
        self.due: dict[int, int] = {}
        self.next_position = 0
        self.now_ms = 0
        self.names = 0
        self.held: dict[int, Consumer] = {}
        """By the model: who was given what and has neither acknowledged nor lost it."""
        self.last_single = -1
        self.subscription = Subscription(
            "s",
            self.kind,
            Cursor(-1),
            slot_of=lambda entry: self.slots[entry.position],
            due_ms_of=lambda entry: self.due.get(entry.position, 0),
            partition=partition,
            waiting_max=WAITING_MAX,
        )
        for permits in (3, 5):
            self.join(0, permits)

    # --- what the topic does ----------------------------------------------------------------

    def dispatch(self) -> list[Delivery]:
        """As the topic does it, but on a dictionary."""
        subscription, before = self.subscription, None
        while (wanted := subscription.wants(self.now_ms)) is not None and wanted != before:
            if wanted.positions:
                found = [self.entries[p] for p in wanted.positions if p in self.entries]
                through = wanted.positions[-1]
            else:
                later = sorted(p for p in self.entries if p >= wanted.start)
                if not later:
                    return []
                found = [self.entries[p] for p in later[: wanted.messages]]
                through = found[-1].position
            deliveries = subscription.offer(found, self.now_ms, wanted=wanted, through=through)
            if deliveries:
                return deliveries
            before = wanted
        return []

    def acknowledge(self, change: AckedBatch | AckedUpTo) -> None:
        change.apply(self.subscription.cursor)
        if isinstance(change, AckedUpTo):
            self.subscription.acknowledged_up_to(change.position)
        else:
            self.subscription.acknowledged(change.position)
        cursor = self.subscription.cursor
        self.held = {p: c for p, c in self.held.items() if not cursor.is_acked(p)}

    def unacked(self) -> list[int]:
        cursor = self.subscription.cursor
        return [position for position in self.entries if not cursor.is_acked(position)]

    # --- rules ------------------------------------------------------------------------------

    @rule(
        slots=st.lists(st.sampled_from(SLOTS), min_size=1, max_size=6),
        messages=st.integers(1, BATCH_MAX),
        delay_ms=st.sampled_from([0, 0, 0, 5]),
        gap=st.sampled_from([0, 0, 0, 2]),
    )
    def append(self, slots: list[int], messages: int, delay_ms: int, gap: int) -> None:
        self.next_position += gap
        for slot in slots:
            self.append_one(slot, messages, delay_ms)

    def append_one(self, slot: int, messages: int, delay_ms: int) -> None:
        position = self.next_position
        self.next_position = position + 1
        self.entries[position] = LogEntry(position, self.now_ms, b"x", tag=messages)
        self.slots[position] = slot
        if delay_ms:
            self.due[position] = self.now_ms + delay_ms

    @rule(priority=st.integers(0, 1), permits=st.integers(0, 5))
    def join(self, priority: int, permits: int) -> None:
        subscription = self.subscription
        if self.kind is SubscriptionType.EXCLUSIVE and subscription.consumers:
            return
        if len(subscription.consumers) >= 4:
            return
        self.names += 1
        active = subscription.active
        subscription.add(Consumer(f"c{self.names}", priority, permits=permits), self.kind)
        if subscription.active is not active:
            self.last_single = -1

    @precondition(lambda self: self.subscription.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.subscription.consumers)))
        active = self.subscription.active
        self.subscription.remove(consumer)
        self.held = {p: c for p, c in self.held.items() if c is not consumer}
        if self.subscription.active is not active:
            self.last_single = -1

    @precondition(lambda self: self.subscription.consumers)
    @rule(data=st.data(), permits=st.integers(1, 6))
    def flow(self, data: st.DataObject, permits: int) -> None:
        data.draw(st.sampled_from(list(self.subscription.consumers))).permits += permits

    @precondition(lambda self: self.held)
    @rule(data=st.data(), bits=st.integers(0, 2**BATCH_MAX - 1))
    def ack(self, data: st.DataObject, bits: int) -> None:
        position = data.draw(st.sampled_from(sorted(self.held)))
        size = self.entries[position].tag if position in self.entries else 1
        self.acknowledge(AckedBatch(position, bits & (1 << size) - 1, size))

    @precondition(lambda self: self.kind.single)
    @rule(data=st.data())
    def ack_up_to(self, data: st.DataObject) -> None:
        self.acknowledge(AckedUpTo(data.draw(st.integers(-1, self.next_position - 1))))

    @precondition(lambda self: self.subscription.consumers)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: st.DataObject, everything: bool) -> None:
        consumer = data.draw(st.sampled_from(list(self.subscription.consumers)))
        mine = sorted(p for p, c in self.held.items() if c is consumer)
        some = None if everything or not mine else data.draw(st.lists(st.sampled_from(mine)))
        self.subscription.redeliver(consumer, some)
        if self.kind.single:
            if consumer is self.subscription.active:
                self.last_single = -1
            return
        for position in mine if some is None else some:
            self.held.pop(position, None)

    @precondition(lambda self: self.next_position > 8)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, self.next_position))
        self.subscription.cursor.reset(position)
        self.subscription.reset()
        self.held.clear()
        self.last_single = -1

    @precondition(lambda self: self.next_position > 4)
    @rule(data=st.data())
    def retention_drops(self, data: st.DataObject) -> None:
        before = data.draw(st.integers(0, self.next_position // 2))
        self.entries = {p: e for p, e in self.entries.items() if p >= before}

    @rule()
    def time_passes(self) -> None:
        self.now_ms += 3

    @invariant()
    def deliver(self) -> None:
        """The broker does it after whatever happened."""
        while deliveries := self.dispatch():
            for delivery in deliveries:
                self.check(delivery)

    def check(self, delivery: Delivery) -> None:
        position, consumer = delivery.entry.position, delivery.consumer
        cursor = self.subscription.cursor
        assert not cursor.is_acked(position)
        assert delivery.remaining == cursor.remaining_of(position)
        assert consumer in self.subscription.consumers
        if self.kind.single:
            assert consumer is self.subscription.active
            assert position > self.last_single
            skipped = range(max(self.last_single, cursor.mark_delete) + 1, position)
            assert not any(p in self.entries and not cursor.is_acked(p) for p in skipped)
            self.last_single = position
        else:
            assert position not in self.held
        self.held[position] = consumer
        if self.kind is SubscriptionType.SHARED:
            assert self.due.get(position, 0) <= self.now_ms
        if self.kind is SubscriptionType.KEY_SHARED:
            for other in self.unacked():
                if other < position and self.slots[other] == self.slots[position]:
                    assert self.held.get(other) is consumer, "an earlier one of the key waits"

    # --- what always holds ------------------------------------------------------------------

    @invariant()
    def permits_are_overdrawn_by_one_batch_at_most(self) -> None:
        for consumer in self.subscription.consumers:
            assert consumer.permits > -BATCH_MAX

    @invariant()
    def unacked_messages_are_those_held(self) -> None:
        if self.kind.single:
            return
        cursor = self.subscription.cursor
        for consumer in self.subscription.consumers:
            mine = {p for p, c in self.held.items() if c is consumer}
            assert mine == set(consumer.held)
            for position in mine & set(self.entries):
                remaining = cursor.remaining_of(position)
                size = self.entries[position].tag
                count = size if remaining is None else remaining.bit_count()
                assert consumer.held[position].messages == count
            counted = sum(held.messages for held in consumer.held.values())
            assert consumer.unacked_messages == counted

    def teardown(self) -> None:
        """With permits and acknowledgements, everything is delivered in the end."""
        if not hasattr(self, "subscription"):
            return
        if not self.subscription.consumers:
            self.join(0, 0)
        self.now_ms += 1000
        for _ in range(4 * len(self.entries) + 8):
            for consumer in self.subscription.consumers:
                consumer.permits = 5
            self.deliver()
            for position in list(self.held):
                size = self.entries[position].tag if position in self.entries else 1
                self.acknowledge(AckedBatch(position, 0, size))
            if self.kind.single and self.subscription.active is not None:
                # What it was given before may have been forgotten by a seek.
                self.subscription.redeliver(self.subscription.active, None)
                self.last_single = -1
        assert not self.unacked()


class Exclusive(Dispatching):
    kind = SubscriptionType.EXCLUSIVE


class Failover(Dispatching):
    kind = SubscriptionType.FAILOVER


class Shared(Dispatching):
    kind = SubscriptionType.SHARED


class KeyShared(Dispatching):
    kind = SubscriptionType.KEY_SHARED


_SETTINGS = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestExclusive = Exclusive.TestCase
TestExclusive.settings = _SETTINGS
TestFailover = Failover.TestCase
TestFailover.settings = _SETTINGS
TestShared = Shared.TestCase
TestShared.settings = _SETTINGS
TestKeyShared = KeyShared.TestCase
TestKeyShared.settings = _SETTINGS
