"""Topics compacted by Spark have the view that a naive replay keeps, whatever process is killed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import lithify
from lithify.clock import SystemClock
from lithify.fs import LocalFileSystem
from lithify.pipeline.jobs import SparkJobs
from lithify.topics.definitions.compaction_settings import TopicCompactionSettings
from tests.spark.dying import DyingRewriting
from tests.topic_life import Life

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def jobs(spark: SparkSession) -> SparkJobs:
    return SparkJobs(spark, small_weight=0)


def topic(path: Path, jobs: SparkJobs, seed: int, **settings: object) -> Life:
    chosen = TopicCompactionSettings(live_ratio_min=1.0, **settings)  # type: ignore[arg-type]
    return Life(
        LocalFileSystem(),
        random.Random(seed),
        SystemClock(),
        chosen,
        str(path / "log"),
        jobs,
        keys=100,
    )


def grow(life: Life, runs: int) -> None:
    for _ in range(runs):
        for count in (150, 40, 5):
            life.send(count)
            life.log.roll()
        life.compact()
        life.check()


@pytest.mark.parametrize("order", ["publish", "event"])
def test_the_view_that_spark_makes_is_what_a_naive_replay_keeps(
    tmp_path: Path, jobs: SparkJobs, order: str
) -> None:
    life = topic(tmp_path, jobs, 3, compaction_order=order, compaction_memory_bytes=2**20)
    grow(life, 3)
    kept = life.oracle.kept
    life.settle()
    life.reopen()
    life.check()
    assert life.oracle.kept == kept
    assert not life.strays()


def test_an_existing_session_is_used_and_not_stopped(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[SparkSession] = []

    class Seen(SparkJobs):
        def __init__(self, session: SparkSession) -> None:
            used.append(session)
            super().__init__(session, small_weight=0)

    monkeypatch.setattr("lithify.pipeline.jobs.SparkJobs", Seen)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with lithify.open(str(tmp_path / "data"), durability="none") as node:
        topic = node.topics.create("orders")
        for number in range(100):
            topic.append(key=f"k{number % 10}", value=b"%d" % number)
        topic.log.roll()
        before = topic.log.manifest
        planned = topic.plan_compaction(spark)
        assert topic.log.manifest == before
        assert "horizon" in planned.explain()
        report = topic.compact(spark)
        assert (report.result, report.kept_messages, report.trigger) == ("done", 10, "library")
        assert planned.plan.bytes_written >= report.kept_bytes, "it was done as it was planned"
        assert [each.value for each in topic.read(compacted=True)] == [
            b"%d" % number for number in range(90, 100)
        ]
    assert used == [spark, spark]
    assert spark.range(3).count() == 3, "it continues"


def test_a_worker_that_is_killed_during_a_rewrite_costs_an_attempt(
    tmp_path: Path, jobs: SparkJobs
) -> None:
    life = topic(tmp_path, jobs, 4)
    grow(life, 1)
    marker = tmp_path / "died"
    dying = DyingRewriting(life.log.manifest.log_id, str(marker))
    targets = life.compaction._compactor._targets
    targets._rewriting = dying  # type: ignore[attr-defined]
    grow(life, 1)
    assert marker.exists()
    assert not life.strays()
