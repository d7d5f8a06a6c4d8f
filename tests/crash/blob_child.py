"""A process that compacts a blob store until it is killed; it reports its progress.

(PHASE, DONE, TOTAL)     the run has come so far; what is done is in the journal
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.blobs.settings import BlobSettings
from lithify.blobs.store import BlobStore
from lithify.compaction.limits.budget import Budget
from lithify.compaction.tasks.jobs import LocalJobs
from lithify.fs import LocalFileSystem
from lithify.pipeline import jobs
from lithify.pipeline.session import open_session

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SLOW = Budget(write_bytes_per_s=400_000)


def settings(budget: Budget) -> BlobSettings:
    return BlobSettings(deleted_retention_ms=0, budget=budget)


def compact(directory: str, master: str, say: Connection) -> None:
    """Slowly, until the end, which comes from outside; by Spark if there is a master."""
    by: jobs.SparkJobs | LocalJobs = LocalJobs()
    if master:
        # A job for each group, so that each is journalled when it is copied.
        jobs.WAVE_WEIGHT = 1
        by = jobs.SparkJobs(open_session(master), small_weight=0)
    store = BlobStore.open(LocalFileSystem(), directory, settings=settings(SLOW))
    store.compaction.run(jobs=by, progress=lambda *far: say.send(far))
