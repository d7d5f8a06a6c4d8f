"""Outgoing messages, and those that wait until state is durable. Pure.

A message makes a statement about its sender: that it has voted, has these entries, is a candidate.
If the statement depends on durable state, the message is **held** under the number of the storage
append that will make it durable, and is sent when that is acknowledged. Others are sent at once.

| held | sent at once |
|---|---|
| append replies, vote replies | append requests, heartbeats and their replies |
| vote requests | pre-vote requests, reads, campaign-now |

Vote requests are held because a candidate that lost its term in a crash could campaign a second
time in the same term, with another log.

Only the engine calls it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.raft.core.messages import RaftMessage

__all__ = ["Outbox"]


class Outbox:
    """See the module."""

    def __init__(self) -> None:
        self.handed = 0
        """The number of the last storage append that was handed out."""
        self._done = 0
        self._messages: list[RaftMessage] = []
        self._held: deque[tuple[int, RaftMessage]] = deque()

    def send(self, message: RaftMessage) -> None:
        """Send a message that depends on no durable state."""
        self._messages.append(message)

    def hold(self, message: RaftMessage, *, unwritten: bool) -> None:
        """Send a message when everything known now is durable, which may be at once.

        `unwritten`: some of it was not handed out; the next append will contain it.
        """
        number = self.handed + unwritten
        if number > self._done:
            self._held.append((number, message))
        else:
            self._messages.append(message)

    @property
    def has_messages(self) -> bool:
        """Whether there are messages to send now."""
        return bool(self._messages)

    @property
    def wants_append(self) -> bool:
        """Whether a message waits for an append that was not handed out."""
        return bool(self._held) and self._held[-1][0] > self.handed

    def release(self, number: int) -> list[RaftMessage]:
        """Appends up to `number` are durable; returns the messages that waited, oldest first."""
        self._done = max(self._done, number)
        released = []
        while self._held and self._held[0][0] <= self._done:
            released.append(self._held.popleft()[1])
        return released

    def take(self) -> list[RaftMessage]:
        """All messages to send now."""
        messages, self._messages = self._messages, []
        return messages
