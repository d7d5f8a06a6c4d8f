"""The write-ahead log: one for all groups of a node, and the only place that waits for the disk.

    wal.append("orders", entries, previous=41)     # any thread; returns at once
    wal.save("orders", HardState(term=3, vote="n2", commit=40))
    for event in wal.flush(): ...                  # the log's own thread

`flush` does one round:

1. Take everything that was handed in since the last round. Entries below a group's smallest live
   index are left out: nobody will ask for them.
2. An entry must follow what was written for its group before: its `previous` is not above the last
   index written. If it is, something in between was lost, and the group gets one `Resend` that says
   from where; until it does, its other writes are dropped.
3. One write, one fdatasync, then a `Written` for each group and run of terms. A batch with a state
   is followed by an empty one, which proves that it was durable, before anybody is told.
4. A file that is full is followed by the next. Each begins with the names and states of all groups,
   so that it stands alone; the full one goes to the segment writer (`Rolled`), which removes it
   when its entries are in segments.

If the disk fails a round, nothing of it is acknowledged. The file is given up, since nobody knows
what is in it behind the last durable batch, and the next round tries it all again in another one.
What was written of the failed round may be there after a crash: it was proposed and never
acknowledged, which is what a crash may always leave.

`recovery.py` reads the files after a restart. The manifest names those that must be there: a
file is listed, with the bytes that are durable, before anything in it is acknowledged, and struck
off before it is removed.

Thread-safe but for `flush`, `prove` and `recover`, which belong to one thread, and `remove`, to any
one.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lithify.events import WriteRefused
from lithify.raft.core.values import HardState
from lithify.raft.storage.file_names import parse_wal, wal_name
from lithify.raft.storage.index_runs import IndexRuns
from lithify.raft.storage.wal.batch import (
    Append,
    Item,
    Resend,
    StateSaved,
    WalBatch,
    Writer,
    Written,
)
from lithify.raft.storage.wal.format import (
    encode_batch,
    encode_file_header,
)
from lithify.raft.storage.wal.recovery import Recovered, WalRecovery, wal_files

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from lithify.fs import File, FileSystem
    from lithify.raft.entry import Entry
    from lithify.raft.storage.live_state import LiveStates
    from lithify.raft.storage.manifest import End, RaftManifest

__all__ = ["Recovered", "Resend", "Rolled", "StateSaved", "Wal", "WalEvent", "Written"]

FILE_BYTES_MAX = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Rolled:
    """A file is full: its entries, by group, are now the segment writer's."""

    number: int
    indexes: dict[str, IndexRuns]


def _is_append(item: Item, group: str) -> bool:
    return item.group == group and isinstance(item, Append)


WalEvent = Written | StateSaved | Resend | Rolled | WriteRefused


class Wal:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        live: LiveStates,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        manifest: RaftManifest | None = None,
    ) -> None:
        self._fs = fs
        self._manifest = manifest
        self._directory = directory
        self._live = live
        self._file_bytes_max = file_bytes_max
        self._lock = threading.Lock()
        self._queue: list[Item] = []
        self._wanted = threading.Condition(self._lock)
        self._writers: dict[str, Writer] = {}
        self._file: File | None = None
        self._size = 0
        self._sequence = 0
        self._numbers: dict[str, int] = {}
        self._indexes: dict[str, IndexRuns] = {}
        self._roll_for: list[str] = []
        self._forgotten: list[str] = []
        self._rolled_for: dict[str, int] = {}
        self._ends: dict[int, int] = {}
        """Of files that the manifest is to be told of when the next is begun: the durable bytes."""
        self._unproved = False
        """Is the last batch of the file followed by nothing?"""
        self.is_doubtful = False
        """Were acknowledged entries perhaps lost with a damaged batch?"""
        self.cut_bytes = 0
        """Cut off the end by `recover`."""
        fs.mkdir(directory)
        self._number = max((number for number, _ in wal_files(fs, directory)), default=0)

    # --- handing in -------------------------------------------------------------------------

    def append(self, group: str, entries: Sequence[Entry], previous: int) -> None:
        """Have entries written; they follow each other, the first one follows `previous`."""
        with self._wanted:
            self._queue.append(Append(group, entries, previous))
            self._wanted.notify()

    def save(self, group: str, state: HardState) -> None:
        """Have a state written."""
        with self._wanted:
            self._queue.append(StateSaved(group, state))
            self._wanted.notify()

    def ask_roll(self, name: str) -> None:
        """Have the file rolled behind all that was handed in; `rolled_for` tells when it was."""
        with self._wanted:
            self._roll_for.append(name)
            self._wanted.notify()

    def rolled_for(self, name: str) -> int | None:
        """The number of the file that was rolled because `name` asked; it is told once."""
        return self._rolled_for.pop(name, None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until something was handed in; False if nothing was."""
        with self._wanted:
            return self._wanted.wait_for(lambda: bool(self._queue or self._roll_for), timeout_s)

    def forget(self, group: str) -> None:
        """Of a group that is no more: the next file does not name it."""
        with self._lock:
            self._queue = [item for item in self._queue if item.group != group]
            # The round that is under way may still have to do with it.
            self._forgotten.append(group)

    def restart(self, group: str) -> None:
        """A snapshot was installed: the group's next entry may follow any index."""
        with self._lock:
            self._queue = [item for item in self._queue if not _is_append(item, group)]
        if group in self._writers:
            self._writers[group].last = None

    def adopt(self, group: str, entries: Iterable[Entry]) -> None:
        """After `recover`: these entries are a group's, whatever name they had in the files."""
        indexes = self._indexes[group] = IndexRuns()
        writer = self._writers.setdefault(group, Writer())
        for entry in entries:
            indexes.add(entry.index, entry.index, entry.term, entry.index - 1)
            # What an installed snapshot has behind its last live entry is not missing.
            writer.last = max(entry.index, self._live[group].snapshot_index)

    # --- writing ----------------------------------------------------------------------------

    def flush(self) -> list[WalEvent]:
        """Write what was handed in, make it durable, and tell what is."""
        with self._lock:
            queue, self._queue = self._queue, []
            roll_for, self._roll_for = self._roll_for, []
            forgotten, self._forgotten = self._forgotten, []
        for group in forgotten:
            self._writers.pop(group, None)
            self._indexes.pop(group, None)
        if not queue and not roll_for:
            return []
        round_ = WalBatch(self._live, self._writers, self._numbers)
        try:
            if self._file is None:
                self._begin_file()
            round_.numbers, round_.file = self._numbers, self._number
            for item in queue:
                round_.add(item)
            if round_.records:
                self._write(round_)
        except OSError as error:
            self._ask_again(roll_for)
            return self._failed(queue, round_, error)
        round_.settle()
        for written in round_.written:
            indexes = self._indexes.setdefault(written.group, IndexRuns())
            indexes.add(written.first, written.last, written.term, written.previous)
        events: list[WalEvent] = [*round_.events()]
        if roll_for or self._size >= self._file_bytes_max:
            number = self._number
            events += self._roll()
            if self._number == number:
                self._ask_again(roll_for)
            else:
                self._rolled_for |= dict.fromkeys(roll_for, number)
        return events

    def _ask_again(self, roll_for: list[str]) -> None:
        with self._lock:
            self._roll_for[:0] = roll_for

    def _failed(self, queue: list[Item], round_: WalBatch, error: OSError) -> list[WalEvent]:
        """Nothing of the round counts: the next one tries it all again, in another file."""
        self._abandon_file()
        with self._lock:
            self._queue[:0] = queue
        round_.undo()
        return [WriteRefused(self._directory, wal_name(self._number), str(error))]

    def _abandon_file(self) -> None:
        """Write no more to the current file; the next round begins another one."""
        if self._file is not None:
            # Its durable batches count: it stays until they are in segments. The rest would keep a
            # full disk full.
            with suppress(OSError):
                self._file.truncate(self._size)
            self._file.close()
            self._file = None

    def roll(self) -> list[WalEvent]:
        """Write what was handed in, then begin another file, full or not.

        Afterwards all entries so far, also those that were recovered, are the segment writer's.
        """
        events = self.flush()
        return events + self._roll() if self._file is not None or self._indexes else events

    def prove(self) -> list[WalEvent]:
        """Prove that the last batch is durable; for a moment in which nothing else is written."""
        if self._file is None or not self._unproved:
            return []
        try:
            self._put(0, ())
        except OSError as error:
            return self._failed([], WalBatch(self._live, self._writers, self._numbers), error)
        self._unproved = False
        return []

    def _write(self, round_: WalBatch) -> None:
        self._put(round_.records, round_.pieces)
        self._unproved = not round_.has_states
        if round_.has_states:
            # Who forgets a vote can give it twice, and learns from no leader that it did.
            self._put(0, ())

    def _put(self, records: int, pieces: Sequence[bytes]) -> None:
        assert self._file is not None
        batch = encode_batch(self._size, self._sequence + 1, records, pieces)
        self._file.write(batch)
        self._file.fdatasync()
        self._sequence += 1
        self._size += len(batch)
        self._ends[self._number] = self._size

    def _begin_file(self) -> None:
        """Create the next file; it begins with all names and states."""
        listed = {} if self._manifest is None else self._manifest.wal
        # One that is listed is never begun anew: its first bytes count as durable.
        number = max(self._number, *listed, 0) + 1
        file = self._fs.open_append(f"{self._directory}/{wal_name(number)}")
        try:
            file.truncate(0)
            numbers: dict[str, int] = {}
            round_ = WalBatch(self._live, self._writers, numbers)
            # A list, since groups come and go in other threads.
            for group, writer in list(self._writers.items()):
                if writer.state != HardState():
                    round_.add_state(StateSaved(group, writer.state))
            data = encode_file_header(number)
            if round_.records:
                data += bytes(encode_batch(len(data), 1, round_.records, round_.pieces))
            file.write(data)
            file.fsync()
            self._fs.sync_dir(self._directory)
            if self._manifest is not None:
                self._manifest.begin_file(number, len(data), self._ends)
        except BaseException:
            file.close()
            raise
        self._ends = {number: len(data)}
        # In this order: see `closed_number`.
        self._file, self._number, self._numbers = file, number, numbers
        self._size, self._sequence = len(data), 1 if round_.records else 0
        self._unproved = False

    def _roll(self) -> list[WalEvent]:
        """Begin the next file; if that fails early, this one goes on until the next round."""
        full, number = self._file, self._number
        try:
            # First, because the full file may have the only durable copy of a state.
            self._begin_file()
        except OSError as error:
            if self._manifest is not None and max(self._manifest.wal, default=0) > number:
                # The next start may find the new file, and replays it last. Its states are those of
                # now: later ones must be in a file behind it.
                self._abandon_file()
            return [WriteRefused(self._directory, wal_name(number + 1), str(error))]
        if full is not None:
            full.close()
        rolled = Rolled(number, self._indexes)
        self._indexes = {}
        return [rolled]

    @property
    def closed_number(self) -> int:
        """Nothing is written any more to files up to this number.

        Another thread may begin a file meanwhile. It changes the number last, so that one that was
        read before is of a file that is closed, or one too low.
        """
        number = self._number
        return number if self._file is None else number - 1

    def remove(self, number: int, ends: Mapping[str, End] | None = None) -> None:
        """Files up to this number are not needed any more: all they held is in segments."""
        if self._manifest is not None:
            # First: a file that is listed must be there.
            self._manifest.end_files(number, ends or {})
        for name in self._fs.list(self._directory):
            found = parse_wal(name)
            if found is not None and found <= number:
                self._fs.remove(f"{self._directory}/{name}")
        self._fs.sync_dir(self._directory)

    def close(self) -> None:
        """Let go of the file; what was handed in and not flushed is not written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- after a crash ----------------------------------------------------------------------

    def recover(
        self, installs: Mapping[str, int], known: Container[str] | None = None
    ) -> dict[str, Recovered]:
        """What all files hold, by group; durable from now on. Before the first `flush`."""
        reading = WalRecovery(self._fs, self._directory, self._live, self._manifest)
        groups = reading.run(installs, known)
        self._ends = reading.ends
        if self._manifest is not None and not self._manifest.exists:
            self._manifest.wal = dict(self._ends)
        self.cut_bytes, self.is_doubtful = reading.cut_bytes, reading.is_doubtful
        for group, found in groups.items():
            self._writers[group] = Writer(state=found.state)
            self.adopt(group, found.entries.values())
        return groups
