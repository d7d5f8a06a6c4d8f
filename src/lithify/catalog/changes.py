"""What an update of the catalog consists of. Pure values.

An **update** makes one version from the one before it. Its changes are applied in order. They say
what is, not what was asked for, so applying them checks nothing and always has the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from lithify.catalog.objects import CatalogObject

__all__ = [
    "CatalogChange",
    "CatalogUpdate",
    "PutObject",
    "RemoveObject",
    "SetDefaultZoneId",
    "SetNextId",
]


@dataclass(frozen=True, slots=True)
class PutObject:
    """Add an object, or replace the one with its id."""

    object: CatalogObject


@dataclass(frozen=True, slots=True)
class RemoveObject:
    """Remove an object."""

    id: int


@dataclass(frozen=True, slots=True)
class SetNextId:
    """The next object gets this id."""

    id: int


@dataclass(frozen=True, slots=True)
class SetDefaultZoneId:
    """Make a zone the default one."""

    id: int


CatalogChange: TypeAlias = PutObject | RemoveObject | SetNextId | SetDefaultZoneId


@dataclass(frozen=True, slots=True)
class CatalogUpdate:
    """Makes version `version` from the one before it."""

    version: int
    delay_ms: int
    """From the time at which the update is appended until its version is active."""
    changes: tuple[CatalogChange, ...]
