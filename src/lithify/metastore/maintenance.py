"""The work of the metastore on each node, beside requests: ends leases, purges history.

    async with maintained(metastore, clock):
        ...

1. Every `CHECK_S` the leader proposes to end the leases that were not kept (`lease_expiry.py`).
2. Each member removes what no read above the floor can see, `PURGE_CHANGES` at a time, and leaves
   the loop to other work for as long in between.
3. When it has removed as many values and tombstones as it still has, and at least `REMOVED_MIN`,
   it takes a snapshot of the group: only a snapshot makes the entries of removed values go. Other
   snapshots follow commands, which may not come for a long time. They complete the purge, so they
   are fast if this was in time.

An error here stops the node, as an error of the group does. One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from lithify.metastore.errors import MetastoreUnavailable
from lithify.metastore.lease_expiry import CHECK_S, LeaseExpiry
from lithify.metastore.log_shortening import LogShortening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lithify.clock import Clock
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["MetastoreMaintenance", "maintained"]

PURGE_CHANGES = 500
"""Changes that one batch examines: about a millisecond."""
PURGE_PAUSE_S = 0.001
REMOVED_MIN = 1000


@asynccontextmanager
async def maintained(metastore: LocalMetastore, clock: Clock) -> AsyncIterator[None]:
    """Maintain the metastore while the block runs."""
    task = asyncio.create_task(_repeat(metastore, MetastoreMaintenance(metastore, clock)))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _repeat(metastore: LocalMetastore, maintenance: MetastoreMaintenance) -> None:
    pause_s, shortening = CHECK_S, LogShortening(metastore)
    while True:
        with metastore.node.guarded():
            pause_s = maintenance.step()
            if pause_s == CHECK_S:
                # A node that is no member has nothing to shorten.
                with suppress(MetastoreUnavailable):
                    shortening.step()
        await asyncio.sleep(pause_s)


class MetastoreMaintenance:
    """The steps; see the module."""

    def __init__(self, metastore: LocalMetastore, clock: Clock) -> None:
        self._metastore = metastore
        self._expiry = LeaseExpiry(clock)
        self._removed = 0
        """Values and tombstones, since the last snapshot that was asked for here."""

    def step(self) -> float:
        """Do a bounded part of the work; the seconds until the next step."""
        metastore = self._metastore
        try:
            state, leading_term = metastore.state, metastore.leading_term
        except MetastoreUnavailable:
            # The node has not joined yet, or was removed.
            return CHECK_S
        metastore.propose_all(self._expiry.check(state.leases, leading_term))
        purged = metastore.purge(PURGE_CHANGES)
        self._removed += purged.removed
        if purged.examined and not purged.finished:
            return PURGE_PAUSE_S
        if self._removed >= max(REMOVED_MIN, state.keys.row_count):
            metastore.group.take_snapshot()
            metastore.node.mark(metastore.group)
            self._removed = 0
        return CHECK_S
