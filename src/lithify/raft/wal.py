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
3. One write, one fdatasync, then a `Written` for each group and run of terms.
4. A file that is full is followed by the next. Each begins with the names and states of all groups,
   so that it stands alone; the full one goes to the segment writer (`Rolled`), which removes it
   when its entries are in segments.

If the disk fails a round, nothing of it is acknowledged. The file is given up, since nobody knows
what is in it behind the last durable batch, and the next round tries it all again in another one.
What was written of the failed round may be there after a crash: it was proposed and never
acknowledged, which is what a crash may always leave.

Reopened, all files are read in their order (`recover`): the entries of each group as they were
written, and the last state of each. An entry cuts off everything behind the index that it follows.

Thread-safe but for `flush` and `recover`, which belong to one thread, and `remove`, to any one.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.errors import DamagedFile
from lithify.events import WriteRefused
from lithify.fs import read_file
from lithify.raft.core.values import HardState
from lithify.raft.entry import Entry
from lithify.raft.names import parse_wal, wal_name
from lithify.raft.wal_format import (
    FILE_HEADER_BYTES,
    RecordKind,
    encode_batch,
    encode_file_header,
    parse_batches,
)
from lithify.raft.wal_round import Append, Item, Resend, Round, StateSaved, Writer, Written
from lithify.raft.written import Indexes

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from lithify.fs import File, FileSystem
    from lithify.raft.live_state import LiveStates
    from lithify.raft.wal_format import Record

__all__ = ["Recovered", "Resend", "Rolled", "StateSaved", "Wal", "WalEvent", "Written"]

FILE_BYTES_MAX = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Rolled:
    """A file is full: its entries, by group, are now the segment writer's."""

    number: int
    indexes: dict[str, Indexes]


def _is_append(item: Item, group: str) -> bool:
    return item.group == group and isinstance(item, Append)


WalEvent = Written | StateSaved | Resend | Rolled | WriteRefused


@dataclass(slots=True)
class Recovered:
    """What the files held, for one group."""

    state: HardState = field(default_factory=HardState)
    entries: dict[int, Entry] = field(default_factory=dict)
    """By index, ascending; what a later entry cut off is not among them."""


class Wal:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        live: LiveStates,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._fs = fs
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
        self._indexes: dict[str, Indexes] = {}
        self._roll_for: list[str] = []
        self._forgotten: list[str] = []
        self._rolled_for: dict[str, int] = {}
        fs.mkdir(directory)
        self._number = max((number for number, _ in self._files()), default=0)

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
        indexes = self._indexes[group] = Indexes()
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
        round_ = Round(self._live, self._writers, self._numbers)
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
            indexes = self._indexes.setdefault(written.group, Indexes())
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

    def _failed(self, queue: list[Item], round_: Round, error: OSError) -> list[WalEvent]:
        """Nothing of the round counts: the next one tries it all again, in another file."""
        if self._file is not None:
            # Its durable batches count: it stays until they are in segments. The rest would keep a
            # full disk full.
            with suppress(OSError):
                self._file.truncate(self._size)
            self._file.close()
            self._file = None
        with self._lock:
            self._queue[:0] = queue
        round_.undo()
        return [WriteRefused(self._directory, wal_name(self._number), str(error))]

    def roll(self) -> list[WalEvent]:
        """Write what was handed in, then begin another file, full or not.

        Afterwards all entries so far, also those that were recovered, are the segment writer's.
        """
        events = self.flush()
        return events + self._roll() if self._file is not None or self._indexes else events

    def _write(self, round_: Round) -> None:
        assert self._file is not None
        data = encode_batch(self._sequence + 1, round_.records, round_.pieces)
        self._file.write(data)
        self._file.fdatasync()
        self._sequence += 1
        self._size += len(data)

    def _begin_file(self) -> None:
        """Create the next file; it begins with all names and states."""
        number = self._number + 1
        file = self._fs.open_append(f"{self._directory}/{wal_name(number)}")
        try:
            file.truncate(0)
            numbers: dict[str, int] = {}
            round_ = Round(self._live, self._writers, numbers)
            # A list, since groups come and go in other threads.
            for group, writer in list(self._writers.items()):
                if writer.state != HardState():
                    round_.add_state(StateSaved(group, writer.state))
            data = encode_file_header(number)
            if round_.records:
                data += bytes(encode_batch(1, round_.records, round_.pieces))
            file.write(data)
            file.fsync()
            self._fs.sync_dir(self._directory)
        except BaseException:
            file.close()
            raise
        # In this order: see `closed_number`.
        self._file, self._number, self._numbers = file, number, numbers
        self._size, self._sequence = len(data), 1 if round_.records else 0

    def _roll(self) -> list[WalEvent]:
        """Begin the next file; if that fails, this one goes on until the next round."""
        full, number = self._file, self._number
        try:
            # First, because the full file may have the only durable copy of a state.
            self._begin_file()
        except OSError as error:
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

    def remove(self, number: int) -> None:
        """Files up to this number are not needed any more: all they held is in segments."""
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
        """What all files hold, by group; durable from now on. Before the first `flush`.

        Of a group that has installed a snapshot no entries count in files up to the number in
        `installs`. What is of a group that is not `known` any more is passed over.
        """
        groups: dict[str, Recovered] = {}
        before = 0
        for number, path in self._files():
            if number != before + 1:
                # Files are removed when their entries are in segments. A crash may have brought
                # some back, but one that comes before a missing one has nothing to say.
                groups.clear()
            before = number
            # A killed process may have left batches in the operating system's cache only.
            with self._fs.open_append(path) as file:
                file.fsync()
            names: dict[int, str] = {}
            gone: set[int] = set()
            for records in parse_batches(read_file(self._fs, path), number, path)[0]:
                for record in records:
                    if known is not None and record.kind == RecordKind.GROUP:
                        name = record.payload.decode()
                        if name.partition("/")[0] not in known:
                            gone.add(record.group)
                    if record.group in gone:
                        continue
                    is_entry = record.kind == RecordKind.ENTRY
                    if is_entry and number <= installs.get(names[record.group], 0):
                        continue
                    self._replay(record, names, groups, path)
        self._fs.sync_dir(self._directory)
        for group, found in groups.items():
            self._writers[group] = Writer(state=found.state)
            self.adopt(group, found.entries.values())
        return groups

    def _files(self) -> list[tuple[int, str]]:
        """(number, path) of each, in their order."""
        numbers = (parse_wal(name) for name in self._fs.list(self._directory))
        found = sorted(number for number in numbers if number is not None)
        return [(number, f"{self._directory}/{wal_name(number)}") for number in found]

    def _replay(
        self, record: Record, names: dict[int, str], groups: dict[str, Recovered], path: str
    ) -> None:
        if record.kind == RecordKind.GROUP:
            group = names[record.group] = record.payload.decode()
            groups.setdefault(group, Recovered())
            return
        group = names[record.group]
        found = groups[group]
        if record.kind == RecordKind.STATE:
            found.state = HardState(record.term, record.payload.decode(), record.index)
            return
        entries, index, previous = found.entries, record.index, record.previous
        while entries and next(reversed(entries)) > previous:
            entries.popitem()
        state = self._live[group]
        if "/" in group and entries and previous != next(reversed(entries)):
            # Another install of the same snapshot began.
            entries.clear()
        last = max(next(reversed(entries), 0), state.snapshot_index)
        if entries and previous > last:
            what = f"{group}: entry {index} follows {previous}, but the last is {last}"
            raise DamagedFile(path, FILE_HEADER_BYTES, what)
        if index >= state.smallest:
            entries[index] = Entry(index, record.term, record.payload, record.entry_kind)
