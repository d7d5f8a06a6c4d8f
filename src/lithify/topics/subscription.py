"""Who gets which entry: the dispatch of one subscription.

Pure: it is told what consumers do, says which entries it wants to read, is handed them, and answers
with deliveries. Reading, sending and remembering acknowledgements durably are the topic's.

1. `wants()` says what to read next: entries to be delivered again, or the log from a position.
2. `offer(entries)` divides them among the consumers that have permits and returns deliveries.
   Permits count messages; a batch is one entry of several messages and may overdraw them.
3. `acknowledged(position)` forgets who holds an entry; the cursor, kept by the topic, remembers.

Types
    exclusive   one consumer; entries in order
    failover    one active consumer, the first by priority and name; the others wait
    shared      each entry to the next consumer with permits, in turn, higher priority first
    key_shared  as shared, but all entries of a key slot go to one consumer, in order: an entry waits
                while an earlier one of its slot waits or is held by another consumer

Entries that wait (no permits for their slot, not due yet, to be delivered again) are kept as
positions only, `waiting_max` at most; beyond that the log is not read on.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.topics.hashing import HASH_SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lithify.log.frame import Entry
    from lithify.topics.cursor import Cursor

__all__ = [
    "Consumer",
    "ConsumerRefused",
    "Delivery",
    "Subscription",
    "SubscriptionType",
    "Wanted",
]

WAITING_MAX = 10_000
UNACKED_MESSAGES_MAX = 50_000


class SubscriptionType(IntEnum):
    """By the numbers of the protocol."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def single(self) -> bool:
        """Does one consumer get everything?"""
        return self in {SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER}


class ConsumerRefused(InvalidInput):
    """A consumer cannot join; the text says why."""


@dataclass(slots=True)
class Held:
    """An entry that a consumer has and has not acknowledged."""

    messages: int
    slot: int


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer of a subscription."""

    name: str
    priority: int = 0
    slots: Sequence[tuple[int, int]] = ()
    """Sticky key_shared: inclusive ranges of slots; empty means that they are dealt out."""
    permits: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    unacked_messages: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0

    @property
    def ready(self) -> bool:
        """May it get another entry?"""
        return self.permits > 0 and self.unacked_messages < UNACKED_MESSAGES_MAX


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read: exactly these positions, or the log from `start` on."""

    positions: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """An entry on its way to a consumer."""

    consumer: Consumer
    entry: Entry
    redeliveries: int
    remaining: int | None
    """Bits of the batch that are still to be delivered; None means all."""


class Subscription:
    """The dispatch of one subscription; one thread at a time."""

    def __init__(
        self,
        name: str,
        kind: SubscriptionType,
        cursor: Cursor,
        *,
        slot_of: Callable[[Entry], int],
        due_ms_of: Callable[[Entry], int],
    ) -> None:
        self.name = name
        self.kind = kind
        self.cursor = cursor
        self.consumers: list[Consumer] = []
        self.active: Consumer | None = None
        self.read_position = cursor.mark_delete + 1
        self.sticky = False
        self._slot_of = slot_of
        self._due_ms_of = due_ms_of
        self._again: list[int] = []
        self._again_slot: dict[int, int] = {}
        self._delayed: list[tuple[int, int]] = []
        self._redeliveries: dict[int, int] = {}
        self._holder: dict[int, tuple[Consumer, int]] = {}
        self._turn = 0

    # --- consumers --------------------------------------------------------------------------

    def add(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Let a consumer join, or raise `ConsumerRefused`."""
        if self.consumers and kind is not self.kind:
            raise ConsumerRefused(
                f"subscription {self.name} is {self.kind.name.lower()}, not {kind.name.lower()}"
            )
        if kind is SubscriptionType.EXCLUSIVE and self.consumers:
            raise ConsumerRefused(
                f"subscription {self.name} is exclusive and has consumer {self.consumers[0].name}"
            )
        if kind is SubscriptionType.KEY_SHARED:
            self._check_slots(consumer)
        if not self.consumers:
            self.kind = kind
            self.sticky = bool(consumer.slots)
        self.consumers.append(consumer)
        if self.kind.single:
            self._choose_active()

    def _check_slots(self, consumer: Consumer) -> None:
        if self.consumers and self.sticky is not bool(consumer.slots):
            raise ConsumerRefused(
                f"subscription {self.name} must have all consumers sticky or none of them"
            )
        for low, high in consumer.slots:
            if not 0 <= low <= high < HASH_SLOTS:
                raise ConsumerRefused(f"hash range {low}…{high} is not within 0…{HASH_SLOTS - 1}")
            for other in self.consumers:
                if any(low <= end and start <= high for start, end in other.slots):
                    raise ConsumerRefused(
                        f"hash range {low}…{high} overlaps one of consumer {other.name}"
                    )

    def remove(self, consumer: Consumer) -> None:
        """A consumer left; what it held is delivered again."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        held = list(consumer.held)
        for position in held:
            self.acknowledged(position, consumer)
        if not self.kind.single:
            self._put_back(held)
        elif consumer is self.active:
            self._choose_active()

    def _choose_active(self) -> None:
        chosen = min(self.consumers, key=lambda c: (c.priority, c.name), default=None)
        if chosen is not self.active:
            if self.active is not None:
                self._release_all(self.active)
            self.active = chosen
            self.rewind()

    def rewind(self) -> None:
        """Begin again behind what is acknowledged."""
        self.read_position = self.cursor.mark_delete + 1

    def _release_all(self, consumer: Consumer) -> None:
        for position in list(consumer.held):
            self.acknowledged(position, consumer)

    # --- reading ----------------------------------------------------------------------------

    def wants(self, now_ms: int) -> Wanted | None:
        """What to read next; None while nobody could take it."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            insort(self._again, heapq.heappop(self._delayed)[1])
        if self.kind.single:
            ready = self.active is not None and self.active.ready
            return Wanted((), self.read_position) if ready else None
        if not any(consumer.ready for consumer in self.consumers):
            return None
        due = tuple(p for p in self._again[:1000] if self._may_go(p))
        if due:
            return Wanted(due, 0)
        if len(self._again) + len(self._delayed) >= WAITING_MAX:
            return None
        return Wanted((), self.read_position)

    @property
    def due_ms(self) -> int | None:
        """When the next delayed entry is due, None if there is none."""
        return self._delayed[0][0] if self._delayed else None

    def _may_go(self, position: int) -> bool:
        """Could a waiting entry be delivered now, as far as is known without reading it?"""
        slot = self._again_slot.get(position)
        if slot is None:
            return True
        consumer = self._consumer_of(slot)
        return consumer is not None and consumer.ready and self._free_for(slot, consumer)

    def offer(
        self, entries: Iterable[Entry], now_ms: int, *, wanted: Wanted
    ) -> list[Delivery]:
        """Divide what was read; the first entry that nobody can take ends it."""
        deliveries: list[Delivery] = []
        again = bool(wanted.positions)
        blocked = set(self._again_slot.values()) if not again else set()
        for entry in entries:
            position = entry.position
            if self.cursor.is_acked(position):
                self._forget_waiting(position)
                self._pass(position, again=again)
                continue
            if self.kind.single:
                consumer = self.active if self.active and self.active.ready else None
                slot = -1
            else:
                if not again and self._is_delayed(entry, now_ms):
                    self._pass(position, again=False)
                    continue
                slot, consumer = self._choose(entry, blocked)
                if consumer is None and slot >= 0:
                    # Its slot's consumer cannot take it: others may go on without it.
                    blocked.add(slot)
                    self._wait(position, slot)
                    self._pass(position, again=again)
                    if len(self._again) >= WAITING_MAX:
                        break
                    continue
            if consumer is None:
                break
            deliveries.append(self._deliver(consumer, entry, slot))
            self._forget_waiting(position)
            self._pass(position, again=again)
        return deliveries

    def _pass(self, position: int, *, again: bool) -> None:
        if not again:
            self.read_position = position + 1

    def _is_delayed(self, entry: Entry, now_ms: int) -> bool:
        due_ms = self._due_ms_of(entry)
        if self.kind is not SubscriptionType.SHARED or due_ms <= now_ms:
            return False
        heapq.heappush(self._delayed, (due_ms, entry.position))
        return True

    def _choose(self, entry: Entry, blocked: set[int]) -> tuple[int, Consumer | None]:
        if self.kind is not SubscriptionType.KEY_SHARED:
            return -1, self._next_in_turn()
        slot = self._slot_of(entry)
        consumer = self._consumer_of(slot)
        if slot in blocked or consumer is None or not consumer.ready:
            return slot, None
        return slot, consumer if self._free_for(slot, consumer) else None

    def _free_for(self, slot: int, consumer: Consumer) -> bool:
        holder = self._holder.get(slot)
        return holder is None or holder[0] is consumer

    def _next_in_turn(self) -> Consumer | None:
        ready = [consumer for consumer in self.consumers if consumer.ready]
        if not ready:
            return None
        best = min(consumer.priority for consumer in ready)
        ready = [consumer for consumer in ready if consumer.priority == best]
        self._turn += 1
        return ready[self._turn % len(ready)]

    def _consumer_of(self, slot: int) -> Consumer | None:
        if self.sticky:
            for consumer in self.consumers:
                if any(low <= slot <= high for low, high in consumer.slots):
                    return consumer
            return None
        count = len(self.consumers)
        return self.consumers[slot * count // HASH_SLOTS] if count else None

    def _deliver(self, consumer: Consumer, entry: Entry, slot: int) -> Delivery:
        position, messages = entry.position, max(1, entry.tag)
        remaining = self.cursor.remaining_of(position)
        consumer.permits -= messages
        consumer.delivered_messages += messages
        consumer.delivered_bytes += len(entry.body)
        if position not in consumer.held:
            consumer.held[position] = Held(messages, slot)
            consumer.unacked_messages += messages
            if slot >= 0:
                _, count = self._holder.get(slot, (consumer, 0))
                self._holder[slot] = consumer, count + 1
        return Delivery(consumer, entry, self._redeliveries.get(position, 0), remaining)

    # --- after delivery ---------------------------------------------------------------------

    def acknowledged(self, position: int, consumer: Consumer | None = None) -> None:
        """An entry is fully acknowledged, or taken away from its holder."""
        holders = self.consumers if consumer is None else (consumer,)
        for each in holders:
            held = each.held.pop(position, None)
            if held is None:
                continue
            each.unacked_messages -= held.messages
            if held.slot >= 0:
                holder, count = self._holder[held.slot]
                if count == 1:
                    del self._holder[held.slot]
                else:
                    self._holder[held.slot] = holder, count - 1
        if self.cursor.is_acked(position):
            self._redeliveries.pop(position, None)

    def acknowledged_up_to(self, position: int) -> None:
        """Everything up to `position` is acknowledged."""
        for consumer in self.consumers:
            for each in [p for p in consumer.held if p <= position]:
                self.acknowledged(each, consumer)

    def redeliver(self, consumer: Consumer, positions: Sequence[int] | None) -> None:
        """A consumer wants entries again: those given, or all it holds."""
        if self.kind.single:
            if consumer is self.active:
                self._release_all(consumer)
                self.rewind()
            return
        wanted = list(consumer.held) if positions is None else positions
        again = [position for position in wanted if position in consumer.held]
        for position in again:
            self.acknowledged(position, consumer)
            self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
        self._put_back(again)

    def reset(self) -> None:
        """The cursor was moved: forget everything and begin behind it."""
        for consumer in list(self.consumers):
            self._release_all(consumer)
        self._again.clear()
        self._again_slot.clear()
        self._delayed.clear()
        self._redeliveries.clear()
        self._holder.clear()
        self.rewind()

    def _put_back(self, positions: Iterable[int]) -> None:
        for position in positions:
            if not self.cursor.is_acked(position):
                self._wait(position, None)

    def _wait(self, position: int, slot: int | None) -> None:
        if position not in self._again:
            insort(self._again, position)
        if slot is not None:
            self._again_slot[position] = slot

    def _forget_waiting(self, position: int) -> None:
        if self._again and position in self._again:
            self._again.remove(position)
        self._again_slot.pop(position, None)
