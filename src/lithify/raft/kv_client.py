"""A client of the key-value machine: what `kv_format.py` has in bytes, as calls.

    async with RaftClient(addresses) as client:
        kv = KvClient(client, "default")
        await kv.put(b"colour", b"red")

Who asks waits until it is done, on a majority; any number may be under way. Errors are those of
`client.py`. One event loop.

Watching. `watch` gives what changes under a prefix, in the order of the revisions, and goes on by
itself when connections break and leaders change:

1. A watcher is made, from the last revision that is known. The machine says whether it has sent
   what was missed, or cannot any more: then there is a `WatchReset`.
2. After a reset all rows are read, page by page, over the watcher's connection. One whose revision
   is above the reset's has changed since, and comes as an event anyway. So a row never comes behind
   a later change of its key: the page was read before that change, and stands before it.
3. Every event names the one before it. If that is not what came last, or if the feed is over,
   begin again at 1. A reset whose rows were not all read begins anew.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lithify.raft import kv_format as kv
from lithify.raft.kv_format import Outcome, WatchEvent
from lithify.raft.operations import Operation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lithify.raft.client import RaftClient
    from lithify.raft.feed import Feed
    from lithify.raft.kv_format import Reply, Row

__all__ = ["FROM_NOW", "KvClient", "WatchReset"]

FROM_NOW = 2**63 - 1
"""The revision that is known to who wants only what comes from now on."""
PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class WatchReset:
    """Something was missed that cannot be told any more: forget all keys that were known.

    What is there at this revision comes next, as puts, and what changes after it.
    """

    revision: int


class KvClient:
    """See the module."""

    def __init__(self, client: RaftClient, group: str) -> None:
        self.client = client
        self.group = group

    async def put(self, key: bytes, value: bytes) -> Reply:
        """Set the value of a key."""
        return await self._propose(kv.put(key, value))

    async def delete(self, key: bytes) -> Reply:
        """Delete a key."""
        return await self._propose(kv.delete(key))

    async def compare_and_set(
        self, key: bytes, value: bytes, expected: bytes | int | None
    ) -> Reply:
        """Set the value of a key if it has a value, a revision, or (None) nothing."""
        return await self._propose(kv.compare_and_set(key, value, expected))

    async def get(self, key: bytes) -> Reply:
        """The value of a key, as of now."""
        _, reply = await self.client.ask(self.group, Operation.READ, kv.get(key))
        return kv.parse_reply(reply)

    async def scan(self, prefix: bytes, rows_max: int, after: bytes = b"") -> list[Row]:
        """Keys with a prefix, ascending, behind the one that is known.

        Each page is as of one moment; what is large comes in several.
        """
        rows: list[Row] = []
        while len(rows) < rows_max:
            query = kv.scan(prefix, min(rows_max - len(rows), kv.SCAN_ROWS_MAX), after)
            _, reply = await self.client.ask(self.group, Operation.READ, query)
            page = kv.parse_rows(reply)
            rows += page
            if not page or not page[-1].key:
                break
            after = page[-1].key
        return rows

    async def watch(
        self, prefix: bytes, known: int = 0
    ) -> AsyncGenerator[WatchEvent | WatchReset, None]:
        """Changes of keys with a prefix above a revision that is known; see the module.

        It ends by an error of `client.py` when no leader is found in time. Who stops earlier closes
        it (`contextlib.aclosing`), or the client.
        """
        while True:
            feed = await self.client.watch(self.group, partial(kv.watch, prefix, known=known))
            with closing(feed):
                reply = kv.parse_reply(feed.reply)
                chain = _Chain(min(known, reply.revision))
                if reply.outcome is Outcome.RESET:
                    yield WatchReset(reply.revision)
                    chain.last = reply.revision
                    async for row in self._rows(feed, prefix, chain, reply.revision):
                        yield row
                if not chain.broken:
                    known = chain.last
                while not chain.broken and (data := await feed.take()) is not None:
                    event = chain.follow(data)
                    if event is not None:
                        known = event.revision
                        yield event
                if not chain.broken:
                    known = max(known, feed.seen_index)

    async def _rows(
        self, feed: Feed, prefix: bytes, chain: _Chain, revision: int
    ) -> AsyncGenerator[WatchEvent, None]:
        """All that is there at a revision, and events that come meanwhile."""
        after = b""
        while not chain.broken:
            reply = await feed.read(kv.scan(prefix, PAGE_ROWS, after))
            if reply is None:
                chain.broken = True
                return
            page = kv.parse_rows(reply)
            for row in page:
                if row.revision <= revision:
                    yield WatchEvent(row.key, row.value, row.revision, 0)
            for _ in range(feed.waiting):
                data = await feed.take()
                event = None if data is None else chain.follow(data)
                if event is not None:
                    yield event
            if not page or not page[-1].key:
                return
            after = page[-1].key

    async def _propose(self, command: bytes) -> Reply:
        _, reply = await self.client.ask(self.group, Operation.PROPOSE, command)
        return kv.parse_reply(reply)


class _Chain:
    """Sees whether events follow each other without a gap."""

    def __init__(self, last: int) -> None:
        self.last = last
        """The revision of what came last."""
        self.broken = False

    def follow(self, data: bytes) -> WatchEvent | None:
        """The event, if it follows what came last; from a gap on there are none."""
        event = kv.parse_event(data)
        if self.broken or event.previous != self.last:
            self.broken = True
            return None
        self.last = event.revision
        return event
