"""An entry of a Raft log, as everything below the consensus core uses it. Pure."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Entry", "make_entries", "make_entry"]


class Entry(NamedTuple):
    """One command; `kind` is the consensus core's own number.

    A tuple, because one is created per command on every member: half the time of a dataclass.
    """

    index: int  # type: ignore[assignment]  # No caller uses tuple.index.
    term: int
    payload: bytes
    kind: int = 0


make_entry: Callable[[tuple[int, int, bytes, int]], Entry] = partial(tuple.__new__, Entry)
"""From a tuple of the fields; the same as calling `Entry`, in half the time."""


def make_entries(first: int, term: int, payloads: Sequence[bytes], kind: int) -> list[Entry]:
    """Consecutive entries with these payloads, starting at an index."""
    indexes = range(first, first + len(payloads))
    return list(map(make_entry, zip(indexes, repeat(term), payloads, repeat(kind), strict=False)))
