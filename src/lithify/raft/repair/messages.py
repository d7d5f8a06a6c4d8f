"""Messages by which a member gets entries that it cannot read. Pure values.

    member                             another member
    EntriesWanted(indexes)       ->
                                 <-    EntriesFound(applied, entries)

`repair.py` decides which entries may be requested and used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import ProtocolError
from lithify.raft.core.messages import RaftMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.entry import Entry

__all__ = ["ASK_ENTRIES", "EntriesFound", "EntriesWanted"]

ASK_ENTRIES = 256
"""Maximum of entries in one request."""


@dataclass(frozen=True, slots=True)
class EntriesWanted(RaftMessage):
    """A request for entries that the sender cannot read; 8 bytes per index."""

    indexes: bytes

    def __str__(self) -> str:
        return self._line(f"wants {len(self.indexes) // 8} entries")

    @classmethod
    def of(cls, sender: str, to: str, term: int, indexes: Sequence[int]) -> EntriesWanted:
        """A request for these indexes."""
        return cls(sender, to, term, struct.pack(f"<{len(indexes)}q", *indexes))

    def parse(self) -> list[int]:
        """The indexes, ascending."""
        count, rest = divmod(len(self.indexes), 8)
        if rest or not 0 < count <= ASK_ENTRIES:
            raise ProtocolError(f"a question for entries has {len(self.indexes)} bytes")
        return sorted(set(struct.unpack(f"<{count}q", self.indexes)))


@dataclass(frozen=True, slots=True)
class EntriesFound(RaftMessage):
    """The answer: those that the member has, and the index up to which it has applied."""

    applied: int
    entries: list[Entry]

    def __str__(self) -> str:
        return self._line(f"gives {len(self.entries)} entries, applied {self.applied}")
