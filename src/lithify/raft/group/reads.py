"""Pending reads of a group's clients. No I/O.

Reads of one round share one question to the core (`core.read`), which returns the index that they
must see; they are answered when it is applied. A lost question is repeated after `again_ticks`.
When leader or term change, all open questions are lost: their reads are dropped, and clients can
repeat them. So are reads that are not answered within `PATIENCE` times `again_ticks`: a member
whose disk is full follows, and applies nothing. The leader can answer them.

Every read is answered once, with a `CommandResult` or an error.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.raft.core.errors import Dropped, DropReason, ReadDropped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lithify.errors import LithifyError
    from lithify.raft.commands import Done
    from lithify.raft.core.raft_core import RaftCore
    from lithify.raft.core.ready import ReadState

    Request = tuple[bytes, Done]
    Read = tuple[int, Request]
    """(tick of its arrival, read)"""

__all__ = ["Reads"]

PATIENCE = 2
"""A lost question is repeated once; then another member may be able to answer."""


@dataclass(slots=True)
class _Question:
    """Reads that share one question to the core."""

    reads: list[Read]
    asked_tick: int


class Reads:
    """See the module."""

    def __init__(self, context: int, again_ticks: int) -> None:
        """`context` is random: answers to questions before a restart must not match."""
        self._context = context
        self._again_ticks = again_ticks
        self._tick = 0
        self._new: list[Read] = []
        self._asked: dict[int, _Question] = {}
        self._due: list[tuple[int, deque[Read]]] = []
        """(index that must be applied, reads)"""

    def add(self, query: bytes, done: Done) -> None:
        """Queue a read for the next round."""
        self._new.append((self._tick, (query, done)))

    def tick(self, leader: str) -> None:
        """Count one tick: repeat or drop old questions.

        `leader` is another member that leads; empty if there is none.
        """
        self._tick += 1
        for context, question in list(self._asked.items()):
            if question.asked_tick + self._again_ticks <= self._tick:
                del self._asked[context]
                self._new += question.reads
        oldest = self._tick - PATIENCE * self._again_ticks
        late = [read for read in self._new if read[0] <= oldest]
        late += (read for _, reads in self._due for read in reads if read[0] <= oldest)
        if late:
            self._new = [read for read in self._new if read[0] > oldest]
            kept = ((i, deque(read for read in due if read[0] > oldest)) for i, due in self._due)
            self._due = [each for each in kept if each[1]]
            reason = DropReason.NOT_LEADER if leader else DropReason.BEHIND
            _answer(late, ReadDropped(reason, leader))

    @property
    def is_idle(self) -> bool:
        """Does no read wait?"""
        return not (self._new or self._asked or self._due)

    def submit(self, core: RaftCore) -> None:
        """Ask the core about all queued reads."""
        if not self._new:
            return
        reads, self._new = self._new, []
        self._context += 1
        try:
            core.read(self._context)
        except Dropped as error:
            _answer(reads, error)
        else:
            self._asked[self._context] = _Question(reads, self._tick)

    def confirm(self, states: list[ReadState]) -> None:
        """The core has returned the indexes that reads must see."""
        for state in states:
            question = self._asked.pop(state.context, None)
            if question is not None:
                self._due.append((state.index, deque(question.reads)))

    def take_due(self, applied: int) -> Iterator[Request]:
        """The reads that can be answered now; the caller may leave some of them for later."""
        for index, reads in self._due:
            while reads and index <= applied:
                yield reads.popleft()[1]

    def is_due(self, applied: int) -> bool:
        """Can more reads be answered now?"""
        self._due = [each for each in self._due if each[1]]
        return any(index <= applied for index, _ in self._due)

    def close(self, error: LithifyError) -> None:
        """Answer all reads with an error."""
        reads = [read for question in self._asked.values() for read in question.reads]
        reads += self._new
        reads += (read for _, due in self._due for read in due)
        self._asked, self._new, self._due = {}, [], []
        _answer(reads, error)

    def drop_unconfirmed(self, leader: str) -> None:
        """Leader or term have changed: open questions will not be answered."""
        asked, self._asked = self._asked, {}
        reason = DropReason.NOT_LEADER if leader else DropReason.NO_LEADER
        for question in asked.values():
            _answer(question.reads, ReadDropped(reason, leader))


def _answer(reads: list[Read], error: LithifyError) -> None:
    for _, (_, done) in reads:
        done(error)
