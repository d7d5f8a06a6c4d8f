"""Compacted subscriptions of one topic: what comes, where cursors stand, what holds the log."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from lithify.clock import ManualClock
from lithify.errors import InvalidInput, InvalidSetting
from lithify.events import ignore_events
from lithify.fs import MemoryFileSystem
from lithify.positions import pack, unpack
from lithify.testing.faulty_fs import FaultyFileSystem
from lithify.topics.compaction.compaction_service import (
    LogCompactionService,
    MessagePosition,
    service_factory,
)
from lithify.topics.definitions.policies import Policies
from lithify.topics.disk_steps import run_here
from lithify.topics.messages.message import MessageId, decode_entry
from lithify.topics.retention import LogHold
from lithify.topics.subscriptions.backlog import backlog, subscription_backlog
from lithify.topics.subscriptions.cursor_changes import Acked, AckedBatch, AckedUpTo
from lithify.topics.subscriptions.subscription import (
    Consumer,
    ConsumerRefused,
    Subscription,
    SubscriptionType,
)
from lithify.topics.topic import FLAG_BATCH
from lithify.topics.topics import Topics, TopicSettings
from tests.topic_life import SECRET
from tests.unit.topics import segments
from tests.unit.topics.test_topic import Bench

if TYPE_CHECKING:
    from lithify.topics.subscriptions.subscription import Delivery

EXCLUSIVE = SubscriptionType.EXCLUSIVE


class Compacted(Bench):
    """A topic with keys."""

    def put(self, *keys: str, value: bytes | None = b"x") -> None:
        for key in keys:
            self.topic.append(key=key, value=value)

    def put_batch(self, *keys: str, **fields: Any) -> None:
        body = segments.batch(*(segments.message(key) for key in keys), **fields)
        flags = FLAG_BATCH
        self.topic.writer.append_entries(
            [body], times=[1], counts=[len(keys)], flags=flags
        ).result()

    def compact(self) -> None:
        self.topic.service.compact("test")

    def read(
        self, start: int = 0, *, durable: bool = True, permits: int = 1000, name: str = "s"
    ) -> tuple[Subscription, Consumer]:
        topic = self.topic
        subscription = topic.subscription(
            name, EXCLUSIVE, durable=durable, start=start, compacted=True
        )
        consumer = Consumer("c", permits=permits)
        topic.join(subscription, consumer, EXCLUSIVE, compacted=True)
        return subscription, consumer

    def deliveries(self, subscription: Subscription) -> list[Delivery]:
        found: list[Delivery] = []
        while more := self.topic.dispatch(subscription):
            found += more
        return found

    def ack(self, subscription: Subscription, *entries: int, ledger: int = 1) -> None:
        for entry in entries:
            self.topic.acknowledge(subscription, Acked(pack(ledger, entry)))


def backlog_of(bench: Compacted, subscription: Subscription) -> tuple[int, int]:
    topic = bench.topic
    return run_here(subscription_backlog(topic.log, topic.reader, subscription))


@pytest.fixture
def bench() -> Compacted:
    """Entries 0 … 5 of which 1, 4 and 5 are retained, and none above."""
    bench = Compacted()
    bench.put("a", "b", "c", "c", "a", "c")
    bench.compact()
    return bench


def test_compacted_reads_use_the_view_up_to_the_horizon_and_the_log_above(bench: Compacted) -> None:
    bench.put("a", "a")
    subscription, _ = bench.read(durable=False)
    assert bench.received(subscription) == [1, 4, 5, 0, 1]
    assert [str(m.id) for m in bench.topic.read(compacted=True)] == [
        "1:1", "1:4", "1:5", "2:0", "2:1"
    ]  # fmt: skip
    assert len(list(bench.topic.read())) == 8
    start = MessageId(1, 5)
    assert [str(m.id) for m in bench.topic.read(start, compacted=True)] == ["1:5", "2:0", "2:1"]


@pytest.mark.parametrize("order", [(1, 4, 5), (5, 4, 1), (4, 1, 5), (5, 1, 4)])
def test_mark_delete_gets_to_the_end_in_whatever_order(
    bench: Compacted, order: tuple[int, ...]
) -> None:
    subscription, _ = bench.read()
    assert subscription.cursor.mark_delete == pack(1, 0)
    assert bench.received(subscription) == [1, 4, 5]
    bench.ack(subscription, *order)
    assert subscription.cursor.mark_delete == pack(2, 0) - 1
    assert list(subscription.cursor.acked_ranges()) == []
    bench.reopen()
    subscription, _ = bench.read()
    assert bench.received(subscription) == []
    bench.put("z")
    assert bench.received(subscription) == [0]


def test_the_backlog_is_what_will_come(bench: Compacted) -> None:
    bench.put("a", "a")
    subscription, consumer = bench.read()

    def left() -> int:
        return backlog_of(bench, subscription)[0]

    assert backlog(bench.topic.log, subscription.cursor)[0] == 7, (
        "the log behind what is not retained"
    )
    assert left() == 5
    bench.received(subscription)
    bench.ack(subscription, 4)
    assert left() == 4
    bench.ack(subscription, 1)
    assert left() == 3
    bench.compact()
    assert left() == 3, "it continues with the horizon that it found"
    bench.topic.leave(subscription, consumer)
    bench.topic.join(subscription, Consumer("d"), EXCLUSIVE, compacted=True)
    assert left() == 2, "5 and the last of a"
    bench.ack(subscription, 5)
    bench.ack(subscription, 1, ledger=2)
    assert left() == 0


@pytest.mark.parametrize("value", [b"x" * 100, b"x" * 10_000])
def test_the_backlog_in_a_large_segment_of_the_view(value: bytes) -> None:
    bench = Compacted(segment_bytes_max=2**30)
    for number in range(600):
        bench.put(f"k{number % 500}", value=value)
    bench.compact()
    subscription, _ = bench.read()
    assert backlog_of(bench, subscription)[0] == 500
    bench.topic.acknowledge(subscription, AckedUpTo(pack(1, 199)))
    entries, size_bytes = run_here(
        subscription_backlog(bench.topic.log, bench.topic.reader, subscription)
    )
    assert entries == pytest.approx(400, rel=0.02)
    assert size_bytes == pytest.approx(400 * len(value), rel=0.8)


def test_gaps_in_order_are_recorded_so_that_a_restart_needs_no_view(
    bench: Compacted,
) -> None:
    subscription, _ = bench.read()
    bench.received(subscription)
    bench.ack(subscription, 1, 4)
    bench.reopen()
    assert bench.topic.subscriptions["s"].cursor.mark_delete == pack(1, 4)


def test_a_cumulative_acknowledgement_includes_the_following_gap(bench: Compacted) -> None:
    subscription, _ = bench.read()
    bench.received(subscription)
    bench.topic.acknowledge(subscription, AckedUpTo(pack(1, 1)))
    assert subscription.cursor.mark_delete == pack(1, 3)


def test_a_new_generation_acknowledges_dropped_entries(bench: Compacted) -> None:
    subscription, consumer = bench.read(permits=1)
    assert bench.received(subscription) == [1]
    bench.put("b", "a")
    bench.compact()
    assert bench.topic.dispatch(subscription) == []
    consumer.permits = 10
    # 4 was superseded by 2:1; both come from where they are now.
    assert bench.received(subscription) == [5, 0, 1]
    bench.ack(subscription, 5)
    bench.ack(subscription, 0, 1, ledger=2)
    bench.ack(subscription, 1)
    assert subscription.cursor.mark_delete == pack(3, 0) - 1


def test_a_reader_sees_deletes_above_its_position_whatever_is_compacted(bench: Compacted) -> None:
    subscription, consumer = bench.read(durable=False, permits=1)
    assert bench.received(subscription) == [1]
    bench.put("b", "c", value=None)
    bench.compact()
    bench.topic.policies = lambda: Policies(retention_ms=0)
    consumer.permits = 10
    bench.maintain()
    assert bench.received(subscription) == [4, 0, 1]
    other, _ = bench.read(durable=False, name="other")
    assert bench.received(other) == [4]


def test_a_compacted_reader_holds_the_log_only_above_what_it_needs(bench: Compacted) -> None:
    bench.topic.policies = lambda: Policies(retention_ms=0)
    subscription, consumer = bench.read(durable=False, permits=0)
    bench.put("b", value=None)
    bench.compact()
    bench.clock.advance(3600)
    bench.maintain()
    first = bench.topic.log.manifest.segments[0].first_position
    assert first == pack(2, 0)
    assert LogHold("compacted reader c", pack(1, 5)) in bench.topic.log_holds()
    consumer.permits = 10
    # Of b it gets the tombstone, which the view no longer has.
    assert bench.received(subscription) == [4, 5, 0]
    bench.topic.leave(subscription, consumer)
    assert all(hold.name != "compacted reader c" for hold in bench.topic.log_holds())
    bench.maintain()
    assert bench.topic.log.manifest.segments[0].first_position > pack(2, 0)
    late, _ = bench.read(durable=False)
    assert bench.received(late) == [4, 5]
    assert bench.topic.last_message_id() == MessageId(-1, -1)
    assert bench.topic.last_message_id(pack(2, 0)) == MessageId(1, 5)


def test_a_durable_subscription_below_a_trimmed_log_is_still_there_after_a_restart(
    bench: Compacted,
) -> None:
    bench.topic.policies = lambda: Policies(retention_ms=0)
    bench.clock.advance(3600)
    bench.maintain()
    assert bench.topic.log.manifest.segments[0].first_position == pack(2, 0)
    subscription, consumer = bench.read()
    bench.topic.leave(subscription, consumer)
    bench.reopen()
    bench.maintain()
    subscription, consumer = bench.read()
    assert bench.received(subscription) == [1, 4, 5]
    bench.topic.leave(subscription, consumer)
    # One that reads the log has nothing there.
    bench.topic.join(subscription, Consumer("c", permits=9), EXCLUSIVE)
    assert bench.received(subscription) == []
    assert subscription.cursor.mark_delete == pack(2, 0) - 1


@pytest.mark.parametrize(("start", "found"), [(0, [1, 4, 5]), (2, [4, 5]), (4, [4, 5]), (5, [5])])
def test_every_position_is_read_literally(bench: Compacted, start: int, found: list[int]) -> None:
    for durable in (True, False):
        subscription, _ = bench.read(pack(1, start), durable=durable, name=str(durable))
        assert bench.received(subscription) == found


def test_seeking_by_time_searches_the_view() -> None:
    bench = Compacted()
    times = []
    for key in "aabbc":
        bench.clock.advance(10)
        times.append(bench.clock.now_ms())
        bench.put(key)
    bench.compact()
    bench.topic.policies = lambda: Policies(retention_ms=0)
    bench.clock.advance(3600)
    bench.maintain()
    find = bench.topic.reader.times.find
    assert [find(time, compacted=True) for time in times] == [pack(1, n) for n in (1, 1, 3, 3, 4)]
    assert find(times[-1] + 1, compacted=True) == bench.topic.log.next_position
    subscription, _ = bench.read()
    bench.received(subscription)
    bench.topic.seek(subscription, find(times[2], compacted=True))
    assert bench.received(subscription) == [3, 4]


def test_a_batch_that_was_not_acknowledged_is_redelivered_packed() -> None:
    bench = Compacted()
    bench.put_batch("a", "b", "c", "d")
    bench.put("b", "d")
    bench.compact()
    subscription, consumer = bench.read(permits=10)
    first, *_ = bench.deliveries(subscription)
    assert first.wire is not None
    assert (first.wire.messages, first.wire.ack_set, first.wire.slots) == (3, 0b0101, None)
    assert consumer.permits == 10 - 3 - 2
    bench.ack(subscription, 1)
    (again,) = bench.deliveries(subscription)
    assert again.wire is not None
    assert (again.wire.messages, again.wire.ack_set, again.wire.slots) == (2, None, (0, 2))
    assert consumer.permits == 10 - 3 - 2 - 2
    bench.ack(subscription, 2)
    assert bench.deliveries(subscription) == []
    bench.ack(subscription, 0)
    assert subscription.cursor.mark_delete == pack(2, 0) - 1


def test_a_batch_redelivered_to_another_consumer_is_packed_unless_it_was_sought() -> None:
    bench = Compacted()
    bench.put_batch("a", "b", "c", "d")
    bench.put("b", "d")
    bench.compact()
    for form in (None, (0, 2), (0, 2)):
        subscription, consumer = bench.read()
        first, *_ = bench.deliveries(subscription)
        assert first.wire is not None
        assert first.wire.slots == form
        bench.topic.leave(subscription, consumer)
    bench.topic.seek(subscription, first.entry.position)
    # To the one that sought it by slots, however often it is put out; then as at first.
    for form, keep in ((None, True), (None, True), (None, False), (None, False), ((0, 2), False)):
        subscription, consumer = bench.read()
        first, *_ = bench.deliveries(subscription)
        assert first.wire is not None
        assert first.wire.slots == form
        bench.topic.leave(subscription, consumer, keep=keep)


def test_a_batch_of_which_a_part_is_acknowledged_by_index() -> None:
    bench = Compacted()
    bench.put_batch("a", "b", "c", "d")
    bench.put("b", "d")
    bench.compact()
    subscription, consumer = bench.read(permits=10)
    first, *_ = bench.deliveries(subscription)
    position = first.entry.position
    masked = 0b1010
    bench.topic.acknowledge(subscription, AckedBatch(position, 0b0100 | masked, 4, masked))
    bench.topic.leave(subscription, consumer)
    subscription, consumer = bench.read(permits=10)
    first, *_ = bench.deliveries(subscription)
    assert first.wire is not None
    assert (first.wire.messages, first.wire.ack_set, first.wire.slots) == (3, 0b0100, None)
    assert consumer.permits == 10 - 3 - 2
    bench.topic.acknowledge(subscription, AckedBatch(position, masked, 4, masked))
    assert subscription.cursor.mark_delete == position


def test_a_reader_gets_a_batch_as_it_is_stored_and_masked() -> None:
    bench = Compacted()
    bench.put_batch("a", "b", "c", "d")
    bench.put("b", "d")
    bench.compact()
    subscription, consumer = bench.read(durable=False, permits=10)
    first, *_ = bench.deliveries(subscription)
    assert first.wire is not None
    assert first.wire.ack_set == 0b0101
    assert consumer.permits == 10 - first.wire.messages - 2


def test_the_rest_of_a_batch_may_be_dropped_while_no_consumer_is_connected() -> None:
    bench = Compacted()
    bench.put_batch("a", "b", "c")
    bench.put("b")
    bench.compact()
    subscription, consumer = bench.read()
    position = bench.deliveries(subscription)[0].entry.position
    bench.topic.acknowledge(subscription, AckedBatch(position, 0b110, 3, 0b010))
    bench.topic.leave(subscription, consumer)
    bench.put("c")
    bench.compact()
    # Of the batch a is left, which is acknowledged.
    subscription, _ = bench.read()
    assert subscription.cursor.mark_delete == position
    assert bench.received(subscription) == [1, 0]


def test_the_rest_of_a_batch_may_be_dropped_while_an_earlier_entry_is_unacknowledged() -> None:
    bench = Compacted()
    bench.put("z")
    bench.put_batch("a", "b")
    bench.compact()
    subscription, consumer = bench.read()
    assert bench.received(subscription) == [0, 1]
    bench.topic.acknowledge(subscription, AckedBatch(pack(1, 1), 0b10, 2))
    bench.put("b")
    bench.compact()
    bench.topic.leave(subscription, consumer)
    subscription, _ = bench.read()
    assert bench.received(subscription) == [0, 0], "all that is left of the batch is acknowledged"
    bench.ack(subscription, 0)
    assert subscription.cursor.mark_delete >= pack(1, 1)


def test_the_last_message_is_known_without_reading() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), record=True)
    bench = Compacted(fs)
    horizon = 2**62

    def last(through: int | None = None) -> MessageId:
        before = fs.operations
        found = bench.topic.last_message_id(through)
        assert fs.operations == before, fs.trace[before:]
        return found

    assert last(horizon) == MessageId(-1, -1)
    bench.put("a")
    bench.put_batch("b", "c", "d")
    assert last() == last(horizon) == MessageId(1, 1, 2)
    bench.put("d", value=None)
    assert last() == last(horizon) == MessageId(1, 2)
    bench.compact()
    assert last() == MessageId(1, 2)
    assert last(horizon) == MessageId(1, 1, 1)
    # One that joined before the run continues in the log.
    assert last(-1) == MessageId(1, 2)
    bench.put("a", "b", "c", value=None)
    bench.compact()
    assert last(horizon) == MessageId(-1, -1)
    bench.reopen()
    assert last(horizon) == MessageId(-1, -1)
    # What the log ends with is found once after a restart, and then known.
    assert bench.topic.last_message_id() == last() == MessageId(2, 2)


def test_the_last_message_of_what_is_encrypted() -> None:
    bench = Compacted()
    bench.put_batch("a", "b", "c", encryption_keys=[SECRET])
    bench.compact()
    assert bench.topic.last_message_id(2**62) == MessageId(1, 0, 2)
    body = segments.single("d", bytes(20), encryption_keys=[SECRET])
    bench.topic.writer.append_entries([body], times=[1], counts=[1]).result()
    bench.compact()
    assert bench.topic.last_message_id(2**62) == MessageId(2, 0)


def test_an_empty_view_is_read_once(bench: Compacted) -> None:
    bench.put("a", "b", "c", value=None)
    bench.compact()
    subscription, _ = bench.read()
    assert bench.received(subscription) == []
    assert subscription.cursor.mark_delete == pack(3, 0) - 1
    assert subscription.read_position > pack(2, 2)


def test_only_one_consumer_at_a_time_can_read_compacted(bench: Compacted) -> None:
    topic = bench.topic
    shared = SubscriptionType.SHARED
    with pytest.raises(InvalidInput, match="only exclusive and failover"):
        topic.subscription("shared", shared, durable=True, start=0, compacted=True)
    assert topic.cursors.names() == []
    failover = SubscriptionType.FAILOVER
    subscription = topic.subscription("f", failover, durable=True, start=0, compacted=True)
    topic.join(subscription, Consumer("a", permits=9), failover, compacted=True)
    topic.join(subscription, Consumer("b", permits=9), failover, compacted=True)
    with pytest.raises(ConsumerRefused, match="reads compacted"):
        topic.join(subscription, Consumer("c"), failover)
    assert bench.received(subscription) == [1, 4, 5]
    topic.leave(subscription, next(iter(subscription.consumers)))
    assert bench.received(subscription) == [1, 4, 5]


def test_the_service_lists_what_it_retains(bench: Compacted) -> None:
    service = bench.topic.service
    assert service.last_compacted_position == pack(1, 5)
    assert service.last_message_position() == MessagePosition(pack(1, 5), -1)

    def read(start: int, limit: int, through: int | None = None) -> tuple[list[int], int]:
        entries, looked = service.read_compacted_entries(start, limit, through)
        return [unpack(entry.position)[1] for entry in entries], looked

    assert read(0, 10) == ([1, 4, 5], pack(1, 5))
    assert read(0, 2) == ([1, 4], pack(1, 4))
    assert read(pack(1, 2), 10, pack(1, 4)) == ([4], pack(1, 4))
    assert read(pack(1, 2), 10, pack(1, 3)) == ([], pack(1, 3))
    bench.put("z")
    assert read(pack(1, 5), 10) == ([5], pack(1, 5))
    assert read(pack(2, 0), 10) == ([], pack(2, 0) - 1)
    bench.topic.compaction.delete_view()
    assert service.last_compacted_position == -1
    assert read(0, 10) == ([], -1)
    subscription, _ = bench.read(durable=False)
    assert bench.received(subscription) == [0, 1, 2, 3, 4, 5, 0]


class Silent(LogCompactionService):
    """A service of a plug-in."""

    def last_message_position(self) -> MessagePosition | None:
        return None


def test_another_service_can_be_named() -> None:
    assert service_factory("") is LogCompactionService
    settings = TopicSettings(
        compaction_service="tests.unit.topics.compaction.test_compacted:Silent"
    )
    topics = Topics(
        MemoryFileSystem(),
        "/data",
        settings=settings,
        clock=ManualClock(),
        events=ignore_events,
        owner="test",
    )
    topic = topics.create("orders")
    topic.append(key="a", value=b"x")
    topic.service.compact("test")
    assert topic.service.last_compacted_position == pack(1, 0)
    assert topic.last_message_id(2**62) == MessageId(-1, -1)
    topics.close()
    for wrong in ("fractions", "fractions:None_such", "no_such_module:x", ":"):
        with pytest.raises(InvalidSetting, match="compaction_service"):
            service_factory(wrong)


class Follower:
    """A reader that keeps a map of what it gets."""

    def __init__(self, bench: Compacted, name: str) -> None:
        self._bench = bench
        self.subscription, self.consumer = bench.read(durable=False, permits=0, name=name)
        self.map: dict[bytes, bytes] = {}
        self._last = MessageId(-1, -1)

    def follow(self, permits: int) -> None:
        self.consumer.permits = permits
        for delivery in self._bench.deliveries(self.subscription):
            for message in decode_entry(delivery.entry):
                assert message.id > self._last, "a message came twice, or out of order"
                self._last = message.id
                assert message.key is not None
                if message.value is None:
                    self.map.pop(message.key, None)
                else:
                    self.map[message.key] = message.value
            acked = AckedUpTo(delivery.entry.position)
            self._bench.topic.acknowledge(self.subscription, acked)


@pytest.mark.parametrize("seed", range(6))
def test_every_reader_ends_with_the_same_map_despite_concurrent_runs(seed: int) -> None:
    """Runs, rolls and trimming between any two messages; readers that join at any time."""
    rng = random.Random(seed)
    bench = Compacted(segment_bytes_max=4096)
    bench.topic.policies = lambda: Policies(retention_ms=0)
    expected: dict[bytes, bytes] = {}
    followers: list[Follower] = []
    for step in range(150):
        chance = rng.random()
        keys = [f"k{rng.randrange(20)}" for _ in range(rng.randrange(2, 8))]
        if chance < 0.3:
            bench.put(keys[0], value=b"%d" % step)
            expected[keys[0].encode()] = b"%d" % step
        elif chance < 0.4:
            bench.put(keys[0], value=None)
            expected.pop(keys[0].encode(), None)
        elif chance < 0.6:
            bench.put_batch(*keys)
            expected |= {key.encode(): b"value" for key in keys}
        elif chance < 0.7:
            bench.compact()
        elif chance < 0.8:
            bench.clock.advance(3600)
            # What no run has judged is held here only by the readers.
            horizon = bench.topic.service.last_compacted_position
            if bench.topic.log.last_position <= horizon:
                bench.maintain()
        elif chance < 0.85:
            followers.append(Follower(bench, f"reader-{step}"))
        for follower in followers:
            follower.follow(rng.choice([0, 0, 1, 5]))
    followers.append(Follower(bench, "late"))
    for follower in followers:
        follower.follow(10**6)
        assert follower.map == expected
        last = bench.topic.last_message_id(follower.consumer.through)
        assert follower.subscription.cursor.mark_delete >= pack(max(last.ledger, 0), 0) - 1
    read = {message.key: message.value for message in bench.topic.read(compacted=True)}
    assert {key: value for key, value in read.items() if value is not None} == expected


def test_pinned_files_are_added_to_the_report_when_maintenance_deletes_them(
    bench: Compacted,
) -> None:
    topic = bench.topic
    with topic.log.snapshot("a slow reader"):
        bench.put("a", "b", "c")
        bench.compact()
        report = topic.compaction.record().latest
        assert report is not None
        assert report.reclaimed_bytes == 0
        assert report.retired_bytes > 0
        topic.maintain_files()
        assert topic.log.manifest.retired
    topic.maintain_files()
    assert not topic.log.manifest.retired
    report = topic.compaction.record().latest
    assert report is not None
    assert report.reclaimed_bytes >= report.retired_bytes
    [newest] = topic.compaction.history.newest(1)
    assert newest == report
