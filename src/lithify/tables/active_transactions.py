"""The read-write transactions that are open on this node, for the trimming of catalog history.

Each uses the version of the catalog that was in force when it began. `minimum_begin_time` is the
activation of the oldest of these versions: no version from it on may be dropped. Without a
transaction it is the time of the node, which is below the begin of all later ones.

A transaction whose life is over no longer counts, unless it is being committed: then its outcome
is awaited, which a time limit bounds. One event loop, so a begin and the minimum never race.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.catalog.catalog import Catalog

__all__ = ["ActiveTransactions", "OpenTransaction"]


class OpenTransaction:
    """A transaction in the register."""

    __slots__ = ("begin", "catalog", "deadline_s", "is_committing")

    def __init__(self, begin: int, catalog: Catalog, deadline_s: float) -> None:
        self.begin = begin
        self.catalog = catalog
        self.deadline_s = deadline_s
        """Of the monotonic clock."""
        self.is_committing = False


class ActiveTransactions:
    """See the module."""

    def __init__(self, now: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._now = now
        self._monotonic_s = monotonic_s
        self._open: set[OpenTransaction] = set()

    def begin(self, catalog_at: Callable[[int], Catalog], life_s: float) -> OpenTransaction:
        """Register a transaction that begins now."""
        begin = self._now()
        opened = OpenTransaction(begin, catalog_at(begin), self._monotonic_s() + life_s)
        self._open.add(opened)
        return opened

    def end(self, opened: OpenTransaction) -> None:
        """The transaction has ended. May be called again."""
        self._open.discard(opened)

    def is_expired(self, opened: OpenTransaction) -> bool:
        """Is the life of a transaction over?"""
        return self._monotonic_s() >= opened.deadline_s

    def minimum_begin_time(self) -> int:
        """See the module."""
        now = self._now()
        return min((each.catalog.activation for each in self._counted()), default=now)

    def versions(self) -> Counter[int]:
        """The versions of the catalog that are used, and by how many transactions."""
        return Counter(each.catalog.version for each in self._counted())

    def _counted(self) -> Iterator[OpenTransaction]:
        for opened in list(self._open):
            if self.is_expired(opened) and not opened.is_committing:
                self._open.discard(opened)
            else:
                yield opened
