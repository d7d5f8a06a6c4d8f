"""An entry of a Raft log, as everything under the consensus core passes it on. Pure."""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Entry", "make_entries", "make_entry"]


class Entry(NamedTuple):
    """One command; `kind` is the consensus core's own number.

    A tuple, because it is made for every command on every member: half the time of a dataclass.
    """

    index: int  # type: ignore[assignment]  # Nobody looks for the place of a value in an entry.
    term: int
    payload: bytes
    kind: int = 0


make_entry: Callable[[tuple[int, int, bytes, int]], Entry] = partial(tuple.__new__, Entry)
"""Of its fields; what `Entry` does when it is called, but in half the time."""


def make_entries(first: int, term: int, payloads: Sequence[bytes], kind: int) -> list[Entry]:
    """The entries of these payloads, the first one at an index and the others behind it."""
    indexes = range(first, first + len(payloads))
    return list(map(make_entry, zip(indexes, repeat(term), payloads, repeat(kind), strict=False)))
