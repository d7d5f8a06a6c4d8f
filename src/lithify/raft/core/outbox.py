"""Messages on their way out, and those that wait for the disk. Pure.

A message says something about its sender: I have voted, I have these entries, I stand for election.
What depends on durable state is **held** under the number of the storage append that will make it
durable, and goes out when that is acknowledged. The rest goes at once.

| held | goes at once |
|---|---|
| append replies, vote replies | append requests, heartbeats and their replies |
| vote requests | pre-vote requests, reads, campaign-now |

Vote requests are held because a candidate that forgot its term in a crash could stand a second time
in the same term, with another log.

Only the engine calls it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lithify.raft.core.messages import Message

__all__ = ["Outbox"]


class Outbox:
    """See the module."""

    def __init__(self) -> None:
        self.handed = 0
        """The number of the last storage append that was handed out."""
        self._done = 0
        self._messages: list[Message] = []
        self._held: deque[tuple[int, Message]] = deque()

    def send(self, message: Message) -> None:
        """Nothing must be durable for this."""
        self._messages.append(message)

    def hold(self, message: Message, *, unwritten: bool) -> None:
        """Send when all that is known now is durable, which may be at once.

        `unwritten` says that some of it was not handed out yet: the next append will have it.
        """
        number = self.handed + unwritten
        if number > self._done:
            self._held.append((number, message))
        else:
            self._messages.append(message)

    @property
    def wants_append(self) -> bool:
        """Does a message wait for an append that was not handed out?"""
        return bool(self._held) and self._held[-1][0] > self.handed

    def release(self, number: int) -> list[Message]:
        """Appends up to `number` are durable; the messages that waited for them, oldest first."""
        self._done = max(self._done, number)
        released = []
        while self._held and self._held[0][0] <= self._done:
            released.append(self._held.popleft()[1])
        return released

    def take(self) -> list[Message]:
        """All that may be sent now."""
        messages, self._messages = self._messages, []
        return messages
