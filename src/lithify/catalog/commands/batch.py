"""What a command is, and how a batch of commands becomes one update. Pure.

A command is a value whose `changes` checks it against a catalog and returns what it changes, which
is nothing if it has no effect. Anything with this method is a command: other packages may define
their own.

Each command of a batch sees the changes of those before it. The first that raises ends the batch:
nothing of it takes effect. A batch without changes has no update, and makes no version.

An update is planned for one version. If another one was appended meanwhile, the batch is planned
again on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lithify.catalog.changes import CatalogUpdate, SetNextId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange

__all__ = ["CatalogCommand", "NewIds", "PlannedUpdate", "plan_batch"]


class NewIds:
    """The ids of the objects that a batch creates."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.next = first

    def take(self) -> int:
        """The id of a new object."""
        self.next += 1
        return self.next - 1

    def has(self, object_id: int) -> bool:
        """Was the object created by this batch?"""
        return object_id >= self._first


class CatalogCommand(Protocol):
    """See the module."""

    def changes(self, catalog: Catalog, ids: NewIds, /) -> Sequence[CatalogChange]:
        """What the command changes; raises an error of `errors.py`."""


@dataclass(frozen=True, slots=True)
class PlannedUpdate:
    """The update of a batch."""

    update: CatalogUpdate
    applied: tuple[bool, ...]
    """Of each command: did it change something?"""
    base: Catalog
    """The catalog that it was planned on."""

    @property
    def catalog(self) -> Catalog:
        """The catalog with the changes, which have no version yet: for a dry run."""
        return self.base.with_changes(self.update.changes)


def plan_batch(
    catalog: Catalog, commands: Sequence[CatalogCommand], delay_ms: int = 0
) -> PlannedUpdate | None:
    """The update of a batch, None if nothing changes; raises the error of the first wrong command.

    `delay_ms` is the time from the append of the update until its version is active.
    """
    ids = NewIds(catalog.next_id)
    changes: list[CatalogChange] = []
    applied = []
    planned = catalog
    found: Sequence[CatalogChange] = ()
    for command in commands:
        if found:
            planned = planned.with_changes(found)
        found = command.changes(planned, ids)
        applied.append(bool(found))
        changes += found
    if not changes:
        return None
    if ids.next != catalog.next_id:
        changes.append(SetNextId(ids.next))
    update = CatalogUpdate(catalog.version + 1, delay_ms, tuple(changes))
    return PlannedUpdate(update, tuple(applied), catalog)
