"""Purged deletes: bounds on the deletes that compaction has dropped, and a count of the runs.

A delete that is dropped leaves no trace. A replica that still has the blob could bring it back; so
could a replica that knows a later expiry of a blob that a ttl has expired. In this module, a ttl or
undelete that set the expiry counts as a delete. A store keeps bounds on what was purged:

    position   every purged delete was at or below it
    time_ms    none of them was younger
    count      of the runs that have purged any

The bounds are in the manifest's `state` and are published with the generation that purges:

    "forgotten": [position, time_ms, count]

A replica that has read past `position` knows all purged deletes. For any other replica, blobs
created after `time_ms` are safe: a delete is never older than its blob. A later run may drop a
delete far below `position`, so only `count` tells whether anything was purged since.

Pure. Called by the rule, which updates it, and by replication, which reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOTHING", "PurgedTombstones"]

_STATE = "forgotten"


@dataclass(frozen=True, slots=True)
class PurgedTombstones:
    """See the module."""

    position: int
    time_ms: int
    count: int

    def with_dropped(self, position: int, time_ms: int) -> PurgedTombstones:
        """After a run that drops deletes up to this position and time."""
        return PurgedTombstones(
            max(self.position, position), max(self.time_ms, time_ms), self.count + 1
        )

    def to_state(self) -> dict[str, Any]:
        """The value in the manifest's state; empty if nothing was purged."""
        return {} if self == NOTHING else {_STATE: [self.position, self.time_ms, self.count]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PurgedTombstones:
        """Parse the value of the manifest's state."""
        return cls(*state[_STATE]) if _STATE in state else NOTHING


NOTHING = PurgedTombstones(-1, -1, 0)
