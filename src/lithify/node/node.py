"""A node: a data directory, open in this process.

    import lithify

    with lithify.open("data") as node:
        topic = node.topics.create("persistent://public/default/orders")
        topic.append(key="4711", value=b"paid")
        for message in topic.read():
            ...

    DIRECTORY/LOCK          the owner; a second process is refused
    DIRECTORY/raft/         the Raft node with the metastore and the catalog, see `cluster.py`
    DIRECTORY/metastore/    reports of the compaction of the metastore's history
    DIRECTORY/tables/       the low watermark of tables, see `tables/low_watermark.py`
    DIRECTORY/definitions   definitions that are imported into the catalog when the node opens
    DIRECTORY/definitions.copy      what the catalog defines of this node, for other processes
    DIRECTORY/RESERVE       space reserved for a full disk, see `fs/full_disk_reserve.py`
    DIRECTORY/topics/       see `topics/topics.py`
    DIRECTORY/blobs/        see `blobs/stores.py`; `node.blobs.create("photos", …)` creates a store
    DIRECTORY/kernels/      compiled code if the user has no home, see `compiled.py`

A node opens in this order: the lock, the cluster (`cluster.py`), the definitions in its catalog
(`catalog/definitions.py`, `catalog/import_definitions.py`), topics, blob stores, and the thread
that makes these what the catalog says (`catalog/reconciler.py`). As a library it has no socket, and
no other thread but those of the cluster, which is a cluster of one: each call does its work on the
caller's thread before it returns. `serve` adds a broker for the same topics and runs in an event
loop until it is stopped.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from lithify.blobs.stores import BlobStores
from lithify.clock import SystemClock
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.compiled import offer_cache
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem, hold_directory
from lithify.fs.full_disk_reserve import Reserve
from lithify.fs.permissions import warn_if_shared
from lithify.log.file_names import LOCK
from lithify.logger import get_logger
from lithify.node.catalog.definitions import CatalogDefinitions
from lithify.node.catalog.import_definitions import import_definitions
from lithify.node.catalog.reconciler import CatalogReconciler
from lithify.node.cluster import Cluster
from lithify.topics.directories.data_directory import check_no_backup
from lithify.topics.topics import Topics

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import TracebackType

    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.node.server import Addresses, MakeApp
    from lithify.node.settings import NodeSettings

__all__ = ["Node"]

log = get_logger("lithify.node")


def ignore_failure() -> None:
    """Nothing serves: the next call fails."""


class Node:
    """A data directory and its contents; one thread at a time."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        events: EventSink = ignore_events,
        what: str = "library",
    ) -> None:
        """Open the data directory; `LogLocked` names the process that has it open.

        `what` describes the owner to other processes, beside the process id.
        """
        self.settings = settings
        self.fs = fs or LocalFileSystem()
        self.clock = clock or SystemClock()
        # Absolute, because tasks on other machines receive paths below it.
        directory = os.path.abspath(settings.data)
        check_no_backup(self.fs, directory)
        self.fs.mkdir(directory)
        if isinstance(self.fs, LocalFileSystem):
            offer_cache(f"{directory}/kernels")
        self.queue = RunQueue(self.clock)
        """The queue of all runs: topics, blob stores, Raft groups, the metastore's history."""
        self.failed: Callable[[], None] = ignore_failure
        """Called in the cluster thread when `cluster.failure` is set."""
        owner = f"{what}, pid {os.getpid()}"
        self.cluster: Cluster
        self.topics: Topics
        self.blobs: BlobStores
        self.reconciler: CatalogReconciler
        """Makes what is open what the catalog says."""
        self._stack = ExitStack()
        with ExitStack() as opening:
            lock = hold_directory(self.fs, f"{directory}/{LOCK}", owner)
            opening.callback(lock.release)
            self._reserve = Reserve(self.fs, directory)
            # The log of the cluster needs a few bytes, and deletions that are finished free some.
            with self._reserve.if_full():
                self._open(opening, directory, events, owner)
            self._reserve.keep()
            self.topics.reserve = self.blobs.reserve = self._reserve
            for withdrawals in (self.topics.withdrawals, self.blobs.withdrawals):
                withdrawals.reserve = self._reserve
            # Before the thread that follows the catalog: a request of it that waits for a quorum
            # without a limit would keep the node from closing.
            self.cluster.opened()
            if not self.cluster.node.reads_only:
                self.reconciler.start()
                opening.callback(self.reconciler.close)
            self._stack = opening.pop_all()

    def _open(self, opening: ExitStack, directory: str, events: EventSink, owner: str) -> None:
        """Open all parts; `opening` closes those that are open."""
        self.cluster = self._make_cluster(directory, events)
        self.cluster.start()
        opening.callback(self.cluster.close)
        definitions = CatalogDefinitions(self.cluster, self.fs, directory, events)
        opening.callback(definitions.close)
        import_definitions(self.fs, directory, definitions)
        self.topics = Topics(
            self.fs,
            directory,
            settings=self.settings.topics,
            clock=self.clock,
            events=events,
            owner=owner,
            queue=self.queue,
            definitions=definitions,
        )
        opening.callback(self.topics.close)
        self.blobs = BlobStores(
            self.fs,
            directory,
            definitions,
            settings=self.settings.blobs,
            clock=self.clock,
            events=events,
            queue=self.queue,
        )
        opening.callback(self.blobs.close)
        self.reconciler = CatalogReconciler(definitions, self.topics, self.blobs)
        warn_if_shared(self.fs, directory)

    def _make_cluster(self, directory: str, events: EventSink) -> Cluster:
        return Cluster(
            self.settings,
            self.fs,
            directory,
            self.clock,
            self._cluster_failed,
            queue=self.queue,
            events=events,
        )

    def _cluster_failed(self, error: BaseException) -> None:
        if self.failed is ignore_failure:
            log.error("the Raft node of the process has failed", reason=str(error))
        self.failed()

    async def serve(
        self,
        *,
        stop: asyncio.Event,
        ready: Callable[[Addresses], None],
        make_app: MakeApp | None = None,
    ) -> None:
        """Serve clients until `stop` is set; see `server.py`. The node stays open."""
        # A library user needs no sockets.
        from lithify.node.server import serve  # noqa: PLC0415

        await serve(self, stop=stop, ready=ready, make_app=make_app)

    def close(self) -> None:
        """Make everything durable and release the directory. Idempotent."""
        with self._reserve.if_full():
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
