"""Pending proposals of a group's clients. No I/O.

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

Every change is answered once, with a `CommandResult` or an error. So is every command of a run: its
callback gets parts of the run, in any order, each with its outcome.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.errors import LithifyError
from lithify.raft.commands import ENVELOPE, CommandResults, single
from lithify.raft.core.errors import Dropped, DropReason, ProposalDropped
from lithify.raft.errors import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lithify.raft.commands import Done, RunDone
    from lithify.raft.core.configuration import ConfChange
    from lithify.raft.core.raft_core import RaftCore

__all__ = ["Proposals"]

BATCH_BYTES = 4 << 20
"""Size of a batch of proposals; the core refuses all of it or nothing."""


@dataclass(slots=True)
class _Run:
    """Commands that were proposed together, at the indexes in [first, stop)."""

    first: int
    stop: int
    term: int
    done: RunDone
    answered_until: int
    """All below this index were answered."""

    def answer(self, stop: int, result: CommandResults | LithifyError) -> None:
        """Answer those below an index."""
        stretch = slice(self.answered_until - self.first, stop - self.first)
        self.answered_until = stop
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
            kept = max(run.answered_until, new.first)
            self._cut.append(_Run(run.first, run.stop, run.term, run.done, kept))
            if run.answered_until < kept:
                run.stop = kept
                waiting.append(run)
        waiting.append(new)

    def complete_applied(self, index: int, term: int, replies: list[bytes], leader: str) -> None:
        """Entries of one term were applied, the first one at an index."""
        stop, waiting = index + len(replies), self._waiting
        while waiting and (waiting[0].answered_until < stop or waiting[0].term < term):
            _decide(waiting[0], index, term, replies, leader)
            if waiting[0].answered_until == waiting[0].stop:
                waiting.popleft()
        if self._cut:
            for run in self._cut:
                _decide(run, index, term, replies, leader)
            self._cut = [run for run in self._cut if run.answered_until < run.stop]

    def complete_passed(self, index: int) -> None:
        """A snapshot of another member is in force up to an index."""
        self._doubt(index + 1)

    def tick(self, *, leads: bool) -> None:
        """Count one tick; if unseated for too long, the outcome of all proposals is unknown."""
        self._unseated_ticks = 0 if leads else self._unseated_ticks + 1
        if self._unseated_ticks > self._patience_ticks:
            self._doubt(2**63)

    @property
    def is_idle(self) -> bool:
        """Does no proposal wait?"""
        return not (self._new or self._changes or self._waiting or self._cut)

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
            run.answer(run.stop, error or OutcomeUnknown(self._group, run.answered_until))
        self._waiting.clear()
        self._cut.clear()

    def _doubt(self, stop: int) -> None:
        """The outcome of proposals below an index is unknown."""
        runs = [*self._waiting, *self._cut]
        for run in runs:
            if run.answered_until < stop:
                run.answer(min(run.stop, stop), OutcomeUnknown(self._group, run.answered_until))
        self._waiting = deque(run for run in self._waiting if run.answered_until < run.stop)
        self._cut = [run for run in self._cut if run.answered_until < run.stop]


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
    if run.answered_until >= end:
        return
    if run.term == term:
        run.answer(
            end,
            CommandResults(run.answered_until, replies[run.answered_until - index : end - index]),
        )
    else:
        run.answer(end, ProposalDropped(DropReason.NOT_LEADER, leader))
