"""Who gets which entry: the dispatch of one subscription.

Pure: it is told what consumers do, says which entries it wants to read, is handed them, and answers
with deliveries. Reading, sending and remembering acknowledgements durably are the topic's.

1. `wants()` says what to read next: entries that wait, or the log from a position, and how many
   messages can be taken.
2. `offer(entries)` divides them among the consumers that have permits and returns deliveries.
   Permits count messages; a batch is one entry of several messages and may overdraw them.
3. `acknowledged(position)` is told after the cursor has taken an acknowledgement.

Types
    exclusive   one consumer; entries in order
    failover    one active consumer, the others wait: the first that joined, of those of the best
                priority; the partitions of a topic are spread over those, by name
    shared      each entry to the next consumer with permits, in turn, best priority first
    key_shared  as shared, but all entries of a key slot go to one consumer, in order: an entry
                waits while an earlier one of its slot waits or is held by another consumer

What an exclusive or failover consumer holds is not remembered: it begins again behind mark-delete.
The others' entries that wait (their consumer takes none, not due yet, to be delivered again) are
kept as positions only. `WAITING_MAX` of them, or `DELAYED_MAX` that are not due, keep the log from
being read on. When the last consumer leaves, all that is forgotten and read again later.

Exclusive and failover subscriptions may be **compacted**: entries then come as they are retained,
and of a batch only some messages may be. Such a batch gets a form that its consumer can read, and
permits are charged as the client counts them (`compacted_batch.py`). Of a masked batch not every
client can acknowledge what it got. So if a later entry is acknowledged and a masked batch is still
whole, or if it is to be delivered again, it comes packed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.positions import POSITION_MAX
from lithify.topics.messages.message import FLAG_SHRUNK
from lithify.topics.subscriptions.compacted_batch import BatchForm, to_wire
from lithify.topics.subscriptions.consumer import (
    UNACKED_MESSAGES_MAX,
    Consumer,
    ConsumerRefused,
    SubscriptionType,
    UnacknowledgedEntry,
)
from lithify.topics.subscriptions.entry_flags import is_spent, message_count
from lithify.topics.subscriptions.key_shared_slots import KeySharedSlots
from lithify.topics.subscriptions.masked_batches import MaskedBatches
from lithify.topics.subscriptions.undelivered import Undelivered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.log.segments.frame import LogEntry
    from lithify.topics.subscriptions.compacted_batch import WireBatch
    from lithify.topics.subscriptions.consumer import ReadFailure
    from lithify.topics.subscriptions.cursor import Cursor

__all__ = [
    "UNACKED_MESSAGES_MAX",
    "Consumer",
    "ConsumerRefused",
    "Delivery",
    "DispatchRead",
    "Subscription",
    "SubscriptionType",
]

WAITING_MAX = 10_000
DELAYED_MAX = 100_000
AGAIN_MAX = 200
"""Waiting entries that are asked for at once."""

RETURNED_A_STEP = 1_000
"""Entries of a consumer that left, or asked for all of them again, that wait anew in one step."""

_NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class DispatchRead:
    """What to read: exactly these positions, ascending, or the log from `start` on."""

    positions: tuple[int, ...]
    start: int
    messages: int
    """That the consumers can take; more than that need not be read."""

    @property
    def first(self) -> int:
        """Where reading begins."""
        return self.positions[0] if self.positions else self.start


@dataclass(frozen=True, slots=True)
class Delivery:
    """An entry on its way to a consumer."""

    consumer: Consumer
    entry: LogEntry
    redeliveries: int
    remaining: int | None
    """Bits of the batch that are still to be delivered; None means all."""
    wire: WireBatch | None = None
    """What to send, where that is not the entry itself."""

    @property
    def as_stored(self) -> bool:
        """Is it sent for the first time, and all of it as it is in the log?"""
        return self.wire is None and self.remaining is None and not self.redeliveries


class Subscription:
    """The dispatch of one subscription; one thread at a time."""

    def __init__(
        self,
        name: str,
        kind: SubscriptionType,
        cursor: Cursor,
        *,
        slot_of: Callable[[LogEntry], int],
        due_ms_of: Callable[[LogEntry], int],
        partition: int = -1,
        durable: bool = True,
        compacted: bool = False,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self.name = name
        self.kind = kind
        self.acked = cursor
        """What was acknowledged."""
        self.cursor = cursor.copy() if compacted else cursor
        """What need not be delivered: for a compacted subscription also what is not retained."""
        self.durable = durable
        self.compacted = compacted
        self.consumers: dict[Consumer, int] = {}
        """In the order in which they joined, each with its number in that order."""
        self.active: Consumer | None = None
        self.read_position = cursor.mark_delete + 1
        self.gaps_taken: tuple[int, ...] = ()
        """State in which the cursor has moved over all that is not retained; the topic's."""
        self.read_failure: ReadFailure | None = None
        """Why it cannot go on reading; until something was delivered or the cursor was moved."""
        self.delivered_messages = 0
        self.delivered_bytes = 0
        self._slot_of = slot_of
        self._due_ms_of = due_ms_of
        self._partition = partition
        self._waiting_max = waiting_max
        self._slots: KeySharedSlots[Consumer] = KeySharedSlots()
        self._waiting = Undelivered(self._slots.owner)
        self._delayed: list[tuple[int, int]] = []
        self._redeliveries: dict[int, int] = {}
        self._masked = MaskedBatches()
        self._holders: dict[int, Consumer] = {}
        self._held_in_slot: dict[int, tuple[Consumer, int]] = {}
        self._joined = 0
        self._ranking: list[Consumer] = []
        """Consumers by priority, then in the order in which they are chosen."""
        self._turns: list[deque[Consumer]] = []
        """Shared, while entries are divided: those who may get one, by priority."""
        self._last_rank = (0, "", 0)
        """Of the consumer that got the last entry."""
        self._returning: deque[tuple[Consumer, list[int]]] = deque()
        """Entries that are still held, and are to wait for delivery."""

    # --- consumers --------------------------------------------------------------------------

    def add(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Let a consumer join, or raise `ConsumerRefused`."""
        if self.consumers and kind is not self.kind:
            raise ConsumerRefused(
                f"subscription {self.name} is {self.kind.name.lower()}, not {kind.name.lower()}"
            )
        if kind is SubscriptionType.EXCLUSIVE and self.consumers:
            raise ConsumerRefused(
                f"subscription {self.name} is exclusive and has consumer {self._ranking[0].name}"
            )
        if self.consumers and self.compacted is not (consumer.through is not None):
            reads = "compacted" if self.compacted else "the log"
            raise ConsumerRefused(f"subscription {self.name} reads {reads} for its consumers")
        if kind is SubscriptionType.KEY_SHARED:
            try:
                self._slots.add(consumer, consumer.slots)
            except InvalidInput as error:
                raise ConsumerRefused(f"subscription {self.name}: {error}") from error
        self.kind = kind
        if not self.consumers:
            self._read(compacted=consumer.through is not None)
        self._joined += 1
        self.consumers[consumer] = self._joined
        insort(self._ranking, consumer, key=self._rank)
        self._consumers_changed()

    def _read(self, *, compacted: bool) -> None:
        """The first consumer decides how the subscription is read, and from which cursor."""
        self.compacted = compacted
        self.cursor = self.acked.copy() if compacted else self.acked
        self.gaps_taken = ()

    def remove(self, consumer: Consumer) -> None:
        """A consumer left; what it held is delivered again."""
        if consumer not in self.consumers:
            return
        del self._ranking[bisect_left(self._ranking, self._rank(consumer), key=self._rank)]
        del self.consumers[consumer]
        if self.kind is SubscriptionType.KEY_SHARED:
            self._slots.remove(consumer)
        self._consumers_changed()
        if self.consumers:
            self._put_back(consumer, list(consumer.held))
        else:
            self.reset()

    def _consumers_changed(self) -> None:
        self._waiting.regroup()
        chosen = self._chosen() if self.kind.single else None
        if chosen is not self.active:
            self.active = chosen
            self.rewind()

    def _rank(self, consumer: Consumer) -> tuple[int, str, int]:
        name = consumer.name if self._partition >= 0 else ""
        return consumer.priority, name, self.consumers[consumer]

    def _chosen(self) -> Consumer | None:
        ranking = self._ranking
        if not ranking:
            return None
        best = bisect_right(ranking, ranking[0].priority, key=lambda each: each.priority)
        return ranking[max(self._partition, 0) % best]

    @property
    def through(self) -> int:
        """Compacted: the horizon that the active consumer found; any, while there is none."""
        active = self.active
        return POSITION_MAX if active is None or active.through is None else active.through

    def rewind(self) -> None:
        """Begin again behind what is acknowledged."""
        self._masked.redeliver_all()
        self.read_position = self.cursor.mark_delete + 1

    # --- reading ----------------------------------------------------------------------------

    def wants(self, now_ms: int) -> DispatchRead | None:
        """What to read next; None while nobody could take it."""
        self._return_some()
        while self._delayed and self._delayed[0][0] <= now_ms:
            self._waiting.add(heapq.heappop(self._delayed)[1], _NO_SLOT)
        takers = [self.active] if self.kind.single else self._ranking
        ready = [consumer for consumer in takers if consumer is not None and consumer.ready]
        if not ready:
            return None
        messages = sum(consumer.permits for consumer in ready)
        positions = self._deliverable(ready, min(messages, AGAIN_MAX))
        if positions:
            return DispatchRead(tuple(positions), 0, messages)
        if len(self._waiting) >= self._waiting_max or len(self._delayed) >= DELAYED_MAX:
            return None
        return DispatchRead((), self.cursor.first_unacked_from(self.read_position), messages)

    @property
    def unfinished(self) -> bool:
        """Is there more to do, though nothing was delivered?"""
        return bool(self._returning)

    @property
    def due_ms(self) -> int | None:
        """When the next delayed entry is due, None if there is none."""
        return self._delayed[0][0] if self._delayed else None

    def _deliverable(self, ready: Sequence[Consumer], limit: int) -> list[int]:
        """Waiting entries that can go now."""
        if self.kind is not SubscriptionType.KEY_SHARED:
            return self._waiting.first(_NO_SLOT, limit)
        found: list[int] = []
        for consumer in ready:
            stop = min(limit, len(found) + consumer.permits)
            for slot in self._waiting.slots_of(consumer):
                if len(found) >= stop:
                    break
                if self._free_for(slot, consumer):
                    found += self._waiting.first(slot, stop - len(found))
        return sorted(found)

    def offer(
        self, entries: Sequence[LogEntry], now_ms: int, *, wanted: DispatchRead, through: int
    ) -> list[Delivery]:
        """Divide what was read; the first entry that nobody can take ends it.

        What was wanted up to position `through` was looked for: what is not among the entries does
        not exist.
        """
        deliveries: list[Delivery] = []
        again = bool(wanted.positions)
        if again:
            there = {entry.position for entry in entries}
            for position in wanted.positions:
                if position <= through and position not in there:
                    self._forget(position)
        self._begin_turns()
        for entry in entries:
            position = entry.position
            if self.cursor.is_acked(position) or self._is_spent(entry):
                self._forget(position)
            elif again or not self._put_off(entry, now_ms):
                slot = self._slot(entry)
                consumer = self._taker(slot, position)
                if consumer is not None:
                    self._waiting.discard(position)
                    deliveries.append(self._deliver(consumer, entry, slot))
                elif slot == _NO_SLOT:
                    return deliveries
                else:
                    # Its slot's consumer cannot take it: others go on without it.
                    self._waiting.add(position, slot)
            if not again:
                self.read_position = position + 1
                if len(self._waiting) >= self._waiting_max:
                    return deliveries
        if not again:
            self.read_position = max(self.read_position, through + 1)
        return deliveries

    def _is_spent(self, entry: LogEntry) -> bool:
        # Gaps are taken only behind mark-delete, so it may be among those that come.
        return self.compacted and is_spent(entry, self.cursor.remaining_of(entry.position))

    def _put_off(self, entry: LogEntry, now_ms: int) -> bool:
        if self.kind is not SubscriptionType.SHARED:
            return False
        due_ms = self._due_ms_of(entry)
        if due_ms <= now_ms:
            return False
        heapq.heappush(self._delayed, (due_ms, entry.position))
        return True

    def _slot(self, entry: LogEntry) -> int:
        if self.kind is not SubscriptionType.KEY_SHARED:
            return _NO_SLOT
        slot = self._waiting.slot_of(entry.position)
        return self._slot_of(entry) if slot is None else slot

    def _taker(self, slot: int, position: int) -> Consumer | None:
        if self.kind.single:
            return self.active if self.active is not None and self.active.ready else None
        if slot == _NO_SLOT:
            return self._next_in_turn()
        consumer = self._slots.owner(slot)
        if consumer is None or not consumer.ready or not self._free_for(slot, consumer):
            return None
        lowest = self._waiting.lowest(slot)
        return consumer if lowest is None or lowest >= position else None

    def _free_for(self, slot: int, consumer: Consumer) -> bool:
        holder = self._held_in_slot.get(slot)
        return holder is None or holder[0] is consumer

    def _begin_turns(self) -> None:
        """Shared: note who may get an entry, from the one behind the last that got one."""
        if self.kind is not SubscriptionType.SHARED:
            return
        ready = [consumer for consumer in self._ranking if consumer.ready]
        self._turns = []
        for _, group in groupby(ready, lambda consumer: consumer.priority):
            level = list(group)
            at = bisect_right(level, self._last_rank, key=self._rank)
            self._turns.append(deque(level[at:] + level[:at]))

    def _next_in_turn(self) -> Consumer | None:
        for level in self._turns:
            while level:
                consumer = level.popleft()
                if consumer.ready:
                    level.append(consumer)
                    self._last_rank = self._rank(consumer)
                    return consumer
        return None

    def _deliver(self, consumer: Consumer, entry: LogEntry, slot: int) -> Delivery:
        position = entry.position
        remaining = self.cursor.remaining_of(position)
        messages = message_count(entry) if remaining is None else remaining.bit_count()
        permits, wire = messages, None
        if entry.live is not None or entry.flags & FLAG_SHRUNK:
            wire = to_wire(entry, remaining, self._form(position, remaining))
            if self.durable and wire.ack_set is not None and remaining is None:
                self._masked.add(position)
            messages = wire.left_of(-1).bit_count()
            permits = messages if consumer.client.skips_masked else wire.messages
        consumer.permits -= permits
        consumer.delivered_messages += messages
        consumer.delivered_bytes += len(entry.body)
        self.delivered_messages += messages
        self.delivered_bytes += len(entry.body)
        if not self.kind.single:
            consumer.held[position] = UnacknowledgedEntry(messages, slot)
            consumer.unacked_messages += messages
            self._holders[position] = consumer
            if slot != _NO_SLOT:
                _, count = self._held_in_slot.get(slot, (consumer, 0))
                self._held_in_slot[slot] = consumer, count + 1
        return Delivery(consumer, entry, self._redeliveries.get(position, 0), remaining, wire)

    def _form(self, position: int, remaining: int | None) -> BatchForm:
        if not self.durable:
            return BatchForm.STORED
        packed = remaining is None and self._masked.is_sent_packed(position)
        return BatchForm.PACKED if packed else BatchForm.SLOTS

    # --- after delivery ---------------------------------------------------------------------

    def acknowledged(self, position: int) -> None:
        """The cursor has taken an acknowledgement of an entry or of messages in it."""
        self._masked.acknowledge(position)
        if self.cursor.is_acked(position):
            for earlier in self._masked.take_passed_over(position):
                self._waiting.add(earlier, _NO_SLOT)
            self._release(position)
            self._forget(position)
            return
        holder = self._holders.get(position)
        remaining = self.cursor.remaining_of(position)
        if holder is not None and remaining is not None:
            held = holder.held[position]
            holder.unacked_messages += remaining.bit_count() - held.messages
            held.messages = remaining.bit_count()

    def acknowledged_up_to(self, position: int) -> None:
        """The cursor has taken everything up to `position` as acknowledged."""
        for each in [p for p in self._holders if p <= position]:
            self._release(each)
        self._waiting.discard_up_to(position)
        self._masked.acknowledge_up_to(position)
        for each in [p for p in self._redeliveries if p <= position]:
            del self._redeliveries[each]

    def redeliver(self, consumer: Consumer, positions: Sequence[int] | None) -> None:
        """A consumer wants entries again: those given, or all it holds."""
        if self.kind.single:
            if consumer is self.active:
                self.rewind()
            return
        wanted = list(consumer.held) if positions is None else dict.fromkeys(positions)
        again = [position for position in wanted if position in consumer.held]
        counts = self._redeliveries
        counts.update({position: counts.get(position, 0) + 1 for position in again})
        self._put_back(consumer, again)

    def record_seek(self, position: int) -> None:
        """The cursor was moved to a position by a client, or for one."""
        self._masked.seek(position)
        self.reset()

    def forget_seek(self) -> None:
        """A consumer has left for good, and what it sought means nothing to the next one."""
        self._masked.forget_seek()

    def reset(self) -> None:
        """The cursor was moved or nobody is there: forget everything and begin behind it."""
        for consumer in set(self._holders.values()):
            consumer.held.clear()
            consumer.unacked_messages = 0
        self._holders.clear()
        self._held_in_slot.clear()
        self._returning.clear()
        self._waiting.clear()
        self._delayed.clear()
        self._redeliveries.clear()
        self.rewind()

    def _put_back(self, consumer: Consumer, positions: list[int]) -> None:
        """Let entries wait again. Until its step comes, one counts as held: its slot stays taken.

        A consumer may hold tens of thousands, so `wants` goes on with what is too much for a step.
        """
        if positions:
            self._returning.append((consumer, positions[::-1]))
            self._return_some()

    def _return_some(self) -> None:
        for _ in range(RETURNED_A_STEP):
            while self._returning and not self._returning[0][1]:
                self._returning.popleft()
            if not self._returning:
                return
            consumer, positions = self._returning[0]
            position = positions.pop()
            held = consumer.held.get(position)
            # It may have been acknowledged since.
            if held is not None:
                self._release(position)
                self._waiting.add(position, held.slot)

    def _release(self, position: int) -> None:
        """Nobody holds it any longer."""
        holder = self._holders.pop(position, None)
        if holder is None:
            return
        held = holder.held.pop(position)
        holder.unacked_messages -= held.messages
        if held.slot != _NO_SLOT:
            consumer, count = self._held_in_slot.pop(held.slot)
            if count > 1:
                self._held_in_slot[held.slot] = consumer, count - 1

    def _forget(self, position: int) -> None:
        """It needs no delivery any more."""
        self._waiting.discard(position)
        self._redeliveries.pop(position, None)
