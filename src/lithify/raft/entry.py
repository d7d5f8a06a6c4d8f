"""An entry of a Raft log, as everything under the consensus core passes it on. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One command; `kind` is the consensus core's own number."""

    index: int
    term: int
    payload: bytes
    kind: int = 0
