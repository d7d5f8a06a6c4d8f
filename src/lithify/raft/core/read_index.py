"""Linearizable reads without a log entry. Pure.

1. A read that reaches the leader is linearizable at the commit index of that moment, if the leader
   still leads. A new leader may not know yet what its predecessors have committed: until an entry
   of its own term is committed, reads wait.
2. A round of heartbeats confirms that it still leads. Rounds are numbered; all reads since the last
   `ready()` share the next one. The newest answered round of each member is known, so the newest
   round that a quorum has answered confirms every read up to it: nothing is counted per read.
3. The reader waits until the index is applied on its own member.

A leader that steps down drops its reads; the clients retry. Only the leader calls it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Read", "ReadQueue"]


@dataclass(frozen=True, slots=True)
class Read:
    """A read: its node and the node's number for it."""

    node: str
    context: int


class ReadQueue:
    """The reads of one leader in one term."""

    def __init__(self) -> None:
        self.round = 0
        """The newest round; every heartbeat contains it."""
        self._early: list[Read] = []
        self._new: list[tuple[int, Read]] = []
        self._sent: deque[tuple[int, int, Read]] = deque()
        """(round, index, read)"""

    def add(self, read: Read, commit: int | None) -> None:
        """Add a read at the commit index; None while no entry of the leader's term is committed."""
        if commit is None:
            self._early.append(read)
        else:
            self._new.append((commit, read))

    def release_early(self, commit: int) -> None:
        """An entry of the leader's term is committed."""
        self._new += [(commit, read) for read in self._early]
        self._early.clear()

    @property
    def is_empty(self) -> bool:
        """Whether no read is open."""
        return not (self._new or self._sent or self._early)

    @property
    def has_new(self) -> bool:
        """Whether a new round is needed."""
        return bool(self._new)

    def begin_round(self) -> None:
        """Begin a round for all new reads."""
        self.round += 1
        self._sent += [(self.round, index, read) for index, read in self._new]
        self._new.clear()

    def confirm(self, round_: int) -> list[tuple[int, Read]]:
        """A quorum has answered this round; returns the confirmed reads with their index."""
        confirmed = []
        while self._sent and self._sent[0][0] <= round_:
            _, index, read = self._sent.popleft()
            confirmed.append((index, read))
        return confirmed
