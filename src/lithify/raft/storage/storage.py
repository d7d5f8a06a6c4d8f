"""What a Raft node has on disk: one write-ahead log, and a directory for each group.

Opening, after any crash. What the manifest names must be there (`manifest.py`); if something is
gone, the directory is not opened (`FilesLost`, `EntriesLost`):

1. For each group: interrupted merges are finished or taken back; the newest snapshot is read, and
   its live indexes. These rows are known before the write-ahead log is read, so that what nobody
   needs any more is passed over.
2. The write-ahead log is read: entries and states of all groups.
3. For each group: the segments are listed. What a crash has torn off the newest is cut, one that
   was just begun is removed, and so is one of which nothing counts. The parts must join without a
   gap: live indexes, snapshot, segments, mem table. They must reach as far as the manifest says,
   unless the write-ahead log has cut off what was behind.

`work` is one round of the write-ahead log, and `flush` moves a full file's entries to segments.
Whoever runs the node decides which threads call them (`raft/node/node.py`); tests call them in
turn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from lithify.compaction.limits.latencies import Latencies
from lithify.errors import DamagedFile, InvalidInput
from lithify.fs import hold_directory
from lithify.fs.atomic import TEMPORARY_SUFFIX
from lithify.fs.permissions import warn_if_shared
from lithify.fs.remove_tree import remove_tree
from lithify.log.file_names import HISTORY
from lithify.log.manifest import SegmentRef
from lithify.log.segments.segment_file import has_footer, read_blocks, read_footer, read_header
from lithify.raft.errors import FilesLost, UnknownGroup
from lithify.raft.storage import merge_links
from lithify.raft.storage.completeness_check import check_end, check_live
from lithify.raft.storage.file_names import (
    GROUPS,
    LOCK,
    WAL,
    install_name,
    parse_repair,
    parse_segment,
    segment_name,
)
from lithify.raft.storage.group_log import GroupLog
from lithify.raft.storage.group_segments import GroupSegments
from lithify.raft.storage.index_runs import IndexRuns
from lithify.raft.storage.live_state import LiveState, LiveStates
from lithify.raft.storage.manifest import End, RaftManifest
from lithify.raft.storage.memtable import MemTable
from lithify.raft.storage.segment_file import MERGED_KIND, SegmentAppender, SegmentLimits, ref_of
from lithify.raft.storage.segment_writer import Flushed, RaftSegmentWriter
from lithify.raft.storage.snapshots.install import Install
from lithify.raft.storage.snapshots.snapshot_store import SnapshotPlace, Snapshots
from lithify.raft.storage.wal.recovery import Recovered
from lithify.raft.storage.wal.wal import FILE_BYTES_MAX, Wal
from lithify.settings import check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from lithify.fs import FileLock, FileSystem
    from lithify.liveset import LiveSet
    from lithify.raft.core.values import HardState
    from lithify.raft.storage.snapshots.snapshot_file import Head
    from lithify.raft.storage.snapshots.snapshot_store import StoredSnapshot
    from lithify.raft.storage.wal.wal import Rolled

    Rebuild = Callable[[str, Iterable[bytes]], LiveSet]

__all__ = ["GroupStorage", "InstallWritten", "RaftStorage", "StorageSettings"]


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Sizes of files."""

    wal_bytes_max: int = FILE_BYTES_MAX
    segments: SegmentLimits = field(default_factory=SegmentLimits)

    def __post_init__(self) -> None:
        check_range("wal_file_bytes", self.wal_bytes_max, 1, 2**40)
        check_range("segment_entries", self.segments.entries_max, 1, 2**31)
        # A segment's offsets have 32 bits, and one entry more than the limit may be in it.
        check_range("segment_bytes", self.segments.frame_bytes_max, 1, 2**31)


@dataclass(slots=True)
class GroupStorage:
    """What one group has on disk."""

    group: str
    directory: str
    log: GroupLog
    snapshots: Snapshots
    stored: StoredSnapshot | None
    """The newest snapshot."""
    hard_state: HardState
    doubt_term: int | None = None
    """The term in which it may have acknowledged entries that it has lost; None if it has all."""


@dataclass(frozen=True, slots=True)
class InstallWritten:
    """An installed snapshot, and the segments with its live entries."""

    stored: StoredSnapshot
    refs: tuple[SegmentRef, ...]


class RaftStorage:
    """See the module."""

    def __init__(
        self, fs: FileSystem, directory: str, settings: StorageSettings | None = None
    ) -> None:
        """Take the directory; `open_groups` comes next. `LogLocked` if another process has it."""
        self._settings = settings or StorageSettings()
        self.limits = self._settings.segments
        self.fs = fs
        self.directory = directory
        fs.mkdir(f"{directory}/{GROUPS}")
        warn_if_shared(fs, directory)
        self._lock = _lock(fs, directory)
        try:
            self.manifest = RaftManifest(fs, directory)
        except BaseException:
            self._lock.release()
            raise
        self.states = LiveStates()
        self.latencies = Latencies()
        """Of the rounds of the write-ahead log."""
        self.wal = Wal(
            fs,
            f"{directory}/{WAL}",
            self.states,
            file_bytes_max=self._settings.wal_bytes_max,
            manifest=self.manifest,
        )
        self._writer = RaftSegmentWriter(fs, self._settings.segments)
        self.groups: dict[str, GroupStorage] = {}
        self._installs: dict[str, Install] = {}
        self._removable = 0
        self._unsettled = 0
        self._flushed: dict[str, Flushed] = {}
        """By group, of a file that was refused before it was through."""
        self.removing: Callable[[Callable[[], None]], None] = _at_once
        """Does what removes files that nobody needs, some time; a node has a thread for it."""
        self.settled_number = 0
        """What the files of the write-ahead log up to this number held is in segments."""

    def open_groups(
        self,
        rebuild: Rebuild,
        known: AbstractSet[str] | None = None,
        is_gone: Callable[[str], bool] = lambda _: False,
        *,
        is_listed: bool | None = None,
    ) -> None:
        """Read everything that is there; `rebuild` finds the live indexes in a group's state.

        What is there of groups that are not `known` is removed if they are gone by a decision, and
        `UnknownGroup` if not. `is_listed` says that there must be a manifest. False means that NODE
        is of an earlier version: a manifest beside it is of a later version that has run meanwhile,
        and is not about the files that the earlier one has written since.
        """
        if is_listed and not self.manifest.exists:
            raise FilesLost(self.manifest.path, "missing, but NODE was written after it")
        if is_listed is False:
            self.manifest.disregard_files()
        found: dict[str, tuple[Snapshots, StoredSnapshot | None]] = {}
        # Also those of which nothing is left but what the write-ahead log has.
        expected = self.manifest.ends.keys() if known is None else known
        for group in sorted({*self.fs.list(f"{self.directory}/{GROUPS}"), *expected}):
            if known is None or group in known:
                found[group] = self._read_snapshot(group, rebuild)
            elif is_gone(group):
                self.remove_files(group)
            else:
                raise UnknownGroup(self._directory_of(group))
        installs = {g: stored.place.wal_file for g, (_, stored) in found.items() if stored}
        recovered = self.wal.recover(installs, known)
        for group, (snapshots, stored) in found.items():
            rest = recovered.pop(group, None) or Recovered()
            if stored is not None:
                name = install_name(group, stored.place.install_index)
                self._join(group, rest, recovered.pop(name, None))
            self.groups[group] = self._open(group, snapshots, stored, rest)
        for group in recovered:
            # An install that did not come to its end.
            self.wal.forget(group)
        self._settle_manifest()

    def _settle_manifest(self) -> None:
        """Let the manifest be about what was found."""
        for group in self.manifest.ends.keys() - self.groups.keys():
            self.manifest.forget(group)
        if self.wal.is_doubtful:
            self.manifest.doubt({name: own.hard_state.term for name, own in self.groups.items()})
        elif not self.manifest.exists:
            # A directory of an earlier version, or a new one.
            self.manifest.ends = self._ends()
            self.manifest.save()
        for group, term in self.manifest.doubts.items():
            if group in self.groups:
                self.groups[group].doubt_term = term

    def trust(self, group: str) -> Callable[[], None]:
        """A member has all that is committed: it may vote. What is returned makes that durable."""
        self.groups[group].doubt_term = None
        return partial(self.manifest.trust, group)

    def create(self, group: str) -> GroupStorage:
        """A new group, empty; the name was never used before."""
        snapshots = Snapshots(self.fs, self._directory_of(group))
        made = self.groups[group] = self._open(group, snapshots, None, Recovered())
        return made

    def forget(self, group: str) -> None:
        """A group is no more: nothing of it is written from now on. Its files are still there.

        Whoever calls has made sure that the next start will not know it (`raft/node/identity.py`).
        """
        for install in [each for each in self._installs.values() if each.group == group]:
            # The worker may be busy with its files, which go with the group's.
            install.leave()
            self._end_install(install)
        self.wal.forget(group)
        storage = self.groups.pop(group)
        storage.log.segments.close()
        self.states.remove(group)
        self.manifest.forget(group)

    def remove_files(self, group: str) -> None:
        """Give back what a group takes on disk, when nobody writes there any more."""
        remove_tree(self.fs, self._directory_of(group))
        self.fs.sync_dir(f"{self.directory}/{GROUPS}")

    def flush(self, rolled: Rolled) -> list[Flushed]:
        """Write a full file's entries to segments; the groups take them in by `settle`.

        One file at a time: the numbers of new segments come from those that were taken in. If the
        disk refuses, it may be called again with the same file.
        """
        if self._unsettled:
            raise InvalidInput(f"file {self._unsettled} was flushed and is not settled yet")
        done = self._flushed
        for group, indexes in rolled.indexes.items():
            storage = self.groups.get(group)
            if storage is None or group in done:
                continue
            log = storage.log
            done[group] = self._writer.flush(
                group,
                storage.directory,
                rolled.number,
                indexes,
                log.table,
                self.states,
                log.segments,
            )
        self._unsettled, self._flushed = rolled.number, {}
        return list(done.values())

    def settle(self, rolled: Rolled, done: Iterable[Flushed]) -> None:
        """Let groups take in what was flushed, and remove what is not needed any more."""
        for flushed in done:
            storage = self.groups.get(flushed.group)
            if storage is not None:
                for name in storage.log.flushed(flushed):
                    self.removing(partial(self.fs.remove, f"{storage.directory}/{name}"))
        self._unsettled = 0
        self._removable = max(self._removable, rolled.number)
        self.settled_number = max(self.settled_number, rolled.number)
        if not self._installs:
            self._remove_settled()

    def _remove_settled(self) -> None:
        """Remove files of the write-ahead log whose entries are in segments."""
        self.removing(partial(self.wal.remove, self._removable, self._ends()))
        self._removable = 0

    def _ends(self) -> dict[str, End]:
        """How far segments and snapshot of each group reach now."""
        ends = {}
        for group, own in self.groups.items():
            log, place = own.log, own.log.place()
            last = max(log.segments.last, log.snapshot_index)
            ends[group] = End(last, place.wal_file, place.install_index)
        return ends

    # --- installing -------------------------------------------------------------------------

    def begin_install(self, group: str, head: Head, applied: int) -> Install:
        """A snapshot comes from another member; `applied` is how far this one is."""
        accepting = self.groups[group].snapshots.accept(head)
        install = Install(group, self.wal, accepting, applied)
        self._installs[install.name] = install
        return install

    def installing(self, name: str) -> Install | None:
        """The install that an event of the write-ahead log is about."""
        return self._installs.get(name)

    def install_job(self, install: Install, live: LiveSet) -> Callable[[], InstallWritten]:
        """Parts 2 and 3, for the worker: the snapshot takes the place of the log, on disk.

        The write-ahead log was rolled, and what it held was settled, after the last entry that the
        group has written; it writes no other before `installed`. The job may be done again if the
        disk has refused it. It touches nothing in memory but what is the install's own.
        """
        storage, wal_file = self.groups[install.group], self.wal.closed_number
        index = install.head.meta.index
        place = SnapshotPlace(storage.log.segments.last_number, install.applied, wal_file, index)
        return partial(self._write_install, install, live, place, storage.directory)

    def _write_install(
        self, install: Install, live: LiveSet, place: SnapshotPlace, directory: str
    ) -> InstallWritten:
        stored = install.finish(live, place)
        group, states = install.group, LiveStates()
        states[group] = LiveState(stored.index, live)
        # Nothing is appended to what was there before.
        segments = GroupSegments(self.fs, directory)
        segments.last_number = stored.place.cut_number + 1
        flushed = self._writer.flush(
            group,
            directory,
            stored.place.wal_file,
            install.indexes,
            install.table,
            states,
            segments,
        )
        place = stored.place
        self.manifest.installed(group, End(stored.index, place.wal_file, place.install_index))
        return InstallWritten(stored, flushed.refs)

    def installed(self, install: Install, live: LiveSet, written: InstallWritten) -> None:
        """Take in what the job has written: the log is another one."""
        storage, stored = self.groups[install.group], written.stored
        storage.stored = stored
        self.wal.restart(install.group)
        storage.log.install(LiveState(stored.index, live), stored)
        # Its entries were in a table of their own, so none are to be looked for in the group's.
        number = stored.place.wal_file
        storage.log.flushed(Flushed(install.group, number, IndexRuns(), written.refs))
        self._end_install(install)

    def abort_install(self, install: Install) -> None:
        """Give one up; the log is as it was."""
        install.abort()
        self._end_install(install)

    def _end_install(self, install: Install) -> None:
        del self._installs[install.name]
        self.wal.forget(install.name)
        if not self._installs and self._removable:
            self._remove_settled()

    def close(self) -> None:
        """Let go of everything; what was not made durable is not."""
        self.wal.close()
        for storage in self.groups.values():
            storage.log.segments.close()
        self._lock.release()

    # --- opening ----------------------------------------------------------------------------

    def _directory_of(self, group: str) -> str:
        return f"{self.directory}/{GROUPS}/{group}"

    def _join(self, group: str, rest: Recovered, installed: Recovered | None) -> None:
        """Take in the live entries of a snapshot whose install was not quite at its end."""
        if installed is None:
            return
        live = self.states[group].live
        for index, entry in installed.entries.items():
            if index in live:
                rest.entries.setdefault(index, entry)
        rest.entries = dict(sorted(rest.entries.items()))
        self.wal.adopt(group, rest.entries.values())

    def _read_snapshot(
        self, group: str, rebuild: Rebuild
    ) -> tuple[Snapshots, StoredSnapshot | None]:
        directory = self._directory_of(group)
        self.fs.mkdir(directory)
        merge_links.recover(self.fs, directory)
        # Nobody has an old name any more, and a new segment may get the number of a link.
        merge_links.purge_links(self.fs, directory, before_ms=2**63)
        snapshots = Snapshots(self.fs, directory)
        stored = snapshots.newest()
        if stored is not None:
            live = snapshots.live(stored, lambda pieces: rebuild(group, pieces))
            self.states[group] = LiveState(stored.index, live)
            # A crash may have come between its rename and the directory's sync.
            self.fs.sync_dir(stored.directory.rpartition("/")[0])
            snapshots.remove_older(stored)
        return snapshots, stored

    def _open(
        self, group: str, snapshots: Snapshots, stored: StoredSnapshot | None, recovered: Recovered
    ) -> GroupStorage:
        directory = self._directory_of(group)
        refs, merged = self._refs(directory)
        segments = GroupSegments(self.fs, directory, refs)
        if stored is not None:
            # Merged ones have the numbers of their lowest source, but nothing that was overwritten.
            segments.limit(stored.place.cut_index, stored.place.cut_number, merged)
            # What is cut off is not appended to, and its number not given out again.
            if segments.last_number <= stored.place.cut_number:
                segments.last_number = stored.place.cut_number + 1
        if segments.last_number in merged:
            # Nothing is appended to a merged one: what is in it counts, whatever is cut off.
            segments.last_number += 1
        if recovered.entries:
            # What was written before them and is behind them was cut off when they were written.
            segments.limit(next(iter(recovered.entries)) - 1)
        names = {span.ref.name for span in segments.spans}
        removed = False
        for name in self.fs.list(directory):
            path = f"{directory}/{name}"
            is_half = parse_repair(name) is not None or name == HISTORY + TEMPORARY_SUFFIX
            if not is_half and (
                parse_segment(name) is None or name in names or self.fs.stat(path).is_symlink
            ):
                continue
            # Just begun, or overwritten as a whole by segments that came after it; or a repair or a
            # history that was not finished.
            self.fs.remove(path)
            removed = True
        if removed:
            # Its number may be given out again: then the name must not lead to this file.
            self.fs.sync_dir(directory)
        check_end(group, directory, segments, stored, recovered, self.manifest.ends.get(group))
        table = MemTable(group, recovered.entries)
        log = GroupLog(group, self.wal, table, segments, self.states, stored)
        check_live(log, self.states[group])
        return GroupStorage(group, directory, log, snapshots, stored, recovered.state)

    def _refs(self, directory: str) -> tuple[list[SegmentRef], set[int]]:
        """The segments of a group, and the numbers of merged ones among them.

        The newest is brought to an end that counts.
        """
        numbers = [
            number
            for name in self.fs.list(directory)
            if (number := parse_segment(name)) is not None
            and not self.fs.stat(f"{directory}/{name}").is_symlink
        ]
        if numbers:
            # A killed process may have left it in the operating system's cache only.
            with self.fs.open_append(f"{directory}/{segment_name(numbers[-1])}") as file:
                file.fsync()
        refs, merged = [], set()
        for number in numbers:
            try:
                with self.fs.open_read(f"{directory}/{segment_name(number)}") as file:
                    footer = read_footer(file)
                    read_blocks(file, footer)
                    ref = ref_of(number, footer)
                    if read_header(file).kind == MERGED_KIND:
                        merged.add(number)
            except DamagedFile:
                if number != numbers[-1] and not self._was_left(directory, number):
                    raise
                ref = self._end(directory, number)
            if ref.entries:
                refs.append(ref)
        return refs, merged

    def _was_left(self, directory: str, number: int) -> bool:
        """May the segment writer have left this one without a footer, and begun the next?

        It does so when the disk fails in the middle of an append and does not read the segment
        afterwards. What was appended is in the next one then, or in the write-ahead log. If more is
        gone, the entries of the next one do not follow (`check_end`, `check_live`).
        """
        with self.fs.open_read(f"{directory}/{segment_name(number)}") as file:
            return not has_footer(file) and read_header(file).kind != MERGED_KIND

    def _end(self, directory: str, number: int) -> SegmentRef:
        """Bring a segment that was being written to an end; one just begun has no entries."""
        limits = self._settings.segments
        appender = SegmentAppender.reopen(self.fs, directory, number, limits)
        if appender is None:
            return SegmentRef(number, segment_name(number), 0)
        return appender.close()


def _at_once(work: Callable[[], None]) -> None:
    work()


def _lock(fs: FileSystem, directory: str) -> FileLock:
    return hold_directory(fs, f"{directory}/{LOCK}", f"raft node, pid {os.getpid()}")
