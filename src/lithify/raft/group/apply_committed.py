"""Applies committed entries to a group's machine, as many at a time as it accepts.

1. Entries are split into runs of one term and kind; nearly always there is one run.
2. The machine gets the commands of a run together, without their envelopes. A machine that takes
   one command at a time gets them one by one (`apply_many_of`).
3. Entries after the end of a group are not applied.
4. After each step the caller gets what was applied, and does its effects before the next step.

Only the group calls, in its thread.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lithify.raft.commands import unwrap_many
from lithify.raft.core import Config, EntryKind
from lithify.raft.machine import CommandBatch, ManyMachine, Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lithify.raft.entry import Entry
    from lithify.raft.machine import Effect, Machine
    from lithify.raft.snapshots.taking import ApplyPosition

    S = TypeVar("S")
    ApplyMany = Callable[[CommandBatch, int, S], tuple[S, list[bytes], Sequence[Effect]]]

__all__ = ["Step", "apply_entries", "apply_many_of"]

_KIND = attrgetter("kind")
_TERM_AND_KIND = attrgetter("term", "kind")
_COMMAND = int(EntryKind.COMMAND)


class Step(NamedTuple):
    """Entries of one term that were applied, the first one at an index."""

    index: int  # type: ignore[assignment]  # No caller uses tuple.index.
    term: int
    replies: list[bytes]
    effects: Sequence[Effect]
    """Those of the last entry."""


def apply_entries(
    apply_many: ApplyMany[S], at: ApplyPosition[S], entries: Sequence[Entry]
) -> Iterator[Step]:
    """Apply the entries after a moment, and advance the moment."""
    for run in _runs(entries):
        first, term = run[0].index, run[0].term
        if run[0].kind != _COMMAND:
            if run[0].kind == EntryKind.CONFIG:
                at.config = Config.parse(run[-1].payload)
            at.index, at.term = run[-1].index, term
            at.ended = run[0].kind == EntryKind.END
            yield Step(first, term, [b""] * len(run), ())
            if at.ended:
                return
            continue
        batch = CommandBatch(first, term, *unwrap_many([entry.payload for entry in run]))
        done = 0
        while done < len(run):
            at.state, replies, effects = apply_many(batch, done, at.state)
            at.index, at.term = first + done + len(replies) - 1, term
            yield Step(first + done, term, replies, effects)
            done += len(replies)


def _runs(entries: Sequence[Entry]) -> Iterable[Sequence[Entry]]:
    """Runs of one term and kind."""
    if entries[0].term == entries[-1].term and len(set(map(_KIND, entries))) == 1:
        return (entries,)
    return (list(found) for _, found in groupby(entries, key=_TERM_AND_KIND))


def apply_many_of(machine: Machine[S]) -> ApplyMany[S]:
    """The function that applies runs of commands: the machine's own, or one command at a time."""
    if isinstance(machine, ManyMachine):
        return machine.apply_many

    def apply_many(
        batch: CommandBatch, start: int, state: S
    ) -> tuple[S, list[bytes], Sequence[Effect]]:
        replies: list[bytes] = []
        effects: Sequence[Effect] = ()
        for place in range(start, len(batch.commands)):
            meta = Meta(batch.index + place, batch.term, batch.times_ms[place])
            state, reply, effects = machine.apply(meta, batch.commands[place], state)
            replies.append(reply)
            if effects:
                break
        return state, replies, effects

    return apply_many
