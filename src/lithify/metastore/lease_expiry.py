"""Ends the leases that were not kept, on the node that leads the metastore.

The machine has no deadlines, because clocks of nodes differ. The leader measures on its monotonic
clock how long it has known a lease in its present generation. When that is the time to live, it
proposes to end the lease in that generation: if the lease was kept meanwhile, nothing happens.

A new leader has measured nothing, so every lease lives for its whole time again. A holder counts
from before it sends its request, the leader from when that has been applied: so a holder stops
believing in its lease first.

Call `check` every `CHECK_S`, in the loop of the Raft node. A command that gets lost is proposed
again after `AGAIN_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.metastore.command_format import encode_expire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lithify.clock import Clock
    from lithify.metastore.state import StoredLease

__all__ = ["CHECK_S", "LeaseExpiry"]

CHECK_S = 0.2
AGAIN_S = 2.0
ENDED_MAX = 64
"""Leases that one check ends: each may have thousands of keys."""


@dataclass(slots=True)
class _Seen:
    """A lease in one generation."""

    generation: int
    overdue_s: float
    """When to propose its end."""


class LeaseExpiry:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._term = 0
        self._seen: dict[int, _Seen] = {}

    def check(self, leases: Mapping[int, StoredLease], leading_term: int) -> list[bytes]:
        """The commands to propose; `leading_term` is 0 on a node that does not lead."""
        if leading_term != self._term:
            self._term, self._seen = leading_term, {}
        if not leading_term:
            return []
        now_s, seen = self._clock.monotonic_s(), self._seen
        for ended in seen.keys() - leases.keys():
            del seen[ended]
        overdue: list[bytes] = []
        for lease, stored in leases.items():
            known = seen.get(lease)
            if known is None or known.generation != stored.generation:
                seen[lease] = _Seen(stored.generation, now_s + stored.ttl_ms / 1000)
            elif known.overdue_s <= now_s and len(overdue) < ENDED_MAX:
                known.overdue_s = now_s + AGAIN_S
                overdue.append(encode_expire(lease, stored.generation))
        return overdue
