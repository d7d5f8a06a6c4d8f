"""A scan of a table in the data directory of a node that does not run.

    moment, files = read_stopped(fs, "/data", "orders", at="", version=None)

The planner of a query opens the Raft node in the directory for a moment, without a port, as
commands with `--data` do. It is refused while another process has the directory. The node has each
partition write a snapshot and its segments, which the tasks read when it has stopped.

Without other members it has everything that was acknowledged. A member of a larger cluster has what
it knew to be committed, of the partitions that were on it; a partition that was not is an error.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.catalog.manager.activation import ALONE
from lithify.catalog.manager.manager import CatalogManager
from lithify.catalog.objects import ZoneDescriptor
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.errors import InvalidInput, LogLocked
from lithify.hybrid_time import MAX_TIMESTAMP
from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.local_metastore import GROUP, LocalMetastore, OwnMetastore
from lithify.metastore.machine import MetastoreMachine
from lithify.raft.node.identity import stored_owner
from lithify.raft.node.node import RaftNode
from lithify.raft.node.settings import RaftNodeSettings
from lithify.spark.tables.node_scan import ScanMoment
from lithify.tables.assignments import group_name
from lithify.tables.errors import PartitionUnavailable
from lithify.tables.low_watermark import TimeTooOld
from lithify.tables.partition_files import PartitionFiles, partition_files
from lithify.tables.reads import table_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.catalog.versions import CatalogVersions
    from lithify.fs import FileSystem

__all__ = ["StoppedNode", "read_stopped"]

RAFT = "raft"
TICK_MS = 20
AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class StoppedNode:
    """What a scan of the directory reads."""

    moment: ScanMoment
    files: dict[int, tuple[int, PartitionFiles | None]]
    """By partition: its revision, 0 if it is empty, and its files."""


def read_stopped(
    fs: FileSystem,
    data: str,
    table: str,
    at: int,
    version: int | None,
    numbers: Callable[[ScanMoment], range] = lambda _: range(0),
) -> StoppedNode:
    """A table at a time, 0 for the end, or as a version saw it last; files of some partitions."""
    directory = f"{data}/{RAFT}"
    owner = stored_owner(fs, directory) if fs.exists(directory) else None
    if owner is None:
        raise InvalidInput(f"{data} is not the data directory of a node")
    clock = SystemClock()
    settings = RaftNodeSettings(
        owner[0],
        directory,
        None,
        first_group=GROUP,
        cluster=owner[1],
        tick_ms=TICK_MS,
        queue=RunQueue(clock),
    )
    try:
        node = RaftNode(settings, fs, lambda _: MetastoreMachine())
    except LogLocked as error:
        what = "a process has it open; use the address of the node: http://NODE/tables/TABLE"
        raise InvalidInput(f"{data}: {what} ({error})") from error

    async def scanned() -> StoppedNode:
        stop, is_ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(node.run(stop, lambda _: is_ready.set()))
        waiting = asyncio.create_task(is_ready.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        try:
            if running.done():
                running.result()
            return await _scan(node, clock, table, at, version, numbers)
        finally:
            waiting.cancel()
            stop.set()
            await running

    return asyncio.run(scanned())


async def _scan(
    node: RaftNode,
    clock: SystemClock,
    name: str,
    at: int,
    version: int | None,
    numbers: Callable[[ScanMoment], range],
) -> StoppedNode:
    metastore = OwnMetastore(node, clock)
    await _complete(metastore)
    catalog = CatalogManager(metastore, clock, timing=lambda: ALONE)
    await catalog.start()
    try:
        time = _time(catalog.versions, at, version)
        seen = catalog.versions.at_time(time)
    finally:
        await catalog.stop()
    table = table_named(seen, name)
    partitions = seen.get(ZoneDescriptor, table.zone_id).partitions
    moment = ScanMoment(time, seen.version, table, tuple(seen.indexes_of(table.id)), partitions)
    files = {}
    for number in numbers(moment):
        store = LocalMetastore(node, clock, group_name((table.zone_id, number)))
        files[number] = await _files(store, time)
    return StoppedNode(moment, files)


def _time(versions: CatalogVersions, at: int, version: int | None) -> int:
    if version is None:
        return at or MAX_TIMESTAMP
    wanted = versions.at_version(version)
    if version == versions.latest.version:
        return MAX_TIMESTAMP
    return max(wanted.activation, versions.at_version(version + 1).activation - 1)


async def _files(store: LocalMetastore, time: int) -> tuple[int, PartitionFiles | None]:
    if store.name not in store.node.groups:
        raise PartitionUnavailable(store.name, "it is not in this directory")
    await _complete(store)
    state = store.state
    revision = state.revisions.newest_at(time)
    if state.floor and revision <= state.floor:
        above = state.revisions.row_above(state.floor)
        raise TimeTooOld(time, state.revisions.times[above] if above < len(state.revisions) else 0)
    return revision, await partition_files(store, revision) if revision else None


async def _complete(store: LocalMetastore) -> None:
    """Return when the group has applied all that this node knows to be committed."""
    while not store.node.reads_only:
        # Its leader is this node, which has to commit something of its own first.
        with suppress(MetastoreUnavailable):
            await store.read_time()
            break
        await asyncio.sleep(AGAIN_S)
    await store.wait_committed()
