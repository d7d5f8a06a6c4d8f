"""What the server uses of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.blobs.stores import BlobStores
    from lithify.clock import Clock
    from lithify.compaction.scheduling.run_queue import RunQueue
    from lithify.fs import FileSystem
    from lithify.node.catalog.reconciler import CatalogReconciler
    from lithify.node.cluster import Cluster
    from lithify.node.settings import NodeSettings
    from lithify.topics.topics import Topics

__all__ = ["ServedNode"]


class ServedNode(Protocol):
    """An open data directory."""

    settings: NodeSettings
    fs: FileSystem
    clock: Clock
    queue: RunQueue
    topics: Topics
    blobs: BlobStores
    cluster: Cluster
    reconciler: CatalogReconciler
    failed: Callable[[], None]
    """Called in the cluster thread when `cluster.failure` is set."""
