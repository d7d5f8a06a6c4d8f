"""Commands on blob stores. Pure.

The capacity is a multiple of the segment size; both are fixed. The owner is given, or chosen among
`nodes`, the live ones, when the command is planned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lithify.catalog.changes import PutObject
from lithify.catalog.commands.checks import (
    absent,
    altered,
    check_named,
    check_number,
    namespace_named,
    owners_of,
    present,
    settings_of,
    zone_named,
)
from lithify.catalog.commands.removals import removal_of
from lithify.catalog.errors import InvalidDefinition
from lithify.catalog.objects import BlobStoreDescriptor, ObjectKind
from lithify.names import check_store_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds

__all__ = ["AlterBlobStore", "CreateBlobStore", "DropBlobStore"]

CAPACITY_BYTES_MAX = 2**50

_STORE = ObjectKind.STORE


@dataclass(frozen=True, slots=True)
class CreateBlobStore:
    """Create a blob store."""

    namespace: str
    name: str
    capacity_bytes: int
    segment_bytes: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    zone: str = ""
    """Empty: the default one."""
    owner: str = ""
    nodes: tuple[str, ...] = ()
    created_ms: int = 0
    if_not_exists: bool = False

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        check_named(_STORE, self.name, lambda: check_store_name(self.name))
        self._check_shape()
        settings = settings_of(_STORE, self.name, self.settings)
        namespace = namespace_named(catalog, self.namespace)
        if catalog.store(self.name) is not None:
            return present(_STORE, self.name, if_not_exists=self.if_not_exists)
        zone = zone_named(catalog, self.zone, _STORE, self.name)
        given = (self.owner,) if self.owner else ()
        (owner,) = owners_of(catalog, (_STORE, self.name), zone.id, given, self.nodes, 1)
        store = BlobStoreDescriptor(
            ids.take(),
            namespace.id,
            self.name,
            zone.id,
            owner,
            self.capacity_bytes,
            self.segment_bytes,
            self.created_ms,
            settings,
        )
        return (PutObject(store),)

    def _check_shape(self) -> None:
        for what in ("capacity_bytes", "segment_bytes"):
            check_number(_STORE, self.name, what, getattr(self, what), 1, CAPACITY_BYTES_MAX)
        if self.capacity_bytes % self.segment_bytes:
            rule = (
                f"capacity_bytes is {self.capacity_bytes}, must be a multiple of segment_bytes, "
                f"{self.segment_bytes}"
            )
            raise InvalidDefinition(_STORE, self.name, rule)


@dataclass(frozen=True, slots=True)
class AlterBlobStore:
    """Set settings of a blob store, and unset others."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.store(self.name)
        if old is None:
            return absent(_STORE, self.name, if_exists=self.if_exists)
        return altered(old, self.name, self.settings, self.unset)


@dataclass(frozen=True, slots=True)
class DropBlobStore:
    """Delete a blob store: it becomes a removal."""

    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.store(self.name)
        if old is None:
            return absent(_STORE, self.name, if_exists=self.if_exists)
        return (removal_of(catalog, old),)
