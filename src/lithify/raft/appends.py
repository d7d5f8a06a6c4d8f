"""What the consensus core wants written, in order, and how far the write-ahead log is with it.

An append of the core is entries, a state, both or neither, or begins with a snapshot:

1. State and entries are handed to the write-ahead log, the state first: a term without its entries
   harms nothing, an entry above the known term would.
2. The write-ahead log tells of each piece by itself: of entries with the last one of the piece, of
   states with the newest of a round. Pieces are told in the order in which they were handed in, so
   one that ends as an append does is that append's, and all before it are durable or overwritten.
3. An append is done when its entries and its state are and all before it are.
4. One that begins with a snapshot waits until all before it are done; the group then installs it
   (`installing`, `installed`). What comes behind waits with it: it stands on a log that is not
   there yet.

The group's thread calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.raft.wal_round import Resend, StateSaved, Written

if TYPE_CHECKING:
    from lithify.raft.core.ready import StorageAppend
    from lithify.raft.core.values import HardState, SnapshotMeta
    from lithify.raft.group_log import GroupLog
    from lithify.raft.wal import Wal, WalEvent

__all__ = ["Appends"]


@dataclass(slots=True)
class _Waiting:
    """An append that was handed in."""

    number: int
    last: tuple[int, int] | None
    """(index, term) of its last entry; None when its entries are durable or it has none."""
    state: HardState | None
    """None when it is durable or there is none."""


class Appends:
    """See the module."""

    def __init__(self, group: str, wal: Wal, log: GroupLog) -> None:
        self._group = group
        self._wal = wal
        self._log = log
        self._waiting: deque[_Waiting] = deque()
        self._later: deque[StorageAppend] = deque()

    def hand_in(self, append: StorageAppend) -> None:
        """Have an append written, now or behind a snapshot."""
        if append.snapshot is not None or self._later:
            self._later.append(append)
        else:
            self._write(append)

    def _write(self, append: StorageAppend) -> None:
        state, entries = append.hard_state, append.entries
        if state is not None:
            self._wal.save(self._group, state)
        if entries:
            self._log.append(entries)
        last = (entries[-1].index, entries[-1].term) if entries else None
        self._waiting.append(_Waiting(append.number, last, state))

    @property
    def installing(self) -> SnapshotMeta | None:
        """The snapshot that is to take the log's place now."""
        return self._later[0].snapshot if self._later and not self._waiting else None

    def installed(self) -> None:
        """It has; what waited behind it can be written."""
        self._write(self._later.popleft())
        while self._later and self._later[0].snapshot is None:
            self._write(self._later.popleft())

    def wal_event(self, event: WalEvent) -> None:
        """The write-ahead log tells something; what is of another name is not meant."""
        if isinstance(event, Written | StateSaved | Resend) and event.group == self._group:
            if isinstance(event, Written):
                self._written(event)
            elif isinstance(event, StateSaved):
                self._saved(event.state)
            else:
                self._log.resend(event)

    def _written(self, event: Written) -> None:
        """Entries are durable."""
        self._log.written(event)
        ends = (event.last, event.term)
        for place, append in enumerate(self._waiting):
            if append.last == ends:
                for earlier in list(self._waiting)[: place + 1]:
                    earlier.last = None
                return

    def _saved(self, state: HardState) -> None:
        """A state is durable, and so are those before it."""
        for place, append in enumerate(self._waiting):
            if append.state == state:
                for earlier in list(self._waiting)[: place + 1]:
                    earlier.state = None
                return

    def take_done(self) -> int | None:
        """The number of the last append that is done, with all before it; told once."""
        done = None
        while self._waiting and self._waiting[0].last is None and self._waiting[0].state is None:
            done = self._waiting.popleft().number
        return done
