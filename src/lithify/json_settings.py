"""Settings as JSON objects whose meaning another package knows. Pure.

A definition has some settings of its own; a definition above it, or the node, has the others. A
value may be an object itself: its parts are set one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SETTINGS_DEPTH_MAX", "changed_settings", "encode_settings"]

SETTINGS_DEPTH_MAX = 32
"""Of objects and arrays in each other: what is deeper may be written, but not read elsewhere."""


def changed_settings(
    settings: Mapping[str, Any], given: Mapping[str, Any], unset: Iterable[str]
) -> dict[str, Any]:
    """The settings of a definition, changed by `given`; `unset` ones revert to those above."""
    found = {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
    }
    for name in unset:
        part, _, rest = name.partition(".")
        if rest and isinstance(found.get(part), dict):
            found[part].pop(rest, None)
        elif not rest:
            found.pop(part, None)
    for name, value in given.items():
        inside = found.get(name)
        if isinstance(inside, dict) and isinstance(value, Mapping):
            inside |= value
        else:
            found[name] = value
    return {name: value for name, value in found.items() if value != {}}


def encode_settings(settings: Mapping[str, Any]) -> str:
    """The settings as JSON, in the order of their names; `ValueError` if they are not JSON."""
    if _is_deeper(settings, SETTINGS_DEPTH_MAX):
        raise ValueError(f"more than {SETTINGS_DEPTH_MAX} objects and arrays in each other")
    try:
        return json.dumps(dict(settings), allow_nan=False, separators=(",", ":"), sort_keys=True)
    except TypeError as error:
        raise ValueError(str(error)) from error


def _is_deeper(value: Any, depth: int) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return not depth or any(_is_deeper(each, depth - 1) for each in value)
