"""Commands on tenants and namespaces. Pure.

A tenant with namespaces, and a namespace with topics or blob stores, is dropped only with
`cascade`, which deletes these as well. A namespace is named TENANT/NAMESPACE.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lithify.catalog.changes import PutObject, RemoveObject
from lithify.catalog.commands.checks import (
    absent,
    altered,
    check_named,
    check_unused,
    present,
    settings_of,
)
from lithify.catalog.commands.removals import removal_of
from lithify.catalog.errors import InvalidDefinition, ObjectNotFound
from lithify.catalog.objects import NamespaceDescriptor, ObjectKind, TenantDescriptor
from lithify.names import check_namespace_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.commands.batch import NewIds

__all__ = [
    "AlterNamespace",
    "AlterTenant",
    "CreateNamespace",
    "CreateTenant",
    "DropNamespace",
    "DropTenant",
]

_TENANT = ObjectKind.TENANT
_NAMESPACE = ObjectKind.NAMESPACE


@dataclass(frozen=True, slots=True)
class CreateTenant:
    """Create a tenant."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    if_not_exists: bool = False

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        name = self.name
        check_named(_TENANT, name, lambda: check_namespace_part("tenant", name, name))
        settings = settings_of(_TENANT, name, self.settings)
        if catalog.tenant(name) is not None:
            return present(_TENANT, name, if_not_exists=self.if_not_exists)
        return (PutObject(TenantDescriptor(ids.take(), name, settings)),)


@dataclass(frozen=True, slots=True)
class AlterTenant:
    """Set settings of a tenant, and unset others."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.tenant(self.name)
        if old is None:
            return absent(_TENANT, self.name, if_exists=self.if_exists)
        return altered(old, self.name, self.settings, self.unset)


@dataclass(frozen=True, slots=True)
class DropTenant:
    """Drop a tenant."""

    name: str
    if_exists: bool = False
    cascade: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.tenant(self.name)
        if old is None:
            return absent(_TENANT, self.name, if_exists=self.if_exists)
        namespaces = catalog.namespaces_of(old.id)
        if not self.cascade:
            check_unused(catalog, old, {"namespaces": namespaces})
        found = [change for each in namespaces for change in _dropped(catalog, each)]
        return (*found, RemoveObject(old.id))


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Create a namespace in a tenant, which must exist."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    if_not_exists: bool = False

    def changes(self, catalog: Catalog, ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        tenant_name, slash, local = self.name.partition("/")
        if not slash:
            raise InvalidDefinition(_NAMESPACE, self.name, "its name must be TENANT/NAMESPACE")
        for what, part in (("tenant", tenant_name), ("namespace", local)):
            check_named(
                _NAMESPACE,
                self.name,
                # The values of this round: the check runs at once.
                lambda what=what, part=part: check_namespace_part(what, part, self.name),  # type: ignore[misc]
            )
        settings = settings_of(_NAMESPACE, self.name, self.settings)
        tenant = catalog.tenant(tenant_name)
        if tenant is None:
            raise ObjectNotFound(_TENANT, tenant_name)
        if catalog.namespace(self.name) is not None:
            return present(_NAMESPACE, self.name, if_not_exists=self.if_not_exists)
        return (PutObject(NamespaceDescriptor(ids.take(), tenant.id, local, settings)),)


@dataclass(frozen=True, slots=True)
class AlterNamespace:
    """Set settings of a namespace, and unset others."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    if_exists: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.namespace(self.name)
        if old is None:
            return absent(_NAMESPACE, self.name, if_exists=self.if_exists)
        return altered(old, self.name, self.settings, self.unset)


@dataclass(frozen=True, slots=True)
class DropNamespace:
    """Drop a namespace."""

    name: str
    if_exists: bool = False
    cascade: bool = False

    def changes(self, catalog: Catalog, _ids: NewIds, /) -> tuple[CatalogChange, ...]:
        """See `batch.py`."""
        old = catalog.namespace(self.name)
        if old is None:
            return absent(_NAMESPACE, self.name, if_exists=self.if_exists)
        if not self.cascade:
            topics, stores = catalog.topics_of(old.id), catalog.stores_of(old.id)
            check_unused(catalog, old, {"topics": topics, "blob stores": stores})
        return _dropped(catalog, old)


def _dropped(catalog: Catalog, namespace: NamespaceDescriptor) -> tuple[CatalogChange, ...]:
    """The deletion of a namespace, after that of what is in it."""
    topics = [removal_of(catalog, each) for each in catalog.topics_of(namespace.id)]
    stores = [removal_of(catalog, each) for each in catalog.stores_of(namespace.id)]
    return (*topics, *stores, RemoveObject(namespace.id))
