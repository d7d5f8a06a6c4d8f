"""Mappings with few changes against a large one, which is neither copied nor changed.

    edited = with_entry(topics, "orders", definition)
    edited = without_entry(edited, "old")
    differences(topics, edited)      ->  {"orders": (None, definition), "old": (…, None)}

A plain dict is small enough to be copied. Any other mapping is a view, of which an `EditedMapping`
keeps what was put and removed. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EditedMapping", "differences", "with_entry", "without_entry"]

_V = TypeVar("_V")


class EditedMapping(Mapping[str, _V]):
    """See the module."""

    def __init__(self, base: Mapping[str, _V], changed: dict[str, _V | None]) -> None:
        self.base = base
        self.changed = changed
        """None: removed."""

    def __getitem__(self, key: str) -> _V:
        if key not in self.changed:
            return self.base[key]
        value = self.changed[key]
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self.base if key not in self.changed)
        yield from (key for key, value in self.changed.items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def with_entry(mapping: Mapping[str, _V], key: str, value: _V) -> Mapping[str, _V]:
    """Add or replace an entry."""
    return {**mapping, key: value} if isinstance(mapping, dict) else _edited(mapping, key, value)


def without_entry(mapping: Mapping[str, _V], key: str) -> Mapping[str, _V]:
    """Remove an entry, if there is one."""
    if isinstance(mapping, dict):
        return {each: value for each, value in mapping.items() if each != key}
    return _edited(mapping, key, None)


def _edited(mapping: Mapping[str, _V], key: str, value: _V | None) -> Mapping[str, _V]:
    if isinstance(mapping, EditedMapping):
        return EditedMapping(mapping.base, {**mapping.changed, key: value})
    return EditedMapping(mapping, {key: value})


def differences(
    before: Mapping[str, _V], after: Mapping[str, _V]
) -> dict[str, tuple[_V | None, _V | None]]:
    """The entries that differ, before and after; looks only at edited ones if it can."""
    if after is before:
        return {}
    if isinstance(after, EditedMapping) and after.base is before:
        keys = list(after.changed)
    else:
        keys = list(dict.fromkeys([*before, *after]))
    found = {key: (before.get(key), after.get(key)) for key in keys}
    return {key: pair for key, pair in found.items() if pair[0] != pair[1]}
