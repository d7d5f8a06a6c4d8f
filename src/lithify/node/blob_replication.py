"""Replication of blob stores in a node that serves: one task per store with replicas.

1. Every `CHECK_S` a task is created for each store that has new replicas; a task ends when its
   store was closed or has no more replicas.
2. A task calls the replicator's step, in a thread, and waits as long as that returns.

The threads are separate: a replica that does not answer blocks no other part of the node, and at
most `THREADS_MAX` stores. When the node stops, it waits for steps in progress.

Called by `server.py`, while the node serves.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lithify.blobs.errors import ReplicaNoPeer
from lithify.blobs.replication.replicator import Replicator
from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.blobs.store import BlobStore
    from lithify.blobs.stores import BlobStores

__all__ = ["replicate"]

CHECK_S = 0.5
RETRY_S = 10.0
THREADS_MAX = 8

log = get_logger("lithify.node")


async def replicate(stores: BlobStores, ended: asyncio.Event) -> None:
    """Replicate the stores until `ended` is set."""
    tasks: dict[str, asyncio.Task[None]] = {}
    with ThreadPoolExecutor(THREADS_MAX, "lithify-replication") as threads:
        while not ended.is_set():
            for name, store in stores.opened().items():
                if store.replication.peers and (name not in tasks or tasks[name].done()):
                    work = _replicate_store(stores, name, store, ended, threads)
                    tasks[name] = asyncio.create_task(work)
            await _wait(ended, CHECK_S)
        await asyncio.gather(*tasks.values())


async def _replicate_store(
    stores: BlobStores,
    name: str,
    store: BlobStore,
    ended: asyncio.Event,
    threads: ThreadPoolExecutor,
) -> None:
    namespace = stores.definition(name).namespace
    replicator = Replicator(
        store.replication, lambda url: stores.peers.connect(url, namespace), stores.clock
    )
    for url in store.replication.peers:
        if not stores.peers.knows(url):
            log.warning("a replica is inactive", store=name, reason=str(ReplicaNoPeer(url)))
    loop = asyncio.get_running_loop()
    while not ended.is_set() and stores.opened().get(name) is store and store.replication.peers:
        try:
            wait_s = await loop.run_in_executor(threads, replicator.step)
        except Exception:
            log.exception("replication failed", store=name)
            wait_s = RETRY_S
        await _wait(ended, wait_s)


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return
