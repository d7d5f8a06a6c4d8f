"""Streams continue where they stopped; rows that are written are in the topic once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from lithify.clock import SystemClock
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.topics.topics import Topics, TopicSettings
from tests.patience import PROCESS_S_MAX, at_most

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NAME = "persistent://public/default/orders"


def open_topics(data: str) -> Topics:
    return Topics(
        LocalFileSystem(),
        data,
        settings=TopicSettings(),
        clock=SystemClock(),
        events=ignore_events,
        owner="a test",
    )


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # The gate of compaction is there; other processes must not be met.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return f"{tmp_path}/data"


def path_of(data: str, topic: str = "orders") -> str:
    return f"{data}/topics/public/default/{topic}"


def messages(topics: Topics, name: str = NAME) -> list[tuple[bytes | None, bytes | None]]:
    return [(each.key, each.value) for each in topics.get(name).read()]


# --- streams --------------------------------------------------------------------------------


def drain(spark: SparkSession, path: str, checkpoint: str, **options: str) -> list[bytes]:
    """What a query that ends by itself gives, continued from its checkpoint."""
    found: list[bytes] = []

    def take(frame: DataFrame, _: int) -> None:
        found.extend(bytes(row.value or b"") for row in frame.orderBy("ledger", "entry").collect())

    stream = spark.readStream.format("lithify").options(**options).load(path)
    query = (
        stream.writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    return found


def test_a_stream_resumes_where_it_stopped(spark: SparkSession, data: str, tmp_path: Path) -> None:
    checkpoint = f"{tmp_path}/checkpoint"
    with_topics = open_topics(data)
    topic = with_topics.create(NAME)
    values = [b"%d" % number for number in range(30)]
    for value in values[:10]:
        topic.append(key="k", value=value)
    assert drain(spark, path_of(data), checkpoint) == values[:10]
    assert drain(spark, path_of(data), checkpoint) == []
    for value in values[10:20]:
        topic.append(key="k", value=value)
    topic.log.roll()
    for value in values[20:]:
        topic.append(key="k", value=value)
    topic.compaction.run("test")
    assert drain(spark, path_of(data), checkpoint) == values[10:]
    # The same name, but another log: the checkpoint says nothing about it.
    with_topics.delete(NAME)
    with_topics.create(NAME).append(key="k", value=b"new")
    with pytest.raises(PySparkException, match="deleted and recreated since the checkpoint"):
        drain(spark, path_of(data), checkpoint)
    with_topics.close()


def test_a_stream_that_fails_in_the_middle_of_a_batch_gets_that_batch_again(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    """Although what it had planned was compacted, and is nowhere as it was."""
    topics = open_topics(data)
    topic = topics.create(NAME)
    for number in range(12):
        topic.append(key=f"k{number % 4}", value=b"%d" % number)
    topic.compaction.run("test")

    def fail(frame: DataFrame, _: int) -> None:
        frame.count()
        raise ArithmeticError("the task fails")

    stream = spark.readStream.format("lithify").option("view", "compacted").load(path_of(data))
    failing = (
        stream.writeStream.foreachBatch(fail)
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="the task fails"):
        failing.awaitTermination(120)
    topic.append(key="k3", value=b"12")
    topic.append(key="k2", value=None)
    topic.compaction.run("test")
    topic.maintain()
    found = drain(spark, path_of(data), f"{tmp_path}/checkpoint", view="compacted")
    assert found == [b"8", b"9", b"12", b""], "10 and 11 were superseded by what comes after them"
    topics.close()


def test_a_compacted_stream_begins_with_the_view_and_sees_every_delete_after_it(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    checkpoint = f"{tmp_path}/checkpoint"
    topics = open_topics(data)
    topic = topics.create(NAME)
    for number in range(20):
        topic.append(key=f"k{number % 4}", value=b"%d" % number)
    topic.compaction.run("test")
    found = drain(spark, path_of(data), checkpoint, view="compacted")
    assert found == [b"16", b"17", b"18", b"19"]
    topic.append(key="k1", value=None)
    topic.append(key="k2", value=b"20")
    # The tombstone is not in the view, but the stream was there before it.
    topic.compaction.run("test")
    assert drain(spark, path_of(data), checkpoint, view="compacted") == [b"", b"20"]
    topics.close()


def test_a_stream_reports_messages_dropped_before_it_read_them(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    checkpoint = f"{tmp_path}/checkpoint"
    topics = open_topics(data)
    topic = topics.create(NAME)
    for number in range(5):
        topic.append(key="k", value=b"%d" % number)
    assert len(drain(spark, path_of(data), checkpoint)) == 5
    # What it has read may go: it does not even notice.
    topic.log.roll()
    topic.append(key="k", value=b"5")
    topic.log.drop_head(topic.last_position)
    assert drain(spark, path_of(data), checkpoint) == [b"5"]
    # What it has not read may not.
    topic.append(key="k", value=b"6")
    topic.log.roll()
    topic.append(key="k", value=b"7")
    topic.log.drop_head(topic.last_position)
    with pytest.raises(
        PySparkException,
        match=f"{NAME} has dropped 2:1 and all before it, the stream must resume at 2:1",
    ):
        drain(spark, path_of(data), checkpoint)
    assert drain(spark, path_of(data), f"{tmp_path}/new") == [b"7"]
    topics.close()


# --- writing --------------------------------------------------------------------------------


def frame_of(spark: SparkSession, count: int = 100) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr(
        "cast(concat('k', id % 10) as binary) key",
        "case when id % 7 = 0 then null else concat('v', id) end value",
        "map('id', cast(id as string)) properties",
        "timestamp_millis(id) event_time",
    )


def rows(count: int = 100) -> list[tuple[bytes, bytes | None]]:
    return [(b"k%d" % (n % 10), None if n % 7 == 0 else b"v%d" % n) for n in range(count)]


def append(frame: DataFrame, path: str, **options: str) -> None:
    frame.write.format("lithify").mode("append").options(**options).save(path)


def test_rows_are_appended_in_the_order_of_the_frame(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    open_topics(data).close()
    append(frame_of(spark), path_of(data), staging=str(tmp_path))
    topics = open_topics(data)
    assert messages(topics) == rows()
    found = list(topics.get(NAME).read())
    assert [each.properties["id"] for each in found] == [str(n) for n in range(100)]
    assert [each.event_time_ms for each in found] == list(range(100))
    assert len({each.producer for each in found}) == 1
    assert [each.sequence_id for each in found] == list(range(100))
    assert list(tmp_path.glob("*.staged")) == []
    topics.close()


def test_a_task_that_is_retried_writes_nothing_twice(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    open_topics(data).close()

    def fail_at_first(batches: Iterable[Any]) -> Iterable[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise OSError("the first attempt fails after its last row")

    frame = frame_of(spark)
    flaky = spark.createDataFrame(
        frame.rdd.mapPartitions(fail_at_first), frame.schema, verifySchema=False
    )
    append(flaky, path_of(data), staging=str(tmp_path))
    topics = open_topics(data)
    assert sorted(messages(topics), key=str) == sorted(rows(), key=str)
    assert list(tmp_path.glob("*.staged")) == []
    topics.close()


def test_keys_choose_the_partition(spark: SparkSession, data: str, tmp_path: Path) -> None:
    topics = open_topics(data)
    topics.create_partitioned(NAME, 3)
    topics.close()
    append(frame_of(spark), path_of(data), staging=str(tmp_path))
    topics = open_topics(data)
    parts = [messages(topics, f"{NAME}-partition-{number}") for number in range(3)]
    assert sorted((row for part in parts for row in part), key=str) == sorted(rows(), key=str)
    for key in {key for key, _ in rows()}:
        assert sum(any(key == found for found, _ in part) for part in parts) == 1
    topics.close()


def test_a_failed_write_changes_nothing(spark: SparkSession, data: str, tmp_path: Path) -> None:
    topics = open_topics(data)
    topics.create(NAME)
    with pytest.raises(PySparkException, match="a test"):  # It has the directory open.
        append(frame_of(spark), path_of(data), staging=str(tmp_path))
    with pytest.raises(PySparkException, match="can only be appended to"):
        frame_of(spark).write.format("lithify").mode("overwrite").save(path_of(data))
    with pytest.raises(PySparkException, match="accepts no column 'id bigint'"):
        append(spark.range(3), path_of(data))
    with pytest.raises(PySparkException, match="of option 'staging' does not exist"):
        append(frame_of(spark), path_of(data), staging=f"{tmp_path}/nowhere")
    assert messages(topics) == []
    assert list(tmp_path.glob("*.staged")) == []
    topics.close()


@pytest.fixture
def node(data: str) -> Iterator[str]:
    """The address of a node that serves the directory."""
    command = [sys.executable, "tests/http/server.py", data]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        with at_most(PROCESS_S_MAX, process.kill):
            _, port = process.stdout.readline().split()
        yield f"http://127.0.0.1:{port}"
        with at_most(PROCESS_S_MAX, process.kill):
            process.communicate()


def test_a_topic_is_written_and_read_while_its_node_serves_it(
    spark: SparkSession, node: str, tmp_path: Path
) -> None:
    url = f"{node}/persistent/public/default/orders"
    append(frame_of(spark), url, staging=str(tmp_path))
    append(frame_of(spark, 5), url, staging=str(tmp_path))
    found = spark.read.format("lithify").load(url).orderBy("ledger", "entry").collect()
    assert [(row.key, None if row.value is None else bytes(row.value)) for row in found] == [
        *rows(),
        *rows(5),
    ]
    stream = drain(spark, url, f"{tmp_path}/checkpoint", startPosition="1:100")
    assert stream == [value or b"" for _, value in rows(5)]
    # A stream with a name has the log held from where it stopped.
    for number in range(2):
        held = drain(spark, url, f"{tmp_path}/named", subscription="reports")
        assert len(held) == (1 if number else 105)
        with urlopen(f"{node}/admin/v2/persistent/public/default/orders/internalStats") as said:
            cursor = json.load(said)["cursors"]["reports"]
        assert cursor["markDeletePosition"] == f"1:{104 + number}"
        append(frame_of(spark, 1), url, staging=str(tmp_path))
    with pytest.raises(PySparkException, match="'reports' is kept by a node"):
        drain(spark, path_of(f"{tmp_path}/data"), f"{tmp_path}/other", subscription="reports")
    with pytest.raises(PySparkException, match="answers 404"):
        append(frame_of(spark), f"{node}/persistent/nobody/default/orders", staging=str(tmp_path))
