"""Hands the core's appends to the write-ahead log, in order, and tracks which are durable.

An append of the core has entries, a hard state, both or neither, or starts with a snapshot:

1. State and entries are queued in the write-ahead log, the state first: a term without its entries
   is harmless, an entry above the known term is not.
2. The write-ahead log reports each piece separately: for entries the last one of the piece, for
   states the newest of a round. Reports come in the order of the pieces. So a report that ends
   where an append ends belongs to that append, and all before it are durable or overwritten.
3. An append is done when its entries and its state are durable and all appends before it are done.
4. An append that starts with a snapshot waits until all before it are done; then the group installs
   the snapshot (`installing`, `installed`). Later appends wait with it, because they extend a log
   that does not exist yet.

Called in the group's thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.raft.storage.wal.batch import Proved, Resend, StateSaved, Written

if TYPE_CHECKING:
    from lithify.raft.core.ready import StorageAppend
    from lithify.raft.core.values import HardState, SnapshotMeta
    from lithify.raft.storage.group_log import GroupLog
    from lithify.raft.storage.wal.wal import Wal, WalEvent

__all__ = ["DurableWrites"]

_OwnEvent = Written | StateSaved | Resend | Proved


@dataclass(slots=True)
class _Waiting:
    """An append that is in the write-ahead log's queue."""

    number: int
    last: tuple[int, int] | None
    """(index, term) of its last entry; None when its entries are durable or it has none."""
    state: HardState | None
    """None when it is durable or there is none."""


class DurableWrites:
    """See the module."""

    def __init__(self, group: str, wal: Wal, log: GroupLog) -> None:
        self._group = group
        self._wal = wal
        self._log = log
        self._waiting: deque[_Waiting] = deque()
        self._later: deque[StorageAppend] = deque()

    def submit(self, append: StorageAppend) -> None:
        """Write an append, now or after the snapshot that is being installed."""
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
        """The snapshot that must replace the log now."""
        return self._later[0].snapshot if self._later and not self._waiting else None

    def resume_after_install(self) -> None:
        """The snapshot has replaced the log: write the appends that waited for it."""
        self._write(self._later.popleft())
        while self._later and self._later[0].snapshot is None:
            self._write(self._later.popleft())

    def wal_event(self, event: WalEvent) -> None:
        """Take an event of the write-ahead log; events of other names are ignored."""
        if isinstance(event, _OwnEvent) and event.group == self._group:
            if isinstance(event, Written):
                self._written(event)
            elif isinstance(event, StateSaved):
                self._saved(event.state)
            elif isinstance(event, Proved):
                self._log.is_proved = True
            else:
                self._log.resend(event)

    def _written(self, event: Written) -> None:
        """Entries are durable."""
        self._log.mark_durable(event)
        ends = (event.last, event.term)
        for place, append in enumerate(self._waiting):
            if append.last == ends:
                for earlier in list(self._waiting)[: place + 1]:
                    earlier.last = None
                return

    def _saved(self, state: HardState) -> None:
        """A state is durable, and all before it."""
        for place, append in enumerate(self._waiting):
            if append.state == state:
                for earlier in list(self._waiting)[: place + 1]:
                    earlier.state = None
                return

    def take_done(self) -> int | None:
        """The number of the last append that is done with all before it; returned once."""
        done = None
        while self._waiting and self._waiting[0].last is None and self._waiting[0].state is None:
            done = self._waiting.popleft().number
        return done
