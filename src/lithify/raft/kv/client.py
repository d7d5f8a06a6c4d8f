"""A client of the key-value machine: the commands of `format.py` as calls.

    async with RaftClient(addresses) as client:
        kv = KvClient(client, "default")
        await kv.put(b"colour", b"red")

A call returns when the command is committed and applied; any number may be in flight. Errors are
those of `raft/client/client.py`. One event loop.

`watch` yields the changes under a prefix, in the order of their revisions, and resumes by itself
when connections break or leaders change:

1. It creates a watcher, from the last known revision. The machine sends what was missed, or says
   that it cannot: then `watch` yields a `WatchReset`.
2. After a reset it reads all rows, page by page, over the watcher's connection. A row whose
   revision is above the reset's has changed since, and arrives as an event too. So a row never
   comes after a later change of its key: the page was read before that change, and precedes it.
3. Every event names the one before it. If that is not the last one received, or if the feed is
   over, it starts again at 1. A reset whose rows were not all read starts again too.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lithify.raft.kv import format as kv
from lithify.raft.kv.format import KvOutcome, WatchEvent
from lithify.raft.net.client_operations import ClientOperation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from lithify.raft.client.client import RaftClient
    from lithify.raft.client.event_feed import EventFeed
    from lithify.raft.kv.format import KvRow, Reply

__all__ = ["FROM_NOW", "KvClient", "WatchReset"]

FROM_NOW = 2**63 - 1
"""The known revision of a watcher that wants only future changes."""
PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class WatchReset:
    """Changes were missed that cannot be sent: discard all known keys.

    The keys of this revision follow as puts, and then later changes.
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
        """The value of a key; linearizable."""
        _, reply = await self.client.ask(self.group, ClientOperation.READ, kv.get(key))
        return kv.parse_reply(reply)

    async def scan(self, prefix: bytes, rows_max: int, after: bytes = b"") -> list[KvRow]:
        """Keys with a prefix, ascending, above `after`.

        Each page is of one moment; a large answer has several pages.
        """
        rows: list[KvRow] = []
        while len(rows) < rows_max:
            query = kv.scan(prefix, min(rows_max - len(rows), kv.SCAN_ROWS_MAX), after)
            _, reply = await self.client.ask(self.group, ClientOperation.READ, query)
            page = kv.parse_rows(reply)
            rows += page
            if not page or not page[-1].key:
                break
            after = page[-1].key
        return rows

    async def watch(
        self, prefix: bytes, known: int = 0
    ) -> AsyncGenerator[WatchEvent | WatchReset, None]:
        """Changes of keys with a prefix, above a known revision; see the module.

        Raises an error of `raft/client/client.py` if no leader is found in time. To stop earlier,
        close the generator (`contextlib.aclosing`) or the client.
        """
        while True:
            feed = await self.client.watch(self.group, partial(kv.watch, prefix, known=known))
            with closing(feed):
                reply = kv.parse_reply(feed.reply)
                chain = _Chain(min(known, reply.revision))
                if reply.outcome is KvOutcome.RESET:
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
        self, feed: EventFeed, prefix: bytes, chain: _Chain, revision: int
    ) -> AsyncGenerator[WatchEvent, None]:
        """All rows of a revision, and events that arrive meanwhile."""
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
        _, reply = await self.client.ask(self.group, ClientOperation.PROPOSE, command)
        return kv.parse_reply(reply)


class _Chain:
    """Checks that events follow each other without a gap."""

    def __init__(self, last: int) -> None:
        self.last = last
        """The revision of the last event."""
        self.broken = False

    def follow(self, data: bytes) -> WatchEvent | None:
        """The event, if it follows the last one; None from the first gap on."""
        event = kv.parse_event(data)
        if self.broken or event.previous != self.last:
            self.broken = True
            return None
        self.last = event.revision
        return event
