"""Reads the files of the write-ahead log after a restart: what they hold, and what is missing.

All files are read in their order: the entries of each group as they were written, and the last
state of each. An entry cuts off everything behind the index that it follows.

What must be there. The manifest names the files, each with the bytes that are certainly durable. A
file that is missing is `FilesLost`, one with fewer intact bytes is `DamagedFile`: votes and
acknowledged entries would be lost with it. Behind these bytes the end of the last file may be bad:

1. The write was torn (`wal_format.Tail`). It was not acknowledged, and is cut off.
2. A batch is all there and damaged, and no intact one proves that it was durable. `Wal.prove`
   writes a proof whenever nothing was handed in for a moment, so such a batch was written in the
   last moment before a crash. It is cut off, and `is_doubtful` says that acknowledged entries may
   be lost (no votes: these are proved before anybody is told). The member must not help to elect a
   leader that lacks them: it votes when it has caught up (`raft/group/group.py`).

Both are logged with file, offset and bytes, and counted (`cut_bytes`).

Directories of earlier versions have no manifest: what is there is taken as all there was.

Only `Wal` calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from lithify.errors import DamagedFile
from lithify.fs import read_file
from lithify.logger import get_logger
from lithify.raft.core.values import HardState
from lithify.raft.entry import Entry
from lithify.raft.errors import FilesLost
from lithify.raft.storage.file_names import parse_wal, wal_name
from lithify.raft.storage.wal.format import FILE_HEADER_BYTES, RecordKind, WalTail, parse_batches

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from lithify.fs import FileSystem
    from lithify.raft.storage.live_state import LiveStates
    from lithify.raft.storage.manifest import RaftManifest
    from lithify.raft.storage.wal.format import Parsed, WalRecord

__all__ = ["Recovered", "WalRecovery", "wal_files"]

log = get_logger("lithify.raft")


@dataclass(slots=True)
class Recovered:
    """What the files held, for one group."""

    state: HardState = field(default_factory=HardState)
    entries: dict[int, Entry] = field(default_factory=dict)
    """By index, ascending; what a later entry cut off is not among them."""
    cut_index: int | None = None
    """The lowest index that an entry in the files follows: they say what comes behind it."""


def wal_files(fs: FileSystem, directory: str) -> list[tuple[int, str]]:
    """(number, path) of each file, in their order."""
    numbers = (parse_wal(name) for name in fs.list(directory))
    found = sorted(number for number in numbers if number is not None)
    return [(number, f"{directory}/{wal_name(number)}") for number in found]


class WalRecovery:
    """See the module."""

    def __init__(
        self, fs: FileSystem, directory: str, live: LiveStates, manifest: RaftManifest | None
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._live = live
        self._manifest = manifest
        self.ends: dict[int, int] = {}
        """Of each file that counts: where its last intact batch ends."""
        self.cut_bytes = 0
        self.is_doubtful = False

    def run(
        self, installs: Mapping[str, int], known: Container[str] | None
    ) -> dict[str, Recovered]:
        """What all files hold, by group; durable from now on.

        Of a group that has installed a snapshot no entries count in files up to the number in
        `installs`. What is of a group that is not `known` any more is passed over.
        """
        groups: dict[str, Recovered] = {}
        listed, files = self._listed(), wal_files(self._fs, self._directory)
        before = 0
        for number, path in files:
            if number < min(listed, default=0):
                continue
            if number != before + 1 and not listed:
                # Files are removed when their entries are in segments. A crash may have brought
                # some back, but one that comes before a missing one has nothing to say.
                groups.clear()
                self.ends.clear()
            before = number
            # A killed process may have left batches in the operating system's cache only.
            with self._fs.open_append(path) as file:
                file.fsync()
            parsed = self._parse(number, path, listed, files[-1][0])
            names: dict[int, str] = {}
            gone: set[int] = set()
            for record in chain.from_iterable(parsed.batches):
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
        return groups

    def _listed(self) -> dict[int, int]:
        """The files that must be there, and the bytes of each that must be intact."""
        if self._manifest is None or not self._manifest.exists:
            return {}
        for number in self._manifest.wal:
            path = f"{self._directory}/{wal_name(number)}"
            if not self._fs.exists(path):
                raise FilesLost(path, f"missing, but {self._manifest.path} names it")
        return dict(self._manifest.wal)

    def _parse(self, number: int, path: str, listed: Mapping[int, int], newest: int) -> Parsed:
        """Read a file, and judge its end."""
        data = read_file(self._fs, path)
        parsed = parse_batches(data, number, path)
        durable_bytes = listed.get(number, 0)
        if parsed.end < durable_bytes:
            what = f"only {parsed.end} bytes are intact, but {durable_bytes} were durable"
            raise DamagedFile(path, parsed.end, what)
        self.ends[number] = parsed.end
        # What stands behind the end of an earlier file was refused by the disk.
        if parsed.tail is not WalTail.NOTHING and number >= max(listed, default=newest):
            cut_bytes = len(data) - parsed.end
            self.cut_bytes += cut_bytes
            given = {"file": path, "offset": parsed.end, "bytes": cut_bytes}
            if parsed.tail is WalTail.DAMAGED:
                self.is_doubtful = True
                what = "damaged batch cut off; this node votes when it has caught up with a leader"
                log.error(what, **given)
            else:
                log.warning("torn write cut off", **given)
        return parsed

    def _replay(
        self, record: WalRecord, names: dict[int, str], groups: dict[str, Recovered], path: str
    ) -> None:
        if record.kind == RecordKind.GROUP:
            group = names[record.group] = record.payload.decode()
            groups.setdefault(group, Recovered())
            return
        group = names[record.group]
        found = groups[group]
        if record.kind == RecordKind.STATE:
            saved = HardState(record.term, record.payload.decode(), record.index)
            # A file that was begun and then refused by the disk has states from before those that
            # were appended to the file in front of it.
            if (saved.term, bool(saved.vote)) >= (found.state.term, bool(found.state.vote)):
                found.state = saved
            return
        entries, index, previous = found.entries, record.index, record.previous
        found.cut_index = min(previous, previous if found.cut_index is None else found.cut_index)
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
