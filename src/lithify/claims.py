"""Names that a thread has for itself while it opens, creates or deletes what they name.

    claims = Claims()
    with claims.of([name]): ...     # whoever claims one of the same names waits

A thread that claims several gets all of them at once or waits, so no two wait for each other. A
thread that has a claim must not claim the same name again. For whoever opens things by name.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator

__all__ = ["Claims"]

_Name = TypeVar("_Name", bound="Hashable")


class Claims(Generic[_Name]):
    """See the module."""

    __slots__ = ("_changed", "_claimed")

    def __init__(self) -> None:
        self._claimed: set[_Name] = set()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, names: Collection[_Name]) -> Iterator[None]:
        """Let no other thread have these while the block runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._claimed.isdisjoint(names))
            self._claimed.update(names)
        try:
            yield
        finally:
            with self._changed:
                self._claimed.difference_update(names)
                self._changed.notify_all()
