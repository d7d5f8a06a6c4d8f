"""Claims: locks on names while a thread opens, creates or deletes what they name.

    claims = Claims()
    with claims.of([name]): ...     # another claim of one of the names waits
    with claims.of([name], wait=False): ...     # or raises `Claimed`: for an event loop

A thread that claims several names gets all of them at once or waits, so there is no deadlock. A
thread must not claim a name that it already has. Used where things are opened by name.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from lithify.errors import LithifyError

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator

__all__ = ["Claimed", "Claims"]

_Name = TypeVar("_Name", bound="Hashable")


class Claimed(LithifyError):
    """Another thread has claimed one of the names."""


class Claims(Generic[_Name]):
    """See the module."""

    __slots__ = ("_changed", "_claimed")

    def __init__(self) -> None:
        self._claimed: set[_Name] = set()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, names: Collection[_Name], *, wait: bool = True) -> Iterator[None]:
        """Claim these names for this thread while the block runs.

        If another thread has one of them, wait for it or raise `Claimed`.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._claimed.isdisjoint(names))
            elif not self._claimed.isdisjoint(names):
                raise Claimed("it is being opened, created or deleted")
            self._claimed.update(names)
        try:
            yield
        finally:
            with self._changed:
                self._claimed.difference_update(names)
                self._changed.notify_all()

    def wait(self, names: Collection[_Name], timeout_s: float) -> None:
        """Wait, at most `timeout_s`, until no thread has claimed any of these."""
        with self._changed:
            self._changed.wait_for(lambda: self._claimed.isdisjoint(names), timeout_s)
