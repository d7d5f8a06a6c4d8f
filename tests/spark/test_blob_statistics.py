"""The statistics of a store are the same by Spark jobs, by Spark SQL and in one process."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.settings import BlobSettings
from lithify.blobs.statistics.dataframe import statistics_frame
from lithify.blobs.store import BlobStore
from lithify.clock import ManualClock
from lithify.fs import LocalFileSystem
from lithify.pipeline.jobs import SparkJobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
RETENTION_MS = 5 * HOUR_MS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    rng, clock = random.Random(7), ManualClock()
    with BlobStore.create(
        LocalFileSystem(),
        str(tmp_path / "store"),
        capacity_bytes=2**24,
        segment_bytes=2**16,
        settings=BlobSettings(deleted_retention_ms=RETENTION_MS),
        clock=clock,
    ) as store:
        for number in range(600):
            expiry_ms = rng.choice([None, clock.now_ms() + rng.randrange(12 * HOUR_MS)])
            store.put(rng.randbytes(500), service="s", blob_id=f"{number}", expiry_ms=expiry_ms)
            clock.advance(1)
            if number % 5 == 4:
                store.delete(f"{number - rng.randrange(5)}")
        yield store


def test_by_jobs_and_by_sql(store: BlobStore, spark: SparkSession) -> None:
    here = store.statistics(buckets=12)
    assert len(here.segments) > 5
    assert here == store.statistics(SparkJobs(spark, small_weight=0), buckets=12)

    clock = ManualClock(here.as_of_ms)
    frame = statistics_frame(
        spark, store.directory, deleted_retention_ms=RETENTION_MS, buckets=12, clock=clock
    )
    frame.createOrReplaceTempView("photos")
    for hours in (0, 6, 12):
        then = f"ends_ms <= {here.as_of_ms + hours * HOUR_MS}"
        [[found]] = spark.sql(
            f"select sum(bytes) from photos where not active and {then}"
        ).collect()
        assert (found or 0) == here.reclaimable_bytes_in(hours * HOUR_MS)
    assert here.reclaimable_bytes_in(12 * HOUR_MS) > 0
    [[stays]] = spark.sql("select sum(records) from photos where ends_ms is null").collect()
    ending = sum(sum(segment.ending_records) for segment in here.segments)
    assert stays == here.valid_records - ending
    [[active]] = spark.sql("select count(distinct segment) from photos where active").collect()
    assert active == 1
