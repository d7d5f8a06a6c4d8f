"""How routes reach the cluster of the process.

Everything of the cluster runs in a thread of its own; `in_cluster` runs a coroutine function there
and returns its result here. An application without a cluster has these routes, and answers 404.

No `from __future__ import annotations` in modules with routes: FastAPI reads them at run time.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, Request

from lithify.catalog.commands.batch import CatalogCommand
from lithify.catalog.manager.executions import Executed
from lithify.catalog.manager.manager import CatalogManager
from lithify.catalog_compaction.compaction import CatalogCompaction
from lithify.catalog_compaction.scan_holds import ScanHolds
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.http.error_responses import RequestRefused
from lithify.metastore.compaction.history_compaction import HistoryCompaction
from lithify.metastore.local_metastore import LocalMetastore
from lithify.raft.node.node import RaftNode
from lithify.tables.tables import Tables

__all__ = ["ClusterAccess", "ClusterDep", "KnownNode", "in_cluster"]

T = TypeVar("T")


class KnownNode(Protocol):
    """How a node of the cluster is reached; what it does not offer is empty."""

    @property
    def pulsar(self) -> str:
        """The URL for Pulsar clients."""

    @property
    def pulsar_tls(self) -> str:
        """The same, with TLS."""

    @property
    def http(self) -> str:
        """The URL for HTTP."""

    @property
    def cluster(self) -> str:
        """The address for other nodes."""

    @property
    def version(self) -> str:
        """The version that it runs."""

    @property
    def is_alive(self) -> bool:
        """Has it said so recently?"""


class ClusterAccess(Protocol):
    """The cluster of the process; attributes are used in its thread unless they say otherwise."""

    name: str
    """The name of this node; any thread."""
    catalog: CatalogManager
    """`versions`, `current` and `now` are for any thread."""
    metastore: LocalMetastore
    queue: RunQueue
    """The queue of all runs of the process; any thread."""
    history: HistoryCompaction | None
    """The compaction of the metastore; None if the cluster is only read."""
    trimming: CatalogCompaction | None
    """The compaction of the catalog, None likewise."""
    tables: Tables | None
    """None if the cluster is only read."""
    scans: ScanHolds | None
    """The scans of other programs, None likewise."""
    leader_changes: int
    """Times that another node has become the leader of the metastore, as seen here."""

    @property
    def node(self) -> RaftNode:
        """The Raft node."""

    def nodes(self) -> Mapping[str, KnownNode]:
        """The members by name; any thread."""

    async def execute(
        self, commands: Sequence[CatalogCommand], *, is_long: bool = False
    ) -> Executed:
        """Execute commands of the catalog in bounded time."""

    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine function in the thread of the cluster; any thread."""


async def in_cluster(cluster: ClusterAccess, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function in the thread of the cluster."""
    return await asyncio.wrap_future(cluster.call(function))


async def _cluster(request: Request) -> ClusterAccess:
    member: ClusterAccess | None = request.app.state.member
    if member is None:
        raise RequestRefused(HTTPStatus.NOT_FOUND, "this process is not a node of a cluster")
    return member


ClusterDep = Annotated[ClusterAccess, Depends(_cluster)]
