"""The leader's state of one member: how far its log is, and how to send to it. Pure.

| state | meaning | sends |
|---|---|---|
| probe | where the logs diverge is not known | one message, then waits for a reply or heartbeat |
| replicate | the logs agree up to `match` | ahead of the replies, up to the limits in flight |
| snapshot | the entries it needs are compacted | nothing, until the transfer is complete |

`match` is what the member has acknowledged, `next` the first index to send. Always match < next.

    probe --has--> replicate --no match, unreachable--> probe
    probe, replicate --compacted--> snapshot --transfer complete--> probe
                                    snapshot --has enough--> replicate
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

__all__ = ["Flow", "Inflight", "Progress"]


NEVER_HEARD = 1 << 40
"""Ticks, more than any election timeout."""


class Flow(StrEnum):
    """The state of sending; see the module."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Inflight:
    """Messages with entries in flight, by their last index, oldest first."""

    __slots__ = ("_bytes", "_bytes_max", "_messages", "_messages_max")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        """Whether the next message must wait."""
        return len(self._messages) >= self._messages_max or self._bytes >= self._bytes_max

    def add(self, last_index: int, size_bytes: int) -> None:
        """Record a sent message."""
        self._messages.append((last_index, size_bytes))
        self._bytes += size_bytes

    def free_to(self, index: int) -> None:
        """Everything up to `index` has arrived."""
        while self._messages and self._messages[0][0] <= index:
            self._bytes -= self._messages.popleft()[1]

    def free_oldest(self) -> None:
        """Its reply may be lost: make room for one message that finds out."""
        if self._messages:
            self._bytes -= self._messages.popleft()[1]

    def clear(self) -> None:
        """Treat no message as in flight."""
        self._messages.clear()
        self._bytes = 0


class Progress:
    """See the module."""

    __slots__ = (
        "commit_sent",
        "due",
        "flow",
        "inflight",
        "match",
        "next",
        "recently_active",
        "round",
        "silent_ticks",
        "waiting",
    )

    def __init__(self, next_index: int, inflight: Inflight) -> None:
        self.flow = Flow.PROBE
        self.match = 0
        self.next = next_index
        self.inflight = inflight
        self.waiting = False
        """A probe was sent and not answered."""
        self.due = False
        """A message must be sent even without entries: the reply tells whether one was lost."""
        self.recently_active = True
        """Whether it has answered since the last check of the quorum; true for a new member."""
        self.silent_ticks = NEVER_HEARD
        """Ticks since its last reply to this leader."""
        self.round = 0
        """The newest round of heartbeats that it has answered."""
        self.commit_sent = 0
        """The highest commit index that was sent to it."""

    def answered(self) -> None:
        """Record a reply of any kind."""
        self.recently_active = True
        self.silent_ticks = 0

    @property
    def paused(self) -> bool:
        """Whether nothing may be sent now."""
        if self.flow is Flow.REPLICATE:
            return self.inflight.full
        return self.flow is Flow.SNAPSHOT or self.waiting

    def lacks(self, last_index: int, commit: int) -> bool:
        """Whether something is to be sent, be it now or after a pause."""
        return self.next <= last_index or self.commit_sent < commit or self.due

    def probe(self, next_index: int) -> None:
        """Search for where the logs diverge, starting at `next_index`."""
        self.flow = Flow.PROBE
        self.next = max(next_index, self.match + 1)
        self.waiting = False
        self.due = True
        self.inflight.clear()

    def replicate(self) -> None:
        """Send ahead, from `match` on."""
        self.flow = Flow.REPLICATE
        self.next = self.match + 1
        self.waiting = False
        self.inflight.clear()

    def await_snapshot(self) -> None:
        """Send nothing while a snapshot is transferred."""
        self.flow = Flow.SNAPSHOT
        self.waiting = False
        self.inflight.clear()

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Record a sent message whose entries, if it has any, end at `last_index`."""
        if self.flow is Flow.PROBE:
            self.waiting = True
        elif last_index >= self.next:
            self.next = last_index + 1
            self.inflight.add(last_index, size_bytes)

    def acknowledged(self, index: int) -> bool:
        """It has everything up to `index`; returns whether that is an advance."""
        advanced = index > self.match
        if advanced:
            self.match = index
            self.next = max(self.next, index + 1)
            self.waiting = False
        if self.flow is Flow.REPLICATE:
            self.inflight.free_to(index)
        return advanced

    def rejected(self, index: int, hint: int) -> bool:
        """Its log does not match at `index`, and may match at `hint`; returns whether that was new.

        Replies may come late or twice. While replicating, a rejection of an index that was
        acknowledged since is outdated; while probing, one of any index but the probed one.
        """
        if self.flow is Flow.REPLICATE:
            if index <= self.match:
                return False
            self.probe(self.match + 1)
            return True
        if self.flow is Flow.SNAPSHOT or index != self.next - 1:
            return False
        self.probe(min(index, hint + 1))
        return True

    def __str__(self) -> str:
        parts = [f"{self.flow} match {self.match} next {self.next}"]
        if self.inflight:
            parts.append(f"inflight {len(self.inflight)}")
        if self.paused:
            parts.append("paused")
        if not self.recently_active:
            parts.append("silent")
        return " ".join(parts)
