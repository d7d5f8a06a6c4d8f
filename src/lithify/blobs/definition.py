"""The definition of a blob store: what is known of it before it is opened.

    {"namespace":"public/default","capacity_bytes":…,"segment_bytes":…,"created_ms":…,
     "settings":{"policy":"stats","budget":{"write_bytes_per_s":1000000}}}

The namespace is one of topics: its permissions apply to the stores as well. `settings` are the
store's own values of `BlobSettings`, by name; all others come from the node.

`names.py` has the rule for its name. Pure; a `StoreDefinitions` stores the definitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from lithify.blobs.settings import StoreShape
from lithify.errors import InvalidSetting
from lithify.settings import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from lithify.blobs.settings import BlobSettings
    from lithify.log.object_file import ObjectIdentity

__all__ = [
    "NAMESPACE_DEFAULT",
    "StoreDefinition",
    "StoreDefinitions",
    "named_settings",
    "parse_value",
    "setting_names",
    "with_settings",
]

NAMESPACE_DEFAULT = "public/default"


class RemovedStore(Protocol):
    """A store that was deleted, or something else that was."""

    @property
    def identity(self) -> ObjectIdentity:
        """What the directory must be of."""

    @property
    def is_store(self) -> bool:
        """Is it a store?"""


class StoreDefinitions(Protocol):
    """Stores the definitions; any thread may call."""

    def stores(self) -> Mapping[str, dict[str, Any]]:
        """The definitions of all stores, by name."""

    def store_identity(self, name: str) -> ObjectIdentity | None:
        """What the directory of a store must be of; None if there are no ids."""

    def removals(self) -> Sequence[RemovedStore]:
        """What was deleted, and this node has not confirmed."""

    def confirm_removals(self, ids: Collection[int]) -> None:
        """Say that this node has no directories of objects that were deleted."""

    def owns_store(self, name: str) -> bool:
        """Is a store defined, with its data on this node?"""

    def check_store_owner(self, name: str) -> None:
        """Raise `NotOwner` if a store belongs to another node."""

    def place_store(self) -> str:
        """The node that a new store belongs on."""

    def check_store_place(self, name: str, owner: str) -> None:
        """Raise `NotOwner` if a new store belongs on another node than this one."""

    def add_store(self, name: str, row: dict[str, Any]) -> None:
        """Add a definition; durable when it returns."""

    def change_store(self, name: str, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace a definition; durable when it returns."""

    def finish_store(self, known: ObjectIdentity, created_ms: int) -> None:
        """Record that the files of a store were created; durable when it returns."""

    def remove_store(self, name: str, known: ObjectIdentity | None = None) -> None:
        """Remove a definition, if it is the known one; durable when it returns."""


@dataclass(frozen=True, slots=True)
class StoreDefinition:
    """The definition of one store."""

    namespace: str
    capacity_bytes: int
    segment_bytes: int
    created_ms: int
    """0: a change of the catalog has defined it, and its owner has not created its files yet."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> StoreShape:
        """What is fixed at creation, checked."""
        return StoreShape(self.capacity_bytes, self.segment_bytes)

    def row(self) -> dict[str, Any]:
        """The definition as JSON values."""
        return asdict(self)


def with_settings(settings: BlobSettings, values: Mapping[str, Any]) -> BlobSettings:
    """The settings with values from JSON replaced; raises `InvalidSetting`."""
    found: BlobSettings = _replaced(settings, values, "")
    return found


def named_settings(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Settings by name as nested values; a dot separates the parts: `budget.memory_bytes`."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        part, dot, rest = name.partition(".")
        if not dot:
            found[part] = value
            continue
        inside = found.setdefault(part, {})
        if not isinstance(inside, dict):
            raise InvalidSetting(part, inside, "given whole or by its parts, not both")
        inside[rest] = value
    return found


def parse_value(text: str) -> Any:
    """Parse the value of a setting from the command line: JSON, or else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def setting_names(settings: BlobSettings) -> dict[str, Any]:
    """All settings with their values, by name."""
    found: dict[str, Any] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if is_dataclass(value):
            found |= {
                f"{each.name}.{part.name}": getattr(value, part.name) for part in fields(value)
            }
        else:
            found[each.name] = value
    return found


def _replaced(settings: Any, values: Mapping[str, Any], above: str) -> Any:
    known = [each.name for each in fields(settings)]
    changed = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidSetting(above + name, value, f"one of {', '.join(known)}")
        changed[name] = _typed(getattr(settings, name), value, above + name)
    return replace(settings, **changed)


def _typed(default: object, value: object, name: str) -> object:
    """The value, if its type matches that of the default."""
    if is_dataclass(default) and isinstance(value, Mapping):
        return _replaced(default, value, f"{name}.")
    if isinstance(default, Enum) and isinstance(value, str):
        choices = [each.value for each in type(default)]
        if value not in choices:
            raise InvalidSetting(name, value, f"one of {', '.join(choices)}")
        return type(default)(value)
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        return tuple(value)
    numbers = (int, float) if isinstance(default, float) else (int,)
    wanted = numbers if default is None or isinstance(default, int | float) else (type(default),)
    if isinstance(default, bool):
        wanted = (bool,)
    fits = isinstance(value, wanted) and isinstance(value, bool) == isinstance(default, bool)
    if not fits and not (default is None and value is None):
        raise InvalidSetting(name, value, kind_of(default))
    return value
