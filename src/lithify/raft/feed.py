"""What a group's machine sends to one client, as the client takes it. One event loop.

A feed has a connection of its own, so that a client that is slow to take what comes slows nobody
else down: when `INBOX_BYTES_MAX` wait here the connection is not read from, and what waits at the
node from then on is the node's to bound (`watching.py`).

While nothing comes, the leader is asked something every `QUIET_S`. If it does not answer within
`ANSWER_S` the feed is over, as it is when the connection ends or the node says so. Who wants more
begins another (`RaftClient.watch`).

An answer tells up to which index the leader had applied. What was sent until then may still be
behind it, but is there when the next answer comes: so `seen_index` is that of the answer before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from lithify.raft.operations import Operation, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.client import Connection

__all__ = ["Feed", "Inbox"]

INBOX_BYTES_MAX = 4 * 2**20
QUIET_S = 2.0
ANSWER_S = 3.0


class Inbox:
    """What has come over a connection and was not taken yet."""

    def __init__(self, read_on: Callable[[bool], None]) -> None:
        self._read_on = read_on
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self.takes_all = False
        """Is something waited for that stands behind what comes?"""
        self.over = False
        """Nothing more will come."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Should nothing more be read for now?"""
        return self._bytes > INBOX_BYTES_MAX

    def put(self, data: bytes) -> None:
        """Something has come."""
        self._waiting.append(data)
        self._bytes += len(data)
        self._changed.set()
        if self.full and not self.takes_all:
            self._read_on(False)  # noqa: FBT003  (what it is called with is its name)

    def take(self) -> bytes:
        """What came first."""
        was_full = self.full
        data = self._waiting.popleft()
        self._bytes -= len(data)
        if was_full and not self.full:
            self._read_on(True)  # noqa: FBT003
        return data

    def end(self) -> None:
        """Nothing more will come."""
        self.over = True
        self._changed.set()

    async def wait(self) -> None:
        """Come back when there is something to take, or never will be."""
        while not self._waiting and not self.over:
            self._changed.clear()
            await self._changed.wait()


class Feed:
    """See the module."""

    def __init__(self, connection: Connection, group: str, reply: bytes) -> None:
        self.reply = reply
        """The machine's, to the command that began it."""
        self._connection = connection
        self._inbox = connection.inbox
        self._group = group
        self._answered_index = 0
        self.seen_index = 0
        """All that was sent up to this index of the log has come."""

    @property
    def waiting(self) -> int:
        """How many things can be taken at once."""
        return len(self._inbox)

    @property
    def over(self) -> bool:
        """Will nothing more come?"""
        return self._inbox.over

    async def take(self) -> bytes | None:
        """The next thing that was sent; None if nothing more will come."""
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
        """The machine's answer to a query, over the same connection; None if there will be none.

        What is sent later than it was answered comes later.
        """
        # Whatever stands before the answer has to be taken in; the node bounds how much that is.
        self._inbox.takes_all = True
        self._connection.channel.read_on(wanted=True)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._connection.ask(self._group, Operation.READ, query)
        except TimeoutError:
            return None
        finally:
            self._inbox.takes_all = False
            self._connection.channel.read_on(wanted=not self._inbox.full)
        if answer is None or answer.outcome != Outcome.DONE:
            return None
        if not self._inbox.over:
            # Else something before this answer may not have been sent.
            self.seen_index, self._answered_index = self._answered_index, answer.log_index
        return answer.body

    def close(self) -> None:
        """Want no more."""
        self._inbox.end()
        self._connection.channel.close()
