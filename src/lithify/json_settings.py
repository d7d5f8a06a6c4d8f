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

__all__ = ["changed_settings", "encode_settings"]


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
    try:
        return json.dumps(dict(settings), allow_nan=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
