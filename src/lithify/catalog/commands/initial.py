"""The batch that a new cluster begins with: a default zone, and the namespace public/default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.catalog.commands.tenants_and_namespaces import CreateNamespace, CreateTenant
from lithify.catalog.commands.zones import CreateZone, SetDefaultZone

if TYPE_CHECKING:
    from lithify.catalog.commands.batch import CatalogCommand

__all__ = ["initial_commands"]


def initial_commands() -> tuple[CatalogCommand, ...]:
    """The commands; without effect where the objects exist."""
    return (
        CreateZone("default", if_not_exists=True),
        SetDefaultZone("default"),
        CreateTenant("public", if_not_exists=True),
        CreateNamespace("public/default", if_not_exists=True),
    )
