"""The deletion of topics and blob stores, and its confirmation by the nodes that own them. Pure.

A deleted topic or store becomes a removal with the same id, which permits its owners to delete
their directories. A node confirms when its directories are gone; the last one ends the removal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lithify.catalog.changes import PutObject, RemoveObject
from lithify.catalog.errors import ObjectInUse, ObjectNotFound
from lithify.catalog.objects import (
    BlobStoreDescriptor,
    ObjectKind,
    Removal,
    TopicDescriptor,
)

if TYPE_CHECKING:
    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds

__all__ = ["ConfirmRemoval", "removal_of"]


def removal_of(catalog: Catalog, of: TopicDescriptor | BlobStoreDescriptor) -> PutObject:
    """The change that deletes a topic or store."""
    nodes = tuple(sorted(set(of.owners)))
    partitions = of.partitions if isinstance(of, TopicDescriptor) else 0
    name = catalog.full_name(of)
    return PutObject(Removal(of.id, of.kind, name, nodes, partitions, of.created_ms))


@dataclass(frozen=True, slots=True)
class ConfirmRemoval:
    """A node has no directory of a deleted object left; no effect if that is known."""

    id: int
    node: str

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        if not 1 <= self.id < catalog.next_id:
            raise ObjectNotFound(ObjectKind.REMOVAL, self.id)
        found = catalog.objects.get(self.id)
        if found is None:
            return ()
        if not isinstance(found, Removal):
            raise ObjectInUse(found.kind, catalog.full_name(found), "it is not deleted")
        rest = tuple(each for each in found.nodes if each != self.node)
        if rest == found.nodes:
            return ()
        return (PutObject(replace(found, nodes=rest)),) if rest else (RemoveObject(self.id),)
