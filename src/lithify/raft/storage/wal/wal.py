"""The write-ahead log: one for all groups of a node, and the only place that waits for the disk.

    wal.append("orders", entries, previous=41)     # any thread; returns at once
    wal.save("orders", HardState(term=3, vote="n2", commit=40))
    for event in wal.flush(): ...                  # the log's own thread

`flush` does one round:

1. Take everything that was queued since the last round. Entries below a group's smallest live index
   are skipped: they are never read.
2. An entry must follow what was written for its group before: its `previous` is not above the last
   index written. If it is, an entry in between was lost, and the group gets one `Resend` with the
   first missing index; until the group queues that, its other writes are dropped.
3. One write, one fdatasync, then a `Written` for each group and run of terms. A batch with a state
   is followed by an empty one, which proves that it was durable, before any event is delivered;
   and so is one for which a group asked (`ask_proof`), which gets a `Proved`.
4. A file that is full is followed by the next. Each starts with the names and states of all groups,
   so that it is self-contained. The full one goes to the segment writer (`Rolled`), which deletes
   it when its entries are in segments.

If the disk refuses a round, nothing of it is acknowledged. The file is abandoned, since its content
after the last durable batch is unknown, and the next round writes everything to another one. What
was written of the failed round may exist after a crash: it was proposed and never acknowledged,
which is what a crash may always leave.

`recovery.py` reads the files after a restart. The manifest names those that must exist: a file
is listed, with the bytes that are durable, before anything in it is acknowledged, and removed from
the list before it is deleted.

Thread-safe except `flush`, `prove` and `recover`, which belong to one thread, and `remove`, which
one thread at a time may call.
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
    Proved,
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

__all__ = [
    "Proved",
    "Recovered",
    "Resend",
    "Rolled",
    "StateSaved",
    "Wal",
    "WalEvent",
    "Written",
]

FILE_BYTES_MAX = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Rolled:
    """A file is full: its entries, by group, belong to the segment writer."""

    number: int
    indexes: dict[str, IndexRuns]


def _is_append(item: Item, group: str) -> bool:
    return item.group == group and isinstance(item, Append)


WalEvent = Written | StateSaved | Resend | Proved | Rolled | WriteRefused


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
        self._is_held = False
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
        """By file: durable bytes that the manifest gets when the next file starts."""
        self._unproved = False
        """Does nothing follow the last batch of the file?"""
        self._waits_end = False
        self.unrolled_bytes = 0
        """Of all files whose entries do not belong to the segment writer yet. Any thread."""
        self.is_doubtful = False
        """May acknowledged entries have been lost with a damaged batch?"""
        self.cut_bytes = 0
        """Bytes that `recover` has cut off the end."""
        fs.mkdir(directory)
        self._number = max((number for number, _ in wal_files(fs, directory)), default=0)

    # --- queueing ---------------------------------------------------------------------------

    def append(self, group: str, entries: Sequence[Entry], previous: int) -> None:
        """Queue consecutive entries, of which the first follows `previous`."""
        self._add(Append(group, entries, previous))

    def save(self, group: str, state: HardState) -> None:
        """Queue a state."""
        self._add(StateSaved(group, state))

    def ask_proof(self, group: str) -> None:
        """Prove everything queued so far; the group gets a `Proved`."""
        self._add(Proved(group))

    def _add(self, item: Item) -> None:
        with self._wanted:
            self._queue.append(item)
            if not self._is_held:
                self._wanted.notify()

    def hold(self) -> None:
        """Do not wake the waiting thread before `wake`; it may work meanwhile."""
        self._is_held = True

    def wake(self) -> None:
        """Wake the waiting thread if something is queued."""
        self._is_held = False
        if self._queue:
            with self._wanted:
                self._wanted.notify()

    def ask_roll(self, name: str) -> None:
        """Roll the file after everything queued so far; `rolled_for` returns its number then."""
        with self._wanted:
            self._roll_for.append(name)
            self._wanted.notify()

    def rolled_for(self, name: str) -> int | None:
        """The number of the file that was rolled for `name`; returned once."""
        return self._rolled_for.pop(name, None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is queued; False after the timeout, or if `end_waits` was called.

        Only one thread waits, and whatever wakes it has queued something, or ends the waits.
        """
        with self._wanted:
            if not (self._has_work or self._waits_end):
                self._wanted.wait(timeout_s)
            return self._has_work

    def end_waits(self) -> None:
        """The node stops: `wait` does not wait any longer."""
        with self._wanted:
            self._waits_end = True
            self._wanted.notify_all()

    @property
    def _has_work(self) -> bool:
        return bool(self._queue or self._roll_for)

    def forget(self, group: str) -> None:
        """A group was removed: the next file does not name it."""
        with self._lock:
            self._queue = [item for item in self._queue if item.group != group]
            # The current round may still use it.
            self._forgotten.append(group)

    def restart(self, group: str) -> None:
        """A snapshot was installed: the group's next entry may follow any index."""
        with self._lock:
            self._queue = [item for item in self._queue if not _is_append(item, group)]
        if group in self._writers:
            self._writers[group].last = None

    def adopt(self, group: str, entries: Iterable[Entry]) -> None:
        """After `recover`: these entries belong to a group, whatever name they had in the files."""
        indexes = self._indexes[group] = IndexRuns()
        writer = self._writers.setdefault(group, Writer())
        for entry in entries:
            indexes.add(entry.index, entry.index, entry.term, entry.index - 1)
            # An installed snapshot lacks nothing after its last live entry.
            writer.last = max(entry.index, self._live[group].snapshot_index)

    # --- writing ----------------------------------------------------------------------------

    def flush(self) -> list[WalEvent]:
        """Write everything queued, make it durable, and return the events."""
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
        """Undo a refused round: the next one writes everything to another file."""
        self._abandon_file()
        with self._lock:
            self._queue[:0] = queue
        round_.undo()
        return [WriteRefused(self._directory, wal_name(self._number), str(error))]

    def _abandon_file(self) -> None:
        """Stop writing to the current file; the next round starts another one."""
        if self._file is not None:
            # Its durable batches are valid: it stays until they are in segments. The rest would
            # keep a full disk full.
            with suppress(OSError):
                self._file.truncate(self._size)
            self._file.close()
            self._file = None

    def roll(self) -> list[WalEvent]:
        """Write everything queued, then start another file, even if this one is not full.

        Afterwards all entries so far, including recovered ones, belong to the segment writer.
        """
        events = self.flush()
        return events + self._roll() if self._file is not None or self._indexes else events

    def prove(self) -> list[WalEvent]:
        """Prove that the last batch is durable, when nothing else is to be written."""
        if self._file is None or not self._unproved:
            return []
        try:
            self._put(0, ())
        except OSError as error:
            return self._failed([], WalBatch(self._live, self._writers, self._numbers), error)
        self._unproved = False
        return []

    def _write(self, round_: WalBatch) -> None:
        if round_.records:
            self._put(round_.records, round_.pieces)
            self._unproved = True
        if round_.needs_proof and self._unproved:
            self._put(0, ())
            self._unproved = False

    def _put(self, records: int, pieces: Sequence[bytes]) -> None:
        assert self._file is not None
        batch = encode_batch(self._size, self._sequence + 1, records, pieces)
        self._file.write(batch)
        self._file.fdatasync()
        self._sequence += 1
        self._size += len(batch)
        self.unrolled_bytes += len(batch)
        self._ends[self._number] = self._size

    def _begin_file(self) -> None:
        """Create the next file; it starts with all names and states."""
        listed = {} if self._manifest is None else self._manifest.wal
        # A listed file is never started again: its first bytes count as durable.
        number = max(self._number, *listed, 0) + 1
        file = self._fs.open_append(f"{self._directory}/{wal_name(number)}")
        try:
            file.truncate(0)
            numbers: dict[str, int] = {}
            round_ = WalBatch(self._live, self._writers, numbers)
            # A list, since other threads add and remove groups.
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
        """Start the next file; if that fails early, this one continues until the next round."""
        full, number = self._file, self._number
        try:
            # First, because the full file may have the only durable copy of a state.
            self._begin_file()
        except OSError as error:
            if self._manifest is not None and max(self._manifest.wal, default=0) > number:
                # The next start may find the new file, and replays it last. It has the current
                # states: later ones must be in a file after it.
                self._abandon_file()
            return [WriteRefused(self._directory, wal_name(number + 1), str(error))]
        if full is not None:
            full.close()
        rolled = Rolled(number, self._indexes)
        self._indexes, self.unrolled_bytes = {}, 0
        return [rolled]

    @property
    def closed_number(self) -> int:
        """No thread writes to files up to this number.

        Another thread may start a file meanwhile. It changes the number last, so an earlier read
        returns a file that is closed, or one too low.
        """
        number = self._number
        return number if self._file is None else number - 1

    def remove(self, number: int, ends: Mapping[str, End] | None = None) -> None:
        """Delete files up to this number: all their entries are in segments."""
        if self._manifest is not None:
            # First: a listed file must exist.
            self._manifest.end_files(number, ends or {})
        for name in self._fs.list(self._directory):
            found = parse_wal(name)
            if found is not None and found <= number:
                self._fs.remove(f"{self._directory}/{name}")
        self._fs.sync_dir(self._directory)

    def close(self) -> None:
        """Close the file; what is queued and not flushed is not written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- after a crash ----------------------------------------------------------------------

    def recover(
        self, installs: Mapping[str, int], known: Container[str] | None = None
    ) -> dict[str, Recovered]:
        """The content of all files by group, made durable. Call before the first `flush`."""
        reading = WalRecovery(self._fs, self._directory, self._live, self._manifest)
        groups = reading.run(installs, known)
        self._ends = reading.ends
        self.unrolled_bytes = sum(self._ends.values())
        if self._manifest is not None and not self._manifest.exists:
            self._manifest.wal = dict(self._ends)
        self.cut_bytes, self.is_doubtful = reading.cut_bytes, reading.is_doubtful
        for group, found in groups.items():
            self._writers[group] = Writer(state=found.state)
            self.adopt(group, found.entries.values())
        return groups
