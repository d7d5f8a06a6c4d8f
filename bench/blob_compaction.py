"""Compaction of a blob store against what it cannot do without.

The store has objects of 64 KiB in segments of 256 MiB. Half of them, chosen at random, are deleted,
and the retention is over. A run is by the policy `all`, as jobs of a Spark session that is warm,
on a copy of the store that is recreated for each round: hard links of its sealed files, which no
run changes.

The raw side is two processes, one for each core, that read the live bytes once, write them once,
and make them durable (`copying.py`).
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import tempfile
import time
from typing import TYPE_CHECKING

from bench.compaction import session
from bench.copying import Workers
from bench.harness import Case
from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.fs import LocalFileSystem
from lithify.log.manifest import read_manifest
from lithify.pipeline.jobs import SparkJobs
from lithify.settings import Durability

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["compaction"]

OBJECT_BYTES = 64 * 1024
SEED = 5

FS = LocalFileSystem()
SETTINGS = BlobSettings(durability=Durability.NONE, deleted_retention_ms=0)


def compaction(directory: str, objects: int, segment_bytes: int) -> Iterator[Case]:
    """A store of which half is dead."""
    # Runs of other programs on the machine must not refuse a run here.
    tempfile.tempdir = directory
    full, work = f"{directory}/full", f"{directory}/work"
    _fill(full, objects, segment_bytes)
    sealed = [ref for ref in read_manifest(FS, full).segments if ref.sealed]
    live = f"{directory}/live"
    live_bytes = 0

    def ours() -> float:
        nonlocal live_bytes
        _copy(full, work, {ref.name for ref in sealed})
        with BlobStore.open(FS, work, settings=SETTINGS) as store:
            jobs = SparkJobs(session())
            os.sync()
            began_s = time.perf_counter()
            report = store.compaction.run("bench", "all", jobs)
            took_s = time.perf_counter() - began_s
        live_bytes = report.kept_bytes
        shutil.rmtree(work)
        return took_s

    ours()
    content = os.urandom(OBJECT_BYTES)
    halves = [f"{live}{half}" for half in (0, 1)]
    for path in halves:
        with open(path, "wb") as file:
            file.writelines(itertools.repeat(content, live_bytes // 2 // OBJECT_BYTES))
    with Workers([["copy", f"{path}-copied", "1", path] for path in halves]) as copies:

        def raw() -> float:
            os.sync()
            return copies.run()

        gigabytes = sum(ref.file_bytes for ref in sealed) / 1e9
        yield Case(
            "blob-compaction",
            f"run by all over {gigabytes:.1f} GB of objects of 64 KiB, 50 % dead",
            "two processes that read and write what is live, fsync",
            0.5,
            gigabytes,
            "GB",
            ours,
            raw,
        )


def _fill(path: str, objects: int, segment_bytes: int) -> None:
    segments = objects * 2 * OBJECT_BYTES // segment_bytes + 4
    content = os.urandom(OBJECT_BYTES)
    with BlobStore.create(
        FS,
        path,
        capacity_bytes=segments * segment_bytes,
        segment_bytes=segment_bytes,
        settings=SETTINGS,
    ) as store:
        names = [f"object {number}" for number in range(objects)]
        for name in names:
            store.put(content, service="bench", blob_id=name)
        for name in random.Random(SEED).sample(names, objects // 2):
            store.delete(name)


def _copy(source: str, target: str, immutable: set[str]) -> None:
    os.mkdir(target)
    for name in os.listdir(source):
        link = os.link if name in immutable else shutil.copyfile
        link(f"{source}/{name}", f"{target}/{name}")
