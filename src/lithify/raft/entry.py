"""An entry of a Raft log, as everything under the consensus core passes it on. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Entry"]


class Entry(NamedTuple):
    """One command; `kind` is the consensus core's own number.

    A tuple, because it is made for every command on every member: half the time of a dataclass.
    """

    index: int  # type: ignore[assignment]  # Nobody looks for the place of a value in an entry.
    term: int
    payload: bytes
    kind: int = 0
