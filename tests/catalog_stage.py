"""A catalog to which tests apply commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.catalog.catalog import Catalog
from lithify.catalog.commands.batch import plan_batch
from lithify.catalog.commands.initial import initial_commands
from lithify.catalog.commands.tables import ColumnDefinition, CreateTable
from lithify.hybrid_time import timestamp

if TYPE_CHECKING:
    from lithify.catalog.commands.batch import CatalogCommand

NODES = ("n1", "n2", "n3")
DAY_MS = 86_400_000
PEOPLE = CreateTable(
    "people",
    (
        ColumnDefinition("id", "int64"),
        ColumnDefinition("town", "string(20)"),
        ColumnDefinition("age", "int16", nullable=True),
    ),
    key=("id", "town"),
    partition_key=("town",),
)


def after(catalog: Catalog, *commands: CatalogCommand, ms: int | None = None) -> Catalog:
    """The next version; the same one if nothing changes. Versions are a second apart."""
    planned = plan_batch(catalog, commands)
    if planned is None:
        return catalog
    time = timestamp(DAY_MS + 1000 * catalog.version if ms is None else ms)
    return catalog.with_update(planned.update, time)


def started(*commands: CatalogCommand) -> Catalog:
    """A new catalog with its initial objects, after commands."""
    return after(Catalog(), *initial_commands(), *commands)


def ids(catalog: Catalog) -> list[int]:
    return sorted(catalog.objects)
