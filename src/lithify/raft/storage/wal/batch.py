"""One round of the write-ahead log: a batch of queued items, and the events of its outcome.

1. Each group has a number in a file, assigned by a record with its name before any other.
2. Entries below a group's smallest live index are skipped. Others must follow what was written for
   the group before; if they do not, the group gets one `Resend`, and its writes are dropped until
   it queues the missing ones.
3. When the batch is durable (`settle`), `events` returns what is durable. If the disk refuses it
   (`undo`), its effect on the group's writers is undone.

Only `Wal` calls, in its thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.raft.core.values import HardState
from lithify.raft.storage.wal.format import RecordKind, entry_records, record_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lithify.raft.entry import Entry
    from lithify.raft.storage.live_state import LiveStates

__all__ = ["Append", "Item", "Proved", "Resend", "StateSaved", "WalBatch", "Writer", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """The entries of a group from `first` to `last`, all of one term, are durable."""

    group: str
    term: int
    first: int
    last: int
    previous: int
    """The index before `first`: `first` - 1, or less where the sequence has gaps."""
    file: int
    """The number of their file."""


@dataclass(frozen=True, slots=True)
class StateSaved:
    """A group's state is durable."""

    group: str
    state: HardState


@dataclass(frozen=True, slots=True)
class Resend:
    """A group must queue its entries from this index on again."""

    group: str
    index: int


@dataclass(frozen=True, slots=True)
class Proved:
    """All that is durable of a group is proved: its damage would not be taken for a lost write."""

    group: str


@dataclass(frozen=True, slots=True)
class Append:
    """Queued entries."""

    group: str
    entries: Sequence[Entry]
    previous: int


Item = Append | StateSaved | Proved


@dataclass(slots=True)
class Writer:
    """The state of writing for a group."""

    last: int | None = None
    """The last index; None before the first entry of this process."""
    lost_from: int | None = None
    """Entries from here on are missing, and the group was notified."""
    state: HardState = field(default_factory=HardState)


def _runs(entries: Sequence[Entry]) -> Iterator[tuple[int, int, int]]:
    """(first, last, term) of each gapless run of one term."""
    first = last = entries[0]
    # Nearly always all are one run, and its ends prove it: indexes ascend, and terms never fall.
    end = entries[-1]
    if end.index - first.index == len(entries) - 1 and end.term == first.term:
        last = end
    else:
        for entry in entries[1:]:
            if entry.index != last.index + 1 or entry.term != first.term:
                yield first.index, last.index, first.term
                first = entry
            last = entry
    yield first.index, last.index, first.term


class WalBatch:
    """One batch while it is built."""

    def __init__(
        self, live: LiveStates, writers: dict[str, Writer], numbers: dict[str, int]
    ) -> None:
        self._live = live
        self._writers = writers
        self._before: dict[str, tuple[int | None, int | None]] = {}
        self._states: dict[str, HardState] = {}
        self._resends: list[Resend] = []
        self._proofs: list[Proved] = []
        self.numbers = numbers
        self.file = 0
        self.pieces: list[bytes] = []
        self.records = 0
        self.written: list[Written] = []

    def add(self, item: Item) -> None:
        """Add a queued item."""
        if isinstance(item, StateSaved):
            self.add_state(item)
        elif isinstance(item, Proved):
            self._proofs.append(item)
        else:
            self._add_entries(item)

    def add_state(self, item: StateSaved) -> None:
        """Add a group's state."""
        state = item.state
        vote = state.vote.encode()
        header = (RecordKind.STATE, 0, self._number(item.group), state.commit, state.term, -1)
        self.pieces += (record_header(*header, len(vote)), vote)
        self.records += 1
        self._writers.setdefault(item.group, Writer())
        self._states[item.group] = state

    def _add_entries(self, item: Append) -> None:
        group, entries, previous = item.group, item.entries, item.previous
        writer = self._writers.setdefault(group, Writer())
        self._before.setdefault(group, (writer.last, writer.lost_from))
        smallest = self._live[group].smallest
        if entries and entries[0].index < smallest:
            entries = [entry for entry in entries if entry.index >= smallest]
            previous = smallest - 1
            writer.last = max(previous, writer.last or 0)
        if not entries:
            return
        if writer.last is not None and previous > writer.last and entries[0].index != smallest:
            if writer.lost_from is None:
                writer.lost_from = writer.last + 1
                self._resends.append(Resend(group, writer.lost_from))
            return
        writer.lost_from = None
        number = self._number(group)
        self.pieces += entry_records(number, entries, previous)
        self.records += len(entries)
        for first, last, term in _runs(entries):
            self.written.append(Written(group, term, first, last, previous, self.file))
            previous = last
        writer.last = previous

    def _number(self, group: str) -> int:
        """The group's number in this file; the first use writes its name."""
        number = self.numbers.get(group)
        if number is None:
            number = self.numbers[group] = len(self.numbers)
            name = group.encode()
            self.pieces += (record_header(RecordKind.GROUP, 0, number, 0, 0, -1, len(name)), name)
            self.records += 1
        return number

    @property
    def needs_proof(self) -> bool:
        """Must it be proved that the batch, and what was written before it, is durable?"""
        # A member that loses a vote can vote twice, and no leader would notice.
        return bool(self._states or self._proofs)

    def settle(self) -> None:
        """The batch is durable."""
        for group, state in self._states.items():
            self._writers.get(group, Writer()).state = state

    def events(self) -> list[StateSaved | Written | Resend | Proved]:
        """The events for the groups."""
        saved = (StateSaved(group, state) for group, state in self._states.items())
        return [*saved, *self.written, *self._resends, *self._proofs]

    def undo(self) -> None:
        """The batch is not durable: undo its effect on the writers."""
        for group, (last, lost_from) in self._before.items():
            # Another thread may have removed the group meanwhile.
            writer = self._writers.get(group, Writer())
            writer.last, writer.lost_from = last, lost_from
