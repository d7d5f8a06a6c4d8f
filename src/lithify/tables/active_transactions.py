"""The read-write transactions that are open on this node, for the trimming of catalog history.

Each uses the version of the catalog that was in force when it began. `minimum_begin_time` is the
activation of the oldest of these versions: no version from it on may be dropped. Without a
transaction it is the time of the node, which is below the begin of all later ones.

What all of them keep until they are committed has at most `KEPT_BYTES_MAX`.

A transaction whose life is over no longer counts, unless it is being committed: then its outcome
is awaited, which a time limit bounds. One event loop, so a begin and the minimum never race.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lithify.tables.errors import TooManyTransactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lithify.catalog.catalog import Catalog

__all__ = ["ActiveTransactions", "OpenTransaction"]

KEPT_BYTES_MAX = 256 * 2**20


class OpenTransaction:
    """A transaction in the register."""

    __slots__ = ("_active", "begin", "catalog", "deadline_s", "is_committing", "kept_bytes")

    def __init__(
        self, active: ActiveTransactions, begin: int, catalog: Catalog, deadline_s: float
    ) -> None:
        self._active = active
        self.begin = begin
        self.catalog = catalog
        self.deadline_s = deadline_s
        """Of the monotonic clock."""
        self.is_committing = False
        self.kept_bytes = 0

    def reserve(self, size: int) -> None:
        """It will keep more bytes, or fewer; raises `TooManyTransactions` without room."""
        self._active.reserve(self, size)


class ActiveTransactions:
    """See the module."""

    def __init__(self, now: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._now = now
        self._monotonic_s = monotonic_s
        self._open: set[OpenTransaction] = set()
        self.kept_bytes = 0
        """Of all transactions that have not ended."""

    def begin(self, catalog_at: Callable[[int], Catalog], life_s: float) -> OpenTransaction:
        """Register a transaction that begins now."""
        begin = self._now()
        opened = OpenTransaction(self, begin, catalog_at(begin), self._monotonic_s() + life_s)
        self._open.add(opened)
        return opened

    def end(self, opened: OpenTransaction) -> None:
        """The transaction has ended. May be called again."""
        self._open.discard(opened)
        self.kept_bytes -= opened.kept_bytes
        opened.kept_bytes = 0

    def reserve(self, opened: OpenTransaction, size: int) -> None:
        """See `OpenTransaction`."""
        if size > 0 and self.kept_bytes + size > KEPT_BYTES_MAX:
            raise TooManyTransactions(KEPT_BYTES_MAX, "bytes of open transactions")
        opened.kept_bytes += size
        self.kept_bytes += size

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
