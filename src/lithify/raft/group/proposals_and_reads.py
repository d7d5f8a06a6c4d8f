"""Pending proposals and reads of a group's clients. No I/O.

Proposals come in runs, many of them of one command; a run has one callback. Those of one round go
to the core together, in batches. A refusal by the core is answered at once. A proposal that the
core has appended, at an index and in a term, is answered by the first of these events:

1. Its index is applied with its term: it is done, and the machine's reply is the answer.
2. Its index is applied with another term, or an index below it with a higher one: it never was and
   never will be done, `ProposalDropped`. Terms do not decrease along a log, so a log that is
   committed up to an entry of a later term has no place for it. The first entry of a new leader is
   such an entry: when it is applied here, all proposals of earlier leaders are decided.
3. A snapshot of another member passes its index: `OutcomeUnknown`.
4. This member was unseated `patience_ticks` ago, and none of these has happened: it knows no new
   leader that commits. `OutcomeUnknown`, so that the client does not wait until its time limit.

That an entry was cut off the own log decides nothing: another member may have it, and be elected.

Reads of one round share one question to the core (`core.read`), which returns the index that they
must see; they are answered when it is applied. A lost question is repeated after `again_ticks`.
When leader or term change, all open questions are lost: their reads are dropped, and clients can
repeat them. So are reads that are not answered within `PATIENCE` times `again_ticks`: a member
whose disk is full follows, and applies nothing. The leader can answer them.

Every read and change is answered once, with an `CommandResult` or an error. So is every command of
a run: its callback gets parts of the run, in any order, each with its outcome.
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
    from collections.abc import Callable, Iterator, Sequence

    from lithify.raft.core.configuration import ConfChange
    from lithify.raft.core.raft_core import RaftCore
    from lithify.raft.core.ready import ReadState

    Done = Callable[["Result"], None]
    Request = tuple[bytes, Done]
    RunDone = Callable[[slice, "CommandResults | LithifyError"], None]
    """Gets a part of a run, and the outcome of all commands in it."""

    Read = tuple[int, Request]
    """(tick of its arrival, read)"""

__all__ = [
    "CommandResult",
    "CommandResults",
    "Proposals",
    "Reads",
    "Result",
    "single",
    "unwrap_many",
]

ENVELOPE = struct.Struct("<Q")
"""Before each command in an entry: the clock of the leader that received it, in milliseconds."""

PATIENCE = 2
"""A lost question is repeated once; then another member may be able to answer."""

BATCH_BYTES = 4 << 20
"""Size of a batch of proposals; the core refuses all of it or nothing."""


class CommandResult(NamedTuple):
    """A command was applied at an index, or a read saw everything up to it.

    A tuple, for the reason in `Entry`.
    """

    index: int  # type: ignore[assignment]  # No caller uses tuple.index.
    reply: bytes


Result = CommandResult | LithifyError


class CommandResults(NamedTuple):
    """Consecutive commands were applied, the first one at an index."""

    index: int  # type: ignore[assignment]  # No caller uses tuple.index.
    replies: list[bytes]


def single(done: Done) -> RunDone:
    """The callback of a run of one command."""

    def ended(_: slice, result: CommandResults | LithifyError) -> None:
        done(
            CommandResult(result.index, result.replies[0])
            if isinstance(result, CommandResults)
            else result
        )

    return ended


def unwrap_many(payloads: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    """(the leader's clock for each in milliseconds, the commands) of entries' payloads."""
    unpack, size = ENVELOPE.unpack_from, ENVELOPE.size
    return [unpack(payload)[0] for payload in payloads], [payload[size:] for payload in payloads]


@dataclass(slots=True)
class _Run:
    """Commands that were proposed together, at the indexes in [first, stop)."""

    first: int
    stop: int
    term: int
    done: RunDone
    told: int
    """All below this index were answered."""

    def tell(self, stop: int, result: CommandResults | LithifyError) -> None:
        """Answer those below an index."""
        stretch = slice(self.told - self.first, stop - self.first)
        self.told = stop
        self.done(stretch, result)


class Proposals:
    """See the module."""

    def __init__(self, group: str, patience_ticks: int) -> None:
        self._group = group
        self._patience_ticks = patience_ticks
        self._unseated_ticks = 0
        self._new: list[tuple[Sequence[bytes], RunDone]] = []
        self._changes: list[tuple[ConfChange | None, Done]] = []
        """None in place of a change is the end of the group."""
        self._waiting: deque[_Run] = deque()
        """Ascending by index, and by term."""
        self._cut: list[_Run] = []
        """Runs whose entries were cut off the own log."""

    def add(self, commands: Sequence[bytes], done: RunDone) -> None:
        """Queue a run of commands for the next round."""
        self._new.append((commands, done))

    def add_change(self, change: ConfChange | None, done: Done) -> None:
        """Queue a change of members, or (None) the end of the group, for the next round."""
        self._changes.append((change, done))

    def submit(self, core: RaftCore, time_ms: int) -> None:
        """Propose everything queued to the core."""
        new, self._new = self._new, []
        changes, self._changes = self._changes, []
        stamp = ENVELOPE.pack(max(time_ms, 0))
        start = 0
        while start < len(new):
            stop, size = start, 0
            while stop < len(new) and size < BATCH_BYTES:
                size += sum(map(len, new[stop][0]))
                stop += 1
            self._propose(core, stamp, new[start:stop])
            start = stop
        for change, done in changes:
            try:
                index = core.propose_end() if change is None else _propose_change(core, change)
            except LithifyError as error:
                done(error)
            else:
                self._wait(_Run(index, index + 1, core.term, single(done), index))

    def _propose(
        self, core: RaftCore, stamp: bytes, runs: list[tuple[Sequence[bytes], RunDone]]
    ) -> None:
        payloads = [stamp + command for commands, _ in runs for command in commands]
        try:
            first = core.propose_many(payloads).start
        except Dropped as error:
            for commands, done in runs:
                done(slice(0, len(commands)), error)
            return
        for commands, done in runs:
            stop = first + len(commands)
            self._wait(_Run(first, stop, core.term, done, first))
            first = stop

    def _wait(self, new: _Run) -> None:
        waiting = self._waiting
        while waiting and waiting[-1].stop > new.first:
            # This member was unseated, leads again, and its old entries are cut off its log.
            run = waiting.pop()
            kept = max(run.told, new.first)
            self._cut.append(_Run(run.first, run.stop, run.term, run.done, kept))
            if run.told < kept:
                run.stop = kept
                waiting.append(run)
        waiting.append(new)

    def complete_applied(self, index: int, term: int, replies: list[bytes], leader: str) -> None:
        """Entries of one term were applied, the first one at an index."""
        stop, waiting = index + len(replies), self._waiting
        while waiting and (waiting[0].told < stop or waiting[0].term < term):
            _decide(waiting[0], index, term, replies, leader)
            if waiting[0].told == waiting[0].stop:
                waiting.popleft()
        if self._cut:
            for run in self._cut:
                _decide(run, index, term, replies, leader)
            self._cut = [run for run in self._cut if run.told < run.stop]

    def complete_passed(self, index: int) -> None:
        """A snapshot of another member is in force up to an index."""
        self._doubt(index + 1)

    def tick(self, *, leads: bool) -> None:
        """Count one tick; if unseated for too long, the outcome of all proposals is unknown."""
        self._unseated_ticks = 0 if leads else self._unseated_ticks + 1
        if self._unseated_ticks > self._patience_ticks:
            self._doubt(2**63)

    def refuse_new(self, error: LithifyError) -> None:
        """Answer all queued requests with an error."""
        new, self._new = self._new, []
        changes, self._changes = self._changes, []
        for commands, run_done in new:
            run_done(slice(0, len(commands)), error)
        for _, done in changes:
            done(error)

    def close(self, error: LithifyError | None) -> None:
        """Answer all proposals; without an error, that their outcome is unknown."""
        for run in [*self._waiting, *self._cut]:
            run.tell(run.stop, error or OutcomeUnknown(self._group, run.told))
        self._waiting.clear()
        self._cut.clear()

    def _doubt(self, stop: int) -> None:
        """The outcome of proposals below an index is unknown."""
        runs = [*self._waiting, *self._cut]
        for run in runs:
            if run.told < stop:
                run.tell(min(run.stop, stop), OutcomeUnknown(self._group, run.told))
        self._waiting = deque(run for run in self._waiting if run.told < run.stop)
        self._cut = [run for run in self._cut if run.told < run.stop]


def _propose_change(core: RaftCore, change: ConfChange) -> int:
    """Append a change; if another has to come first, append that one and raise."""
    first = core.prepared(change)
    index = core.propose_change(first)
    if first is not change:
        raise ProposalDropped(DropReason.LEARNER_FIRST, core.status().leader)
    return index


def _decide(run: _Run, index: int, term: int, replies: list[bytes], leader: str) -> None:
    """Answer the decided part of a run, after entries of a term were applied from an index on."""
    end = run.stop if run.term < term else min(run.stop, index + len(replies))
    if run.told >= end:
        return
    if run.term == term:
        run.tell(end, CommandResults(run.told, replies[run.told - index : end - index]))
    else:
        run.tell(end, ProposalDropped(DropReason.NOT_LEADER, leader))


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
            _tell(late, ReadDropped(reason, leader))

    def submit(self, core: RaftCore) -> None:
        """Ask the core about all queued reads."""
        if not self._new:
            return
        reads, self._new = self._new, []
        self._context += 1
        try:
            core.read(self._context)
        except Dropped as error:
            _tell(reads, error)
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
        _tell(reads, error)

    def drop_unconfirmed(self, leader: str) -> None:
        """Leader or term have changed: open questions will not be answered."""
        asked, self._asked = self._asked, {}
        reason = DropReason.NOT_LEADER if leader else DropReason.NO_LEADER
        for question in asked.values():
            _tell(question.reads, ReadDropped(reason, leader))


def _tell(reads: list[Read], error: LithifyError) -> None:
    for _, (_, done) in reads:
        done(error)
