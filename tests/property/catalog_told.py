"""What listeners of catalogs, and callers that change them, were told in a simulated cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogUpdate
    from lithify.catalog.versions import CatalogVersions

__all__ = ["Told", "VersionListener", "check_versions"]


class VersionListener:
    """Checks that versions come once, in order, and without gaps but for a jump."""

    def __init__(self) -> None:
        self.last: Catalog | None = None
        self.jumps = 0

    async def __call__(self, before: Catalog, after: Catalog, update: CatalogUpdate | None) -> None:
        if self.last is not None:
            assert before is self.last
        if update is None:
            assert after.version > before.version
            self.jumps += 1
        else:
            assert update.version == after.version == before.version + 1
            assert after.activation > before.activation
        self.last = after
        await asyncio.sleep(0)


@dataclass
class Told:
    """What callers were told about the tenants they wanted."""

    made: dict[str, int] = field(default_factory=dict)
    unknown: list[tuple[str, ...]] = field(default_factory=list)
    refused: list[tuple[str, ...]] = field(default_factory=list)


def check_versions(told: Told, nodes: Sequence[CatalogVersions]) -> None:
    """All nodes have the same versions, and these have what callers were told."""
    newest = nodes[0].latest
    names = {tenant.name for tenant in newest.tenants()}
    assert told.made.keys() <= names
    for made_or_not in told.unknown:
        assert len({name in names for name in made_or_not}) == 1
    for refused in told.refused:
        assert not names.intersection(refused)
    earliest = max(versions.earliest.version for versions in nodes)
    for versions in nodes:
        assert versions.latest == newest
        before = None
        for version in range(earliest, newest.version + 1):
            catalog = versions.at_version(version)
            assert catalog == nodes[0].at_version(version)
            assert versions.at_time(catalog.activation) == catalog
            assert before is None or before.activation < catalog.activation
            before = catalog
    for name, version in told.made.items():
        if version >= earliest:
            assert nodes[0].at_version(version).tenant(name)
        if version > earliest:
            assert not nodes[0].at_version(version - 1).tenant(name)
