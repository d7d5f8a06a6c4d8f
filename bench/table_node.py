"""A node with tables, for `rebalance.py`.

    python -m bench.table_node NAME DATA PORT [PEER=ADDRESS ...]

It prints a line when it runs. Then each line that it reads is done, and answered with one:

    fill ROWS BYTES         create a table of one partition, and put rows of random bytes
    snapshot                take a snapshot of each partition that is here
    replicas N              alter the number of replicas; the seconds until all partitions have them
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.catalog.commands.tables import ColumnDefinition, CreateTable
from lithify.catalog.commands.zones import AlterZone, CreateZone
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.fs import LocalFileSystem
from lithify.metastore.local_metastore import GROUP
from lithify.node.cluster import Cluster
from lithify.node.settings import NodeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lithify.tables.assignments import Assigned

TOGETHER = 16
"""Rows of a transaction."""
LOOK_S = 0.005


def _failed(error: BaseException) -> None:
    print(f"failed: {error}", flush=True)


def _known(cluster: Cluster) -> list[Assigned]:
    assert cluster.tables is not None
    return list(cluster.tables.hosting.assignments.known.values())


async def _fill(cluster: Cluster, rows: int, size_bytes: int) -> None:
    tables = cluster.tables
    assert tables is not None
    columns = ColumnDefinition("id", "int64"), ColumnDefinition("data", "string")
    table = CreateTable("t", columns, ("id",), zone="z")
    await cluster.execute((CreateZone("z", 1, 1), table))
    slots = asyncio.Semaphore(32)

    async def put(first: int) -> None:
        async with slots:
            some = range(first, min(first + TOGETHER, rows))
            found = [{"id": each, "data": os.urandom(size_bytes // 2).hex()} for each in some]
            await tables.put_all("t", found)

    async with asyncio.TaskGroup() as tasks:
        for first in range(0, rows, TOGETHER):
            tasks.create_task(put(first))


async def _snapshot(cluster: Cluster) -> None:
    for name, group in cluster.node.groups.items():
        if name != GROUP:
            group.take_snapshot()
            cluster.node.mark(group)


async def _replicas(cluster: Cluster, replicas: int) -> float:
    versions = cluster.catalog.versions
    before = versions.latest.version
    altering = asyncio.create_task(cluster.execute((AlterZone("z", replicas=replicas),)))
    # It is moved as soon as the version exists, and answered later, when it is in force.
    while versions.latest.version == before:
        await asyncio.sleep(LOOK_S)
    began_s = time.perf_counter()
    while not all(_is_in_place(each, replicas) for each in _known(cluster)):
        await asyncio.sleep(LOOK_S)
    took_s = time.perf_counter() - began_s
    await altering
    return took_s


def _is_in_place(each: Assigned, replicas: int) -> bool:
    return len(each.assignment.stable) == replicas and not each.assignment.pending


WORK: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
    "fill": _fill,
    "snapshot": _snapshot,
    "replicas": _replicas,
}


def main(name: str, data: str, port: str, *peers: str) -> None:
    settings = NodeSettings(
        data=data, node=name, cluster_port=int(port), peers=peers, cluster_host="127.0.0.1"
    )
    clock, fs = SystemClock(), LocalFileSystem()
    os.makedirs(data, exist_ok=True)
    cluster = Cluster(settings, fs, data, clock, _failed, queue=RunQueue(clock))
    cluster.start()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    print("runs", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        print(cluster.ask(partial(WORK[what], cluster, *map(int, numbers))), flush=True)
    cluster.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
