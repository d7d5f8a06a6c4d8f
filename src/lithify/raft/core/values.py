"""Values of the consensus core: kinds of entries, the hard state, a snapshot. Pure.

A member is identified by its name (`n1`); the empty name is no member. Terms and indexes begin at
1, and 0 is the position before the first entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.core.configuration import Config
    from lithify.raft.entry import Entry

__all__ = ["ENTRY_BYTES", "NOBODY", "EntryKind", "HardState", "SnapshotMeta", "entry_bytes", "fit"]

NOBODY = ""

_PAYLOAD = attrgetter("payload")

ENTRY_BYTES = 32
"""Size of an entry without its payload, so that empty ones count against limits."""


class EntryKind(IntEnum):
    """What an entry is for."""

    COMMAND = 0
    """For the state machine."""
    NOOP = 1
    """The first entry of a leader; committing it commits everything before it. It may have a note
    to the members, for instance the id of the cluster."""
    CONFIG = 2
    """The members from here on, as written by `Config.encode`."""
    END = 3
    """The group is deleted: no later entry is applied."""


@dataclass(frozen=True, slots=True)
class HardState:
    """The state that must be durable before any message that depends on it is sent.

    `commit` is the commit index at that time. It shortens a restart; a value that is too low does
    no harm.
    """

    term: int = 0
    vote: str = NOBODY
    commit: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The last index of a snapshot, and the members there."""

    index: int
    term: int
    config: Config

    def __str__(self) -> str:
        return f"{self.index}/{self.term} ({self.config})"


def entry_bytes(entries: Sequence[Entry]) -> int:
    """The size of these entries against limits."""
    return ENTRY_BYTES * len(entries) + sum(map(len, map(_PAYLOAD, entries)))


def fit(entries: list[Entry], bytes_max: int) -> list[Entry]:
    """As many of the first entries as fit, but at least one."""
    if entry_bytes(entries) <= bytes_max:
        return entries
    room = bytes_max
    for count, entry in enumerate(entries):
        room -= ENTRY_BYTES + len(entry.payload)
        if room < 0 and count:
            return entries[:count]
    return entries
