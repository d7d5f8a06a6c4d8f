"""Ends the leases that were not kept, on the node that leads the metastore.

The machine has no deadlines, because clocks of nodes differ. The leader measures on its monotonic
clock how long it has known a lease in its present generation. When that is the time to live, it
proposes to end the lease in that generation: if the lease was kept meanwhile, nothing happens.

A new leader has measured nothing, so every lease lives for its whole time again. A holder counts
from before it sends its request, the leader from when that has been applied: so a holder stops
believing in its lease first.

Call `check` every `CHECK_S`, in the loop of the Raft node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.metastore.format import encode_expire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.clock import Clock
    from lithify.metastore.state import StoredLease

__all__ = ["CHECK_S", "LeaseExpiry"]

CHECK_S = 0.2


class LeaseExpiry:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._term = 0
        self._seen: dict[int, tuple[int, float]] = {}
        """By lease: its generation, and when that was first seen."""

    def check(self, leases: Mapping[int, StoredLease], leading_term: int) -> list[bytes]:
        """The commands to propose; `leading_term` is 0 on a node that does not lead."""
        if leading_term != self._term:
            self._term, self._seen = leading_term, {}
        if not leading_term:
            return []
        now_s = self._clock.monotonic_s()
        for ended in self._seen.keys() - leases.keys():
            del self._seen[ended]
        overdue = []
        for lease, stored in leases.items():
            generation, since_s = self._seen.get(lease, (0, 0.0))
            if generation != stored.generation:
                self._seen[lease] = stored.generation, now_s
            elif now_s - since_s >= stored.ttl_ms / 1000:
                overdue.append(encode_expire(lease, stored.generation))
        return overdue
