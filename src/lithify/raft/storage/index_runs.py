"""The entries in a file of the write-ahead log, as runs of one term.

A run is (first, last, term). Runs ascend; an entry cuts off everything after the index that it
follows. A million entries written in order are one run. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["IndexRuns"]


class IndexRuns:
    """See the module."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []

    def add(self, first: int, last: int, term: int, previous: int) -> None:
        """Entries from `first` to `last` were written after `previous`."""
        runs = self._runs
        while runs and runs[-1][1] > previous:
            start, _, old_term = runs.pop()
            if start <= previous:
                runs.append((start, previous, old_term))
        if runs and runs[-1][1] == first - 1 and runs[-1][2] == term:
            first = runs.pop()[0]
        runs.append((first, last, term))

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(first, last, term) of each run, ascending."""
        return iter(self._runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __repr__(self) -> str:
        return f"Indexes({self._runs})"
