"""Dispatch of one subscription: which consumer receives which entry.

Pure. The topic reads, sends, and stores acknowledgements; it reports what consumers do, reads the
entries that the subscription requests, and sends the deliveries that it returns.

1. `wants()` says what to read next: undelivered entries, or the log from a position, and how many
   messages the consumers can receive.
2. `offer(entries)` distributes them among the consumers that have permits, and returns deliveries.
   Permits count messages; a batch is one entry of several messages and may overdraw them.
3. `acknowledged(position)` follows after the cursor has recorded an acknowledgement.

Types
    exclusive   one consumer; entries in order
    failover    one active consumer, the others are standby: the first that joined among those of
                the best priority; the partitions of a topic are spread over those, by name
    shared      each entry to the next consumer with permits, round-robin, best priority first
    key_shared  as shared, but all entries of a key slot go to one consumer, in order: an entry
                waits while an earlier one of its slot waits or is held by another consumer

The entries that an exclusive or failover consumer holds are not recorded: it restarts after
mark-delete. For the other types, undelivered entries (the consumer has no permits, the entry is not
due, or it is to be redelivered) are stored as positions only (`undelivered_by_key_slot.py`,
`delayed_entries.py`, `redeliveries.py`). With `WAITING_MAX` of them, or `DELAYED_MAX` that are not
due, the subscription reads no further. When the last consumer leaves, all of this is discarded, and
read again later.

Exclusive and failover subscriptions may be **compacted**: they deliver retained entries, and of a
batch only some messages may be retained. Such a batch is sent in a form that its consumer can read,
and permits are charged as the client counts them (`compacted_batch.py`). Some clients cannot
acknowledge a masked batch. So if a later entry is acknowledged while a masked batch is still wholly
unacknowledged, or if the batch is redelivered, it is sent packed (`masked_batches.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from lithify.errors import InvalidInput
from lithify.positions import POSITION_MAX
from lithify.topics.messages.entry_flags import message_count
from lithify.topics.messages.message import FLAG_SHRUNK
from lithify.topics.subscriptions.compacted_batch import BatchForm, is_spent, to_wire
from lithify.topics.subscriptions.consumer import (
    UNACKED_MESSAGES_MAX,
    Consumer,
    ConsumerRefused,
    SubscriptionType,
    UnacknowledgedEntry,
)
from lithify.topics.subscriptions.delayed_entries import DelayedEntries
from lithify.topics.subscriptions.key_shared_slots import KeySharedSlots
from lithify.topics.subscriptions.masked_batches import MaskedBatches
from lithify.topics.subscriptions.redeliveries import Redeliveries
from lithify.topics.subscriptions.undelivered_by_key_slot import Undelivered

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
AGAIN_MAX = 200
"""Maximum number of undelivered entries in one read request."""

_NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class DispatchRead:
    """A read request: exactly these positions, ascending, or the log from `start` on."""

    positions: tuple[int, ...]
    start: int
    messages: int
    """Messages that the consumers can receive; reading more is of no use."""

    @property
    def first(self) -> int:
        """The first position to read."""
        return self.positions[0] if self.positions else self.start


@dataclass(frozen=True, slots=True)
class Delivery:
    """An entry to send to a consumer."""

    consumer: Consumer
    entry: LogEntry
    redeliveries: int
    remaining: int | None
    """Bits of the batch that are still to be delivered; None for all."""
    wire: WireBatch | None = None
    """The form to send, if it is not the entry itself."""

    @property
    def as_stored(self) -> bool:
        """Is it a first delivery of the whole entry, unchanged?"""
        return self.wire is None and self.remaining is None and not self.redeliveries


class Subscription:
    """The dispatch state of one subscription; one thread at a time."""

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
        """The acknowledgements."""
        self.cursor = cursor.copy() if compacted else cursor
        """What need not be delivered; for a compacted subscription also what is not retained."""
        self.durable = durable
        self.compacted = compacted
        self.consumers: dict[Consumer, int] = {}
        """In join order, each with its number in that order."""
        self.active: Consumer | None = None
        self.read_position = cursor.mark_delete + 1
        self.gaps_taken: tuple[int, ...] = ()
        """State in which the cursor was moved over all gaps; set by `CursorGaps`."""
        self.read_failure: ReadFailure | None = None
        """Why reading failed; reset when an entry is delivered or the cursor is moved."""
        self.delivered_messages = 0
        self.delivered_bytes = 0
        self._slot_of = slot_of
        self._partition = partition
        self._waiting_max = waiting_max
        self._slots: KeySharedSlots[Consumer] = KeySharedSlots()
        self._waiting = Undelivered(self._slots.owner)
        self._delayed = DelayedEntries(due_ms_of)
        self._redeliveries = Redeliveries()
        self._masked = MaskedBatches()
        self.holders: dict[int, Consumer] = {}
        self._held_in_slot: dict[int, tuple[Consumer, int]] = {}
        self._joined = 0
        self._ranking: list[Consumer] = []
        """Consumers by priority, then in order of choice."""
        self._turns: list[deque[Consumer]] = []
        """Shared, during `offer`: the ready consumers in round-robin order, by priority."""
        self._last_rank = (0, "", 0)
        """Rank of the consumer that received the last entry."""

    # --- consumers --------------------------------------------------------------------------

    def add(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Add a consumer, or raise `ConsumerRefused`."""
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
            self._set_compacted(compacted=consumer.through is not None)
        self._joined += 1
        self.consumers[consumer] = self._joined
        insort(self._ranking, consumer, key=self._rank)
        self._consumers_changed()

    def _set_compacted(self, *, compacted: bool) -> None:
        """Set the mode of reading, and its cursor; the first consumer decides."""
        self.compacted = compacted
        self.cursor = self.acked.copy() if compacted else self.acked
        self.gaps_taken = ()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; the entries it held are redelivered."""
        if consumer not in self.consumers:
            return
        del self._ranking[bisect_left(self._ranking, self._rank(consumer), key=self._rank)]
        del self.consumers[consumer]
        if self.kind is SubscriptionType.KEY_SHARED:
            self._slots.remove(consumer)
        self._consumers_changed()
        if self.consumers:
            self._requeue(consumer, list(consumer.held))
        else:
            self.reset()

    def _consumers_changed(self) -> None:
        self._waiting.regroup()
        active = self._choose_active() if self.kind.single else None
        if active is not self.active:
            self.active = active
            self.rewind()

    def _rank(self, consumer: Consumer) -> tuple[int, str, int]:
        name = consumer.name if self._partition >= 0 else ""
        return consumer.priority, name, self.consumers[consumer]

    def _choose_active(self) -> Consumer | None:
        ranking = self._ranking
        if not ranking:
            return None
        best = bisect_right(ranking, ranking[0].priority, key=lambda each: each.priority)
        return ranking[max(self._partition, 0) % best]

    @property
    def through(self) -> int:
        """Compacted: the horizon of the active consumer; without one, the highest position."""
        active = self.active
        return POSITION_MAX if active is None or active.through is None else active.through

    def rewind(self) -> None:
        """Restart reading after mark-delete."""
        self._masked.redeliver_all()
        self.read_position = self.cursor.mark_delete + 1

    # --- reading ----------------------------------------------------------------------------

    def wants(self, now_ms: int) -> DispatchRead | None:
        """What to read next; None if no consumer could receive it."""
        self._return_some()
        for position in self._delayed.take_due(now_ms):
            self._waiting.add(position, _NO_SLOT)
        candidates = [self.active] if self.kind.single else self._ranking
        ready = [consumer for consumer in candidates if consumer is not None and consumer.ready]
        if not ready:
            return None
        messages = sum(consumer.permits for consumer in ready)
        positions = self._deliverable(ready, min(messages, AGAIN_MAX))
        if positions:
            return DispatchRead(tuple(positions), 0, messages)
        if len(self._waiting) >= self._waiting_max or self._delayed.is_full:
            return None
        return DispatchRead((), self.cursor.first_unacked_from(self.read_position), messages)

    @property
    def unfinished(self) -> bool:
        """Are entries still to be queued for redelivery, even if nothing was delivered?"""
        return self._redeliveries.unfinished

    @property
    def due_ms(self) -> int | None:
        """Due time of the next delayed entry, None if there is none."""
        return self._delayed.due_ms

    def _deliverable(self, ready: Sequence[Consumer], limit: int) -> list[int]:
        """Undelivered entries that can be delivered."""
        if self.kind is not SubscriptionType.KEY_SHARED:
            return self._waiting.first(_NO_SLOT, limit)
        positions: list[int] = []
        for consumer in ready:
            stop = min(limit, len(positions) + consumer.permits)
            for slot in self._waiting.slots_of(consumer):
                if len(positions) >= stop:
                    break
                if self._free_for(slot, consumer):
                    positions += self._waiting.first(slot, stop - len(positions))
        return sorted(positions)

    def offer(
        self, entries: Sequence[LogEntry], now_ms: int, *, wanted: DispatchRead, through: int
    ) -> list[Delivery]:
        """Distribute entries; stops at the first one that no consumer can receive.

        The read covered the request up to position `through`: a position that is not among the
        entries does not exist.
        """
        deliveries: list[Delivery] = []
        again = bool(wanted.positions)
        if again:
            read = {entry.position for entry in entries}
            for position in wanted.positions:
                if position <= through and position not in read:
                    self._forget(position)
        self._begin_turns()
        for entry in entries:
            position = entry.position
            if self.cursor.is_acked(position) or self._is_spent(entry):
                self._forget(position)
            elif again or not self._delay(entry, now_ms):
                slot = self._slot(entry)
                consumer = self._receiver(slot, position)
                if consumer is not None:
                    self._waiting.discard(position)
                    deliveries.append(self._deliver(consumer, entry, slot))
                elif slot == _NO_SLOT:
                    return deliveries
                else:
                    # The consumer of its slot is not ready; other slots continue.
                    self._waiting.add(position, slot)
            if not again:
                self.read_position = position + 1
                if len(self._waiting) >= self._waiting_max:
                    return deliveries
        if not again:
            self.read_position = max(self.read_position, through + 1)
        return deliveries

    def _is_spent(self, entry: LogEntry) -> bool:
        # Gaps are taken only right after mark-delete, so later spent entries are still read.
        return self.compacted and is_spent(entry, self.cursor.remaining_of(entry.position))

    def _delay(self, entry: LogEntry, now_ms: int) -> bool:
        return self.kind is SubscriptionType.SHARED and self._delayed.add(entry, now_ms)

    def _slot(self, entry: LogEntry) -> int:
        if self.kind is not SubscriptionType.KEY_SHARED:
            return _NO_SLOT
        slot = self._waiting.slot_of(entry.position)
        return self._slot_of(entry) if slot is None else slot

    def _receiver(self, slot: int, position: int) -> Consumer | None:
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
        """Shared: list the ready consumers, starting after the last one that received an entry."""
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
            self.holders[position] = consumer
            if slot != _NO_SLOT:
                _, count = self._held_in_slot.get(slot, (consumer, 0))
                self._held_in_slot[slot] = consumer, count + 1
        return Delivery(consumer, entry, self._redeliveries.count(position), remaining, wire)

    def _form(self, position: int, remaining: int | None) -> BatchForm:
        if not self.durable:
            return BatchForm.STORED
        packed = remaining is None and self._masked.is_sent_packed(position)
        return BatchForm.PACKED if packed else BatchForm.SLOTS

    # --- after delivery ---------------------------------------------------------------------

    def acknowledged(self, position: int) -> None:
        """The cursor has recorded an acknowledgement of an entry or of messages in it."""
        self._masked.acknowledge(position)
        if self.cursor.is_acked(position):
            for earlier in self._masked.take_skipped(position):
                self._waiting.add(earlier, _NO_SLOT)
            self._release(position)
            self._forget(position)
            return
        holder = self.holders.get(position)
        remaining = self.cursor.remaining_of(position)
        if holder is not None and remaining is not None:
            held = holder.held[position]
            holder.unacked_messages += remaining.bit_count() - held.messages
            held.messages = remaining.bit_count()

    def acknowledged_up_to(self, position: int) -> None:
        """The cursor has recorded a cumulative acknowledgement."""
        for each in [p for p in self.holders if p <= position]:
            self._release(each)
        self._waiting.discard_up_to(position)
        self._masked.acknowledge_up_to(position)
        self._redeliveries.forget_up_to(position)

    def redeliver(self, consumer: Consumer, positions: Sequence[int] | None) -> None:
        """A consumer requests redelivery of these entries, or of all it holds."""
        if self.kind.single:
            if consumer is self.active:
                self.rewind()
            return
        requested = list(consumer.held) if positions is None else dict.fromkeys(positions)
        again = [position for position in requested if position in consumer.held]
        self._redeliveries.request(again)
        self._requeue(consumer, again)

    def record_seek(self, position: int) -> None:
        """A client, or an administrator, moved the cursor to a position."""
        self._masked.seek(position)
        self.reset()

    def forget_seek(self) -> None:
        """Forget the target of a seek, after its consumer has left without a reconnect."""
        self._masked.forget_seek()

    def reset(self) -> None:
        """Discard all dispatch state and restart after mark-delete."""
        for consumer in set(self.holders.values()):
            consumer.held.clear()
            consumer.unacked_messages = 0
        self.holders.clear()
        self._held_in_slot.clear()
        self._waiting.clear()
        self._delayed.clear()
        self._redeliveries.clear()
        self.rewind()

    def _requeue(self, consumer: Consumer, positions: list[int]) -> None:
        """Queue entries for redelivery, in steps; `wants` continues with the rest."""
        if positions:
            self._redeliveries.add(consumer, positions)
            self._return_some()

    def _return_some(self) -> None:
        for consumer, position in self._redeliveries.take_step():
            held = consumer.held.get(position)
            # It may have been acknowledged before its step.
            if held is not None:
                self._release(position)
                self._waiting.add(position, held.slot)

    def _release(self, position: int) -> None:
        """Remove an entry from the consumer that holds it."""
        holder = self.holders.pop(position, None)
        if holder is None:
            return
        held = holder.held.pop(position)
        holder.unacked_messages -= held.messages
        if held.slot != _NO_SLOT:
            consumer, count = self._held_in_slot.pop(held.slot)
            if count > 1:
                self._held_in_slot[held.slot] = consumer, count - 1

    def _forget(self, position: int) -> None:
        """Remove an entry that needs no delivery."""
        self._waiting.discard(position)
        self._redeliveries.forget(position)
