"""What a store has forgotten: the deletes that compaction has dropped, as bounds and a count.

A delete that is dropped leaves nothing behind. Whoever still has the blob could bring it back. So
could one who knows a later expiry of a blob that a ttl has let expire: here and in all that speaks
of forgetting, the ttl or undelete that said when is a delete as well. A store remembers how far
its forgetting goes:

    position   every delete that was dropped stood at or below it
    time_ms    none of them was younger
    count      of the runs that have dropped any

It stands in the manifest's `state` and becomes true with the generation that drops them:

    "forgotten": [position, time_ms, count]

A replica that has passed `position` knows all that was forgotten. Of one that has not, blobs made
after `time_ms` are beyond doubt: a delete is never older than its blob. A later run may drop
a delete far below `position`, so whether anything was forgotten since is told by `count` alone.

Pure. Called by the rule, which adds to it, and by replication, which asks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOTHING", "Forgotten"]

_STATE = "forgotten"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """See the module."""

    position: int
    time_ms: int
    count: int

    def and_dropped(self, position: int, time_ms: int) -> Forgotten:
        """After one more run, which drops deletes up to there and then."""
        return Forgotten(max(self.position, position), max(self.time_ms, time_ms), self.count + 1)

    def to_state(self) -> dict[str, Any]:
        """As it stands in the manifest; nothing where nothing was forgotten."""
        return {} if self == NOTHING else {_STATE: [self.position, self.time_ms, self.count]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Forgotten:
        """Read back."""
        return cls(*state[_STATE]) if _STATE in state else NOTHING


NOTHING = Forgotten(-1, -1, 0)
