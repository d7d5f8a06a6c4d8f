"""One topic, or one partition of a partitioned one: a log, its producers, its subscriptions.

A ledger of the protocol is a segment of the log; positions are packed (ledger, entry). Entries are
stored exactly as the producer sent them. Of each entry the log's own frame keeps what dispatch
needs without opening it: the publish time, the number of messages (the frame's tag), and in flags
whether it is a batch and whether it is to be delivered later.

Readers see what is durable as configured. A durable subscription's acknowledgements go into the
cursor store, a reader's into memory only. Compacted subscriptions get what is retained, up to the
horizon, and their cursors move over what is not.

One thread at a time: the event loop's in a broker, the caller's in a library.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from lithify.compaction.jobs import ignore_progress
from lithify.errors import InvalidInput, LithifyError
from lithify.log.batch import size_of
from lithify.log.log import Log
from lithify.positions import NO_POSITION, PACKED, unpack
from lithify.topics.compaction import TopicCompaction
from lithify.topics.compaction_service import LogCompactionService
from lithify.topics.compaction_settings import CompactionSettings
from lithify.topics.cursor import Cursor
from lithify.topics.cursor_changes import Acked, AckedUpTo, Reset
from lithify.topics.cursor_store import CursorStore
from lithify.topics.dedup import Progress
from lithify.topics.dedup_switch import DeduplicationSwitch
from lithify.topics.entries import FLAG_BATCH, FLAG_DELAYED, due_ms_of, slot_of
from lithify.topics.gaps import Gaps
from lithify.topics.log_end import LogEnd
from lithify.topics.lookup import Lookup
from lithify.topics.message import (
    Message,
    MessageId,
    decode_entry,
    new_entry,
)
from lithify.topics.policies import Policies
from lithify.topics.producers import Producers
from lithify.topics.rates import Rates, RatesByOwner
from lithify.topics.reading import Reading
from lithify.topics.retention import (
    BacklogExceeded,
    LogHold,
    acknowledged_through,
    active_may_go,
    first_to_keep,
)
from lithify.topics.stats import backlog
from lithify.topics.subscription import Consumer, Subscription, SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from lithify.checksum import Buffer
    from lithify.clock import Clock
    from lithify.compaction.jobs import Jobs
    from lithify.compaction.jobs import Progress as JobProgress
    from lithify.compaction.report import Report
    from lithify.compaction.run import DryRun
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.log.batch import Slices
    from lithify.log.commit import Pending
    from lithify.log.frame import Entry
    from lithify.settings import LogSettings
    from lithify.topics.compaction_service import ServiceFactory, TopicCompactionService
    from lithify.topics.cursor_changes import Change
    from lithify.topics.dedup import Deduplication
    from lithify.topics.names import TopicName
    from lithify.topics.subscription import Delivery

__all__ = ["FLAG_BATCH", "FLAG_DELAYED", "Topic", "TopicTerminated"]

READ_BYTES_MAX = 2**20
LIBRARY_READ = 10_000
"""Retained entries that the library asks for at once."""

LIBRARY = "library"
"""The name of the producer that `append` is."""

POLICY_SECONDS = 1.0
"""Retention, time to live and backlog are looked at so often."""


class TopicTerminated(InvalidInput):
    """Nothing more is written to it; what is there can be read."""


class Topic:
    """A topic that is open."""

    def __init__(
        self,
        name: TopicName,
        log: Log,
        cursors: CursorStore,
        clock: Clock,
        compaction: TopicCompaction,
        service: TopicCompactionService,
        lookup: Lookup,
    ) -> None:
        """Use `Topic.open`."""
        self.name = name
        self.log = log
        self.cursors = cursors
        self.compaction = compaction
        self.service = service
        self.producers = Producers()
        self._deduplication: DeduplicationSwitch | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self._gone_out = (0, 0)
        self._clock = clock
        self._rates = Rates(clock.monotonic_s(), (0, 0, 0, 0))
        self._rates_by_client = RatesByOwner(clock.monotonic_s())
        self.policies: Callable[[], Policies] = Policies
        self._lookup = lookup
        self._reading = Reading(log, service)
        self._gaps = Gaps(self._reading, cursors)
        self._end = LogEnd(log)
        self.terminated = False
        self._refusal = ""
        self._keep_from = 0
        self._rolls_for_age = False
        self._enforced_s = -POLICY_SECONDS
        self._library_sequence = 0
        for each in cursors.names():
            self._add_subscription(
                each,
                SubscriptionType.EXCLUSIVE,
                cursors.get(each),
                durable=True,
                compacted=cursors.is_compacted(each),
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
        deduplicates: Callable[[], bool] = bool,
        compaction_settings: Callable[[], CompactionSettings] = CompactionSettings,
        new_service: ServiceFactory = LogCompactionService,
    ) -> Topic:
        """Open or create the topic in `directory`; what can be asked is asked again and again."""
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
        compaction = TopicCompaction(
            fs, log, settings=compaction_settings, clock=clock, events=events
        )
        service = new_service(log, compaction)
        topic = cls(name, log, cursors, clock, compaction, service, Lookup(fs, log))
        try:
            topic._deduplication = DeduplicationSwitch(
                fs, f"{directory}/producers", log, events=events, wanted=deduplicates
            )
        except BaseException:
            topic.close()
            raise
        return topic

    def close(self) -> None:
        """Make everything durable and let go of the files; a run that is going on is cancelled."""
        self.compaction.close()
        self.service.close()
        try:
            if self._deduplication is not None:
                self._deduplication.close()
            self.log.close()
        finally:
            self.cursors.close()

    # --- writing ----------------------------------------------------------------------------

    @property
    def deduplication(self) -> Deduplication | None:
        """What producers have written already; None where nobody wants to know."""
        return None if self._deduplication is None else self._deduplication.current

    def preparation(self, size_bytes: int) -> Callable[[], None] | None:
        """What waits for the disk before so much is appended: to be called, in any thread.

        Nothing may be appended until it has returned. If it fails, so will the append.
        """
        if self._deduplication is not None and self._deduplication.differs():
            return self._deduplication.switch
        return self.log.roll if self.log.must_roll(size_bytes) else None

    def append_entries(
        self,
        bodies: Sequence[Buffer] | Slices,
        *,
        times: NDArray[np.int64] | Sequence[int],
        counts: NDArray[np.int64] | Sequence[int],
        flags: NDArray[np.int64] | Sequence[int] | int = 0,
        after: Pending | None = None,
    ) -> Pending:
        """Append entries as producers sent them; the result names the last position.

        With deduplication, `after` is the producer's `last_append`.
        """
        self.check_writable()
        pending = self.log.append_many(bodies, time_ms=times, tags=counts, flags=flags, after=after)
        self.entries_in += len(bodies)
        self.messages_in += int(np.sum(counts))
        self.bytes_in += size_of(bodies)
        if len(bodies):
            last_flags = flags if isinstance(flags, int) else int(flags[-1])
            self._end.appended(pending.position, int(counts[-1]), last_flags)
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
        if self._deduplication is not None:
            self._deduplication.switch()
        known = self.deduplication
        sequence_id = self._library_sequence
        if known is not None:
            sequence_id = known.next_sequence_id(LIBRARY)
        self._library_sequence = sequence_id + 1
        now_ms = self._clock.now_ms()
        body = new_entry(
            value=value,
            key=key,
            properties=properties or {},
            event_time_ms=event_time_ms,
            producer=LIBRARY,
            sequence_id=sequence_id,
            publish_time_ms=now_ms,
        )
        pending = None
        try:
            after = None if known is None else known.last_append(LIBRARY)
            pending = self.append_entries([body], times=[now_ms], counts=[1], after=after)
            position = pending.result()
        except LithifyError:
            if known is not None:
                known.failed(LIBRARY, pending)
            raise
        if known is not None:
            known.durable(known.appended(LIBRARY, Progress(sequence_id), pending, 1))
        ledger, entry = unpack(position)
        return MessageId(ledger, entry, -1, self.name.partition)

    def last_sequence_id(self, producer: str) -> int:
        """The highest sequence id written by a producer, -1 while nothing is known of it."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(producer)

    # --- reading ----------------------------------------------------------------------------

    def read(self, start: MessageId | None = None, *, compacted: bool = False) -> Iterator[Message]:
        """All messages from `start` (inclusive) on, as they are now; compacted, the retained."""
        position = 0 if start is None else start.ledger << 32 | start.entry
        with self.log.snapshot("library reader") as snapshot:
            horizon = self.service.last_compacted_position if compacted else NO_POSITION
            retained = self._retained(position, horizon)
            for entry in chain(retained, snapshot.read(max(position, horizon + 1))):
                for message in decode_entry(entry, self.name.partition):
                    if start is None or message.id >= start:
                        yield message

    def get(self, key: str | bytes) -> Message | None:
        """The newest message of a key by the key indexes; None if it has none or a tombstone."""
        return self._lookup.newest(
            key.encode() if isinstance(key, str) else key,
            by_event_time=self.compaction.settings().by_event_time,
            partition=self.name.partition,
        )

    def _retained(self, position: int, horizon: int) -> Iterator[Entry]:
        while position <= horizon:
            entries, looked = self.service.read_compacted_entries(position, LIBRARY_READ, horizon)
            yield from entries
            position = looked + 1

    @property
    def last_position(self) -> int:
        """Of the last entry that may be read, -1 if there is none."""
        return self.log.last_position

    def last_message_id(self, through: int | None = None) -> MessageId:
        """Of the last message; (-1, -1) if there is none. No entry is read for it.

        With `through`, of the last one that a consumer gets which found this horizon.
        """
        if through is None or self.log.last_position > self._reading.border(through):
            position, index = self._end.last()
        else:
            found = self.service.last_message_position()
            position, index = (NO_POSITION, -1) if found is None else (found.position, found.slot)
        ledger, entry = unpack(position) if position >= 0 else (-1, -1)
        return MessageId(ledger, entry, index, self.name.partition)

    def following(self, position: int) -> int:
        """The first position at or above one that an entry has or a future one may get."""
        return self._reading.following(position)

    def find_time(self, time_ms: int, *, compacted: bool = False) -> int:
        """The first position published at or after a time; the next one if there is none."""
        horizon = NO_POSITION
        if compacted:
            found = self.service.find_by_publish_time(time_ms)
            if found is not None:
                return found
            horizon = self.service.last_compacted_position
        with self.log.snapshot("time search") as snapshot:
            found = snapshot.find_time(time_ms)
        return self.log.next_position if found is None else max(found, horizon + 1)

    # --- subscriptions ----------------------------------------------------------------------

    def subscription(
        self,
        name: str,
        kind: SubscriptionType,
        *,
        durable: bool,
        start: int,
        compacted: bool = False,
    ) -> Subscription:
        """The subscription of that name, created to begin at position `start` if it is new."""
        if compacted and not kind.single:
            raise InvalidInput(
                f"subscription {name} is {kind.name.lower()}: only exclusive and "
                "failover ones can be read compacted"
            )
        found = self.subscriptions.get(name)
        if found is not None:
            return found
        cursor = Cursor(max(start, 0) - 1)
        if durable:
            self.cursors.create(name, cursor, {}, compacted=compacted)
            cursor = self.cursors.get(name)
        return self._add_subscription(name, kind, cursor, durable=durable, compacted=compacted)

    def _add_subscription(
        self, name: str, kind: SubscriptionType, cursor: Cursor, *, durable: bool, compacted: bool
    ) -> Subscription:
        subscription = self.subscriptions[name] = Subscription(
            name,
            kind,
            cursor,
            slot_of=slot_of,
            due_ms_of=due_ms_of,
            partition=self.name.partition,
            durable=durable,
            compacted=compacted,
        )
        if not compacted:
            self._gaps.take(subscription)
            subscription.rewind()
        return subscription

    def join(
        self,
        subscription: Subscription,
        consumer: Consumer,
        kind: SubscriptionType,
        *,
        compacted: bool = False,
    ) -> None:
        """Let a consumer join, or raise `ConsumerRefused`; it may want to read compacted."""
        consumer.through = self.service.last_compacted_position if compacted else None
        first = not subscription.consumers
        subscription.add(consumer, kind)
        if not first:
            return
        if subscription.durable:
            self.cursors.set_compacted(subscription.name, compacted=compacted)
        self._gaps.take(subscription)
        subscription.rewind()

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
            subscription.forget_sought()
            self.forget_unused(subscription)

    def forget_unused(self, subscription: Subscription) -> None:
        """Forget a reader's subscription if no consumer has come back to it."""
        if not (subscription.consumers or subscription.durable):
            self._remove(subscription)

    def acknowledge(self, subscription: Subscription, change: Change) -> None:
        """Something was acknowledged: remember it, and forget who held it."""
        first = subscription.cursor.mark_delete + 1
        if subscription.compacted and change == Acked(first):
            # All before it is done with, retained or not. Gaps are not recorded: said this way, a
            # restart finds mark-delete where it was.
            change = AckedUpTo(first)
        if subscription.durable:
            self.cursors.ack(subscription.name, change)
        else:
            change.apply(subscription.cursor)
        self._gaps.take(subscription)
        if isinstance(change, AckedUpTo):
            subscription.acknowledged_up_to(change.position)
        elif isinstance(change, Reset):
            subscription.sought(change.position)
        else:
            subscription.acknowledged(getattr(change, "position", NO_POSITION))

    def seek(self, subscription: Subscription, position: int) -> None:
        """Begin again at a position; what was acknowledged above it no longer is."""
        self.acknowledge(subscription, Reset(max(position, 0)))

    def dispatch(self, subscription: Subscription) -> list[Delivery]:
        """Deliver what can be delivered now; nothing left to do when the answer is empty."""
        now_ms = self._clock.now_ms()
        before = None
        while (wanted := subscription.wants(now_ms)) is not None and wanted != before:
            joined = subscription.through if subscription.compacted else None
            if wanted.positions:
                entries, through = self._reading.read_each(wanted.positions, READ_BYTES_MAX, joined)
            elif wanted.start <= self.log.last_position:
                entries, through = self._reading.read(wanted.start, wanted.messages, joined)
                self._gaps.take(subscription)
            else:
                break
            deliveries = subscription.offer(entries, now_ms, wanted=wanted, through=through)
            if deliveries:
                return deliveries
            # All of it was acknowledged, waits or is gone: there may be more behind it.
            before = wanted
        return []

    # --- compaction -------------------------------------------------------------------------

    def compact(
        self, spark: SparkSession | None = None, progress: JobProgress = ignore_progress
    ) -> Report:
        """Compact now, by this session's jobs, which is left alone, or in this thread."""
        return self.service.compact("library", _jobs_of(spark), progress)

    def plan_compaction(self, spark: SparkSession | None = None) -> DryRun:
        """What a run would do now with what is sealed."""
        return self.compaction.plan(_jobs_of(spark))

    # --- upkeep -----------------------------------------------------------------------------

    def maintain(self) -> None:
        """What only time brings about."""
        self.maintain_files()
        self.maintain_memory()

    def maintain_files(self) -> None:
        """The part that waits for the disk, and only that: may be called from any thread."""
        self.log.maintain()
        self.cursors.maintain()
        if self._rolls_for_age:
            self._rolls_for_age = False
            self.log.roll()
        if self.log.drop_head(self._keep_from) or self.log.manifest.retired:
            self.log.reclaim()

    def maintain_memory(self) -> None:
        """The part that does not."""
        self._reading.forget_unused()
        self._reading.forget_below(self.log.manifest.segments[0].first_position)
        if self._clock.monotonic_s() - self._enforced_s >= POLICY_SECONDS:
            self.enforce()

    def enforce(self) -> None:
        """Look at the policies now; what may go after that goes with `maintain_files`."""
        self._enforced_s = self._clock.monotonic_s()
        self._enforce(self.policies())
        self._rates.note(self._enforced_s, self._counters())
        self._rates_by_client.note(self._enforced_s, self._client_counters())

    def delivered(self) -> tuple[int, int]:
        """(messages, bytes) that went to consumers, those of subscriptions that are gone too."""
        messages, size_bytes = self._gone_out
        for each in self.subscriptions.values():
            messages += each.delivered_messages
            size_bytes += each.delivered_bytes
        return messages, size_bytes

    def _counters(self) -> tuple[int, int, int, int]:
        return self.messages_in, self.bytes_in, *self.delivered()

    def _client_counters(self) -> dict[object, tuple[int, int]]:
        """(messages, bytes) of each producer, subscription and consumer."""
        found: dict[object, tuple[int, int]] = {}
        for producer in self.producers.joined.values():
            found[producer] = producer.messages, producer.bytes
        for each in self.subscriptions.values():
            found[each] = each.delivered_messages, each.delivered_bytes
            for consumer in each.consumers:
                found[consumer] = consumer.delivered_messages, consumer.delivered_bytes
        return found

    def client_rates(self) -> dict[object, tuple[float, float]]:
        """Messages and bytes a second of each producer, subscription and consumer."""
        counters = self._client_counters()
        return self._rates_by_client.per_second(self._clock.monotonic_s(), counters)

    def rates(self) -> list[float]:
        """Messages in, bytes in, messages out and bytes out, a second; see `rates.py`."""
        return self._rates.per_second(self._clock.monotonic_s(), self._counters())

    def _enforce(self, policies: Policies) -> None:
        now_ms = self._clock.now_ms()
        if policies.message_ttl_ms:
            self.expire(now_ms - policies.message_ttl_ms)
        durable = [each for each in self.subscriptions.values() if each.durable]
        for each in durable:
            if not each.compacted:
                self._gaps.take(each)
        limit, self._refusal = policies.backlog_bytes_max, ""
        size = max((backlog(self, each.cursor)[1] for each in durable), default=0)
        if 0 <= limit < size:
            self._refusal = f"topic {self.name} has a backlog of {size} bytes, the limit is {limit}"
        acknowledged = acknowledged_through(self.log_holds()).position
        keep_from = first_to_keep(
            self.log.manifest.segments,
            self.log.active_bytes,
            acknowledged=acknowledged,
            policies=policies,
            now_ms=now_ms,
        )
        self._rolls_for_age = self.log.last_position <= acknowledged and active_may_go(
            self.log.active_times_ms, policies, now_ms
        )
        if keep_from > self._keep_from and self.deduplication is not None:
            # It is made again from the log behind its snapshot: that must all be there.
            self.deduplication.save()
        self._keep_from = keep_from

    def log_holds(self) -> list[LogHold]:
        """Who keeps the log from being trimmed, and from where on.

        A durable subscription what it has not acknowledged; a consumer that reads compacted what
        it will get from the log, be it a reader; compaction what it has not judged.
        """
        holds = []
        judged = self.compaction.holds_above
        if judged is not None:
            holds.append(LogHold("compaction", judged))
        for each in self.subscriptions.values():
            if each.durable:
                holds.append(LogHold(f"subscription {each.name}", each.cursor.mark_delete))
            for consumer in each.consumers:
                if consumer.through is not None:
                    position = max(each.cursor.mark_delete, consumer.through)
                    holds.append(LogHold(f"compacted reader {consumer.name}", position))
        return holds

    def expire(self, before_ms: int) -> None:
        """Take what was published before a time as acknowledged by every subscription."""
        position = self.find_time(before_ms) - 1
        for each in list(self.subscriptions.values()):
            if each.cursor.mark_delete < position:
                self.acknowledge(each, AckedUpTo(position))

    def skip_below(self, position: int) -> None:
        """Take what is below a position as acknowledged by every subscription: it may go."""
        last = min(position - 1, self.last_position)
        for each in list(self.subscriptions.values()):
            if each.cursor.mark_delete < last:
                self.acknowledge(each, AckedUpTo(last))
        if self.deduplication is not None:
            self.deduplication.save()

    def check_writable(self) -> None:
        """Raise `TopicTerminated`, or `BacklogExceeded` while a subscription is too far behind."""
        if self.terminated:
            raise TopicTerminated(f"topic {self.name} is terminated")
        if self._refusal:
            raise BacklogExceeded(self._refusal)


def _jobs_of(spark: SparkSession | None) -> Jobs | None:
    if spark is None:
        return None
    # Whoever has a session has Spark.
    from lithify.pipeline.jobs import SparkJobs  # noqa: PLC0415

    return SparkJobs(spark)
