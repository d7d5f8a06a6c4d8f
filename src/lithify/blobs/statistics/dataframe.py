"""A blob store's statistics as a Spark table.

    frame = statistics_frame(spark, "data/blobs/photos")
    frame.createOrReplaceTempView("photos")
    spark.sql("select sum(bytes) from photos where not active and ends_ms <= :tomorrow")

One row for each segment and span of time in which some of it ends:

| column | |
|---|---|
| segment | its number |
| active | whether it is the active segment |
| ends_ms | the end of the span; now for what is dead, null for what ends after the last span |
| records, bytes | that end in it |

1. The driver reads the manifest and the active segment, like any reader beside a writer.
2. One Spark partition per range of hashes; its task counts the range (`tasks.py`). Only
   sums enter the JVM.
3. Spark SQL adds the ranges up by segment and span.

The table is as of now, but computed when it is used. If a compaction has deleted the files in the
meantime, it raises `MissingFile`. Any process may call this, also beside a writer.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np

from lithify.blobs.index_rows import join_rows, rows_of_frames
from lithify.blobs.settings import DAY_MS
from lithify.blobs.statistics.tasks import Spans, Subject, plan_statistics, run_statistics
from lithify.clock import SystemClock
from lithify.compaction.tasks.jobs import no_check
from lithify.fs import LocalFileSystem
from lithify.log.read_only_log import open_readonly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lithify.blobs.statistics.tasks import StatisticsTask
    from lithify.clock import Clock
    from lithify.fs import FileSystem

__all__ = ["statistics_frame"]

MEMORY_BYTES = 256 * 2**20
_LATER = -1


def statistics_frame(
    spark: SparkSession,
    directory: str,
    *,
    deleted_retention_ms: int = 7 * DAY_MS,
    buckets: int = 48,
    span_ms: int = 3_600_000,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> DataFrame:
    """The statistics of the store in a directory; see the module."""
    fs, clock = fs or LocalFileSystem(), clock or SystemClock()
    spans = Spans(buckets, span_ms)
    subject = _subject(fs, directory, deleted_retention_ms, clock)
    slots = spark.sparkContext.defaultParallelism
    tasks, _ = plan_statistics(subject, spans, slots, MEMORY_BYTES)
    segments = [
        *(index.segment.id for index in subject.indexes),
        subject.manifest.active.id,
    ]

    def count(task: StatisticsTask) -> list[tuple[int, ...]]:
        return _sums(task, segments)

    rows = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(count)
    sums = spark.createDataFrame(rows, "segment long, span long, records long, bytes long")
    return (
        sums.groupBy("segment", "span")
        .sum("records", "bytes")
        .selectExpr(
            "segment",
            f"segment = {segments[-1]} as active",
            f"if(span = {_LATER}, null, {subject.as_of_ms} + span * {span_ms}) as ends_ms",
            "`sum(records)` as records",
            "`sum(bytes)` as bytes",
        )
    )


def _subject(fs: FileSystem, directory: str, deleted_retention_ms: int, clock: Clock) -> Subject:
    token = secrets.token_hex(8)
    owner = "blob statistics"
    with open_readonly(fs, directory, owner=owner, clock=clock, token=token) as snapshot:
        first = snapshot.manifest.active.first_position
        pieces = [rows_of_frames(frames) for frames in snapshot.read_frames(first)]
    return Subject(
        fs,
        directory,
        snapshot.manifest,
        join_rows(pieces),
        0,
        clock.now_ms(),
        deleted_retention_ms,
    )


def _sums(task: StatisticsTask, segments: list[int]) -> list[tuple[int, ...]]:
    """The rows of one range of hashes, without zeros. Runs in a worker."""
    tally = run_statistics(task, no_check)
    lines, columns = np.nonzero(tally.records)
    table = (
        np.array(segments)[lines],
        np.where(columns == tally.records.shape[1] - 1, _LATER, columns),
        tally.records[lines, columns],
        tally.bytes[lines, columns],
    )
    return [tuple(row) for row in np.stack(table, axis=1).tolist()]
