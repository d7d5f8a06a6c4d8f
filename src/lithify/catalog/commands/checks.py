"""What several commands check: that an object exists, names, settings, owners, zones. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from lithify.catalog.changes import PutObject
from lithify.catalog.errors import InvalidDefinition, ObjectExists, ObjectInUse, ObjectNotFound
from lithify.catalog.placement import place
from lithify.errors import InvalidInput
from lithify.json_settings import changed_settings, encode_settings
from lithify.raft.core.configuration import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange
    from lithify.catalog.objects import (
        BlobStoreDescriptor,
        CatalogObject,
        NamespaceDescriptor,
        TenantDescriptor,
        TopicDescriptor,
        ZoneDescriptor,
    )

__all__ = [
    "SETTINGS_BYTES_MAX",
    "absent",
    "altered",
    "check_named",
    "check_number",
    "check_owners",
    "check_unused",
    "namespace_named",
    "owners_of",
    "present",
    "settings_of",
    "zone_named",
]

SETTINGS_BYTES_MAX = 64 * 1024
"""Of one object, as JSON."""

_WithSettings: TypeAlias = (
    "TenantDescriptor | NamespaceDescriptor | TopicDescriptor | BlobStoreDescriptor"
)


def absent(kind: str, name: str, *, if_exists: bool) -> tuple[CatalogChange, ...]:
    """The outcome of a command on an object that does not exist."""
    if if_exists:
        return ()
    raise ObjectNotFound(kind, name)


def present(kind: str, name: str, *, if_not_exists: bool) -> tuple[CatalogChange, ...]:
    """The outcome of a command that creates an object that exists."""
    if if_not_exists:
        return ()
    raise ObjectExists(kind, name)


def check_named(kind: str, name: str, check: Callable[[], None]) -> None:
    """Raise `InvalidDefinition` unless the rule for the name holds."""
    try:
        check()
    except InvalidInput as error:
        raise InvalidDefinition(kind, name, str(error)) from error


def check_number(kind: str, name: str, what: str, value: object, low: int, high: int) -> None:
    """Raise `InvalidDefinition` unless the value is an integer within the limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidDefinition(kind, name, f"{what} is {value!r}, must be {low} to {high}")


def check_unused(catalog: Catalog, of: CatalogObject, users: Mapping[str, Sequence[Any]]) -> None:
    """Raise `ObjectInUse` if there are objects that use this one."""
    for what, objects in users.items():
        if objects:
            first, more = catalog.full_name(objects[0]), len(objects) - 1
            text = f"it has {what}: {first}" + (f" and {more} more" if more else "")
            raise ObjectInUse(of.kind, catalog.full_name(of), text)


def settings_of(
    kind: str,
    name: str,
    settings: Mapping[str, Any],
    old: Mapping[str, Any] | None = None,
    unset: Sequence[str] = (),
) -> dict[str, Any]:
    """The old settings changed by the given ones, as JSON values within the limit."""
    try:
        text = encode_settings(changed_settings(old or {}, settings, unset))
    except ValueError as error:
        raise InvalidDefinition(kind, name, f"settings must be JSON: {error}") from error
    if len(text) > SETTINGS_BYTES_MAX:
        rule = f"settings of {len(text)} bytes are larger than the limit {SETTINGS_BYTES_MAX}"
        raise InvalidDefinition(kind, name, rule)
    found: dict[str, Any] = json.loads(text)
    return found


def altered(
    old: _WithSettings, name: str, settings: Mapping[str, Any], unset: Sequence[str]
) -> tuple[CatalogChange, ...]:
    """The change of an object's settings; none if they stay what they are."""
    found = settings_of(old.kind, name, settings, old.settings, unset)
    # As text, because True equals 1.
    if encode_settings(found) == encode_settings(old.settings):
        return ()
    return (PutObject(replace(old, settings=found)),)


def namespace_named(catalog: Catalog, name: str) -> NamespaceDescriptor:
    """The namespace TENANT/NAMESPACE, which must exist."""
    found = catalog.namespace(name)
    if found is None:
        raise ObjectNotFound("namespace", name)
    return found


def zone_named(catalog: Catalog, name: str, kind: str, of: str) -> ZoneDescriptor:
    """The zone with the name, for an object; without a name the default one."""
    zone = catalog.zone(name) if name else catalog.default_zone
    if zone is not None:
        return zone
    if name:
        raise ObjectNotFound("zone", name)
    raise InvalidDefinition(kind, of, "it names no zone, and there is no default zone")


def check_owners(kind: str, name: str, owners: Sequence[str], count: int) -> None:
    """Raise unless there is one valid owner for each of the partitions."""
    if len(owners) != count:
        rule = f"it has {len(owners)} owners, must have {count}: one per partition"
        raise InvalidDefinition(kind, name, rule)
    for node in dict.fromkeys(owners):
        check_named(kind, name, lambda node=node: check_name(node))  # type: ignore[misc]


def owners_of(
    catalog: Catalog,
    of: tuple[str, str],
    zone_id: int,
    given: Sequence[str],
    nodes: Sequence[str],
    count: int,
    *,
    old: TopicDescriptor | BlobStoreDescriptor | None = None,
) -> tuple[str, ...]:
    """The owners of new partitions: those given, otherwise chosen among the nodes."""
    kind, name = of
    if given:
        owners = tuple(given)
    elif nodes:
        owners = place(catalog, zone_id, nodes, count, owners=old.owners if old else ())
    else:
        raise InvalidDefinition(kind, name, "no owner is given, and no node to choose from")
    check_owners(kind, name, owners, count)
    return owners
