"""The files of a Raft node: one write-ahead log, and a directory per group.

Opening works after any crash. What the manifest names must exist (`manifest.py`); otherwise the
directory is not opened (`FilesLost`, `EntriesLost`):

1. For each group: interrupted merges are finished or rolled back; the newest snapshot and its live
   indexes are read. They are needed before the write-ahead log is read, which skips entries that
   are not needed.
2. The write-ahead log is read: entries and states of all groups.
3. For each group: the segments are listed. A torn end of the newest is cut off; a segment without
   entries, and one of which no entry counts, is deleted. Live indexes, snapshot, segments and mem
   table must join without a gap. They must reach the end that the manifest records, unless the
   write-ahead log has truncated the entries before it.

`wal.flush` makes queued writes durable, and `flush` moves a full file's entries to segments. A node
calls them in two threads (`raft/storage/disk_threads.py`), tests in turn.
"""

from __future__ import annotations

import math
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
from lithify.raft.storage.recent_entries import RecentEntries
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
    from lithify.live_set import LiveSet
    from lithify.raft.core.values import HardState
    from lithify.raft.storage.snapshots.snapshot_file import Head
    from lithify.raft.storage.snapshots.snapshot_store import StoredSnapshot
    from lithify.raft.storage.wal.wal import Rolled

    Rebuild = Callable[[str, Iterable[bytes]], LiveSet]

__all__ = ["GroupStorage", "InstallWritten", "RaftStorage", "StorageSettings"]


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Limits of the sizes of files."""

    wal_bytes_max: int = FILE_BYTES_MAX
    segments: SegmentLimits = field(default_factory=SegmentLimits)

    def __post_init__(self) -> None:
        check_range("wal_file_bytes", self.wal_bytes_max, 1, 2**40)
        check_range("segment_entries", self.segments.entries_max, 1, 2**31)
        # A segment's offsets have 32 bits, and one entry more than the limit may be in it.
        check_range("segment_bytes", self.segments.frame_bytes_max, 1, 2**31)


@dataclass(slots=True)
class GroupStorage:
    """The files of one group."""

    group: str
    directory: str
    log: GroupLog
    snapshots: Snapshots
    stored: StoredSnapshot | None
    """The newest snapshot."""
    hard_state: HardState
    doubt_term: int | None = None
    """The term in which it may have acknowledged entries that are lost; None if none are."""


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
        """Lock the directory, or raise `LogLocked`. Call `open_groups` next."""
        self._settings = settings or StorageSettings()
        self.limits = self._settings.segments
        self.fs = fs
        self.directory = directory
        fs.mkdir(f"{directory}/{GROUPS}")
        warn_if_shared(fs, directory)
        self._lock = _lock(fs, directory)
        self.states = LiveStates()
        self.recent = RecentEntries()
        self.latencies = Latencies()
        """Durations of the rounds of the write-ahead log."""
        self.refused = ""
        """Why the disk refuses what waits to be written to the write-ahead log; any thread."""
        self.written_s = -math.inf
        """When the write-ahead log was written to last, by the system's clock; any thread."""
        try:
            self.manifest = RaftManifest(fs, directory)
            self.wal = Wal(
                fs,
                f"{directory}/{WAL}",
                self.states,
                file_bytes_max=self._settings.wal_bytes_max,
                manifest=self.manifest,
            )
        except BaseException:
            self._lock.release()
            raise
        self._writer = RaftSegmentWriter(fs, self._settings.segments)
        self.groups: dict[str, GroupStorage] = {}
        self.installs: dict[str, Install] = {}
        self._removable = 0
        self._unsettled = 0
        self._flushed: dict[str, Flushed] = {}
        """By group: segments of a file of which a later group could not be written."""
        self.removing: Callable[[Callable[[], None]], None] = _at_once
        """Runs a function that deletes unneeded files; a node runs it later, in a thread."""
        self.settled_number = 0
        """The entries in files of the write-ahead log up to this number are in segments."""

    def open_groups(
        self,
        rebuild: Rebuild,
        known: AbstractSet[str] | None = None,
        is_gone: Callable[[str], bool] = lambda _: False,
        *,
        is_listed: bool | None = None,
    ) -> None:
        """Read all groups; `rebuild` computes the live indexes from a group's state.

        Directories of groups that are not `known` are deleted if `is_gone` says that the group was
        removed; otherwise `UnknownGroup` is raised. `is_listed` says that a manifest must exist.
        False means that an earlier version wrote NODE: a manifest is then from a later version that
        ran before, and does not cover the files that the earlier version has written since.
        """
        if is_listed and not self.manifest.exists:
            raise FilesLost(self.manifest.path, "missing, but NODE was written after it")
        if is_listed is False:
            self.manifest.disregard_files()
        opened: dict[str, tuple[Snapshots, StoredSnapshot | None]] = {}
        # A group without a directory may have entries in the write-ahead log.
        expected = self.manifest.ends.keys() if known is None else known
        for group in sorted({*self.fs.list(f"{self.directory}/{GROUPS}"), *expected}):
            if known is None or group in known:
                opened[group] = self._read_snapshot(group, rebuild)
            elif is_gone(group):
                self.remove_files(group)
            else:
                raise UnknownGroup(self._directory_of(group))
        installs = {g: stored.place.wal_file for g, (_, stored) in opened.items() if stored}
        recovered = self.wal.recover(installs, known)
        for group, (snapshots, stored) in opened.items():
            rest = recovered.pop(group, None) or Recovered()
            if stored is not None:
                name = install_name(group, stored.place.install_index)
                self._join(group, rest, recovered.pop(name, None))
            self.groups[group] = self._open(group, snapshots, stored, rest)
        for group in recovered:
            # An install that was not finished.
            self.wal.forget(group)
        self._settle_manifest()

    def _settle_manifest(self) -> None:
        """Make the manifest agree with the groups that were opened."""
        for group in self.manifest.ends.keys() - self.groups.keys():
            self.manifest.forget(group)
        if self.wal.is_doubtful:
            self.manifest.doubt({name: own.hard_state.term for name, own in self.groups.items()})
        elif not self.manifest.exists:
            # The directory is new, or an earlier version wrote it.
            self.manifest.ends = self._ends()
            self.manifest.save()
        for group, term in self.manifest.doubts.items():
            if group in self.groups:
                self.groups[group].doubt_term = term

    def trust(self, group: str) -> Callable[[], None]:
        """A member has all committed entries, and may vote. The returned job makes that durable."""
        self.groups[group].doubt_term = None
        return partial(self.manifest.trust, group)

    def create(self, group: str) -> GroupStorage:
        """Create an empty group; its name was never used before."""
        snapshots = Snapshots(self.fs, self._directory_of(group))
        storage = self.groups[group] = self._open(group, snapshots, None, Recovered())
        return storage

    def forget(self, group: str) -> None:
        """Stop writing for a removed group. `remove_files` deletes its files.

        The caller has durably recorded the removal (`raft/node/identity.py`).
        """
        for install in [each for each in self.installs.values() if each.group == group]:
            # The worker may still use its files, which are deleted with the group's.
            install.leave()
            self._end_install(install)
        self.wal.forget(group)
        storage = self.groups.pop(group)
        storage.log.segments.close()
        self.states.remove(group)
        self.manifest.forget(group)

    def remove_files(self, group: str) -> None:
        """Delete the directory of a group to which no thread writes."""
        remove_tree(self.fs, self._directory_of(group))
        self.fs.sync_dir(f"{self.directory}/{GROUPS}")

    def flush(self, rolled: Rolled) -> list[Flushed]:
        """Write a full file's entries to segments; `settle` adds these to the groups.

        One file at a time: a new segment's number follows those of the group's segments. After a
        failed write it may be called again with the same file.
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
        """Add flushed segments to their groups, and delete files that are not needed."""
        for flushed in done:
            storage = self.groups.get(flushed.group)
            if storage is not None:
                for name in storage.log.flushed(flushed):
                    self.removing(partial(self.fs.remove, f"{storage.directory}/{name}"))
        self._unsettled = 0
        self._removable = max(self._removable, rolled.number)
        self.settled_number = max(self.settled_number, rolled.number)
        if not self.installs:
            self._remove_settled()

    def _remove_settled(self) -> None:
        """Delete files of the write-ahead log whose entries are in segments."""
        self.removing(partial(self.wal.remove, self._removable, self._ends()))
        self._removable = 0

    def _ends(self) -> dict[str, End]:
        """The end of each group: the last index of its segments and snapshot."""
        ends = {}
        for group, own in self.groups.items():
            log, place = own.log, own.log.place()
            last = max(log.segments.last, log.snapshot_index)
            ends[group] = End(last, place.wal_file, place.install_index)
        return ends

    # --- installing -------------------------------------------------------------------------

    def begin_install(self, group: str, head: Head, applied: int) -> Install:
        """Begin to receive a snapshot; `applied` is the index this member has applied."""
        accepting = self.groups[group].snapshots.accept(head)
        install = Install(group, self.wal, accepting, applied)
        self.installs[install.name] = install
        return install

    def installing(self, name: str) -> Install | None:
        """The install with this name in the events of the write-ahead log."""
        return self.installs.get(name)

    def install_job(self, install: Install, live: LiveSet) -> Callable[[], InstallWritten]:
        """Parts 2 and 3, for the worker: the snapshot replaces the log on disk.

        The write-ahead log was rolled and settled after the group's last written entry; the group
        writes no other before `installed`. The job may be repeated after a failed write. In memory
        it changes only the install.
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
        # Existing segments are not appended to.
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
        """Apply the result of the job: the snapshot replaces the log in memory."""
        storage, stored = self.groups[install.group], written.stored
        storage.stored = stored
        self.wal.restart(install.group)
        storage.log.install(LiveState(stored.index, live), stored)
        # The install had its own mem table, so the group's has none of these entries.
        number = stored.place.wal_file
        storage.log.flushed(Flushed(install.group, number, IndexRuns(), written.refs))
        self._end_install(install)

    def abort_install(self, install: Install) -> None:
        """Abort an install; the log stays as it was."""
        install.abort()
        self._end_install(install)

    def _end_install(self, install: Install) -> None:
        del self.installs[install.name]
        self.wal.forget(install.name)
        if not self.installs and self._removable:
            self._remove_settled()

    def close(self) -> None:
        """Close all files and release the lock. Queued writes are dropped."""
        self.wal.close()
        for storage in self.groups.values():
            storage.log.segments.close()
        self._lock.release()

    # --- opening ----------------------------------------------------------------------------

    def _directory_of(self, group: str) -> str:
        return f"{self.directory}/{GROUPS}/{group}"

    def _join(self, group: str, rest: Recovered, installed: Recovered | None) -> None:
        """Add the live entries of a snapshot whose install was interrupted after its rename."""
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
        # There are no readers yet, and a new segment may get the number of a link.
        merge_links.purge_links(self.fs, directory, before_ms=2**63)
        snapshots = Snapshots(self.fs, directory)
        stored = snapshots.newest()
        if stored is not None:
            live = snapshots.live(stored, lambda pieces: rebuild(group, pieces))
            self.states[group] = LiveState(stored.index, live)
            # After a crash between its rename and the directory's sync the rename is not durable.
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
            # A merged segment has the number of its lowest source, but no overwritten entries.
            segments.limit(stored.place.cut_index, stored.place.cut_number, merged)
            # A segment that is cut is not appended to, and its number is not used again.
            if segments.last_number <= stored.place.cut_number:
                segments.last_number = stored.place.cut_number + 1
        if segments.last_number in merged:
            # A merged segment is not appended to: cuts do not apply to it.
            segments.last_number += 1
        if recovered.entries:
            # These entries truncated all entries at and after their first index.
            segments.limit(next(iter(recovered.entries)) - 1)
        names = {span.ref.name for span in segments.spans}
        removed = False
        for name in self.fs.list(directory):
            path = f"{directory}/{name}"
            is_temporary = parse_repair(name) is not None or name == HISTORY + TEMPORARY_SUFFIX
            if not is_temporary and (
                parse_segment(name) is None or name in names or self.fs.stat(path).is_symlink
            ):
                continue
            # A segment without entries, one that later segments have overwritten completely, or
            # the temporary file of a repair or a history.
            self.fs.remove(path)
            removed = True
        if removed:
            # The number may be used again: after a crash the name must not show the old file.
            self.fs.sync_dir(directory)
        check_end(group, directory, segments, stored, recovered, self.manifest.ends.get(group))
        table = MemTable(group, recovered.entries)
        log = GroupLog(group, self.wal, table, segments, self.states, stored)
        check_live(log, self.states[group])
        return GroupStorage(group, directory, log, snapshots, stored, recovered.state)

    def _refs(self, directory: str) -> tuple[list[SegmentRef], set[int]]:
        """The segments of a group, and the numbers of those that are merged.

        The newest gets a footer if it has none.
        """
        numbers = [
            number
            for name in self.fs.list(directory)
            if (number := parse_segment(name)) is not None
            and not self.fs.stat(f"{directory}/{name}").is_symlink
        ]
        if numbers:
            # A killed process may have left it only in the operating system's cache.
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
                if number != numbers[-1] and not self._was_abandoned(directory, number):
                    raise
                ref = self._finish_segment(directory, number)
            if ref.entries:
                refs.append(ref)
        return refs, merged

    def _was_abandoned(self, directory: str, number: int) -> bool:
        """May the segment writer have left this segment without a footer, and begun the next?

        It does so when the disk fails in the middle of an append and cannot read the segment
        afterwards. The appended entries are then in the next segment or in the write-ahead log. If
        more is lost, `check_end` or `check_live` finds a gap.
        """
        with self.fs.open_read(f"{directory}/{segment_name(number)}") as file:
            return not has_footer(file) and read_header(file).kind != MERGED_KIND

    def _finish_segment(self, directory: str, number: int) -> SegmentRef:
        """Cut off a torn end and write the footer; a segment that was just begun has no entries."""
        limits = self._settings.segments
        appender = SegmentAppender.reopen(self.fs, directory, number, limits)
        if appender is None:
            return SegmentRef(number, segment_name(number), 0)
        return appender.close()


def _at_once(work: Callable[[], None]) -> None:
    work()


def _lock(fs: FileSystem, directory: str) -> FileLock:
    return hold_directory(fs, f"{directory}/{LOCK}", f"raft node, pid {os.getpid()}")
