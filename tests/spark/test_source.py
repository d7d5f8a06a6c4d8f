"""Topics as DataFrames: every message, only what is asked for, from a generation that stays."""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException

from lithify.clock import ManualClock
from lithify.errors import InvalidInput
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.settings import Durability, LogSettings
from lithify.spark.place import find_place
from lithify.spark.scan import (
    Bounds,
    QueryStale,
    ScanPart,
    open_partition,
    plan_partition,
    read_part,
)
from lithify.topics.messages.message import decode_entry
from lithify.topics.messages.message_pb2 import LZ4
from lithify.topics.topics import Topics, TopicSettings
from tests.unit.topics.segments import batch, message, single

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from lithify.log.manifest import SegmentRef
    from lithify.topics.topic import Topic

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CLOCK = ManualClock()


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topics]:
    # Other processes may compact on this disk: the gate where they meet is a place of our own.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = Topics(
        LocalFileSystem(),
        f"{tmp_path}/data",
        settings=TopicSettings(log=LogSettings(durability=Durability.NONE)),
        clock=CLOCK,
        events=ignore_events,
        owner="a test",
    )
    yield opened
    opened.close()


def fill(topic: Topic, seed: int, count: int = 60) -> None:
    """Single messages and batches, tombstones among them."""
    chance = random.Random(seed)
    for number in range(count):
        key = f"key {chance.randrange(20)}"
        value = None if chance.random() < 0.2 else b"value %d of %d" % (number, seed)
        properties = {"number": str(number)} if number % 3 else {}
        topic.append(key=key, value=value, properties=properties, event_time_ms=number)
        if number % 10 == 0:
            some = [message(f"key {chance.randrange(20)}", b"batched %d" % n) for n in range(5)]
            body = batch(*some, codec=LZ4, publish_time=CLOCK.now_ms())
            topic.writer.append_entries([body], times=[CLOCK.now_ms()], counts=[5]).result()
        CLOCK.advance(1)


@pytest.fixture
def orders(topics: Topics) -> Topic:
    """Three sealed segments that were compacted, one that was not, and an active one."""
    topic = topics.create("orders")
    for seed in range(3):
        fill(topic, seed)
        topic.compaction.run("test")
    fill(topic, 3)
    topic.log.roll()
    fill(topic, 4, 10)
    return topic


def path_of(topic: Topic) -> str:
    return topic.log.directory.removesuffix("/log")


def load(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("lithify").options(**options).load(path_of(topic))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows = sorted(
        frame.collect(), key=lambda row: (row.partition, row.ledger, row.entry, row.batch_index)
    )
    return [row.asDict() for row in rows]


def expected(topic: Topic, *, compacted: bool = False) -> list[dict[str, Any]]:
    with topic.log.snapshot("test") as snapshot:
        found = [
            each
            for entry in snapshot.read(compacted=compacted)
            for each in decode_entry(entry, topic.name.partition)
        ]
    return [
        {
            "topic": str(topic.name),
            "partition": each.id.partition,
            "ledger": each.id.ledger,
            "entry": each.id.entry,
            "batch_index": each.id.batch_index,
            "key": each.key,
            "value": each.value,
            "properties": each.properties,
            "publish_time": each.publish_time_ms,
            "event_time": each.event_time_ms or None,
            "producer": each.producer,
            "sequence_id": each.sequence_id,
        }
        for each in found
    ]


def in_ms(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        for name in ("publish_time", "event_time"):
            if row.get(name) is not None:
                row[name] = round(row[name].timestamp() * 1000)
    return rows


@pytest.mark.parametrize("view", ["log", "compacted"])
def test_a_frame_has_every_message_as_the_topic_has_it(
    spark: SparkSession, orders: Topic, view: str
) -> None:
    assert in_ms(rows_of(load(spark, orders, view=view))) == expected(
        orders, compacted=view == "compacted"
    )


def test_only_the_columns_that_are_named_are_read(spark: SparkSession, orders: Topic) -> None:
    by_option = load(spark, orders, columns="key, ledger")
    by_schema = (
        spark.read.format("lithify").schema("key binary, ledger bigint").load(path_of(orders))
    )
    rows = [(row["key"], row["ledger"]) for row in expected(orders)]
    assert by_option.columns == by_schema.columns == ["key", "ledger"]
    assert sorted(map(tuple, by_option.collect())) == sorted(rows)
    assert sorted(map(tuple, by_schema.collect())) == sorted(rows)


IDS = "ledger, entry, batch_index, partition, publish_time, event_time"


def test_ids_and_times_of_the_view_come_from_key_indexes(
    spark: SparkSession, orders: Topic
) -> None:
    before = rows_of(load(spark, orders, view="compacted", columns=IDS))
    names = [name.strip() for name in IDS.split(",")]
    wanted = [{name: row[name] for name in names} for row in expected(orders, compacted=True)]
    assert in_ms(before) == wanted
    # A byte of a message is bad: a read of the message fails, a read of ids does not.
    ref = next(ref for ref in orders.log.manifest.view or () if ref.live_entries > 2)
    with open(f"{orders.log.directory}/{ref.name}", "r+b") as file:
        file.seek(ref.file_bytes // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert in_ms(rows_of(load(spark, orders, view="compacted", columns=IDS))) == wanted
    with pytest.raises(PySparkException, match="CRC-32C does not match"):
        load(spark, orders, view="compacted").collect()


def test_filters_of_one_query_do_not_affect_others(spark: SparkSession, orders: Topic) -> None:
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = load(spark, orders, columns="ledger, entry")
        first, last = frame.where("ledger = 1"), frame.where("ledger > 3")
        whole = [row["ledger"] for row in expected(orders)]
        assert first.count() == whole.count(1)
        assert frame.count() == len(whole)
        both = first.union(last)
        assert both.count() == whole.count(1) + sum(each > 3 for each in whole)
    finally:
        spark.conf.unset(PUSHDOWN)


def test_times_leave_out_segments_and_messages(spark: SparkSession, orders: Topic) -> None:
    whole = expected(orders)
    since_ms, until_ms = (whole[len(whole) // n]["publish_time"] for n in (3, 2))
    since, until = (
        datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        for ms in (since_ms, until_ms)
    )
    for view in ("log", "compacted"):
        wanted = [
            row
            for row in expected(orders, compacted=view == "compacted")
            if since_ms <= row["publish_time"] < until_ms
        ]
        found = load(
            spark, orders, view=view, startTime=since, stopTime=until.replace("+00:00", "")
        )
        assert in_ms(rows_of(found)) == wanted, view
        # The key index answers the first, and neither names the column of times.
        for columns in ("ledger, entry", "value"):
            some = load(spark, orders, view=view, startTime=since, stopTime=until, columns=columns)
            assert some.count() == len(wanted), (view, columns)
    segments = len({row["ledger"] for row in whole})
    assert load(spark, orders, startTime=since).rdd.getNumPartitions() < segments
    assert load(spark, orders, stopTime=since).rdd.getNumPartitions() < segments


@pytest.mark.parametrize("view", ["log", "compacted"])
def test_a_time_finds_messages_whose_clock_was_ahead(topics: Topics, view: str) -> None:
    """Of four segments the second has such a message; runs rewrite it with its neighbours."""
    topic = topics.create("clocks")
    ahead_ms = CLOCK.now_ms() + 86_400_000
    for number in range(4):
        fill(topic, number)
        if number == 1:
            body = single("ahead", b"of its time", publish_time=ahead_ms)
            topic.writer.append_entries([body], times=[ahead_ms], counts=[1]).result()
        topic.log.roll()
    if view == "compacted":
        topic.compaction.run("test")
        names = {ref.name for ref in topic.log.manifest.segments}
        assert not names & {ref.name for ref in topic.log.manifest.view or ()}, "rewritten"
    bounds = Bounds(time_min_ms=ahead_ms - 1000)
    parts = parts_of(topic, bounds, compacted=view == "compacted")
    schema = pa.schema({"value": pa.binary()})
    found = [row for part in parts for cut in read_part(part, schema) for row in cut.to_pylist()]
    assert found == [{"value": b"of its time"}]
    # Those without such a message are left out as ever.
    sealed = [part.segment.id for part in parts if part.segment.sealed]
    assert sealed == [2]


def test_positions_can_be_given_as_options(spark: SparkSession, orders: Topic) -> None:
    whole = expected(orders)
    first, stop = whole[40], whole[-5]
    frame = load(
        spark,
        orders,
        startPosition=f"{first['ledger']}:{first['entry']}",
        stopPosition=f"{stop['ledger']}:{stop['entry']}",
    )
    ids = [(row["ledger"], row["entry"]) for row in rows_of(frame)]
    low, high = (first["ledger"], first["entry"]), (stop["ledger"], stop["entry"])
    assert ids == [
        (row["ledger"], row["entry"])
        for row in whole
        if low <= (row["ledger"], row["entry"]) < high
    ]


def test_a_partitioned_topic_is_read_with_all_its_partitions(
    spark: SparkSession, topics: Topics
) -> None:
    topics.create_partitioned("parted", 3)
    for number in (0, 2):
        fill(topics.get(f"parted-partition-{number}"), number)
    whole = spark.read.format("lithify").load(f"{topics.directory}/topics/public/default/parted")
    both = [row for n in (0, 2) for row in expected(topics.get(f"parted-partition-{n}"))]
    assert in_ms(rows_of(whole)) == both
    one = load(spark, topics.get("parted-partition-2"))
    assert in_ms(rows_of(one)) == expected(topics.get("parted-partition-2"))


def test_an_empty_topic_is_an_empty_frame(spark: SparkSession, topics: Topics) -> None:
    topics.create_partitioned("unused", 2)
    path = f"{topics.directory}/topics/public/default/unused"
    assert spark.read.format("lithify").load(path).collect() == []
    assert load(spark, topics.create("new.topic"), view="compacted").collect() == []


def test_a_planned_query_reads_what_it_has_planned(spark: SparkSession, orders: Topic) -> None:
    before = sorted(row["value"] or b"" for row in expected(orders, compacted=True))
    planned = load(spark, orders, view="compacted").rdd
    assert planned.getNumPartitions() > 2
    fill(orders, 9)
    orders.compaction.run("test")
    assert orders.log.manifest.retired
    orders.log.reclaim()
    assert orders.log.manifest.retired  # The planner's pin holds them.

    def value(row: Row) -> bytes:
        return bytes(row.value or b"")

    assert sorted(planned.map(value).collect()) == before


def parts_of(
    topic: Topic, bounds: Bounds | None = None, *, compacted: bool = True
) -> list[ScanPart]:
    """Planned by a process that has ended."""
    fs = LocalFileSystem()
    (partition,) = find_place(fs, path_of(topic)).partitions(fs)
    with ExitStack() as stack:
        snapshot = open_partition(stack, fs, partition)
        bounds = bounds or Bounds()
        return plan_partition(fs, partition, snapshot, compacted=compacted, bounds=bounds)


def test_positions_and_times_leave_out_the_view_or_what_is_above_it(orders: Topic) -> None:
    def segments(**bounds: int) -> list[SegmentRef]:
        return [part.segment for part in parts_of(orders, Bounds(**bounds))]

    view, sealed, active = segments()
    assert view in (orders.log.manifest.view or ())
    assert segments(low=sealed.first_position) == [sealed, active]
    assert segments(high=sealed.first_position - 1) == [view]
    assert segments(time_min_ms=view.time_max + 1) == [sealed, active]
    assert segments(time_max_ms=sealed.time_min - 1) == [view, active], "its times are not known"


def test_a_part_whose_files_were_deleted_is_an_error(orders: Topic) -> None:
    parts = parts_of(orders)
    for seed in (10, 11):
        fill(orders, seed)
        orders.compaction.run("test")
    orders.log.reclaim()
    gone = []
    for part in parts:
        try:
            list(read_part(part, pa.schema({"key": pa.binary()})))
        except QueryStale as error:
            gone.append(str(error))
    assert gone
    assert "since this query was planned" in gone[0]


def test_while_a_part_is_read_its_generation_is_pinned(orders: Topic) -> None:
    part = parts_of(orders)[0]
    reading = read_part(part, pa.schema({"value": pa.binary()}))
    next(reading)
    assert [pin.owner for pin in orders.log.pins()] == ["Spark task"]
    assert list(reading) == []
    assert orders.log.pins() == []


def test_large_segments_are_cut_into_several_parts(
    orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lithify.spark.scan.PART_BYTES", 100_000)
    body = b"x" * 10_000
    for number in range(100):
        orders.append(key=f"large {number}", value=body)
    schema = pa.schema({"ledger": pa.int64(), "entry": pa.int64(), "batch_index": pa.int32()})
    wanted = [
        {name: row[name] for name in schema.names} for row in expected(orders, compacted=True)
    ]
    for sealed in (False, True):
        if sealed:
            orders.log.roll()
        parts = parts_of(orders)
        assert len(parts) > 10
        found = [
            row for part in parts for cut in read_part(part, schema) for row in cut.to_pylist()
        ]
        assert found == wanted


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"view": "other"}, "view 'other' must be 'log' or 'compacted'"),
        ({"columns": "key,colour"}, "there is no column 'colour'"),
        ({"startPosition": "seven"}, "startPosition 'seven' must be LEDGER:ENTRY"),
        ({"stopTime": "noon"}, "stopTime 'noon' must be a time such as 2026-01-31T12:00Z"),
        ({"veiw": "log"}, "there is no option 'veiw'"),
    ],
)
def test_unknown_options_are_named(
    spark: SparkSession, orders: Topic, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(AnalysisException, match=reason):
        load(spark, orders, **options).collect()


def test_missing_objects_are_named(spark: SparkSession, topics: Topics) -> None:
    with pytest.raises(AnalysisException, match="topic persistent://public/default/no does not"):
        spark.read.format("lithify").load(f"{topics.directory}/topics/public/default/no").count()
    fs = LocalFileSystem()
    with pytest.raises(InvalidInput, match="must be DATA/topics/TENANT/NAMESPACE/TOPIC"):
        find_place(fs, "/anywhere")
    with pytest.raises(InvalidInput, match="must be http://NODE/persistent/"):
        find_place(fs, "http://node:8080/orders")
    place = find_place(fs, "http://node:8080/admin/v2/persistent/public/default/a%2Fb")
    assert str(place.name) == "persistent://public/default/a/b"
    assert replace(place, data="x").resolved(fs).data == "x"
    assert place.produce_url == "http://node:8080/topics/persistent/public/default/a%2Fb"
