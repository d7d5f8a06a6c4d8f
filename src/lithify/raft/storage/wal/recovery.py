"""Reads the files of the write-ahead log at a start, and detects what is missing.

All files are read in order: the entries of each group as they were written, and its last state. An
entry truncates the entries after the index that it follows.

The manifest names the files that must exist, each with its number of durable bytes. A missing file
raises `FilesLost`, a file with fewer intact bytes `DamagedFile`: votes and acknowledged entries
would be lost with it. After these bytes the end of the last file may be bad:

1. The write was torn (`format.WalTail`). It was not acknowledged, and is cut off.
2. A batch is complete and damaged, and no intact batch proves that it was durable. `Wal.prove`
   writes a proof as soon as nothing is queued, so such a batch was written in the last moment
   before a crash. It is cut off, and `is_doubtful` says that acknowledged entries may
   be lost (no votes: these are proved before they are acknowledged; no entries that a snapshot
   needs: these are proved before it is written). The member must not help to elect a leader without
   these entries: it votes when it has caught up (`raft/group/group.py`).

Both are logged with file, offset and bytes, and counted (`cut_bytes`).

Directories of earlier versions have no manifest: their files count as complete.

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
    """The recovered state and entries of one group."""

    state: HardState = field(default_factory=HardState)
    entries: dict[int, Entry] = field(default_factory=dict)
    """By index, ascending, without entries that a later one truncated."""
    cut_index: int | None = None
    """The lowest index that an entry in the files follows: the files decide what comes after it."""


def wal_files(fs: FileSystem, directory: str) -> list[tuple[int, str]]:
    """(number, path) of each file, in order."""
    numbers = (parse_wal(name) for name in fs.list(directory))
    return [
        (number, f"{directory}/{wal_name(number)}")
        for number in sorted(number for number in numbers if number is not None)
    ]


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
        """The end of the last intact batch, by file number."""
        self.cut_bytes = 0
        self.is_doubtful = False

    def run(
        self, installs: Mapping[str, int], known: Container[str] | None
    ) -> dict[str, Recovered]:
        """The content of all files, by group. It is durable when this returns.

        `installs` gives the groups that have installed a snapshot: their entries do not count in
        files up to this number. Records of groups that are not `known` are skipped.
        """
        groups: dict[str, Recovered] = {}
        listed, files = self._listed(), wal_files(self._fs, self._directory)
        before = 0
        for number, path in files:
            if number < min(listed, default=0):
                continue
            if number != before + 1 and not listed:
                # Files are deleted when their entries are in segments. A crash may have brought
                # some back. Those before a missing file hold nothing that is needed.
                groups.clear()
                self.ends.clear()
            before = number
            # A killed process may have left batches only in the operating system's cache.
            with self._fs.open_append(path) as file:
                file.fsync()
            parsed = self._parse(number, path, listed, files[-1][0])
            names: dict[int, str] = {}
            unknown: set[int] = set()
            for record in chain.from_iterable(parsed.batches):
                if known is not None and record.kind == RecordKind.GROUP:
                    name = record.payload.decode()
                    if name.partition("/")[0] not in known:
                        unknown.add(record.group)
                if record.group in unknown:
                    continue
                is_entry = record.kind == RecordKind.ENTRY
                if is_entry and number <= installs.get(names[record.group], 0):
                    continue
                self._replay(record, names, groups, path)
        self._fs.sync_dir(self._directory)
        return groups

    def _listed(self) -> dict[int, int]:
        """The files that must exist, with the number of bytes of each that must be intact."""
        if self._manifest is None or not self._manifest.exists:
            return {}
        for number in self._manifest.wal:
            path = f"{self._directory}/{wal_name(number)}"
            if not self._fs.exists(path):
                raise FilesLost(path, f"missing, but {self._manifest.path} names it")
        return dict(self._manifest.wal)

    def _parse(self, number: int, path: str, listed: Mapping[int, int], newest: int) -> Parsed:
        """Read a file and judge its end."""
        data = read_file(self._fs, path)
        parsed = parse_batches(data, number, path)
        durable_bytes = listed.get(number, 0)
        if parsed.end < durable_bytes:
            what = f"only {parsed.end} bytes are intact, but {durable_bytes} were durable"
            raise DamagedFile(path, parsed.end, what)
        self.ends[number] = parsed.end
        # Bytes after the end of an earlier file are from a write that failed.
        if parsed.tail is not WalTail.NOTHING and number >= max(listed, default=newest):
            cut_bytes = len(data) - parsed.end
            self.cut_bytes += cut_bytes
            place = {"file": path, "offset": parsed.end, "bytes": cut_bytes}
            if parsed.tail is WalTail.DAMAGED:
                self.is_doubtful = True
                what = "damaged batch cut off; this node votes when it has caught up with a leader"
                log.error(what, **place)
            else:
                log.warning("torn write cut off", **place)
        return parsed

    def _replay(
        self, record: WalRecord, names: dict[int, str], groups: dict[str, Recovered], path: str
    ) -> None:
        if record.kind == RecordKind.GROUP:
            group = names[record.group] = record.payload.decode()
            groups.setdefault(group, Recovered())
            return
        group = names[record.group]
        recovered = groups[group]
        if record.kind == RecordKind.STATE:
            saved = HardState(record.term, record.payload.decode(), record.index)
            # A file that failed while it was created may have older states than the file before
            # it, which was appended to afterwards.
            last_state = recovered.state
            if (saved.term, bool(saved.vote)) >= (last_state.term, bool(last_state.vote)):
                recovered.state = saved
            return
        entries, index, previous = recovered.entries, record.index, record.previous
        cut_index = previous if recovered.cut_index is None else recovered.cut_index
        recovered.cut_index = min(previous, cut_index)
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
