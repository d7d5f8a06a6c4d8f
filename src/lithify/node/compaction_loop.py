"""Compaction in a node that serves: the worker process, and the loop that starts runs.

1. One worker process with a Spark session does the runs of all topics and blob stores. The first
   run starts it; it stops after an idle time (`pipeline/session_process.py`).
2. All stores share the node's queue (`compaction/scheduling/run_queue.py`). Once a second topics
   and blob stores report to it what their triggers say (`topics/compaction/scheduling.py`,
   `blobs/compaction/scheduling.py`), in a thread. Raft groups and the metastore do so by themselves
   (`raft/node/node.py`, `cluster.py`), and their runs do not use the worker.
3. When the node stops, runs on topics are cancelled, those on blob stores are suspended, and the
   worker is stopped.

Called by `server.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lithify.blobs.compaction.store_compaction import BLOB_TASKS
from lithify.logger import get_logger
from lithify.pipeline.session_process import WorkerJobs
from lithify.topics.compaction.topic_compaction import TOPIC_TASKS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lithify.node.served_node import ServedNode

__all__ = ["compacting"]

CHECK_S = 1.0

log = get_logger("lithify.node")


@asynccontextmanager
async def compacting(node: ServedNode) -> AsyncIterator[None]:
    """Run compactions that are due or requested, while the block runs."""
    settings = node.settings
    worker = WorkerJobs(
        node.clock,
        target=settings.spark,
        preload=tuple(dict.fromkeys((*TOPIC_TASKS, *BLOB_TASKS))),
        idle_s=settings.compaction_idle_ms / 1000,
    )
    node.queue.jobs = worker
    ended = asyncio.Event()
    task = asyncio.create_task(_check_due(node, worker, ended))
    try:
        yield
    finally:
        ended.set()
        await task
        await asyncio.to_thread(node.queue.close)
        await asyncio.to_thread(worker.close)


async def _check_due(node: ServedNode, worker: WorkerJobs, ended: asyncio.Event) -> None:
    while not ended.is_set():
        try:
            await asyncio.to_thread(node.topics.compactions.request_due_runs)
            await asyncio.to_thread(node.blobs.compactions.request_due_runs)
            await asyncio.to_thread(worker.maintain)
        except Exception:
            log.exception("checking for compactions that are due failed")
        try:
            await asyncio.wait_for(ended.wait(), CHECK_S)
        except TimeoutError:
            continue
