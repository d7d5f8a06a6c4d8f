"""A blob store compacted by Spark answers as it did before."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from lithify.blobs.errors import BlobDeleted
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.compaction.limits.budget import Budget
from lithify.compaction.limits.one_run_per_disk import DiskGate
from lithify.fs import LocalFileSystem
from lithify.pipeline.jobs import SparkJobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SEGMENT_BYTES = 2**18


def test_a_store_is_compacted_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    fs, rng = LocalFileSystem(), random.Random(5)
    store = BlobStore.create(
        fs,
        str(tmp_path / "store"),
        capacity_bytes=100 * SEGMENT_BYTES,
        segment_bytes=SEGMENT_BYTES,
        settings=BlobSettings(deleted_retention_ms=0, budget=Budget(memory_bytes=2**20)),
        gate=DiskGate(fs, str(tmp_path / "gate")),
    )
    blobs = {}
    for number in range(200):
        content = rng.randbytes(rng.choice((100, 5000, 66_000)))
        store.put(content, service="s", blob_id=f"blob {number}")
        blobs[f"blob {number}"] = content
    gone = rng.sample(sorted(blobs), 150)
    for blob_id in gone:
        store.delete(blob_id)
        del blobs[blob_id]
    before = store.used_bytes
    report = store.compaction.run(jobs=SparkJobs(spark, small_weight=0))
    assert report.result == "done"
    assert store.used_bytes < before / 2
    for blob_id, content in blobs.items():
        with store.get(blob_id) as blob:
            assert blob.read() == content
    for blob_id in gone:
        with pytest.raises(BlobDeleted):
            store.get(blob_id)
    store.close()
