"""Replication of blob stores in a node that serves: a task a store that has replicas.

1. Every `LOOK_S` stores that have got replicas are given a task; one whose store was closed or has
   no replicas any more ends.
2. A task lets the replicator make a step, in a thread, and waits for as long as that says.

Threads are its own: a replica that does not answer holds up no other part of the node, and at most
`THREADS_MAX` stores. When the node stops, the steps that are being made are waited for.

Called by `serving.py`, while the node serves.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lithify.blobs.errors import ReplicaNoPeer
from lithify.blobs.replicator import Replicator
from lithify.logger import get_logger

if TYPE_CHECKING:
    from lithify.blobs.store import BlobStore
    from lithify.blobs.stores import BlobStores

__all__ = ["replicate"]

LOOK_S = 0.5
AFTER_A_DEFECT_S = 10.0
THREADS_MAX = 8

log = get_logger("lithify.node")


async def replicate(stores: BlobStores, ended: asyncio.Event) -> None:
    """Keep stores in step with their replicas until `ended` is set."""
    tasks: dict[str, asyncio.Task[None]] = {}
    with ThreadPoolExecutor(THREADS_MAX, "lithify-replication") as threads:
        while not ended.is_set():
            for name, store in stores.opened().items():
                if store.replication.peers and (name not in tasks or tasks[name].done()):
                    work = _keep_in_step(stores, name, store, ended, threads)
                    tasks[name] = asyncio.create_task(work)
            await _wait(ended, LOOK_S)
        await asyncio.gather(*tasks.values())


async def _keep_in_step(
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
            wait_s = AFTER_A_DEFECT_S
        await _wait(ended, wait_s)


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return
