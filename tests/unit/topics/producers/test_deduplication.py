"""Deduplication: a message that is sent several times is stored once."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lithify.clock import ManualClock
from lithify.errors import InvalidSetting, LithifyError, WriteFailed
from lithify.events import WriteRefused
from lithify.fs import MemoryFileSystem, read_file
from lithify.fs.remove_tree import remove_tree
from lithify.log.log import Log
from lithify.positions import PACKED
from lithify.settings import Durability, LogSettings
from lithify.testing.faulty_fs import Fault, FaultyFileSystem
from lithify.topics.messages.message import encode_entry
from lithify.topics.messages.message_pb2 import MessageMetadata
from lithify.topics.producers.deduplication import (
    Deduplication,
    DeduplicationSettings,
    ProducerProgress,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lithify.events import Event
    from lithify.fs import FileSystem
    from lithify.topics.producers.deduplication import Stretch

PATH = "/data/producers"
ALWAYS = LogSettings()


def body(producer: str, first: int, count: int = 1, **fields: object) -> bytes:
    head = MessageMetadata(producer_name=producer, sequence_id=first, publish_time=1)
    if count > 1:
        head.num_messages_in_batch = count
    for name, value in fields.items():
        setattr(head, name, value)
    return encode_entry(head, b"value")


class Store:
    """A log with deduplication, used as a broker uses it."""

    def __init__(
        self,
        fs: FileSystem,
        log_settings: LogSettings = ALWAYS,
        settings: DeduplicationSettings | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.log = Log.open(
            fs, "/data/log", kind="topic", settings=log_settings, clock=ManualClock(), rule=PACKED
        )
        self.known = Deduplication(fs, PATH, self.log, events=self.events.append, settings=settings)

    def send(self, producer: str, *entries: tuple[int, int]) -> list[bool]:
        """Send (first sequence id, messages) each; which of them were new. All is durable then."""
        bodies = [body(producer, first, count) for first, count in entries]
        firsts = np.array([first for first, _ in entries])
        lasts = np.array([first + count - 1 for first, count in entries])
        return self.take(producer, bodies, self.known.split(producer, firsts, lasts))

    def send_chunks(self, producer: str, *bodies: bytes) -> list[bool]:
        return self.take(producer, bodies, self.known.split_chunks(producer, bodies))

    def take(self, producer: str, bodies: Sequence[bytes], stretches: list[Stretch]) -> list[bool]:
        new = []
        for each in stretches:
            entries = each.stop - each.start
            new += [each.is_new] * entries
            if each.is_new:
                self._append(producer, bodies[each.start : each.stop], each.progress)
            else:
                assert self.known.is_durable(producer, each.progress)
        return new

    def _append(self, producer: str, bodies: Sequence[bytes], progress: ProducerProgress) -> None:
        try:
            pending = self.log.append_many(bodies)
        except LithifyError:
            self.known.failed(producer)
            raise
        appended = self.known.appended(producer, progress, pending, len(bodies))
        try:
            pending.result()
        except LithifyError:
            self.known.failed(producer, pending)
            raise
        self.known.durable(appended)
        if self.known.save_due:
            self.known.save()

    def close(self) -> None:
        self.known.close()
        self.log.close()


def messages_in(log: Log) -> dict[str, list[int]]:
    """The sequence ids of every producer, in the order of the log."""
    found: dict[str, list[int]] = defaultdict(list)
    with log.snapshot("test") as snapshot:
        for entry in snapshot.read():
            size = int.from_bytes(entry.body[6:10], "big")
            head = MessageMetadata.FromString(bytes(entry.body[10 : 10 + size]))
            count = max(head.num_messages_in_batch, 1)
            found[head.producer_name] += range(head.sequence_id, head.sequence_id + count)
    return found


# --- what is new ----------------------------------------------------------------------------


def test_stored_messages_are_not_stored_again() -> None:
    store = Store(MemoryFileSystem())
    assert store.known.last_sequence_id("ann") == -1
    assert store.send("ann", (0, 1), (1, 1), (2, 1)) == [True, True, True]
    assert store.send("ann", (1, 1), (2, 1), (3, 1)) == [False, False, True]
    assert store.send("bob", (0, 1)) == [True]
    assert store.known.last_sequence_id("ann") == 3
    assert messages_in(store.log) == {"ann": [0, 1, 2, 3], "bob": [0]}


def test_a_batch_ends_with_its_highest_sequence_id() -> None:
    store = Store(MemoryFileSystem())
    store.send("ann", (0, 5))
    assert store.known.last_sequence_id("ann") == 4
    assert store.send("ann", (0, 5), (5, 3)) == [False, True]
    # It overlaps, but not all of it is there: rather twice than never.
    assert store.send("ann", (7, 3)) == [True]


def test_a_run_may_repeat_itself() -> None:
    store = Store(MemoryFileSystem())
    assert store.send("ann", (0, 1), (0, 1), (1, 1), (0, 1)) == [True, False, True, False]


def test_a_duplicate_is_not_acknowledged_before_what_it_repeats() -> None:
    store = Store(MemoryFileSystem())
    pending = store.log.append(body("ann", 0))
    appended = store.known.appended("ann", ProducerProgress(0), pending, 1)
    (again,) = store.known.split("ann", np.array([0]), np.array([0]))
    assert not again.is_new
    assert not store.known.is_durable("ann", again.progress)
    assert store.known.last_sequence_id("ann") == -1
    pending.result()
    store.known.durable(appended)
    assert store.known.is_durable("ann", again.progress)


@given(
    st.integers(-1, 5),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
)
def test_a_run_is_split_as_if_it_came_one_by_one(last: int, run: list[tuple[int, int]]) -> None:
    store = Store(MemoryFileSystem())
    if last >= 0:
        store.send("ann", (last, 1))
    expected = []
    for first, highest in run:
        expected.append(max(first, highest) > last)
        last = max(last, first, highest)
    firsts, highests = (np.array(column) for column in zip(*run, strict=True))
    stretches = store.known.split("ann", firsts, highests)
    flat = [each.is_new for each in stretches for _ in range(each.start, each.stop)]
    assert flat == expected
    assert [each.start for each in stretches[1:]] == [each.stop for each in stretches[:-1]]
    new = [each.progress.last for each in stretches if each.is_new]
    assert not new or new[-1] == last


# --- chunks ---------------------------------------------------------------------------------


def chunk(number: int, time_ms: int = 1) -> bytes:
    return body(
        "ann", 0, chunk_id=number, num_chunks_from_msg=3, uuid="ann-0", publish_time=time_ms
    )


def test_chunks_have_one_sequence_id_and_are_all_kept() -> None:
    store = Store(MemoryFileSystem())
    assert store.send_chunks("ann", chunk(0), chunk(1)) == [True, True]
    assert store.known.last_sequence_id("ann") == -1
    assert store.send_chunks("ann", chunk(1), chunk(2)) == [False, True]
    assert store.known.last_sequence_id("ann") == 0
    assert store.send_chunks("ann", chunk(0), chunk(2)) == [False, False]
    assert store.send("ann", (1, 1)) == [True]


def test_half_a_chunked_message_is_remembered_over_a_restart() -> None:
    for closed in (False, True):
        fs = MemoryFileSystem()
        store = Store(fs)
        store.send_chunks("ann", chunk(0), chunk(1))
        if closed:
            store.close()
        else:
            fs = fs.crash_clone(random.Random(1))
        store = Store(fs)
        assert store.send_chunks("ann", chunk(0), chunk(1), chunk(2)) == [False, False, True]


def test_another_message_with_the_same_sequence_id_begins_with_its_first_chunk() -> None:
    store = Store(MemoryFileSystem())
    store.send_chunks("ann", chunk(0), chunk(1))
    later = [chunk(number, time_ms=2) for number in range(3)]
    assert store.send_chunks("ann", *later) == [True, True, True]


# --- restarts -------------------------------------------------------------------------------


def test_progress_is_read_from_the_log_behind_the_snapshot() -> None:
    fs = MemoryFileSystem()
    store = Store(fs, settings=DeduplicationSettings(snapshot_entries=3))
    store.send("ann", (0, 1), (1, 1), (2, 1))
    assert b'"producers":[["ann",2]]' in read_file(fs, PATH)
    store.send("bob", (0, 4))
    store = Store(fs.crash_clone(random.Random(1)))
    assert store.known.last_sequence_id("ann") == 2
    assert store.known.last_sequence_id("bob") == 3


def test_progress_outlives_the_messages() -> None:
    fs = MemoryFileSystem()
    store = Store(fs)
    store.send("ann", (0, 9))
    store.log.roll()
    store.send("bob", (0, 1))
    store.close()
    store = Store(fs)
    store.log.drop_head(before=store.log.last_position)
    store.close()
    assert Store(fs).send("ann", (0, 9), (9, 1)) == [False, True]


@pytest.mark.parametrize("damage", [b"", b"00000000 {}\n", b'5c2c5d0d {"version":9}\n'])
def test_a_damaged_snapshot_is_as_none(damage: bytes) -> None:
    fs = MemoryFileSystem()
    store = Store(fs)
    store.send("ann", (0, 3))
    store.close()
    with fs.open_append(PATH) as file:
        file.truncate(0)
        file.write(damage)
    assert Store(fs).known.last_sequence_id("ann") == 2


def test_a_snapshot_of_more_than_the_log_has_is_as_none() -> None:
    fs = MemoryFileSystem()
    store = Store(fs)
    store.send("ann", (0, 3))
    store.close()
    ahead = read_file(fs, PATH)
    other = MemoryFileSystem()
    store = Store(other)
    store.log.close()
    with other.open_append(PATH) as file:
        file.write(ahead)
    assert Store(other).send("ann", (0, 3)) == [True]


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.NONE])
def test_a_snapshot_never_says_more_than_a_power_cut_leaves(durability: Durability) -> None:
    for seed in range(20):
        fs = MemoryFileSystem()
        store = Store(
            fs, LogSettings(durability=durability), DeduplicationSettings(snapshot_entries=2)
        )
        for number in range(5):
            store.send("ann", (number, 1))
        store = Store(fs.crash_clone(random.Random(seed)))
        written = messages_in(store.log)["ann"]
        assert store.known.last_sequence_id("ann") == len(written) - 1 >= 3


def test_a_snapshot_that_cannot_be_written_is_reported_and_costs_nothing() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    store = Store(faulty, settings=DeduplicationSettings(snapshot_entries=1))
    faulty.add(Fault("rename", PATH + "*", count=None))
    assert store.send("ann", (0, 1)) == [True]
    assert isinstance(store.events[0], WriteRefused)
    store.close()
    assert Store(fs).send("ann", (0, 1)) == [False]


def test_a_snapshot_that_is_late_is_not_written_for_a_new_topic_in_the_same_place() -> None:
    fs = MemoryFileSystem()
    store = Store(fs)
    store.send("ann", (0, 9))
    late = store.known.saving()
    assert late is not None
    store.close()
    remove_tree(fs, "/data")
    store = Store(fs)
    late()
    store.send("bob", (0, 1))
    store.log.close()
    assert Store(fs).known.last_sequence_id("ann") == -1


def test_only_the_producers_that_wrote_last_are_remembered() -> None:
    fs = MemoryFileSystem()
    few = DeduplicationSettings(producers_max=2)
    store = Store(fs, settings=few)
    for name in ("ann", "bob", "ann", "cid"):
        store.send(name, (store.known.last_sequence_id(name) + 1, 1))
    for again in (store, Store(fs.kill_clone(), settings=few)):
        last = {name: again.known.last_sequence_id(name) for name in ("ann", "bob", "cid")}
        assert last == {"ann": 1, "bob": -1, "cid": 0}
    with pytest.raises(InvalidSetting):
        DeduplicationSettings(producers_max=0)


# --- failures -------------------------------------------------------------------------------


def test_a_failed_message_is_no_duplicate_when_sent_again() -> None:
    faulty = FaultyFileSystem(MemoryFileSystem())
    store = Store(faulty)
    store.send("ann", (0, 1))
    faulty.add(Fault("fdatasync", "*"))
    pending = store.log.append(body("ann", 1))
    appended = store.known.appended("ann", ProducerProgress(1), pending, 1)
    with pytest.raises(WriteFailed):
        pending.result()
    # The next one is in flight before a producer was notified.
    with pytest.raises(WriteFailed):
        store.known.split("ann", np.array([2]), np.array([2]))
    store.known.failed("ann", pending)
    assert not store.known.is_durable("ann", ProducerProgress(1))
    assert store.send("ann", (0, 1), (1, 1), (2, 1)) == [False, True, True]
    # An answer that comes late changes nothing.
    store.known.failed("ann", pending)
    appended.producer.durable = ProducerProgress(99)
    assert store.known.last_sequence_id("ann") == 2


def test_a_message_does_not_slip_in_behind_one_that_failed() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    store = Store(faulty)
    store.send("ann", (0, 1))
    first = store.log.append_many([body("ann", 1)], after=store.known.last_append("ann"))
    store.known.appended("ann", ProducerProgress(1), first, 1)
    # The second one is found to be new while the first is in flight to the disk.
    (stretch,) = store.known.split("ann", np.array([2]), np.array([2]))
    assert stretch.is_new
    faulty.add(Fault("fdatasync", "*"))
    with pytest.raises(WriteFailed):
        store.log.sync()
    with pytest.raises(WriteFailed):
        store.log.append_many([body("ann", 2)], after=store.known.last_append("ann"))
    # Others may write, which makes durable what is in the file.
    store.send("bob", (0, 1))
    # The node dies before it answers; the client sends both again.
    store = Store(fs.crash_clone(random.Random(1)))
    assert store.send("ann", (1, 1), (2, 1)) == [True, True]
    assert messages_in(store.log) == {"ann": [0, 1, 2], "bob": [0]}


class InterruptingClock(ManualClock):
    """Lets another thread run at each call."""

    turn: Callable[[], object] | None = None

    def monotonic_s(self) -> float:
        turn, self.turn = self.turn, None
        if turn is not None:
            turn()
        return super().monotonic_s()


def test_nothing_gets_between_a_failure_and_its_being_known() -> None:
    faulty = FaultyFileSystem(MemoryFileSystem())
    clock = InterruptingClock()
    log = Log.open(faulty, "/data/log", kind="topic", clock=clock, rule=PACKED)
    first = log.append_many([body("ann", 0)])
    seen: list[int] = []

    def turn() -> None:
        # The failed bytes are cut off and the log can be written to: is the failure known?
        seen.append(log.active_bytes)
        with pytest.raises(WriteFailed):
            log.append_many([body("ann", 1)], after=first)

    faulty.add(Fault("fdatasync", "*"))
    clock.turn = turn
    with pytest.raises(WriteFailed):
        log.sync()
    assert len(seen) == 1
    assert messages_in(log) == {}
    log.append_many([body("ann", 0)]).result()


def test_deduplication_begins_where_it_is_switched_on() -> None:
    fs = MemoryFileSystem()
    log = Log.open(fs, "/data/log", kind="topic", clock=ManualClock(), rule=PACKED)
    log.append_many([body("ann", number) for number in range(9)]).result()
    log.close()
    # By now ann may have begun again at 0: she was not told about the 8.
    store = Store(fs)
    assert store.send("ann", (3, 1)) == [True]
    fs = fs.crash_clone(random.Random(1))
    store = Store(fs)
    assert store.known.last_sequence_id("ann") == 3
    store.known.discard()
    store.close()
    assert Store(fs).known.last_sequence_id("ann") == -1


def test_without_the_first_snapshot_it_does_not_begin() -> None:
    fs = FaultyFileSystem(MemoryFileSystem(), [Fault("rename", PATH + "*", count=None)])
    with pytest.raises(WriteFailed, match="producers"):
        Store(fs)


def test_a_refused_run_of_messages_may_be_in_the_log_in_part() -> None:
    faulty = FaultyFileSystem(MemoryFileSystem())
    store = Store(faulty, LogSettings(segment_bytes_max=1024))
    bodies = [body("ann", number) for number in range(50)]
    run = np.arange(50)
    faulty.add(Fault("write*", "*", nth=3))
    (stretch,) = store.known.split("ann", run, run)
    with pytest.raises(WriteFailed):
        store.log.append_many(bodies)
    store.known.failed("ann")
    written = messages_in(store.log)["ann"]
    assert 0 < len(written) < 50
    store.take("ann", bodies, store.known.split("ann", run, run))
    assert messages_in(store.log)["ann"] == list(range(50))
    assert stretch.is_new


# --- everything at once ---------------------------------------------------------------------


class Client:
    """Numbers its messages, and after every failure sends again what has no receipt."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.unacknowledged: list[tuple[int, int]] = []
        self.acknowledged: list[int] = []
        self.next = 0

    def entries(self) -> list[tuple[int, int]]:
        for _ in range(self.rng.randrange(4)):
            count = self.rng.choice((1, 1, 3))
            self.unacknowledged.append((self.next, count))
            self.next += count
        return self.unacknowledged[: self.rng.randint(1, 6)]

    def receipt(self, entries: int) -> None:
        for _ in range(entries):
            first, count = self.unacknowledged.pop(0)
            self.acknowledged += range(first, first + count)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_random_restarts_and_resends_lose_and_double_nothing(seed: int) -> None:
    rng = random.Random(seed)
    fs = MemoryFileSystem()
    durability = rng.choice((Durability.ALWAYS, Durability.ALWAYS, Durability.INTERVAL))
    log_settings = LogSettings(segment_bytes_max=4096, durability=durability)
    kept = DeduplicationSettings(snapshot_entries=rng.randint(1, 20))
    clients = [Client(name, rng) for name in ("ann", "bob", "cid")]
    faulty = FaultyFileSystem(fs)
    store = Store(faulty, log_settings, kept)
    for _ in range(rng.randint(5, 40)):
        action = rng.random()
        if action < 0.15:
            if rng.random() < 0.5:
                # A kill leaves what was written, a power cut what was made durable.
                fs = fs.crash_clone(rng) if durability is Durability.ALWAYS else fs.kill_clone()
            else:
                with suppress(LithifyError):
                    store.close()
                fs = fs.kill_clone()
            faulty = FaultyFileSystem(fs)
            store = Store(faulty, log_settings, kept)
            continue
        if action < 0.25:
            faulty.add(Fault(rng.choice(("write*", "fdatasync", "rename")), "*", nth=1))
        client = rng.choice(clients)
        entries = client.entries()
        if not entries:
            continue
        with suppress(LithifyError):
            store.send(client.name, *entries)
            # Some receipts are lost with the connection.
            client.receipt(rng.choice((len(entries), rng.randint(0, len(entries)))))
    store = Store(fs.kill_clone(), log_settings, kept)
    found = messages_in(store.log)
    for client in clients:
        assert found[client.name][: len(client.acknowledged)] == client.acknowledged
        if client.unacknowledged:
            store.send(client.name, *client.unacknowledged)
    for name, ids in messages_in(store.log).items():
        client = next(each for each in clients if each.name == name)
        assert ids == list(range(client.next))


def test_bytes_of_a_failed_append_are_read_outside_the_loop() -> None:
    faulty = FaultyFileSystem(MemoryFileSystem(), record=True)
    store = Store(faulty)
    store.send("ann", (0, 1))
    # The first part of an append whose second part failed.
    pending = store.log.append(body("ann", 1))
    pending.result()
    faulty.trace.clear()
    steps = store.known.failing("ann", pending)
    work = next(steps)
    assert work is not None
    call = work.find()
    assert call is not None
    assert faulty.trace == []
    result = call()
    assert faulty.trace
    with pytest.raises(StopIteration):
        steps.send(result)
    assert store.known.last_sequence_id("ann") == 1
