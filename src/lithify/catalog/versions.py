"""The versions of the catalog that a node has in memory; lookups by version and by time.

Versions are consecutive. Two lists, ascending: the catalogs, and their activations. Appending
extends both, the catalogs first; dropping versions replaces both by new ones. So readers in any
thread need no lock: a lookup takes the pair of lists once, and what it finds there stays. One
thread appends and replaces. A reader that has a catalog keeps it, even if its version is dropped.

A lookup by time is a binary search for the newest version that was active at that time: its
activation is at or before it. The latest version may be active only in the future.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from lithify.catalog.catalog import Catalog
from lithify.catalog.errors import CatalogVersionNotFound, CatalogVersionTrimmed, OutOfOrder
from lithify.hybrid_time import MIN_TIMESTAMP, describe

__all__ = ["CatalogVersions"]


@dataclass(frozen=True, slots=True)
class _Kept:
    catalogs: list[Catalog]
    activations: list[int]

    @property
    def earliest(self) -> int:
        return self.catalogs[0].version


class CatalogVersions:
    """See the module; begins with version 0, or with that of `first`."""

    def __init__(self, first: Catalog | None = None) -> None:
        first = first if first is not None else Catalog()
        self._kept = _Kept([first], [first.activation])
        self.latest = first
        """The newest version, active or not."""

    @property
    def earliest(self) -> Catalog:
        """The oldest version that is left."""
        return self._kept.catalogs[0]

    def __len__(self) -> int:
        return len(self._kept.activations)

    def at_version(self, version: int) -> Catalog:
        """The catalog of a version; raises an error of `CatalogVersion…`."""
        catalogs = self._kept.catalogs
        earliest = catalogs[0].version
        # The length only grows: a version found below it is there.
        if 0 <= version - earliest < len(catalogs):
            return catalogs[version - earliest]
        if 0 <= version < earliest:
            raise CatalogVersionTrimmed(_version(version), earliest)
        raise CatalogVersionNotFound(_version(version), catalogs[-1].version)

    def at_time(self, timestamp: int) -> Catalog:
        """The catalog in force at a hybrid timestamp; raises an error of `CatalogVersion…`."""
        kept = self._kept
        found = bisect_right(kept.activations, timestamp)
        if found:
            return kept.catalogs[found - 1]
        if timestamp < MIN_TIMESTAMP:
            raise CatalogVersionNotFound(_time(timestamp), kept.catalogs[-1].version)
        raise CatalogVersionTrimmed(_time(timestamp), kept.earliest)

    def append(self, catalog: Catalog) -> None:
        """Add the next version."""
        if catalog.version != self.latest.version + 1:
            raise OutOfOrder(catalog.version, self.latest.version)
        kept = self._kept
        # In this order: a reader that finds the activation finds the catalog.
        kept.catalogs.append(catalog)
        kept.activations.append(catalog.activation)
        self.latest = catalog

    def replace(self, snapshot: Catalog) -> bool:
        """Drop all versions below a snapshot; False if that were none.

        If the snapshot is newer than the latest version it replaces them all.
        """
        kept = self._kept
        dropped = snapshot.version - kept.earliest
        if dropped <= 0:
            return False
        rest = kept.catalogs[dropped + 1 :]
        self._kept = _Kept(
            [snapshot, *rest], [snapshot.activation, *(each.activation for each in rest)]
        )
        self.latest = rest[-1] if rest else snapshot
        return True


def _version(version: int) -> str:
    return f"of version {version}"


def _time(timestamp: int) -> str:
    return f"at {describe(timestamp)}"
