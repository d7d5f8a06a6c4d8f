"""Snapshots of the catalog, and the replay that each is compared with before it is published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.catalog.catalog import Catalog
from lithify.catalog.format import decode_update, snapshot_chunks
from lithify.catalog.manager.follower import decode_logged_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lithify.catalog.update_log.replay import LoggedSnapshot, LoggedUpdate

__all__ = ["CatalogFold", "chunks_of_catalog"]

CHUNK_BYTES = 64 * 1024
"""Small, so that writing a chunk does not delay other writes of the metastore."""


def chunks_of_catalog(catalog: Catalog) -> Iterable[bytes]:
    """The snapshot of a catalog, as the log stores it."""
    return snapshot_chunks(catalog, chunk_bytes=CHUNK_BYTES)


class CatalogFold:
    """The catalog that results from a replay: a `SnapshotFold`."""

    def __init__(self) -> None:
        self._catalog = Catalog()

    async def load(self, snapshot: LoggedSnapshot) -> None:
        """Start from a snapshot."""
        self._catalog = await decode_logged_snapshot(snapshot)

    def apply(self, update: LoggedUpdate) -> None:
        """Apply the next update."""
        decoded = decode_update(update.payload, f"catalog update {update.version}")
        self._catalog = self._catalog.with_update(decoded, update.timestamp)

    def chunks(self) -> Iterable[bytes]:
        """The snapshot of the catalog."""
        return chunks_of_catalog(self._catalog)
