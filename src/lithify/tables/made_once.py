"""Values that are made once for each object, such as the layout of the rows of a table.

    layout = LAYOUTS.of(columns)

By identity: to hash a descriptor takes longer than what is saved. An object is kept as long as what
was made for it, so another one never has its identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MadeOnce"]

K = TypeVar("K")
V = TypeVar("V")

ENTRIES_MAX = 1024


class MadeOnce(Generic[K, V]):
    """See the module; any thread."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._made: dict[int, tuple[K, V]] = {}

    def of(self, key: K) -> V:
        """What belongs to an object."""
        found = self._made.get(id(key))
        if found is not None:
            return found[1]
        made = self._make(key)
        if len(self._made) >= ENTRIES_MAX:
            self._made.clear()
        self._made[id(key)] = key, made
        return made
