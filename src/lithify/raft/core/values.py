"""The small values of the consensus core: kinds of entries, what must be durable, a snapshot. Pure.

A member is known by its name (`n1`); the empty name is nobody. Terms and indexes begin at 1, and 0
is the place before the first entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.core.config import Config
    from lithify.raft.entry import Entry

__all__ = ["ENTRY_BYTES", "NOBODY", "EntryKind", "HardState", "SnapshotMeta", "entry_bytes", "fit"]

NOBODY = ""

_PAYLOAD = attrgetter("payload")

ENTRY_BYTES = 32
"""What an entry counts beside its payload, so that many empty ones are not free."""


class EntryKind(IntEnum):
    """Who an entry is for."""

    COMMAND = 0
    """For the state machine."""
    NOOP = 1
    """The first entry of a leader; committing it commits everything before it. It may have a note
    to the members, for instance the id of the cluster."""
    CONFIG = 2
    """Who the members are from here on, as `Config.encode` writes it."""
    END = 3
    """The group is no more: nothing behind it is applied."""


@dataclass(frozen=True, slots=True)
class HardState:
    """What a member must not forget: durable before anything that depends on it is sent.

    `commit` is where the group was committed at that time. It rides along so that a restart is
    shorter; nothing is wrong if it is too low.
    """

    term: int = 0
    vote: str = NOBODY
    commit: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Where a snapshot ends, and who the members were there."""

    index: int
    term: int
    config: Config

    def __str__(self) -> str:
        return f"{self.index}/{self.term} ({self.config})"


def entry_bytes(entries: Sequence[Entry]) -> int:
    """What these entries count against limits."""
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
