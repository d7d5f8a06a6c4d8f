"""Requests to the metastore, as the commands and queries of its machine.

`MetastoreRequests` has every method of `Metastore` that one request answers, over two functions:
one has a command applied, one answers a query. So a node and a client over the network share it.

`MayHaveHappened` says that the outcome of a command is unknown; `MetastoreUnavailable`, that no
member that could serve the request was found, and nothing was done.

A page of a range may have no rows, if all keys that were examined for it are absent at its
revision. Then the next page is read at once, at the same revision. So an answer that has `more` has
a last row, after which the caller can continue.

One event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lithify.errors import InvalidInput
from lithify.metastore import command_format as commands
from lithify.metastore import query_format as replies
from lithify.metastore.errors import (
    MetastoreUnavailable,
    RevisionCompacted,
    RevisionNotReached,
    TimeCompacted,
)
from lithify.metastore.purge import Superfluous
from lithify.metastore.transaction import check_key
from lithify.raft.errors import GroupAbsent
from lithify.raft.net.client_operations import GroupNotFound, NoAnswer

if TYPE_CHECKING:
    from lithify.metastore.metastore import KeyValue, Lease, Outcome, Rows
    from lithify.metastore.query_format import MetastoreReply, StoreStatus
    from lithify.metastore.transaction import Transaction

__all__ = ["MetastoreAccess", "MetastoreRequests"]

_NOTHING_DONE = (NoAnswer, GroupAbsent, GroupNotFound)


class MetastoreAccess(Protocol):
    """The way to the machine of the metastore."""

    async def propose(self, command: bytes) -> bytes:
        """Have a command applied; returns the machine's reply."""

    async def read(self, query: bytes, *, local: bool) -> bytes:
        """Answer a query; `local`: at the state of this node, which may be behind."""


class MetastoreRequests:
    """See the module."""

    def __init__(self, access: MetastoreAccess) -> None:
        self._access = access

    async def get(self, key: bytes, *, revision: int = 0, local: bool = False) -> KeyValue | None:
        """A key at a revision, or at the newest one; None if it is absent there."""
        check_key(key)
        query = replies.encode_get(key, _checked_number("revision", revision))
        return replies.parse_row(await self._read(query, revision, local=local))

    async def range(
        self, start: bytes, end: bytes, *, revision: int = 0, limit: int = 0, local: bool = False
    ) -> Rows:
        """The keys of a range; `limit` 0 is no limit. A large answer has `more`, and rows."""
        check_key(start)
        check_key(end)
        _checked_number("revision", revision)
        _checked_number("limit", limit)
        while True:
            try:
                return await self._rows(start, end, revision, limit, local=local)
            except RevisionCompacted:
                if revision:
                    raise
                # The floor has passed what was the newest revision when the first page was read.

    async def _rows(
        self, start: bytes, end: bytes, revision: int, limit: int, *, local: bool
    ) -> Rows:
        """The first page that has rows, or the last page."""
        while True:
            query = replies.encode_range(start, end, revision, limit)
            page = replies.parse_rows(await self._read(query, revision, local=local))
            if page.rows.rows or not page.next_start:
                return page.rows
            start, revision = page.next_start, page.rows.revision

    async def transact(self, transaction: Transaction) -> Outcome:
        """Execute a transaction; durable on a majority when it returns."""
        return replies.parse_outcome(await self._propose(commands.encode_transaction(transaction)))

    async def read_time(self) -> int:
        """The time of the store; linearizable."""
        return (await self.status()).time

    async def reach_time(self, time: int) -> None:
        """Have the time of the store advanced to a timestamp at least."""
        await self._propose(commands.encode_time_reached(time))

    async def revision_at(self, time: int) -> int:
        """The revision that a reader at a timestamp reads, 0 if there was none; linearizable.

        The time of the store reaches the timestamp first: no later revision gets an earlier one.
        """
        _checked_number("time", time)
        while True:
            try:
                return (await self._read(replies.encode_at_time(time))).number
            except RevisionNotReached:
                await self.reach_time(time)
            except RevisionCompacted:
                raise TimeCompacted(time) from None

    async def grant_lease(self, ttl_ms: int) -> Lease:
        """A new lease."""
        return replies.parse_leases(await self._propose(commands.encode_grant(ttl_ms)))[0]

    async def keep_lease(self, lease: Lease) -> Lease:
        """Start the time to live of a lease again; `LeaseNotFound` if it has ended."""
        return replies.parse_leases(await self._propose(commands.encode_keep(lease.id)))[0]

    async def revoke_lease(self, lease: int) -> None:
        """End a lease, and delete its keys; no change if it has ended."""
        await self._propose(commands.encode_revoke(lease))

    async def leases(self) -> list[Lease]:
        """All leases."""
        found: list[Lease] = []
        while True:
            query = replies.encode_leases(found[-1].id if found else 0)
            page = replies.parse_leases(await self._read(query))
            found += page
            if len(page) < replies.PAGE_ROWS_MAX:
                return found

    async def compact(self, revision: int) -> None:
        """Raise the floor to a revision; no change if it is there or above."""
        await self._propose(commands.encode_compact(revision), revision)

    async def compact_if_unchanged(self, revision: int, prefix: bytes, since: int) -> bool:
        """Raise the floor, unless a key with this prefix was put after a revision."""
        command = commands.encode_compact_if_unchanged(revision, prefix, since)
        return bool((await self._propose(command, revision)).flags & replies.HELD)

    async def count_superfluous(self, floor: int, *, local: bool = False) -> Superfluous:
        """Count what one member would remove if the floor rose, in pages."""
        total = Superfluous()
        while True:
            query = replies.encode_superfluous_query(floor, total.next_revision, total.next_change)
            page = replies.parse_superfluous(await self._read(query, local=local))
            total = total.plus(page)
            if not total.next_revision:
                return total

    async def status(self, *, local: bool = False) -> StoreStatus:
        """The numbers of the state of one member."""
        return replies.parse_status(await self._read(replies.encode_status(), local=local))

    async def _propose(self, command: bytes, revision: int = 0) -> MetastoreReply:
        try:
            data = await self._access.propose(command)
        except _NOTHING_DONE as error:
            raise MetastoreUnavailable(str(error)) from error
        return _checked(data, revision)

    async def _read(
        self, query: bytes, revision: int = 0, *, local: bool = False
    ) -> MetastoreReply:
        try:
            data = await self._access.read(query, local=local)
        except _NOTHING_DONE as error:
            raise MetastoreUnavailable(str(error)) from error
        return _checked(data, revision)


def _checked_number(what: str, number: int) -> int:
    if not 0 <= number < 2**63:
        raise InvalidInput(f"{what} is {number}, must be from 0 to 2**63 - 1")
    return number


def _checked(data: bytes, revision: int) -> MetastoreReply:
    reply = replies.parse_reply(data)
    replies.check_reply(reply, revision)
    return reply
