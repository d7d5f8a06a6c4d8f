"""Commands on zones. Pure.

A zone has 1 to 65,000 partitions and 1 to 64 replicas. The number of partitions is fixed while the
zone has tables, because it determines where rows are. The default zone, and a zone that has topics,
stores or tables, cannot be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.catalog.changes import PutObject, RemoveObject, SetDefaultZoneId
from lithify.catalog.commands.checks import absent, check_named, check_number, check_unused, present
from lithify.catalog.errors import (
    ObjectInUse,
    ObjectNotFound,
)
from lithify.catalog.objects import ObjectKind, TableDescriptor, ZoneDescriptor
from lithify.names import check_plain_name

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds

__all__ = ["AlterZone", "CreateZone", "DropZone", "SetDefaultZone"]

PARTITIONS_DEFAULT = 16
PARTITIONS_MAX = 65_000
REPLICAS_MAX = 64

_ZONE = ObjectKind.ZONE


def _checked(zone: ZoneDescriptor) -> ZoneDescriptor:
    check_named(_ZONE, zone.name, lambda: check_plain_name("a zone", zone.name))
    check_number(_ZONE, zone.name, "partitions", zone.partitions, 1, PARTITIONS_MAX)
    check_number(_ZONE, zone.name, "replicas", zone.replicas, 1, REPLICAS_MAX)
    return zone


@dataclass(frozen=True, slots=True)
class CreateZone:
    """Create a zone."""

    name: str
    partitions: int = PARTITIONS_DEFAULT
    replicas: int = 1
    if_not_exists: bool = False

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        zone = _checked(ZoneDescriptor(0, self.name, self.partitions, self.replicas))
        if catalog.zone(self.name) is None:
            return (PutObject(replace(zone, id=ids.take())),)
        return present(_ZONE, self.name, if_not_exists=self.if_not_exists)


@dataclass(frozen=True, slots=True)
class AlterZone:
    """Change a zone; None keeps what it has."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.zone(self.name)
        if old is None:
            return absent(_ZONE, self.name, if_exists=self.if_exists)
        partitions = old.partitions if self.partitions is None else self.partitions
        replicas = old.replicas if self.replicas is None else self.replicas
        new = _checked(replace(old, partitions=partitions, replicas=replicas))
        if new.partitions != old.partitions:
            users = catalog.in_zone(old.id)
            tables = [each for each in users if isinstance(each, TableDescriptor)]
            check_unused(catalog, old, {"tables, so its partitions are fixed": tables})
        return (PutObject(new),) if new != old else ()


@dataclass(frozen=True, slots=True)
class DropZone:
    """Drop an empty zone."""

    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.zone(self.name)
        if old is None:
            return absent(_ZONE, self.name, if_exists=self.if_exists)
        if old.id == catalog.default_zone_id:
            raise ObjectInUse(_ZONE, self.name, "it is the default zone")
        check_unused(catalog, old, {"objects": catalog.in_zone(old.id)})
        return (RemoveObject(old.id),)


@dataclass(frozen=True, slots=True)
class SetDefaultZone:
    """Make a zone the one of objects that name none."""

    name: str

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        zone = catalog.zone(self.name)
        if zone is None:
            raise ObjectNotFound(_ZONE, self.name)
        return (SetDefaultZoneId(zone.id),) if zone.id != catalog.default_zone_id else ()
