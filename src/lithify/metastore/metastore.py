"""The interface of the metastore: revisioned keys, transactions, watches, leases.

    outcome = await metastore.transact(Transaction(then=(Put(b"colour", b"red"),)))
    found = await metastore.get(b"colour")
    async with aclosing(metastore.watch(*prefix_range(b"col"), after=outcome.revision)) as changes:
        async for revision in changes:
            ...

A **revision** is the number of a change of the store: ascending, with gaps, the same on every node.
Each has a **timestamp** (`hybrid_time.py`); timestamps ascend with revisions. A **range** has the
keys from `start` up to, not including, `end`; an empty `end` is no limit.

Reads are linearizable, unless `local` is set: then they are answered from the state of the node
asked, which may be behind but never goes back. A read at a revision returns what was visible after
that revision. Revisions at or below the **floor** are compacted (`RevisionCompacted`).

A watch yields every revision above `after` that changes a key in the range: once, in order, with
the changes in the range only. It continues by itself when leaders change, and raises
`RevisionCompacted` if revisions that it has not yielded are gone.

A **lease** is an id with a time to live. Keys put with it are deleted when it ends: it was revoked,
or was not kept for its time to live. A holder counts that time from before it sent the request, so
it stops believing in a lease before the store ends it.

Two implementations: on a node (`local_metastore.py`), and in memory for tests of what uses it
(`testing/memory_metastore.py`). `client.py` has its requests over the network, without watches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lithify.metastore.transaction import Transaction

__all__ = ["Change", "KeyValue", "Lease", "Metastore", "Outcome", "Revision", "Rows"]


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key at a revision."""

    key: bytes
    value: bytes
    revision: int
    """The revision that set the value."""
    timestamp: int
    """Of that revision."""
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a key; a deletion has no value."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Revision:
    """What one revision has changed."""

    revision: int
    timestamp: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Keys of a range, ascending, all of one revision."""

    revision: int
    """The revision read: the newest one at that moment if none was asked for."""
    timestamp: int
    """The time of the store when it was read."""
    rows: tuple[KeyValue, ...]
    more: bool = False
    """There may be more keys, after the last one; then there is at least one row."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a transaction."""

    succeeded: bool
    """Did all compares hold?"""
    revision: int
    """The revision of the change; the newest one if nothing was changed."""
    timestamp: int
    """The time of the store at the transaction; of the revision, if it made one."""
    changed: bool = False
    """Did it make a revision?"""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease; `generation` grows with each `keep`."""

    id: int
    ttl_ms: int
    generation: int


class Metastore(Protocol):
    """See the module. One event loop."""

    async def get(self, key: bytes, *, revision: int = 0, local: bool = False) -> KeyValue | None:
        """A key at a revision, or at the newest one; None if it is absent there."""

    async def range(
        self, start: bytes, end: bytes, *, revision: int = 0, limit: int = 0, local: bool = False
    ) -> Rows:
        """The first keys of a range; `limit` 0 is no limit. A large answer has `more`."""

    async def transact(self, transaction: Transaction) -> Outcome:
        """Execute a transaction; durable on a majority when it returns."""

    def watch(self, start: bytes, end: bytes, *, after: int) -> AsyncGenerator[Revision, None]:
        """The revisions above `after` that change the range. Close the generator to end it."""

    async def read_time(self) -> int:
        """The time of the store; linearizable."""

    async def wait_safe_time(self, time: int) -> None:
        """Return when no later revision can have a timestamp at or below this one, here."""

    async def revision_at(self, time: int) -> int:
        """The revision that a reader at a timestamp reads, 0 if there was none; linearizable.

        No later revision gets a timestamp up to this one. `TimeCompacted` if it is gone.
        """

    async def grant_lease(self, ttl_ms: int) -> Lease:
        """A new lease."""

    async def keep_lease(self, lease: Lease) -> Lease:
        """Start the time to live of a lease again; `LeaseNotFound` if it has ended."""

    async def revoke_lease(self, lease: int) -> None:
        """End a lease, and delete its keys; no change if it has ended."""

    async def leases(self) -> list[Lease]:
        """All leases."""

    async def compact(self, revision: int) -> None:
        """Raise the floor to a revision."""
