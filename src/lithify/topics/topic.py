"""One topic, or one partition of a partitioned topic: a log, its producers, its subscriptions.

The parts: `TopicWriter` appends, `TopicReader` searches and reads, `Dispatcher` delivers to
consumers, `Acknowledgements` moves cursors, `Maintenance` does periodic work. This module manages
the subscriptions and connects the parts.

A ledger of the protocol is a segment of the log; positions are packed (ledger, entry).

The acknowledgements of a durable subscription go to the cursor store, those of a reader only to
memory. A compacted subscription delivers the retained messages up to the horizon, and its cursor
moves over all others.

One thread at a time: the event loop in a broker, the caller's thread in a library. An operation
that may wait for the disk runs in steps (`disk_steps.py`). A broker drives the generator, which has
a name in `-ing`, from its loop; the method without `-ing` runs it in the caller's thread.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from lithify.compaction.run.control import RunControl
from lithify.compaction.tasks.jobs import ignore_progress, no_check
from lithify.errors import InvalidInput, MissingCursors
from lithify.log.log import Log
from lithify.logger import get_logger
from lithify.positions import NO_POSITION, PACKED
from lithify.topics.compaction.compaction_service import LogCompactionService
from lithify.topics.compaction.topic_compaction import TopicCompaction
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies
from lithify.topics.disk_steps import DiskCall, run_here
from lithify.topics.maintenance import Maintenance, log_holds
from lithify.topics.messages.entry_flags import FLAG_BATCH, FLAG_DELAYED, due_ms_of
from lithify.topics.producers.deduplication_switch import DeduplicationSwitch
from lithify.topics.producers.producers import Producers
from lithify.topics.producers.topic_writer import TopicTerminated, TopicWriter
from lithify.topics.reading.dispatch_reads import TopicReads
from lithify.topics.reading.last_message_id import LastMessageId
from lithify.topics.reading.topic_reader import TopicReader
from lithify.topics.statistics.throughput import Throughput
from lithify.topics.subscriptions.acknowledgements import Acknowledgements
from lithify.topics.subscriptions.consumer import (
    CannotRead,
    DurabilityDiffers,
    ReadFailure,
    SubscriptionRemoved,
)
from lithify.topics.subscriptions.cursor import Cursor
from lithify.topics.subscriptions.cursor_changes import AckedUpTo, Reset
from lithify.topics.subscriptions.cursor_gaps import CursorGaps
from lithify.topics.subscriptions.cursor_store import CursorStore
from lithify.topics.subscriptions.dispatch import Dispatcher
from lithify.topics.subscriptions.key_shared_hash import slot_of
from lithify.topics.subscriptions.subscription import Consumer, Subscription, SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from lithify.clock import Clock
    from lithify.compaction.limits.latencies import Latencies
    from lithify.compaction.reports.report import Report
    from lithify.compaction.run.compactor import DryRun
    from lithify.compaction.tasks.jobs import Jobs
    from lithify.compaction.tasks.jobs import Progress as JobProgress
    from lithify.errors import LithifyError
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.settings import LogSettings
    from lithify.topics.compaction.compaction_service import ServiceFactory, TopicCompactionService
    from lithify.topics.definitions.topic_names import TopicName
    from lithify.topics.disk_steps import Steps
    from lithify.topics.messages.message import Message, MessageId
    from lithify.topics.producers.producers import Producer
    from lithify.topics.retention import LogHold
    from lithify.topics.subscriptions.cursor_changes import CursorChange
    from lithify.topics.subscriptions.subscription import Delivery

__all__ = ["FLAG_BATCH", "FLAG_DELAYED", "Topic", "TopicTerminated"]

logger = get_logger("lithify.topics")

_DURABILITY_NAMES = {True: "durable", False: "non-durable"}

NAMED_MAX = 10
"""Maximum number of subscriptions listed in one log line."""

READ_AGAIN_S = 30.0
"""After a read failure, consumers cannot join the subscription for this time."""


class Topic:
    """An open topic."""

    def __init__(
        self,
        fs: FileSystem,
        name: TopicName,
        log: Log,
        cursors: CursorStore,
        deduplication: DeduplicationSwitch,
        clock: Clock,
        compaction: TopicCompaction,
        service: TopicCompactionService,
    ) -> None:
        """Use `Topic.open`."""
        self.name = name
        self.object_id = 0
        """In the catalog; 0 without one."""
        self.log = log
        self.cursors = cursors
        self.compaction = compaction
        self.service = service
        reading = TopicReads(log, service, compaction.latencies, clock)
        end = LastMessageId(log, reading, service, name.partition)
        self.writer = TopicWriter(name, log, end, deduplication, clock)
        self.reader = TopicReader(fs, name, log, end, reading, compaction, service)
        self.producers = Producers()
        self.subscriptions: dict[str, Subscription] = {}
        self._subscriptions_lane = object()
        """Durable subscriptions are created and deleted one at a time, independently of appends."""
        self.policies: Callable[[], Policies] = Policies
        self.used_s = clock.monotonic_s()
        """The last time at which the topic was in use."""
        self.maintenance_failure = ""
        """Why the last maintenance round failed; empty if it succeeded."""
        self._clock = clock
        self.reads = reading
        self._gaps = CursorGaps(reading, cursors)
        self._acknowledgements = Acknowledgements(cursors, self._gaps)
        self._dispatcher = Dispatcher(log, reading, self._gaps, clock)
        self._throughput = Throughput(self.writer, self.producers, self.subscriptions, clock)
        self._maintenance = Maintenance(self, self._gaps, clock)
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
        compaction_settings: Callable[[], TopicCompactionSettings] = TopicCompactionSettings,
        new_service: ServiceFactory = LogCompactionService,
        latencies: Latencies | None = None,
    ) -> Topic:
        """Open or create the topic in `directory`; the callables are called again for each use."""
        with ExitStack() as opened:
            log = Log.open(
                fs,
                f"{directory}/log",
                kind="topic",
                settings=settings,
                clock=clock,
                rule=PACKED,
                events=events,
            )
            opened.callback(log.close)
            if log.last_position != NO_POSITION and not fs.exists(f"{directory}/cursors"):
                # They are created before the first entry.
                raise MissingCursors(f"{directory}/cursors", str(name))
            cursors = CursorStore.open(fs, f"{directory}/cursors", clock=clock, events=events)
            opened.callback(cursors.close)
            _cut_cursors(cursors, name, log.next_position)
            compaction = TopicCompaction(
                fs,
                log,
                settings=compaction_settings,
                clock=clock,
                events=events,
                name=f"{name.namespace}/{name.local}",
                latencies=latencies,
            )
            opened.callback(compaction.close)
            service = new_service(log, compaction)
            opened.callback(service.close)
            deduplication = DeduplicationSwitch(
                fs, f"{directory}/producers", log, events=events, wanted=deduplicates
            )
            topic = cls(fs, name, log, cursors, deduplication, clock, compaction, service)
            opened.pop_all()
        return topic

    def close(self) -> None:
        """Cancel a compaction run in progress, make everything durable and close the files."""
        self.compaction.close()
        self.service.close()
        try:
            self.writer.close()
            self.log.close()
        finally:
            self.cursors.close()

    # --- messages ---------------------------------------------------------------------------

    def append(
        self,
        *,
        value: bytes | None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
    ) -> MessageId:
        """Append one message and wait until it is durable."""
        return self.writer.append(
            value=value, key=key, properties=properties, event_time_ms=event_time_ms
        )

    def read(self, start: MessageId | None = None, *, compacted: bool = False) -> Iterator[Message]:
        """All messages from `start` (inclusive) on, in a snapshot; optionally only retained ones.

        An entry that cannot be decoded yields one message with the reason in `error`.
        """
        return self.reader.read(start, compacted=compacted)

    def get(self, key: str | bytes) -> Message | None:
        """The newest message of a key by the key indexes; None if there is none or a tombstone."""
        return self.reader.get(key)

    @property
    def lanes(self) -> tuple[object, ...]:
        """The keys of the topic's queues of disk calls: appends, and durable subscriptions."""
        return self.writer, self._subscriptions_lane

    @property
    def last_position(self) -> int:
        """The position of the last readable entry, -1 if there is none."""
        return self.log.last_position

    def last_message_id(self, through: int | None = None) -> MessageId:
        """The id of the last message; (-1, -1) if there is none.

        With `through`: of the last message for a compacted consumer that joined at this horizon.
        """
        return run_here(self.reader.end.finding(through))

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
        """The subscription of that name; a new one starts at position `start`.

        Raises `DurabilityDiffers` if a subscription of that name exists and `durable` differs.
        """
        return run_here(
            self.creating(name, kind, durable=durable, start=start, compacted=compacted)
        )

    def creating(
        self,
        name: str,
        kind: SubscriptionType,
        *,
        durable: bool,
        start: int,
        compacted: bool = False,
        check: Callable[[], None] = no_check,
    ) -> Steps[Subscription]:
        """See `subscription`. `check` may raise; it is called before anything is written."""

        def find() -> Callable[[], None] | None:
            check()
            return self._creation(name, kind, durable=durable, start=start, compacted=compacted)

        try:
            yield DiskCall(self._subscriptions_lane, find)
        finally:
            # Also if the client has disconnected: the subscription is on disk.
            self._add_created(name, kind)
        existing = self.subscriptions.get(name)
        if existing is not None:
            return existing
        cursor = Cursor(max(start, 0) - 1)
        return self._add_subscription(name, kind, cursor, durable=False, compacted=compacted)

    def _creation(
        self, name: str, kind: SubscriptionType, *, durable: bool, start: int, compacted: bool
    ) -> Callable[[], None] | None:
        """The write that a new durable subscription needs; None if nothing has to be written."""
        if compacted and not kind.single:
            raise InvalidInput(
                f"subscription {name} is {kind.name.lower()}: only exclusive and "
                "failover ones can be read compacted"
            )
        existing = self.subscriptions.get(name)
        if existing is not None and existing.durable is not durable:
            names = _DURABILITY_NAMES
            raise DurabilityDiffers(name, names[existing.durable], names[durable])
        if not durable or existing is not None:
            return None
        cursor = Cursor(max(start, 0) - 1)
        return partial(self.cursors.create, name, cursor, {}, compacted=compacted)

    def _add_created(self, name: str, kind: SubscriptionType) -> None:
        """Add a new durable subscription if its cursor was written."""
        if name in self.subscriptions or name not in self.cursors:
            return
        compacted = self.cursors.is_compacted(name)
        self._add_subscription(
            name, kind, self.cursors.get(name), durable=True, compacted=compacted
        )

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
        """Add a consumer, which may read compacted, or raise `ConsumerRefused`."""
        run_here(self.joining(subscription, consumer, kind, compacted=compacted))

    def joining(
        self,
        subscription: Subscription,
        consumer: Consumer,
        kind: SubscriptionType,
        *,
        compacted: bool = False,
        check: Callable[[], None] = no_check,
    ) -> Steps[None]:
        """See `join`. A caller that stops before the end must call `leave` for the consumer.

        `check` may raise; it is called directly before the consumer is added.
        """
        check()
        self._check_exists(subscription)
        consumer.through = self.service.last_compacted_position if compacted else None
        first = not subscription.consumers
        subscription.add(consumer, kind)
        if not first:
            return
        if subscription.durable:
            yield DiskCall(self._subscriptions_lane, partial(self._compacted_update, subscription))
            self._check_exists(subscription)
        yield from self._gaps.taking(subscription)
        self._check_exists(subscription)
        subscription.rewind()

    def _compacted_update(self, subscription: Subscription) -> Callable[[], None] | None:
        """The write that records whether a subscription is compacted; None if it is unchanged."""
        name, compacted = subscription.name, subscription.compacted
        exists = self.subscriptions.get(name) is subscription
        if not exists or self.cursors.is_compacted(name) is compacted:
            return None
        return partial(self.cursors.set_compacted, name, compacted=compacted)

    def _check_exists(self, subscription: Subscription) -> None:
        name = subscription.name
        if self.subscriptions.get(name) is not subscription:
            raise SubscriptionRemoved(
                f"subscription {name} of {self.name} was removed by another request"
            )

    def unsubscribe(self, subscription: Subscription) -> None:
        """Delete a subscription and its acknowledgements."""
        run_here(self.unsubscribing(subscription))

    def unsubscribing(self, subscription: Subscription) -> Steps[None]:
        """See `unsubscribe`. The subscription is removed at once, and restored on a write error."""
        name = subscription.name
        if not self._remove(subscription) or not subscription.durable:
            return
        try:
            # The creation of a subscription of the same name waits for this call.
            yield DiskCall(self._subscriptions_lane, lambda: partial(self.cursors.delete, name))
        finally:
            if name not in self.subscriptions:
                self._add_created(name, subscription.kind)

    def _remove(self, subscription: Subscription) -> bool:
        # The name may belong to a newer subscription.
        if self.subscriptions.get(subscription.name) is not subscription:
            return False
        del self.subscriptions[subscription.name]
        self._throughput.remove_subscription(subscription)
        return True

    def leave(self, subscription: Subscription, consumer: Consumer, *, keep: bool = False) -> None:
        """Remove a consumer; deletes an unused reader's subscription unless `keep` (for a seek)."""
        subscription.remove(consumer)
        if not keep:
            subscription.forget_seek()
            self.forget_unused(subscription)

    def forget_unused(self, subscription: Subscription) -> None:
        """Delete a reader's subscription if it has no consumer."""
        if not (subscription.consumers or subscription.durable):
            self._remove(subscription)

    def acknowledge(self, subscription: Subscription, change: CursorChange) -> None:
        """Record an acknowledgement, and release the acknowledged entries."""
        run_here(self.acknowledging(subscription, change))

    def acknowledging(
        self, subscription: Subscription, change: CursorChange, check: Callable[[], None] = no_check
    ) -> Steps[None]:
        """See `acknowledge`. `check` may raise; it is called before anything is changed."""
        return self._acknowledgements.acknowledging(subscription, change, check)

    def seek(self, subscription: Subscription, position: int) -> None:
        """Move the cursor to a position; acknowledgements at or above it are discarded."""
        run_here(self.seeking(subscription, position))

    def seeking(self, subscription: Subscription, position: int) -> Steps[None]:
        """See `seek`."""
        return self.acknowledging(subscription, Reset(max(position, 0)))

    def dispatch(self, subscription: Subscription) -> list[Delivery]:
        """Deliver what can be delivered; an empty result means that nothing is left to do."""
        return run_here(self.dispatching(subscription))

    def dispatching(self, subscription: Subscription) -> Steps[list[Delivery]]:
        """See `dispatch`."""
        return self._dispatcher.dispatching(subscription)

    def cannot_read(self, subscription: Subscription, error: LithifyError) -> bool:
        """Record a read failure of a subscription; returns whether the reason is new."""
        before, reason = subscription.read_failure, str(error)
        subscription.read_failure = ReadFailure(reason, self._clock.monotonic_s())
        return before is None or before.reason != reason

    def check_readable(self, name: str) -> None:
        """Raise `CannotRead` for `READ_AGAIN_S` after a read failure of the subscription."""
        subscription = self.subscriptions.get(name)
        failure = None if subscription is None else subscription.read_failure
        if failure is not None and self._clock.monotonic_s() - failure.at_s < READ_AGAIN_S:
            raise CannotRead(f"subscription {name} of {self.name}: {failure.reason}")

    # --- compaction -------------------------------------------------------------------------

    def compact(
        self,
        spark: SparkSession | None = None,
        progress: JobProgress = ignore_progress,
        *,
        wait: bool = True,
    ) -> Report:
        """Compact the topic, with jobs of a Spark session, which stays open, or in this thread.

        While another run uses the topic or its disk, the run waits, or is refused without `wait`.
        """
        control = RunControl(progress, waits=wait)
        return self.service.compact("library", _jobs_of(spark), control)

    def plan_compaction(self, spark: SparkSession | None = None) -> DryRun:
        """A dry run over the sealed segments."""
        return self.compaction.plan(_jobs_of(spark))

    # --- maintenance ------------------------------------------------------------------------

    def maintain(self) -> None:
        """Do all periodic work, in the caller's thread."""
        self.maintain_files()
        run_here(self.maintaining())

    def maintain_files(self) -> None:
        """Do the periodic work that waits for the disk; may be called from any thread."""
        self._maintenance.files()

    @property
    def in_use(self) -> bool:
        """Does it have a producer, a consumer, a reader's subscription, or a compaction run?"""
        return bool(
            self.producers.joined
            or self.producers.waiting
            or self.compaction.running
            or any(each.consumers or not each.durable for each in self.subscriptions.values())
        )

    @property
    def has_clients(self) -> bool:
        """Does it have a producer or a consumer?"""
        consumed = any(each.consumers for each in self.subscriptions.values())
        return consumed or bool(self.producers.joined)

    @property
    def has_backlog(self) -> bool:
        """Does a durable subscription have unacknowledged entries?"""
        last = self.log.last_position
        return any(e.durable and e.cursor.mark_delete < last for e in self.subscriptions.values())

    def maintaining(self) -> Steps[None]:
        """Do the periodic work of the topic's thread."""
        if self.in_use:
            self.used_s = self._clock.monotonic_s()
        self.reads.forget_unused()
        self.reads.forget_below(self.log.manifest.segments[0].first_position)
        if self._maintenance.is_due():
            yield from self.enforcing()

    def enforcing(self) -> Steps[None]:
        """Enforce the policies; the next `maintain_files` deletes what they release."""
        yield from self._maintenance.enforcing(self.policies())
        yield from self._throughput.noting()

    def log_holds(self) -> list[LogHold]:
        """What keeps the log from being trimmed, and from which position on."""
        return log_holds(self)

    def delivered(self) -> tuple[int, int]:
        """(messages, bytes) sent to consumers, including those of deleted subscriptions."""
        return self._throughput.delivered()

    def client_rate(self, client: Producer | Subscription | Consumer) -> tuple[float, float]:
        """Messages and bytes per second of a producer, a subscription or a consumer."""
        return self._throughput.client_rate(client)

    def rates(self) -> list[float]:
        """Messages in, bytes in, messages out and bytes out, per second.

        See `statistics/rates.py`.
        """
        return self._throughput.rates()

    def skipping_below(self, position: int) -> Steps[None]:
        """Acknowledge everything below a position for every subscription: it can be trimmed."""
        yield from self.acknowledging_below(min(position, self.last_position + 1))
        yield from self.writer.saving_producers(self.compaction.reserve.if_full)

    def acknowledging_below(self, position: int) -> Steps[None]:
        """Acknowledge everything below a position for every subscription; retention trims it."""
        for each in list(self.subscriptions.values()):
            if each.acked.mark_delete < position - 1 and each.name in self.subscriptions:
                yield from self.acknowledging(each, AckedUpTo(position - 1))


def _cut_cursors(cursors: CursorStore, name: TopicName, end: int) -> None:
    """Cut cursors at the end of the log, so that new messages do not count as acknowledged."""
    ahead = cursors.cut(end)
    if ahead:
        logger.warning(
            "cursors of a topic were ahead of its log, which is older than they are; they continue "
            "at its end",
            topic=str(name),
            subscriptions=len(ahead),
            first=", ".join(ahead[:NAMED_MAX]),
        )


def _jobs_of(spark: SparkSession | None) -> Jobs | None:
    if spark is None:
        return None
    # Spark is installed if there is a session.
    from lithify.pipeline.jobs import SparkJobs  # noqa: PLC0415

    return SparkJobs(spark)
