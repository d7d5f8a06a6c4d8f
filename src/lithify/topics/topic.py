"""One topic, or one partition of a partitioned one: a log, its producers, its subscriptions.

A ledger of the protocol is a segment of the log; positions are packed (ledger, entry). Entries are
stored exactly as the producer sent them. Of each entry the log's own frame keeps what dispatch
needs without opening it: the publish time, the number of messages (the frame's tag), and in flags
whether it is a batch and whether it is to be delivered later.

Readers see what is durable as configured. A durable subscription's acknowledgements go into the
cursor store, a reader's into memory only.

One thread at a time: the event loop's in a broker, the caller's in a library.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from lithify.log.log import Log
from lithify.positions import NO_POSITION, PACKED, unpack
from lithify.topics.cursor import Cursor
from lithify.topics.cursor_changes import AckedUpTo, Reset
from lithify.topics.cursor_store import CursorStore
from lithify.topics.dedup import Deduplication
from lithify.topics.hashing import key_slot
from lithify.topics.message import (
    Message,
    MessageId,
    decode_entry,
    encode_entry,
    key_of,
    metadata_of,
)
from lithify.topics.message_pb2 import MessageMetadata
from lithify.topics.policies import Policies
from lithify.topics.producers import Producers
from lithify.topics.rates import Rates
from lithify.topics.reading import Reading
from lithify.topics.retention import BacklogExceeded, acknowledged_through, first_to_keep
from lithify.topics.stats import backlog
from lithify.topics.subscription import Consumer, Subscription, SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.commit import Pending
    from lithify.log.frame import Entry
    from lithify.settings import LogSettings
    from lithify.topics.cursor_changes import Change
    from lithify.topics.names import TopicName
    from lithify.topics.subscription import Delivery

__all__ = ["FLAG_BATCH", "FLAG_DELAYED", "Topic"]

FLAG_DELAYED = 0x0100
"""The entry's metadata has a `deliver_at_time`."""

FLAG_BATCH = 0x0200
"""The entry is a batch, if of one message only."""

READ_BYTES_MAX = 2**20

POLICY_SECONDS = 1.0
"""Retention, time to live and backlog are looked at so often."""


class Topic:
    """A topic that is open."""

    def __init__(self, name: TopicName, log: Log, cursors: CursorStore, clock: Clock) -> None:
        self.name = name
        self.log = log
        self.cursors = cursors
        self.producers = Producers()
        self.deduplication: Deduplication | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self._gone_out = (0, 0)
        self._clock = clock
        self._rates = Rates(clock.monotonic_s(), (0, 0, 0, 0))
        self.policies: Callable[[], Policies] = Policies
        self._reading = Reading(log)
        self._refusal = ""
        self._keep_from = 0
        self._enforced_s = -POLICY_SECONDS
        self._library_sequence = 0
        for each in cursors.names():
            cursors.take_gaps(each, self.following)
            self._add_subscription(
                each, SubscriptionType.EXCLUSIVE, cursors.get(each), durable=True
            )

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        name: TopicName,
        *,
        settings: LogSettings,
        clock: Clock,
        events: EventSink,
        deduplication: bool = False,
    ) -> Topic:
        """Open or create the topic in `directory`."""
        log = Log.open(
            fs,
            f"{directory}/log",
            kind="topic",
            settings=settings,
            clock=clock,
            rule=PACKED,
            events=events,
        )
        try:
            cursors = CursorStore.open(fs, f"{directory}/cursors", clock=clock, events=events)
        except BaseException:
            log.close()
            raise
        topic = cls(name, log, cursors, clock)
        if deduplication:
            try:
                topic.deduplication = Deduplication(
                    fs, f"{directory}/producers", log, events=events
                )
            except BaseException:
                topic.close()
                raise
        return topic

    def close(self) -> None:
        """Make everything durable and let go of the files."""
        try:
            if self.deduplication is not None:
                self.deduplication.close()
            self.log.close()
        finally:
            self.cursors.close()

    # --- writing ----------------------------------------------------------------------------

    def append_entries(
        self,
        bodies: Sequence[Buffer],
        *,
        times: NDArray[np.int64] | Sequence[int],
        counts: NDArray[np.int64] | Sequence[int],
        flags: NDArray[np.int64] | Sequence[int] | int = 0,
    ) -> Pending:
        """Append entries as producers sent them; the result names the last position."""
        self.check_backlog()
        pending = self.log.append_many(bodies, time_ms=times, tags=counts, flags=flags)
        self.entries_in += len(bodies)
        self.messages_in += int(np.sum(counts))
        self.bytes_in += sum(map(len, bodies))
        return pending

    def append(
        self,
        *,
        value: bytes | None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
    ) -> MessageId:
        """Append one message and wait until it is durable."""
        now_ms = self._clock.now_ms()
        metadata = MessageMetadata(
            producer_name="library", sequence_id=self._library_sequence, publish_time=now_ms
        )
        self._library_sequence += 1
        if isinstance(key, bytes):
            metadata.partition_key = base64.b64encode(key).decode()
            metadata.partition_key_b64_encoded = True
        elif key is not None:
            metadata.partition_key = key
        if value is None:
            metadata.null_value = True
        if event_time_ms:
            metadata.event_time = event_time_ms
        for name, text in (properties or {}).items():
            metadata.properties.add(key=name, value=text)
        body = encode_entry(metadata, value or b"")
        position = self.append_entries([body], times=[now_ms], counts=[1]).result()
        ledger, entry = unpack(position)
        return MessageId(ledger, entry, -1, self.name.partition)

    def last_sequence_id(self, producer: str) -> int:
        """The highest sequence id written by a producer, -1 while nothing is known of it."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(producer)

    # --- reading ----------------------------------------------------------------------------

    def read(self, start: MessageId | None = None) -> Iterator[Message]:
        """All messages from `start` (inclusive) on, as they are now."""
        position = 0 if start is None else start.ledger << 32 | start.entry
        with self.log.snapshot("library reader") as snapshot:
            for entry in snapshot.read(position):
                for message in decode_entry(entry, self.name.partition):
                    if start is None or message.id >= start:
                        yield message

    @property
    def last_position(self) -> int:
        """Of the last entry that may be read, -1 if there is none."""
        return self.log.last_position

    def last_message_id(self) -> MessageId:
        """Of the last message; (-1, -1) in an empty topic."""
        last = self.log.last_position
        if last >= 0:
            with self.log.snapshot("last message") as snapshot:
                for frames in snapshot.read_frames(last):
                    batch = int(frames.flags()[0]) & FLAG_BATCH
                    index = int(frames.tags()[0]) - 1 if batch else -1
                    return MessageId(*unpack(last), index, self.name.partition)
        return MessageId(-1, -1, -1, self.name.partition)

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        segments = self.log.manifest.segments
        sealed = len(segments) - 1
        at = bisect_left(segments, position, hi=sealed, key=lambda ref: ref.last_position)
        there = max(position, segments[at].first_position)
        return self._reading.end_of_gap(there)

    def find_time(self, time_ms: int) -> int:
        """The first position published at or after a time; the next one if there is none."""
        with self.log.snapshot("time search") as snapshot:
            found = snapshot.find_time(time_ms)
        return self.log.next_position if found is None else found

    # --- subscriptions ----------------------------------------------------------------------

    def subscription(
        self, name: str, kind: SubscriptionType, *, durable: bool, start: int
    ) -> Subscription:
        """The subscription of that name, created to begin at position `start` if it is new."""
        found = self.subscriptions.get(name)
        if found is not None:
            return found
        cursor = Cursor(max(start, 0) - 1)
        if durable:
            self.cursors.create(name, cursor, {})
            self.cursors.take_gaps(name, self.following)
            cursor = self.cursors.get(name)
        else:
            cursor.take_gaps(self.following)
        return self._add_subscription(name, kind, cursor, durable=durable)

    def _add_subscription(
        self, name: str, kind: SubscriptionType, cursor: Cursor, *, durable: bool
    ) -> Subscription:
        subscription = self.subscriptions[name] = Subscription(
            name,
            kind,
            cursor,
            slot_of=_slot_of,
            due_ms_of=_due_ms_of,
            partition=self.name.partition,
            durable=durable,
        )
        return subscription

    def is_durable(self, subscription: Subscription) -> bool:
        """Does it outlive its consumers?"""
        return subscription.durable

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget it and what it had acknowledged."""
        if self._remove(subscription) and subscription.durable:
            self.cursors.delete(subscription.name)

    def _remove(self, subscription: Subscription) -> bool:
        # Another one may have the name by now.
        if self.subscriptions.get(subscription.name) is not subscription:
            return False
        del self.subscriptions[subscription.name]
        messages, size_bytes = self._gone_out
        self._gone_out = (
            messages + subscription.delivered_messages,
            size_bytes + subscription.delivered_bytes,
        )
        return True

    def leave(self, subscription: Subscription, consumer: Consumer, *, keep: bool = False) -> None:
        """A consumer left; a reader's subscription goes with it, unless it is kept for a seek."""
        subscription.remove(consumer)
        if not keep:
            self.forget_unused(subscription)

    def forget_unused(self, subscription: Subscription) -> None:
        """Forget a reader's subscription if no consumer has come back to it."""
        if not (subscription.consumers or subscription.durable):
            self._remove(subscription)

    def acknowledge(self, subscription: Subscription, change: Change) -> None:
        """Something was acknowledged: remember it, and forget who held it."""
        if subscription.durable:
            self.cursors.ack(subscription.name, change)
        else:
            change.apply(subscription.cursor)
        self._take_gaps(subscription)
        if isinstance(change, AckedUpTo):
            subscription.acknowledged_up_to(change.position)
        elif isinstance(change, Reset):
            subscription.reset()
        else:
            subscription.acknowledged(getattr(change, "position", NO_POSITION))

    def _take_gaps(self, subscription: Subscription) -> None:
        if subscription.durable:
            self.cursors.take_gaps(subscription.name, self.following)
        else:
            subscription.cursor.take_gaps(self.following)

    def seek(self, subscription: Subscription, position: int) -> None:
        """Begin again at a position; what was acknowledged above it no longer is."""
        self.acknowledge(subscription, Reset(max(position, 0)))

    def dispatch(self, subscription: Subscription) -> list[Delivery]:
        """Deliver what can be delivered now; nothing left to do when the answer is empty."""
        now_ms = self._clock.now_ms()
        before = None
        while (wanted := subscription.wants(now_ms)) is not None and wanted != before:
            if wanted.positions:
                entries, through = self._reading.read_each(wanted.positions, READ_BYTES_MAX)
            elif wanted.start <= self.log.last_position:
                entries, through = self._reading.read(wanted.start, wanted.messages)
                self._take_gaps(subscription)
            else:
                break
            deliveries = subscription.offer(entries, now_ms, wanted=wanted, through=through)
            if deliveries:
                return deliveries
            # All of it was acknowledged, waits or is gone: there may be more behind it.
            before = wanted
        return []

    def maintain(self) -> None:
        """What only time brings about."""
        self.maintain_files()
        self.maintain_memory()

    def maintain_files(self) -> None:
        """The part that waits for the disk, and only that: may be called from any thread."""
        self.log.maintain()
        self.cursors.maintain()
        if self.log.drop_head(self._keep_from) or self.log.manifest.retired:
            self.log.reclaim()

    def maintain_memory(self) -> None:
        """The part that does not."""
        self._reading.forget_unused()
        self._reading.forget_below(self.log.manifest.segments[0].first_position)
        if self._clock.monotonic_s() - self._enforced_s >= POLICY_SECONDS:
            self._enforced_s = self._clock.monotonic_s()
            self._enforce(self.policies())
            self._rates.note(self._enforced_s, self._counters())

    def delivered(self) -> tuple[int, int]:
        """(messages, bytes) that went to consumers, those of subscriptions that are gone too."""
        messages, size_bytes = self._gone_out
        for each in self.subscriptions.values():
            messages += each.delivered_messages
            size_bytes += each.delivered_bytes
        return messages, size_bytes

    def _counters(self) -> tuple[int, int, int, int]:
        return self.messages_in, self.bytes_in, *self.delivered()

    def rates(self) -> list[float]:
        """Messages in, bytes in, messages out and bytes out, a second; see `rates.py`."""
        return self._rates.per_second(self._clock.monotonic_s(), self._counters())

    def _enforce(self, policies: Policies) -> None:
        now_ms = self._clock.now_ms()
        if policies.message_ttl_ms:
            self.expire(now_ms - policies.message_ttl_ms)
        durable = [each for each in self.subscriptions.values() if each.durable]
        for each in durable:
            self._take_gaps(each)
        limit, self._refusal = policies.backlog_bytes_max, ""
        size = max((backlog(self, each.cursor)[1] for each in durable), default=0)
        if 0 <= limit < size:
            self._refusal = f"topic {self.name} has a backlog of {size} bytes, the limit is {limit}"
        keep_from = first_to_keep(
            self.log.manifest.segments,
            self.log.active_bytes,
            acknowledged=acknowledged_through(each.cursor.mark_delete for each in durable),
            policies=policies,
            now_ms=now_ms,
        )
        if keep_from > self._keep_from and self.deduplication is not None:
            # It is made again from the log behind its snapshot: that must all be there.
            self.deduplication.save()
        self._keep_from = keep_from

    def expire(self, before_ms: int) -> None:
        """Take what was published before a time as acknowledged by every subscription."""
        position = self.find_time(before_ms) - 1
        for each in list(self.subscriptions.values()):
            if each.cursor.mark_delete < position:
                self.acknowledge(each, AckedUpTo(position))

    def check_backlog(self) -> None:
        """Raise `BacklogExceeded` while a subscription is too far behind."""
        if self._refusal:
            raise BacklogExceeded(self._refusal)


def _slot_of(entry: Entry) -> int:
    """The slot of an entry's ordering key or key; those without are spread."""
    metadata = metadata_of(entry.body)
    if metadata.HasField("ordering_key"):
        return key_slot(metadata.ordering_key)
    key = key_of(metadata)
    if key is None:
        key = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return key_slot(key)


def _due_ms_of(entry: Entry) -> int:
    if not entry.flags & FLAG_DELAYED:
        return 0
    return int(metadata_of(entry.body).deliver_at_time)
