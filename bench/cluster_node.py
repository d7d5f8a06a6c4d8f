"""A process with the cluster of a node, for `catalog_decision.py`.

    python -m bench.cluster_node NAME DATA PORT PEER=PORT ...

It prints a line when it runs, and then one for each line that it reads, a number:

    leads        1 if it leads the metastore
    table N      creates a table in a zone of N partitions with three replicas; then 1
    ready N      1 if this node has N partitions, whose groups have all members, and the others too
    trim         a run of the compaction of the catalog; then the number of reasons against it
    decide N     the seconds of N decisions
    ask N        the seconds of N questions to all nodes, answered with nothing
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
from lithify.catalog.commands.zones import CreateZone
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.errors import LithifyError
from lithify.fs import LocalFileSystem
from lithify.node.cluster import Cluster
from lithify.node.settings import NodeSettings

if TYPE_CHECKING:
    from lithify.catalog_compaction.compaction import CatalogCompaction

NODES = 3
EMPTY = "bench empty"
TIMEOUT_S = 60.0


class _Measured:
    """What the lines do, in the thread of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.node.questions.on(EMPTY, _nothing)

    @property
    def _compaction(self) -> CatalogCompaction:
        assert self._cluster.trimming is not None
        return self._cluster.trimming

    async def leads(self) -> int:
        return int(bool(self._cluster.metastore.leading_term))

    async def table(self, partitions: int) -> int:
        zone = CreateZone("z", partitions, NODES)
        table = CreateTable("t", (ColumnDefinition("id", "int64"),), ("id",), zone="z")
        await self._cluster.execute((zone, table))
        return 1

    async def ready(self, partitions: int) -> int:
        tables = self._cluster.tables
        assert tables is not None
        groups = [self._cluster.node.groups[each.name] for each in tables.hosted().values()]
        complete = [each for each in groups if len(each.config.voters) == NODES and each.leader]
        return int(len(complete) == partitions)

    async def trim(self) -> int:
        term = self._cluster.metastore.leading_term
        try:
            return len((await self._compaction.runner.run(term)).decision.aborts)
        except LithifyError:
            # Another node leads.
            return 1

    async def decide(self, count: int) -> float:
        took_s, done = 0.0, 0
        while done < count:
            began_s = time.perf_counter()
            aborts = (await self._compaction.runner.plan()).decision.aborts
            # One that is aborted, because a node was silent, costs less.
            if not aborts:
                took_s += time.perf_counter() - began_s
                done += 1
        return took_s

    async def ask(self, count: int) -> float:
        questions = self._cluster.node.questions

        began_s = time.perf_counter()
        for _ in range(count):
            names = self._cluster.nodes()
            asks = (questions.ask(each, EMPTY, {}, timeout_s=TIMEOUT_S) for each in names)
            assert len(await asyncio.gather(*asks)) == NODES
        return time.perf_counter() - began_s


async def _nothing(_: dict[str, Any]) -> dict[str, Any]:
    return {}


def _failed(error: BaseException) -> None:
    print(f"the cluster failed: {error}", file=sys.stderr)
    os._exit(1)


def main(name: str, data: str, port: str, *peers: str) -> None:
    fs, clock = LocalFileSystem(), SystemClock()
    fs.mkdir(data)
    addresses = tuple(each.replace("=", "=127.0.0.1:") for each in peers)
    settings = NodeSettings(data, node=name, cluster_port=int(port), peers=addresses)
    queue = RunQueue(clock)
    cluster = Cluster(settings, fs, data, clock, _failed, queue=queue)
    cluster.start()
    cluster.opened()
    # As a node does.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    measured = _Measured(cluster)
    print("runs", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        work = partial(getattr(measured, what), *map(int, numbers))
        print(cluster.call(work).result(), flush=True)
    queue.close()
    cluster.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
