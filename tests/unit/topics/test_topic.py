"""One topic: reading for dispatch, gaps, retention, time to live, backlog."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from lithify.clock import ManualClock
from lithify.errors import LithifyError, LogClosed, WriteFailed
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem, read_file, write_atomic
from lithify.fs.remove_tree import remove_tree
from lithify.positions import pack, unpack
from lithify.settings import LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.disk_steps import run_here
from lithify.topics.messages.entry_flags import FLAG_AHEAD
from lithify.topics.messages.message import MessageId, encode_entry
from lithify.topics.messages.message_pb2 import LZ4, ZSTD, MessageMetadata
from lithify.topics.producers.topic_writer import BacklogExceeded
from lithify.topics.subscriptions.cursor_changes import Acked, AckedUpTo
from lithify.topics.subscriptions.subscription import Consumer, Subscription, SubscriptionType
from lithify.topics.topic import FLAG_BATCH, FLAG_DELAYED, Topic
from tests.hooked_jobs import Halted
from tests.patience import PROCESS_S_MAX
from tests.unit.topics.segments import batch, message, single

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.fs import FileSystem

NOW_MS = ManualClock().now_ms()
SHARED = SubscriptionType.SHARED
EXCLUSIVE = SubscriptionType.EXCLUSIVE


class Bench:
    """A topic on a disk in memory, with a clock that is moved by hand."""

    def __init__(
        self,
        fs: FileSystem | None = None,
        segment_bytes_max: int = 2**20,
        deduplicates: Callable[[], bool] = bool,
    ) -> None:
        self.deduplicates = deduplicates
        self.fs = fs or MemoryFileSystem()
        self.clock = ManualClock()
        self.settings = LogSettings(segment_bytes_max=segment_bytes_max)
        self.open()

    def open(self) -> None:
        self.topic = Topic.open(
            self.fs,
            "/t",
            TopicName.parse("orders"),
            settings=self.settings,
            clock=self.clock,
            events=ignore_events,
            deduplicates=self.deduplicates,
        )

    def reopen(self) -> None:
        self.topic.close()
        self.open()

    def join(
        self, kind: SubscriptionType = EXCLUSIVE, permits: int = 1000, *, durable: bool = True
    ) -> tuple[Subscription, Consumer]:
        subscription = self.topic.subscription("s", kind, durable=durable, start=0)
        consumer = Consumer("c", permits=permits)
        subscription.add(consumer, kind)
        return subscription, consumer

    def received(self, subscription: Subscription) -> list[int]:
        """Entry numbers of all that is delivered now."""
        found = []
        while deliveries := self.topic.dispatch(subscription):
            found += [unpack(delivery.entry.position)[1] for delivery in deliveries]
        return found

    def append(self, count: int, value: bytes = b"x") -> None:
        for _ in range(count):
            self.topic.append(value=value)

    def maintain(self) -> None:
        """Twice: what memory decides, the files follow in the next round."""
        self.clock.advance(2)
        self.topic.maintain()
        self.topic.maintain()


def test_appended_messages_are_read_and_dispatched() -> None:
    bench = Bench()
    bench.append(3)
    subscription, _ = bench.join()
    assert bench.received(subscription) == [0, 1, 2]
    bench.append(1)
    assert bench.received(subscription) == [3]
    assert len(list(bench.topic.read(MessageId(1, 2)))) == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"anything", "message metadata of"),
        (batch(message("a"), num_messages_in_batch=2), "message 1 of a batch"),
        (
            batch(message("a"), codec=ZSTD, uncompressed_size=7),
            "is not valid compressed data of 7 bytes",
        ),
        (batch(message("a"), codec=LZ4, uncompressed_size=2**30), "the limit is"),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_the_library_skips_messages_that_cannot_be_decoded(
    body: bytes, why: str, *, compacted: bool
) -> None:
    bench = Bench()
    bench.topic.append(key="a", value=b"before")
    bench.topic.writer.append_entries([body], times=[1], counts=[2], flags=FLAG_BATCH).result()
    bench.topic.append(key="b", value=b"behind")
    if compacted:
        bench.topic.compact()
    before, opaque, behind = bench.topic.read(compacted=compacted)
    assert (before.value, before.error) == (b"before", "")
    assert (opaque.id, opaque.key, opaque.value) == (MessageId(1, 1), None, body)
    assert why in opaque.error
    assert (behind.value, behind.error) == (b"behind", "")


def test_a_consumer_with_one_permit_reads_the_disk_once() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    bench = Bench(fs)
    bench.append(100)
    subscription, consumer = bench.join(permits=0)
    before = fs.operations
    got = []
    for _ in range(100):
        consumer.permits += 1
        got += bench.received(subscription)
    assert got == list(range(100))
    assert fs.operations - before < 10


def test_a_gap_that_a_failed_write_left_does_not_stop_the_cursor() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    bench = Bench(fs)
    bench.append(2)
    fs.add(Fault.parse("write* *.seg nth=1 EIO"))
    with pytest.raises(WriteFailed):
        bench.append(1)
    bench.append(1)
    subscription, _ = bench.join()
    assert bench.received(subscription) == [0, 1, 3]
    for entry in (0, 1, 3):
        bench.topic.acknowledge(subscription, Acked(pack(1, entry)))
    assert subscription.cursor.mark_delete == pack(1, 3)


def test_acknowledgements_outlive_a_restart_and_what_is_left_is_delivered() -> None:
    bench = Bench()
    bench.append(5)
    subscription, _ = bench.join(SHARED)
    bench.received(subscription)
    for entry in (0, 1, 3):
        bench.topic.acknowledge(subscription, Acked(pack(1, entry)))
    bench.reopen()
    subscription, _ = bench.join(SHARED)
    assert bench.received(subscription) == [2, 4]


def test_a_stretch_of_acknowledged_entries_does_not_end_a_dispatch() -> None:
    bench = Bench(segment_bytes_max=1024)
    bench.append(60)
    subscription, _ = bench.join(SHARED, permits=0)
    positions = [pack(m.id.ledger, m.id.entry) for m in bench.topic.read()]
    for position in positions[1:59]:
        bench.topic.acknowledge(subscription, Acked(position))
    next(iter(subscription.consumers)).permits = 10
    assert len(bench.received(subscription)) == 2


def test_entries_to_redeliver_are_read_in_one_pass_and_dropped_ones_are_skipped() -> None:
    bench = Bench(segment_bytes_max=1024)
    bench.append(40)
    subscription, consumer = bench.join(SHARED, durable=False)
    total = len(bench.received(subscription))
    subscription.redeliver(consumer, None)
    last = bench.topic.log.manifest.segments[-1].first_position
    bench.topic.log.drop_head(last)
    bench.topic.log.reclaim()
    bench.topic.maintain()
    left = len(list(bench.topic.read()))
    assert 0 < left < total
    assert len(bench.received(subscription)) == left
    bench.append(1)
    assert len(bench.received(subscription)) == 1


def test_the_last_message_id_distinguishes_batches_from_single_messages() -> None:
    bench = Bench()
    topic = bench.topic
    assert topic.last_message_id() == MessageId(-1, -1)
    bench.append(1)
    assert topic.last_message_id() == MessageId(1, 0)
    topic.writer.append_entries([b"a batch"], times=[1], counts=[3], flags=FLAG_BATCH).result()
    assert topic.last_message_id() == MessageId(1, 1, 2)
    topic.log.roll()
    assert topic.last_message_id() == MessageId(1, 1, 2)


def test_a_delayed_message_is_delivered_when_due_and_delays_no_other() -> None:
    bench = Bench()
    now_ms = bench.clock.now_ms()
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=now_ms, deliver_at_time=now_ms + 5000
    )
    body = encode_entry(metadata, b"later")
    bench.topic.writer.append_entries(
        [body], times=[now_ms], counts=[1], flags=FLAG_DELAYED
    ).result()
    bench.append(1)
    subscription, _ = bench.join(SHARED)
    assert bench.received(subscription) == [1]
    assert subscription.due_ms == now_ms + 5000
    bench.clock.advance(5)
    assert bench.received(subscription) == [0]


def test_an_idle_topic_keeps_nothing_that_is_acknowledged_and_over_age() -> None:
    bench = Bench()
    bench.topic.policies = lambda: Policies(retention_ms=300_000)
    subscription, _ = bench.join()
    bench.append(3)
    bench.clock.advance(301)
    bench.maintain()
    assert len(list(bench.topic.read())) == 3, "nothing is acknowledged"
    bench.topic.acknowledge(subscription, AckedUpTo(bench.topic.last_position))
    last = bench.topic.last_position
    bench.maintain()
    bench.maintain()
    assert list(bench.topic.read()) == []
    assert len(bench.topic.log.manifest.segments) == 1
    generation = bench.topic.log.manifest.generation
    bench.clock.advance(3600)
    bench.maintain()
    assert bench.topic.log.manifest.generation == generation, "there is nothing left to do"
    bench.append(1)
    assert bench.topic.last_position > last
    assert bench.received(subscription) == [0]


def test_a_short_retention_does_not_roll_a_busy_topic_all_the_time() -> None:
    bench = Bench()
    bench.topic.policies = lambda: Policies(retention_ms=0)
    for _ in range(29):
        bench.append(1)
        bench.maintain()
    assert bench.topic.log.manifest.active.id == 1
    bench.maintain()
    bench.maintain()
    assert bench.topic.log.manifest.active.id == 2
    assert list(bench.topic.read()) == []


def test_the_library_numbers_its_messages_on_where_the_last_process_stopped() -> None:
    bench = Bench(deduplicates=lambda: True)
    bench.append(3)
    assert bench.topic.writer.last_sequence_id("library") == 2
    bench.reopen()
    bench.append(2)
    assert [message.sequence_id for message in bench.topic.read()] == [0, 1, 2, 3, 4]
    assert bench.topic.writer.last_sequence_id("library") == 4


def test_a_message_of_the_library_that_failed_has_no_number() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    bench = Bench(fs, deduplicates=lambda: True)
    bench.append(1)
    for fault in ("write* *.seg nth=1 EIO", "fdatasync *.seg nth=1 EIO"):
        fs.add(Fault.parse(fault))
        with pytest.raises(WriteFailed):
            bench.append(1)
    bench.append(1)
    assert [message.sequence_id for message in bench.topic.read()] == [0, 1]


def test_the_library_switches_deduplication_with_its_next_message() -> None:
    wanted = False
    bench = Bench(deduplicates=lambda: wanted)
    bench.append(2)
    assert bench.topic.writer.deduplication is None
    wanted = True
    bench.append(1)
    assert bench.topic.writer.last_sequence_id("library") == 0
    wanted = False
    bench.append(1)
    assert bench.topic.writer.deduplication is None


def test_nothing_is_dropped_before_the_progress_of_the_producers_is_saved() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    bench = Bench(fs, segment_bytes_max=1024, deduplicates=lambda: True)
    bench.topic.policies = lambda: Policies(retention_ms=0)
    fs.add(Fault("rename", "/t/producers*", count=None))
    bench.append(80)
    segments = len(bench.topic.log.manifest.segments)
    assert segments > 3
    for _ in range(3):
        bench.maintain()
        assert len(bench.topic.log.manifest.segments) == segments
    with pytest.raises(WriteFailed, match="producers"):
        run_here(bench.topic.skipping_below(bench.topic.log.next_position))
    fs.clear()
    bench.maintain()
    assert len(bench.topic.log.manifest.segments) == 1


def test_closing_stops_a_dry_run() -> None:
    bench = Bench(segment_bytes_max=1024)
    bench.append(80)
    jobs, ended = Halted(), list[BaseException]()

    def plan() -> None:
        try:
            bench.topic.compaction.plan(jobs)
        except LithifyError as error:
            ended.append(error)

    planning = threading.Thread(target=plan)
    planning.start()
    assert jobs.begun.wait(PROCESS_S_MAX)
    closing = threading.Thread(target=bench.topic.close)
    closing.start()
    closing.join(PROCESS_S_MAX)
    stopped = not closing.is_alive()
    jobs.go_on.set()
    planning.join()
    closing.join()
    assert stopped
    assert [type(error) for error in ended] == [LogClosed]


def test_retention_drops_whole_segments_that_all_have_acknowledged() -> None:
    bench = Bench(segment_bytes_max=1024)
    bench.topic.policies = lambda: Policies(retention_ms=0)
    subscription, _ = bench.join()
    bench.append(80)
    segments = len(bench.topic.log.manifest.segments)
    assert segments > 3
    bench.maintain()
    assert len(bench.topic.log.manifest.segments) == segments, "nothing is acknowledged"
    third = bench.topic.log.manifest.segments[2]
    bench.topic.acknowledge(subscription, AckedUpTo(third.first_position))
    bench.maintain()
    assert bench.topic.log.manifest.segments[0] == third
    assert not bench.topic.log.manifest.retired
    bench.reopen()
    assert next(bench.topic.read()).id.ledger == third.id


@pytest.mark.parametrize("sent_ms", [NOW_MS + 90_000, NOW_MS + 10**12, 2**63 - 1, -1])
def test_a_clock_that_is_ahead_keeps_nothing_back(sent_ms: int) -> None:
    """One of 2^64 - 1, which is -1 here, is the latest of all."""
    bench = Bench()
    body = encode_entry(
        MessageMetadata(producer_name="p", sequence_id=0, publish_time=sent_ms % 2**64), b"x"
    )
    bench.topic.writer.append_entries([body], times=[sent_ms], counts=[1]).result()
    lag = TopicCompactionSettings(compaction_lag_min_ms=60_000)
    bench.topic.compaction.settings = lambda: lag
    bench.clock.advance(121)
    assert bench.topic.reader.times.find(bench.clock.now_ms()) == pack(1, 1)
    bench.topic.compact()
    assert bench.topic.compaction.horizon == pack(1, 0), "it is older than the minimum lag"
    assert [each.publish_time_ms for each in bench.topic.read()] == [sent_ms % 2**64], "as sent"
    assert bench.topic.log.manifest.segments[0].flags == FLAG_AHEAD
    bench.topic.policies = lambda: Policies(retention_ms=60_000, retention_bytes=0)
    bench.maintain()
    assert list(bench.topic.read()) == []


def test_a_clock_that_is_a_little_ahead_is_believed() -> None:
    bench = Bench()
    now_ms = bench.clock.now_ms()
    for ahead_ms in (0, 5_000):
        bench.topic.writer.append_entries(
            [single()], times=[now_ms + ahead_ms], counts=[1]
        ).result()
    assert bench.topic.reader.times.find(now_ms + 5_000) == pack(1, 1)
    bench.topic.log.roll()
    assert bench.topic.log.manifest.segments[0].flags == 0


def test_messages_older_than_their_time_to_live_count_as_acknowledged() -> None:
    bench = Bench()
    bench.topic.policies = lambda: Policies(message_ttl_ms=60_000)
    subscription, _ = bench.join(SHARED)
    bench.append(3)
    bench.clock.advance(59)
    bench.append(2)
    assert bench.received(subscription) == [0, 1, 2, 3, 4]
    bench.maintain()
    assert subscription.cursor.mark_delete == pack(1, 2)
    assert next(iter(subscription.consumers)).unacked_messages == 2


def test_producers_are_refused_while_a_subscription_is_too_far_behind() -> None:
    bench = Bench()
    bench.topic.policies = lambda: Policies(backlog_bytes_max=1000)
    subscription, _ = bench.join()
    bench.append(20, b"x" * 100)
    bench.maintain()
    with pytest.raises(BacklogExceeded, match="limit is 1000"):
        bench.append(1)
    bench.topic.acknowledge(subscription, AckedUpTo(bench.topic.last_position))
    bench.maintain()
    bench.append(1)


def test_a_readers_subscription_is_deleted_with_it_unless_kept_for_a_seek() -> None:
    bench = Bench()
    bench.append(3)
    subscription, consumer = bench.join(durable=False)
    bench.topic.leave(subscription, consumer, keep=True)
    bench.topic.seek(subscription, pack(1, 2))
    again, consumer = bench.join(durable=False)
    assert again is subscription
    assert bench.received(again) == [2]
    bench.topic.leave(again, consumer)
    assert not bench.topic.subscriptions


def files_below(fs: FileSystem, directory: str) -> dict[str, bytes]:
    return {name: read_file(fs, f"{directory}/{name}") for name in fs.list(directory)}


def with_older_log(*acknowledged: int) -> Bench:
    """A topic whose log of 3 messages was restored after 10 were there and some acknowledged."""
    bench = Bench()
    bench.append(3)
    bench.topic.close()
    older = files_below(bench.fs, "/t/log")
    bench.open()
    bench.append(7)
    subscription, _ = bench.join(SHARED)
    bench.received(subscription)
    first = bench.topic.log.manifest.segments[0].first_position
    for number in acknowledged:
        bench.topic.acknowledge(subscription, Acked(first + number))
    bench.topic.close()
    remove_tree(bench.fs, "/t/log")
    bench.fs.mkdir("/t/log")
    for name, content in older.items():
        write_atomic(bench.fs, f"/t/log/{name}", content)
    return bench


@pytest.mark.parametrize(
    ("acknowledged", "expected"),
    [
        (range(10), range(3, 10)),
        # A range that begins below the end of the log, and one that is above it.
        ([1, 2, 3, 4, 7], [0, *range(3, 10)]),
    ],
)
def test_cursors_ahead_of_an_older_log_are_cut_back(
    acknowledged: list[int], expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    bench = with_older_log(*acknowledged)
    bench.open()

    def said() -> list[str]:
        # A thread that an earlier test has left may write records of its own.
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if "orders" in line]

    (warning,) = said()
    assert "ahead of its log" in warning
    bench.append(7)
    bench.reopen()
    subscription, _ = bench.join(SHARED)
    assert bench.received(subscription) == list(expected)
    assert said() == [warning]
