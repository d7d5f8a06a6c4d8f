"""A lease that this process holds and keeps.

    held = HeldLease(metastore, clock, ttl_ms=10_000)
    await held.acquire()
    held.is_held          # false once the store may have ended it
    await held.keep()     # every third of the time to live

The time to live counts from before a request was sent, on the monotonic clock. So `is_held` turns
false before the store ends the lease, if the request is not answered or the network is cut.

One event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.clock import Clock
    from lithify.metastore.metastore import Lease, Metastore

__all__ = ["HeldLease"]


class HeldLease:
    """See the module."""

    def __init__(self, metastore: Metastore, clock: Clock, ttl_ms: int) -> None:
        self._metastore = metastore
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._lease: Lease | None = None
        self._until_s = 0.0

    @property
    def id(self) -> int:
        """The id of the lease; 0 before it is acquired."""
        return 0 if self._lease is None else self._lease.id

    @property
    def is_held(self) -> bool:
        """Is it certain that the store has not ended the lease?"""
        return self._lease is not None and self._clock.monotonic_s() < self._until_s

    @property
    def keep_s(self) -> float:
        """The time from one `keep` to the next."""
        return self._ttl_ms / 3000

    async def acquire(self) -> None:
        """Get a new lease."""
        before_s = self._clock.monotonic_s()
        self._lease = await self._metastore.grant_lease(self._ttl_ms)
        self._until_s = before_s + self._ttl_ms / 1000

    async def keep(self) -> None:
        """Start the time to live again; `LeaseNotFound` if the lease has ended."""
        assert self._lease is not None
        before_s = self._clock.monotonic_s()
        self._lease = await self._metastore.keep_lease(self._lease)
        self._until_s = before_s + self._ttl_ms / 1000

    async def release(self) -> None:
        """End the lease, and delete its keys."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._metastore.revoke_lease(lease.id)
