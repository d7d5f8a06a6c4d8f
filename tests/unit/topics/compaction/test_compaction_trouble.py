"""Invalid messages, different clocks, and settings and views that change during a run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from lithify.compaction.reports.report import Cause
from lithify.compaction.reports.status import CompactionState
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.errors import PlanStale
from lithify.log.segments.frame import HEADER_BYTES
from lithify.positions import pack
from lithify.topics.compaction.build_key_index import index_rows, run_index
from lithify.topics.compaction.live_messages import UNFINISHED
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from lithify.topics.definitions.policies import Policies
from lithify.topics.disk_steps import run_here
from lithify.topics.messages import message_pb2 as pb
from lithify.topics.messages.message import encode_entry
from lithify.topics.reading import topic_reader
from lithify.topics.topic import FLAG_BATCH
from tests.unit.topics import segments
from tests.unit.topics.compaction.test_compacted import Compacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.compaction.tasks.jobs import Jobs

DAY_S = 24 * 3600
GONE = segments.message(None, b"", compacted_out=True)
"""In a batch of a broker that came before: what is left of a message that was compacted."""


@dataclass
class Watched:
    """Jobs that let something happen before one of them."""

    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    slots: int = 1

    def run(self, name: str, *given: Any, **options: Any) -> Iterator[Any]:
        self.before.pop(name, lambda: None)()
        return LocalJobs().run(name, *given, **options)


class Troubled(Compacted):
    """A topic whose settings can be changed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.change(**settings)

    def change(self, **settings: Any) -> None:
        self.topic.compaction.settings = lambda: TopicCompactionSettings(**settings)
        self.topic.compaction._rule.settings = self.topic.compaction.settings

    def send(self, *bodies: bytes, counts: int = 1, flags: int = 0) -> None:
        times, each = [1] * len(bodies), [counts] * len(bodies)
        self.topic.writer.append_entries(bodies, times=times, counts=each, flags=flags).result()

    def run(self, **before: Callable[[], None]) -> None:
        jobs: Jobs = Watched(before)
        self.topic.compaction.run("test", jobs)

    def values(self) -> dict[bytes | None, bytes | None]:
        return {each.key: each.value for each in self.topic.read(compacted=True)}


# --- what is in a batch ---------------------------------------------------------------------


@pytest.mark.parametrize("codec", [pb.NONE, pb.ZSTD])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_placeholders_of_the_old_form_are_masked(codec: int, ratio: float) -> None:
    """All that is in the batch is live, and yet a client would show the placeholders."""
    bench = Troubled(live_ratio_min=ratio)
    messages = segments.message("a"), GONE, segments.message("b"), GONE
    bench.send(segments.batch(*messages, codec=codec), counts=4, flags=FLAG_BATCH)
    bench.run()
    subscription, _ = bench.read(durable=False)
    (delivery,) = bench.deliveries(subscription)
    assert delivery.wire is not None
    assert delivery.wire.ack_set == 0b101
    bench.put("a")
    bench.run()
    bench.run()
    assert set(bench.values()) == {b"a", b"b"}


def test_superseded_messages_have_bytes_wherever_they_were_superseded() -> None:
    bench = Troubled()
    bench.put("a", "a", "b")
    bench.send(segments.batch(segments.message("c"), segments.message("c")), flags=FLAG_BATCH)
    bench.send(segments.single(marker_type=20))
    bench.topic.log.roll()
    bench.put("a")
    report = bench.topic.compact()
    whole = sum(ref.frame_bytes for ref in bench.topic.log.manifest.segments[:-1])
    assert {cause: count for cause, (count, _) in report.dropped.items()} == {
        Cause.SUPERSEDED: 3,
        Cause.MARKER: 1,
    }
    assert all(size > HEADER_BYTES for _, size in report.dropped.values())
    assert sum(size for _, size in report.dropped.values()) == whole - report.kept_bytes


# --- clocks ---------------------------------------------------------------------------------


def test_a_tombstone_from_the_future_is_dropped_at_once_without_retention() -> None:
    bench = Troubled()
    ahead_ms = bench.clock.now_ms() + 3_600_000
    bench.put("a", "b")
    bench.send(segments.single("a", b"", publish_time=ahead_ms))
    bench.send(segments.single("b", b"", publish_time=2**64 - 1))
    bench.run()
    assert bench.values() == {}
    bench.change(tombstone_retention_ms=1)
    bench.send(segments.single("a", b"", publish_time=ahead_ms))
    bench.run()
    assert bench.values() == {b"a": None}


def test_a_key_without_new_messages_leaves_the_view_after_its_ttl() -> None:
    bench = Troubled(key_ttl_ms=10_000)
    bench.put("a")
    bench.clock.advance(6)
    bench.put("b", "c")
    bench.run()
    bench.clock.advance(5)
    bench.put("c")
    assert set(bench.values()) == {b"a", b"b", b"c"}
    bench.run()
    assert set(bench.values()) == {b"b", b"c"}
    [report] = bench.topic.compaction.history.newest(1)
    assert report.dropped[Cause.EXPIRED] == (1, ANY)
    bench.clock.advance(5)
    assert bench.topic.compaction.is_new(), "nothing came, and yet there is something to do"
    bench.run()
    assert set(bench.values()) == {b"c"}
    bench.put("a")
    bench.run()
    assert set(bench.values()) == {b"a", b"c"}


# --- during a run ---------------------------------------------------------------------------


def test_a_lookup_by_another_order_during_a_run_loses_no_key() -> None:
    """The run judges by publishing; the look-up, by event time, rebuilds the key index."""
    bench = Troubled()
    bench.topic.append(key="a", value=b"great", event_time_ms=9)
    bench.topic.append(key="a", value=b"small", event_time_ms=1)
    bench.put("b")
    settings = TopicCompactionSettings(compaction_order="event", live_ratio_min=0.0)

    def look_up() -> None:
        bench.topic.compaction.settings = lambda: settings
        assert bench.topic.get("a") is not None

    bench.change(live_ratio_min=0.0)
    bench.run(rewrite=look_up)
    assert set(bench.values()) == {b"a", b"b"}
    bench.change(compaction_order="event", live_ratio_min=0.0)
    bench.put("c")
    bench.run()
    assert bench.values() == {b"a": b"small", b"b": b"x", b"c": b"x"}


def test_rows_that_are_others_than_those_judged_make_the_run_stale() -> None:
    bench = Troubled()
    bench.put("a", "a", "b")

    def make_again() -> None:
        """As if it had been judged before: no row is left out."""
        bench.topic.compaction.settings = lambda: TopicCompactionSettings(compaction_order="event")
        bench.topic.get("a")
        bench.topic.compaction.settings = TopicCompactionSettings
        bench.topic.get("a")

    with pytest.raises(PlanStale, match="2 rows when it was judged, now it has 3"):
        bench.run(**{"dead sets": make_again})
    assert bench.topic.compaction.status().state is CompactionState.ERROR
    bench.run()
    assert set(bench.values()) == {b"a", b"b"}


def test_a_key_index_with_a_damaged_head_is_rebuilt_by_the_task() -> None:
    bench = Troubled()
    bench.put("a", "b")

    def damage() -> None:
        (name,) = [name for name in bench.fs.list("/t/log") if name.endswith(".keys")]
        with bench.fs.open_append(f"/t/log/{name}") as file:
            file.truncate(100)

    bench.run(survivors=damage)
    assert set(bench.values()) == {b"a", b"b"}


def test_retention_waits_for_the_first_run() -> None:
    bench = Troubled()
    bench.topic.policies = lambda: Policies(retention_ms=0)
    bench.put("a", "b")
    bench.clock.advance(1.0)

    def upkeep() -> None:
        run_here(bench.topic.enforcing())
        bench.topic.maintain_files()

    bench.run(survivors=upkeep)
    assert set(bench.values()) == {b"a", b"b"}
    upkeep()
    assert list(bench.topic.read()) == []
    assert set(bench.values()) == {b"a", b"b"}


def test_an_unexpected_failure_of_a_run_is_an_error_in_its_status() -> None:
    bench = Troubled()
    bench.put("a")

    def fail() -> None:
        raise ArithmeticError("this was not expected")

    with suppress(ArithmeticError):
        bench.run(survivors=fail)
    status = bench.topic.compaction.status()
    assert (status.state, status.error) == (CompactionState.ERROR, "this was not expected")
    bench.run()
    assert bench.topic.compaction.status().state is CompactionState.SUCCESS


# --- while a client reads -------------------------------------------------------------------


def test_a_reader_of_the_latest_values_misses_no_key_that_is_overwritten_during_the_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_reader, "LIBRARY_READ", 1)
    bench = Troubled()
    bench.put("a", "b", value=b"old")
    bench.run()
    reader = bench.topic.read(compacted=True)
    first = next(reader)
    bench.put("b", value=b"new")
    bench.run()
    assert [(each.key, each.value) for each in (first, *reader)] == [(b"a", b"old"), (b"b", b"old")]


def test_a_view_that_is_deleted_while_it_is_read_leaves_the_log_to_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Troubled()
    bench.put("a", "b", "a")
    bench.run()
    service = bench.topic.service
    read = service.read_compacted_entries

    def deleted_first(*given: Any) -> Any:
        monkeypatch.undo()
        bench.topic.compaction.delete_view()
        return read(*given)

    monkeypatch.setattr(service, "read_compacted_entries", deleted_first)
    entries, through = bench.topic.reads.load(0, pack(1, 2)).take(0, 10)
    assert [entry.position for entry in entries] == [pack(1, 0), pack(1, 1), pack(1, 2)]
    assert through == pack(1, 2)


def test_a_view_of_another_service_that_is_deleted_while_the_library_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Troubled()
    bench.put("a", "b", "a", "c")
    bench.run()
    monkeypatch.setattr(topic_reader, "LIBRARY_READ", 1)
    monkeypatch.setattr(topic_reader, "LogCompactionService", type(None))
    reader = bench.topic.read(compacted=True)
    assert next(reader).key == b"b"
    bench.topic.compaction.delete_view()
    assert [each.key for each in reader] == [b"a", b"c"]


def test_a_view_that_is_deleted_while_a_cursor_moves_and_nothing_is_left_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Troubled()
    bench.put("a", "b", "a")
    bench.run()
    bench.topic.log.drop_head(pack(2, 0))
    subscription, _ = bench.read()
    assert bench.received(subscription) == [1, 2]
    reading = bench.topic.reads
    border = reading.compacted_end

    def deleted_afterwards(joined: int) -> int:
        found = border(joined)
        monkeypatch.undo()
        bench.topic.compaction.delete_view()
        return found

    monkeypatch.setattr(reading, "compacted_end", deleted_afterwards)
    subscription.gaps_taken = ()
    run_here(bench.topic._gaps.taking(subscription))
    assert subscription.cursor.mark_delete + 1 == pack(2, 0)


# --- chunks ---------------------------------------------------------------------------------


def chunk(number: int, value: bytes, count: int = 3, uuid: str = "u") -> bytes:
    return segments.single("a", value, uuid=uuid, chunk_id=number, num_chunks_from_msg=count)


def test_a_chunked_message_with_a_trimmed_part_is_dropped() -> None:
    bench = Troubled()
    bench.send(chunk(0, b"one"))
    bench.topic.log.roll()
    bench.send(chunk(1, b"two"), chunk(2, b"six"))
    bench.topic.log.drop_head(pack(2, 0))
    assert bench.topic.get("a") is None
    bench.run()
    assert bench.topic.get("a") is None


def test_chunks_that_were_sent_again_and_those_of_an_earlier_message_with_the_same_uuid() -> None:
    bench = Troubled()
    for value in (b"old", b"new"):
        bench.send(chunk(0, value), chunk(1, value), chunk(0, value), chunk(1, value))
        bench.send(chunk(2, value))
        bench.topic.log.roll()
    found = bench.topic.get("a")
    assert found is not None
    assert found.value == b"newnewnew"
    bench.run()
    assert bench.topic.get("a") == found


def retained(bench: Troubled) -> list[bytes | None]:
    return [each.value for each in bench.topic.read(compacted=True)]


def test_unfinished_chunks_are_dropped_after_a_day() -> None:
    """The first run that meets it takes the time; no client's clock has a say."""
    bench = Troubled()
    bench.send(chunk(0, b"one"), chunk(1, b"two"))
    bench.put("b")
    bench.run()
    bench.clock.advance(DAY_S - 1)
    bench.run()
    assert retained(bench) == [b"one", b"two", b"x"]
    assert not bench.topic.compaction.is_new()
    bench.clock.advance(1)
    assert bench.topic.compaction.is_new(), "an idle topic is done with it, too"
    bench.run()
    assert retained(bench) == [b"x"]
    assert bench.topic.log.manifest.state[UNFINISHED] == []
    [report] = bench.topic.compaction.history.newest(1)
    assert report.dropped == {Cause.EXPIRED: (2, ANY)}


def test_a_chunked_message_finished_on_the_next_day_stays() -> None:
    bench = Troubled()
    bench.send(chunk(0, b"one"), chunk(1, b"two"))
    bench.run()
    bench.clock.advance(DAY_S - 1)
    bench.send(chunk(2, b"six"))
    bench.clock.advance(1)
    bench.run()
    found = bench.topic.get("a")
    assert found is not None
    assert found.value == b"onetwosix"


def test_a_last_chunk_that_no_run_may_judge_yet_keeps_the_others() -> None:
    """The horizon stays behind for days, and the message is finished above it."""
    bench = Troubled(compaction_lag_min_ms=3 * DAY_S * 1000)
    bench.send(chunk(0, b"one"), chunk(1, b"two"))
    # By the clock of its producer they are old enough to be judged, and the last one is not.
    bench.run()
    now_ms = bench.clock.now_ms()
    bench.topic.writer.append_entries([chunk(2, b"six")], times=[now_ms], counts=[1]).result()
    for _ in range(2):
        bench.clock.advance(DAY_S)
        bench.run()
    assert bench.topic.compaction.horizon < bench.topic.log.last_position
    assert retained(bench) == [b"one", b"two", b"six"]
    bench.clock.advance(DAY_S + 1)
    bench.run()
    assert bench.topic.compaction.horizon == bench.topic.log.last_position
    found = bench.topic.get("a")
    assert found is not None
    assert found.value == b"onetwosix"


def test_deleting_the_view_deletes_the_marks_of_unfinished_chunks() -> None:
    bench = Troubled()
    bench.send(chunk(0, b"one"))
    bench.run()
    bench.topic.compaction.delete_view()
    assert UNFINISHED not in bench.topic.log.manifest.state
    bench.clock.advance(DAY_S)
    bench.run()
    assert retained(bench) == [b"one"]


# --- limits ---------------------------------------------------------------------------------


def test_a_small_batch_of_millions_of_messages_is_not_opened() -> None:
    empty = segments.message(None, b"")
    count = 2**20 + 1
    plain = empty * count
    body = encode_entry(
        segments.metadata(
            num_messages_in_batch=count, compression=pb.ZSTD, uncompressed_size=len(plain)
        ),
        segments.compress(pb.ZSTD, plain),
    )
    assert len(body) < 10_000
    task = segments.sealed(body)
    assert run_index(task, lambda: None).opaque == 1
    assert index_rows(task) == 1
