"""What clients of a group wait for: proposals and reads. No I/O.

Proposals. Those of one round go to the core together, in batches. Each is answered when its index
is applied: if the entry there is the one that was proposed, it has the term it was proposed in, and
the machine's reply is the answer. If it has another, somebody else's entry took its place, and the
proposal never was and never will be done: `ProposalDropped`, ask again. If a snapshot of another
member passes the index, or the entry was cut off the log, nobody here knows: `OutcomeUnknown`.

Reads. Those of one round share one question to the core (`core.read`), which tells the index that
they must see; they are answered when it is applied. A question that got lost is asked again after
`again_ticks`. When leader or term change, all questions that are open are lost: these reads are
dropped, and can be asked again by whoever wants them.

Every `done` is called once, with an `Answer` or an error.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lithify.errors import LithifyError
from lithify.raft.core.errors import Dropped, DropReason, ProposalDropped, ReadDropped
from lithify.raft.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.raft.core.config import ConfChange
    from lithify.raft.core.core import RaftCore
    from lithify.raft.core.ready import ReadState
    from lithify.raft.entry import Entry

    Done = Callable[["Result"], None]
    Request = tuple[bytes, Done]

__all__ = ["Answer", "Proposals", "Reads", "Result", "unwrap"]

ENVELOPE = struct.Struct("<Q")
"""Before each command in an entry: the clock of the leader that took it, in milliseconds."""

BATCH_BYTES = 4 << 20
"""Proposals that go to the core at once; they are refused as a whole or not at all."""


class Answer(NamedTuple):
    """A command was applied at an index, or a read saw everything up to it.

    A tuple for the reason that `Entry` is one.
    """

    index: int  # type: ignore[assignment]  # Nobody looks for the place of a value in it.
    reply: bytes


Result = Answer | LithifyError


def unwrap(payload: bytes) -> tuple[int, bytes]:
    """(when the leader took it, in milliseconds; the command) of an entry's payload."""
    (time_ms,) = ENVELOPE.unpack_from(payload)
    return time_ms, payload[ENVELOPE.size :]


class Proposals:
    """See the module."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._new: list[Request] = []
        self._changes: list[tuple[ConfChange, Done]] = []
        self._waiting: deque[tuple[int, int, Done]] = deque()
        """(index, term, done), ascending by index."""

    def add(self, command: bytes, done: Done) -> None:
        """A command, for the next round."""
        self._new.append((command, done))

    def add_change(self, change: ConfChange, done: Done) -> None:
        """A change of members, for the next round."""
        self._changes.append((change, done))

    def hand_in(self, core: RaftCore, time_ms: int) -> None:
        """Give all that came to the core."""
        new, self._new = self._new, []
        changes, self._changes = self._changes, []
        stamp = ENVELOPE.pack(max(time_ms, 0))
        start = 0
        while start < len(new):
            stop, size = start, 0
            while stop < len(new) and size < BATCH_BYTES:
                size += len(new[stop][0])
                stop += 1
            self._propose(core, stamp, new[start:stop])
            start = stop
        for change, done in changes:
            try:
                index = core.propose_change(change)
            except LithifyError as error:
                done(error)
            else:
                self._wait(index, core.term, done)

    def _propose(self, core: RaftCore, stamp: bytes, batch: list[Request]) -> None:
        try:
            indexes = core.propose_many([stamp + command for command, _ in batch])
        except Dropped as error:
            for _, done in batch:
                done(error)
            return
        term = core.term
        for index, (_, done) in zip(indexes, batch, strict=True):
            self._wait(index, term, done)

    def _wait(self, index: int, term: int, done: Done) -> None:
        while self._waiting and self._waiting[-1][0] >= index:
            # This member was unseated, leads again, and its old entries are gone from its log. But
            # another may still have them, and be elected.
            place, _, forgotten = self._waiting.pop()
            forgotten(OutcomeUnknown(self._group, place))
        self._waiting.append((index, term, done))

    def applied(self, entry: Entry, reply: bytes, leader: str) -> None:
        """An entry was applied."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= entry.index:
            index, term, done = waiting.popleft()
            if index == entry.index and term == entry.term:
                done(Answer(index, reply))
            else:
                done(ProposalDropped(DropReason.NOT_LEADER, leader))

    def passed(self, index: int) -> None:
        """A snapshot of another member is in force up to an index."""
        while self._waiting and self._waiting[0][0] <= index:
            place, _, done = self._waiting.popleft()
            done(OutcomeUnknown(self._group, place))


@dataclass(slots=True)
class _Question:
    """Reads that share one question to the core."""

    reads: list[Request]
    asked_tick: int


class Reads:
    """See the module."""

    def __init__(self, context: int, again_ticks: int) -> None:
        """`context` is a random number: questions of an earlier life must not be taken for own."""
        self._context = context
        self._again_ticks = again_ticks
        self._tick = 0
        self._new: list[Request] = []
        self._asked: dict[int, _Question] = {}
        self._due: list[tuple[int, list[Request]]] = []
        """(index that must be applied, reads)"""

    def add(self, query: bytes, done: Done) -> None:
        """A read, for the next round."""
        self._new.append((query, done))

    def tick(self) -> None:
        """Time has passed: what was asked long ago is asked again."""
        self._tick += 1
        for context, question in list(self._asked.items()):
            if question.asked_tick + self._again_ticks <= self._tick:
                del self._asked[context]
                self._new += question.reads

    def hand_in(self, core: RaftCore) -> None:
        """Ask the core about all that came."""
        if not self._new:
            return
        reads, self._new = self._new, []
        self._context += 1
        try:
            core.read(self._context)
        except Dropped as error:
            for _, done in reads:
                done(error)
        else:
            self._asked[self._context] = _Question(reads, self._tick)

    def confirmed(self, states: list[ReadState]) -> None:
        """The core knows what they must see."""
        for state in states:
            question = self._asked.pop(state.context, None)
            if question is not None:
                self._due.append((state.index, question.reads))

    def take_due(self, applied: int) -> list[Request]:
        """The reads that can be answered now."""
        if not self._due:
            return []
        due = [read for index, reads in self._due if index <= applied for read in reads]
        self._due = [each for each in self._due if each[0] > applied]
        return due

    def lost(self, leader: str) -> None:
        """Leader or term have changed: what was asked will not be answered."""
        asked, self._asked = self._asked, {}
        reason = DropReason.NOT_LEADER if leader else DropReason.NO_LEADER
        for question in asked.values():
            for _, done in question.reads:
                done(ReadDropped(reason, leader))
