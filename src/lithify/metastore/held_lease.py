"""A lease that this process holds and keeps.

    held = HeldLease(metastore, clock, ttl_ms=10_000)
    await held.acquire()
    held.is_held          # false once the store may have ended it
    await held.keep()     # every `keep_s`

The time to live counts from before a request was sent, on the monotonic clock; the store counts it
from later (`lease_expiry.py`). So `is_held` turns false before the store ends the lease, if the
request is not answered or the network is cut. Both rely on monotonic clocks of equal speed that do
not stop: a machine that was suspended may believe in a lease for too long.

`is_held` is true of the moment at which it is read. What must not happen after the end of the lease
is a transaction that compares a key of the lease.

One event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lithify.metastore.errors import LeaseNotFound

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
        """The id of the lease; 0 if there is none, or it has ended."""
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
        """Get a new lease, in place of one that has ended."""
        until_s = self._end_s()
        self._lease = await self._metastore.grant_lease(self._ttl_ms)
        self._until_s = until_s

    async def keep(self) -> None:
        """Start the time to live again; `LeaseNotFound` if the lease has ended."""
        lease, until_s = self._lease, self._end_s()
        if lease is None:
            raise LeaseNotFound(0)
        try:
            await self._metastore.keep_lease(lease)
        except LeaseNotFound:
            if self._lease is lease:
                self._lease = None
            raise
        # It may have been released meanwhile, and a later request may have been answered first.
        if self._lease is lease:
            self._until_s = max(self._until_s, until_s)

    async def release(self) -> None:
        """End the lease, and delete its keys."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._metastore.revoke_lease(lease.id)

    def _end_s(self) -> float:
        """When a lease ends that is granted or kept by a request that is sent now."""
        return self._clock.monotonic_s() + self._ttl_ms / 1000
