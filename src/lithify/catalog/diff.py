"""What differs between two catalogs: values, lines of text, JSON rows. Pure.

    + topic persistent://acme/orders/incoming (id 12): partitions 4, owners n1 n2 n1 n2
    ~ namespace acme/orders (id 7): settings {} -> {"retention_ms":3600000}
    - store pictures (id 5)
    ~ catalog: default zone a -> b

Objects are compared by id. So one that was dropped and created again is in two lines, and a deleted
topic is one removed topic and one added removal. Most objects of two versions are the same value in
memory, which is found at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lithify.catalog.describe import object_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.objects import CatalogObject

__all__ = ["CatalogDifference", "DifferenceKind", "FieldDifference", "diff_catalogs"]

_IDENTITY = ("kind", "id", "updated")


class DifferenceKind(StrEnum):
    """The sign of a line."""

    ADDED = "+"
    CHANGED = "~"
    REMOVED = "-"


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field before and after; None: it has no value there."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class CatalogDifference:
    """One object that differs; `fields` are its values if it is added, else what has changed."""

    kind: DifferenceKind
    object_kind: str
    id: int
    name: str
    fields: tuple[FieldDifference, ...] = ()

    def row(self) -> dict[str, Any]:
        """The difference as JSON values."""
        return {
            "change": self.kind.name.lower(),
            "kind": self.object_kind,
            "id": self.id,
            "name": self.name,
            "fields": {
                each.name: {"before": each.before, "after": each.after} for each in self.fields
            },
        }

    def __str__(self) -> str:
        number = f" (id {self.id})" if self.id else ""
        name = f" {self.name}" if self.name else ""
        head = f"{self.kind.value} {self.object_kind}{name}{number}"
        texts = [
            f"{each.name.replace('_', ' ')} {_text(each.after)}"
            if self.kind is DifferenceKind.ADDED
            else f"{each.name.replace('_', ' ')} {_text(each.before)} -> {_text(each.after)}"
            for each in self.fields
        ]
        return f"{head}: {', '.join(texts)}" if texts else head


def diff_catalogs(before: Catalog, after: Catalog) -> tuple[CatalogDifference, ...]:
    """The differences, ascending by id; the default zone first."""
    return tuple(_differences(before, after))


def _differences(before: Catalog, after: Catalog) -> Iterator[CatalogDifference]:
    if before.default_zone_id != after.default_zone_id:
        names = [zone.name if zone else None for zone in (before.default_zone, after.default_zone)]
        field = FieldDifference("default_zone", *names)
        yield CatalogDifference(DifferenceKind.CHANGED, "catalog", 0, "", (field,))
    for each in sorted({*before.objects, *after.objects}):
        old, new = before.objects.get(each), after.objects.get(each)
        if old is new:
            continue
        if old is not None and new is not None and old.kind == new.kind:
            changed = _changed(_row(before, old), _row(after, new))
            if changed:
                yield _difference(DifferenceKind.CHANGED, after, new, changed)
            continue
        if old is not None:
            yield _difference(DifferenceKind.REMOVED, before, old, ())
        if new is not None:
            row = _row(after, new)
            del row["name"]
            added = [FieldDifference(name, None, value) for name, value in row.items() if value]
            yield _difference(DifferenceKind.ADDED, after, new, tuple(added))


def _difference(
    kind: DifferenceKind, catalog: Catalog, of: CatalogObject, fields: tuple[FieldDifference, ...]
) -> CatalogDifference:
    return CatalogDifference(kind, of.kind.value, of.id, catalog.full_name(of), fields)


def _row(catalog: Catalog, of: CatalogObject) -> dict[str, Any]:
    row = object_row(catalog, of)
    for name in (*_IDENTITY, "default"):  # The default zone is a line of its own.
        row.pop(name, None)
    return row


def _changed(old: dict[str, Any], new: dict[str, Any]) -> tuple[FieldDifference, ...]:
    names = dict.fromkeys((*old, *new))
    return tuple(
        FieldDifference(name, old.get(name), new.get(name))
        for name in names
        # As text, because True equals 1.
        if _json(old.get(name)) != _json(new.get(name))
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return _json(value)
