"""What a group's machine sends to one watching client, queued for the client. One event loop.

A feed has its own connection, so that a slow client delays no other. While `INBOX_BYTES_MAX` wait
here the connection is not read; the node bounds what waits on its side (`raft/node/watches.py`).

While nothing arrives, the client queries the leader every `QUIET_S`. If the leader does not answer
within `ANSWER_S` the feed is over, as it is when the connection closes or the node ends the watch.
A caller that wants more starts another (`RaftClient.watch`).

An answer has the index up to which the leader had applied. Messages sent up to that index may still
follow the answer, but arrive before the next one: so `seen_index` is that of the answer before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from lithify.raft.net.client_operations import ClientOperation, OperationOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.client.client import NodeConnection

__all__ = ["EventFeed", "Inbox"]

INBOX_BYTES_MAX = 4 * 2**20
QUIET_S = 2.0
ANSWER_S = 3.0


class Inbox:
    """Messages that were received and not taken yet."""

    def __init__(self, read_on: Callable[[bool], None]) -> None:
        self._read_on = read_on
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self.takes_all = False
        """Read everything, because an answer follows the messages?"""
        self.over = False
        """No more messages will arrive."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Should reading pause?"""
        return self._bytes > INBOX_BYTES_MAX

    def put(self, data: bytes) -> None:
        """Add a message."""
        self._waiting.append(data)
        self._bytes += len(data)
        self._changed.set()
        if self.full and not self.takes_all:
            self._read_on(False)  # noqa: FBT003  (the callback's only argument)

    def take(self) -> bytes:
        """Remove the oldest message."""
        was_full = self.full
        data = self._waiting.popleft()
        self._bytes -= len(data)
        if was_full and not self.full:
            self._read_on(True)  # noqa: FBT003
        return data

    def end(self) -> None:
        """No more messages will arrive."""
        self.over = True
        self._changed.set()

    async def wait(self) -> None:
        """Return when there is a message, or when none will arrive."""
        while not self._waiting and not self.over:
            self._changed.clear()
            await self._changed.wait()


class EventFeed:
    """See the module."""

    def __init__(self, connection: NodeConnection, group: str, reply: bytes) -> None:
        self.reply = reply
        """The machine's reply to the command that started the watch."""
        self._connection = connection
        self._inbox = connection.inbox
        self._group = group
        self._answered_index = 0
        self.seen_index = 0
        """All messages sent up to this index of the log have arrived."""

    @property
    def waiting(self) -> int:
        """The number of messages that can be taken at once."""
        return len(self._inbox)

    @property
    def over(self) -> bool:
        """Will no more messages arrive?"""
        return self._inbox.over

    async def take(self) -> bytes | None:
        """The next message; None if none will arrive."""
        inbox = self._inbox
        while not inbox:
            if inbox.over:
                return None
            try:
                async with asyncio.timeout(QUIET_S):
                    await inbox.wait()
            except TimeoutError:
                if await self.read(b"") is None:
                    inbox.end()
        return inbox.take()

    async def read(self, query: bytes) -> bytes | None:
        """The machine's answer to a query, over the same connection; None if there is none.

        Messages sent after the answer arrive after it.
        """
        # Messages before the answer must be read; the node bounds them.
        self._inbox.takes_all = True
        self._connection.channel.read_on(wanted=True)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._connection.ask(self._group, ClientOperation.READ, query)
        except TimeoutError:
            return None
        finally:
            self._inbox.takes_all = False
            self._connection.channel.read_on(wanted=not self._inbox.full)
        if answer is None or answer.outcome != OperationOutcome.DONE:
            return None
        if not self._inbox.over:
            # Otherwise a message before this answer may not have been sent.
            self.seen_index, self._answered_index = self._answered_index, answer.log_index
        return answer.body

    def close(self) -> None:
        """End the watch."""
        self._inbox.end()
        self._connection.channel.close()
