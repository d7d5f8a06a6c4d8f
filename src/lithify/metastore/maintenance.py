"""The work of the metastore on each node, beside requests: ends leases, purges history.

    async with maintained(metastore, clock):
        ...

1. Every `CHECK_S` the leader proposes to end the leases that were not kept (`lease_expiry.py`).
2. Each member removes what no read above the floor can see, `PURGE_CHANGES` at a time, and lets
   other work of the loop run in between. Reads below the floor that have begun and need an entry
   that is gone are repeated, and then refused.

One event loop, that of the Raft node.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from lithify.metastore.lease_expiry import CHECK_S, LeaseExpiry
from lithify.raft.errors import GroupAbsent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lithify.clock import Clock
    from lithify.metastore.local_metastore import LocalMetastore

__all__ = ["maintained"]

PURGE_CHANGES = 500
"""Changes that one batch examines: about a millisecond."""


@asynccontextmanager
async def maintained(metastore: LocalMetastore, clock: Clock) -> AsyncIterator[None]:
    """Maintain the metastore while the block runs."""
    task = asyncio.create_task(_maintain(metastore, LeaseExpiry(clock)))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _maintain(metastore: LocalMetastore, expiry: LeaseExpiry) -> None:
    while True:
        with suppress(GroupAbsent):  # The node has not joined yet, or was removed.
            metastore.propose_all(expiry.check(metastore.state.leases, metastore.leading_term))
            while not metastore.purge(PURGE_CHANGES):
                await asyncio.sleep(0)
        await asyncio.sleep(CHECK_S)
