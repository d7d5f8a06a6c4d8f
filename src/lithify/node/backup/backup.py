"""Backup of a data directory, whether a node serves it or not.

    run_backup(fs, "/var/lib/lithify", "/backup/monday", clock=clock)
    run_backup(fs, "/var/lib/lithify", "/backup/tuesday", clock=clock, previous="/backup/monday")

A process with read permission reads the files directly; a node that serves them is not involved,
and continues. The backup has everything that was acknowledged before it began and was not deleted
since.

1. Lock `UNFINISHED` in the target, which must be empty or hold an unfinished backup; remove what
   that has left.
2. Read the definitions: the copy that a node keeps for this, not the directory of its catalog.
3. Save each topic: its cursors first and its log after them. A cursor must never be ahead of the
   log, or messages produced after a restore would count as acknowledged. Its schemas are last:
   every message in the copy finds its schema.
4. Save each log by one generation (`log/read_only_log.py` pins it). Sealed segments, dead sets and
   key indexes are hard links, or copies on another file system. The active segment is copied up to
   its last good frame and checked. A manifest that names exactly these is written.
5. Save each blob store likewise, but copy its segments: erasing overwrites sealed ones. Frames that
   `ERASE` names are finished in the copy, then the copy is checked; a copy that caught a
   half-written frame is repeated.
6. Verify every byte of each copied or linked log, and of a store its index and every blob's state
   against its records. A topic or store that is damaged, has missing or unreadable files, or was
   deleted in the meantime, is omitted from the backup and its definitions; the report names it.
   Only errors of the target end a backup.
7. Write the definitions, sync all, write `BACKUP`, remove `UNFINISHED`.

The rows of tables are in the Raft groups of several nodes, and are not saved; the report says so.

Incremental: if the backup `previous` has a file with the same bytes, it is linked instead of
copied, and a link to the same file is not read again.

Before files are linked, the log's directory is synced: if a power cut restored an older manifest, a
sealed segment would become the active one again, which is written to.

A kill at any time leaves `UNFINISHED` and no `BACKUP`. Called by the command `lithify backup`.
"""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lithify.blobs.erase.journal import load_erase
from lithify.errors import (
    Corrupt,
    DamagedFrame,
    InvalidInput,
    LithifyError,
    LogLocked,
    MissingCursors,
    MissingFile,
    MissingLog,
    ReadFailed,
    WriteFailed,
)
from lithify.fs.remove_tree import remove_tree
from lithify.log.file_names import HISTORY, MANIFEST, REPLICATION, key_index_name
from lithify.log.manifest import Manifest, read_manifest, write_manifest
from lithify.log.read_only_log import pinned_manifest
from lithify.log.recovery import check_new_directory, read_tail
from lithify.log.segments.overwrite import erase
from lithify.log.verify import verify_log
from lithify.node.backup.backup_list import (
    BACKUP,
    UNFINISHED,
    BackupExists,
    BackupList,
    CopiedFile,
    check_store,
    checksum_file,
    copy_file,
    read_list,
    write_list,
)
from lithify.node.directories import RAFT
from lithify.positions import NO_POSITION
from lithify.raft.storage.file_names import GROUPS, group_of
from lithify.tables.assignments import parse_group
from lithify.topics.definitions.definitions import Definitions, TopicDefinition
from lithify.topics.definitions.definitions_file import (
    COPY,
    DEFINITIONS,
    read_definitions_in,
    write_definitions,
)
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.directories.data_directory import check_no_backup, is_data_directory
from lithify.topics.directories.inventory import INVENTORY, read_inventory
from lithify.topics.directories.unclaimed import scan_topics

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.clock import Clock
    from lithify.fs import FileSystem

__all__ = ["BackupReport", "run_backup"]

TRIES = 20
"""For a log that is deleted and recreated, or overwritten, while it is copied."""
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})

_UNREADABLE = (Corrupt, InvalidInput, ReadFailed, OSError)
_NO_RESOURCES = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup."""

    directory: str
    topics: int
    stores: int
    files: int
    bytes: int
    copied_bytes: int
    """Bytes that were copied; the rest are links."""
    left_out: tuple[str, ...]
    """Topics and stores that were deleted during the backup."""
    unclaimed: tuple[str, ...]
    """Topics and stores with directories but no definition: not in the backup."""
    damaged: tuple[str, ...] = ()
    """Topics and stores that cannot be read completely, with the reason: not in the backup."""
    table_partitions: int = 0
    """Partitions of tables, whose rows are not in the backup."""


def run_backup(
    fs: FileSystem,
    data: str,
    target: str,
    *,
    clock: Clock,
    previous: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> BackupReport:
    """Create a backup; `progress` is called with the number of bytes read."""
    known = BackupList(0, 0, "")
    try:
        check_no_backup(fs, data)
        if not is_data_directory(fs, data):
            raise InvalidInput(f"{data} is not a data directory")
        if f"{os.path.abspath(target)}/".startswith(f"{os.path.abspath(data)}/"):
            raise InvalidInput(f"{target} is inside the data directory {data}")
        if previous is not None:
            known = read_list(fs, previous)
    except OSError as error:
        raise ReadFailed(error.filename or data, 0, error) from error
    try:
        fs.mkdir(target)
        _check_target(fs, target)
        lock = fs.lock(f"{target}/{UNFINISHED}", f"pid {os.getpid()}")
        if lock is None:
            raise LogLocked(target, "another backup")
        try:
            fs.sync_dir(target)
            _clear(fs, target)
            backup = _Backup(fs, data, target, clock, previous or "", known, progress)
            report = backup.run()
            fs.remove(f"{target}/{UNFINISHED}")
            fs.sync_dir(target)
            return report
        finally:
            lock.release()
    except OSError as error:
        raise WriteFailed(error.filename or target, error) from error


def _check_target(fs: FileSystem, target: str) -> None:
    names = fs.list(target)
    if BACKUP in names:
        raise BackupExists(f"{target} is already a backup: each backup needs its own directory")
    if names and UNFINISHED not in names:
        raise BackupExists(
            f"{target} is not empty, and not an unfinished backup: it contains {names[0]}"
        )


def _clear(fs: FileSystem, target: str) -> None:
    """Remove the files of an unfinished backup, which its mark identifies."""
    for name in fs.list(target):
        if name == UNFINISHED:
            continue
        if fs.stat(f"{target}/{name}").is_dir:
            remove_tree(fs, f"{target}/{name}")
        else:
            fs.remove(f"{target}/{name}")


class _Changed(LithifyError):
    """The source was replaced during the copy."""


_PERHAPS_REPLACED = (_Changed, FileNotFoundError, NotADirectoryError, InvalidInput, MissingFile)
"""Errors that a retry may not have."""


@dataclass(slots=True)
class _Backup:
    fs: FileSystem
    data: str
    target: str
    clock: Clock
    previous: str
    known: BackupList
    progress: Callable[[int], None]
    files: dict[str, CopiedFile] = field(default_factory=dict)
    copied_bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    listed: set[str] = field(default_factory=set)
    """Topics that had logs when the backup began."""

    def run(self) -> BackupReport:
        began_ms = self.clock.now_ms()
        read = read_definitions_in(self.fs, self.data)
        known = definitions = read or Definitions.initial()
        self.listed = self._listed()
        if read is None and self._unclaimed(definitions):
            raise InvalidInput(
                f"{self.data} has data, but neither a file {DEFINITIONS} nor {COPY}: start its "
                "node and adopt what is unclaimed"
            )
        for text, topic in sorted(definitions.topics.items()):
            name = TopicName.parse(text)
            if not self._save(text, partial(self._topic, name, topic), _paths(name, topic)):
                definitions = definitions.without_topic(name)
        for store in sorted(definitions.stores):
            path = f"blobs/{store}"
            if not self._save(store, partial(self._log, path, links=False), [path]):
                definitions = definitions.without_store(store)
        # As in the backup: without a log, there is no directory of topics.
        has_logs = self.fs.exists(f"{self.target}/topics")
        definitions = replace(definitions, logs=definitions.logs and has_logs)
        write_definitions(self.fs, f"{self.target}/{DEFINITIONS}", definitions)
        self.files[DEFINITIONS] = self._checksum(DEFINITIONS)
        self.fs.sync_dir(self.target)
        found = BackupList(began_ms, self.clock.now_ms(), os.path.abspath(self.data), self.files)
        write_list(self.fs, self.target, found)
        return BackupReport(
            self.target,
            len(definitions.topics),
            len(definitions.stores),
            len(self.files),
            found.bytes,
            self.copied_bytes,
            tuple(self.left_out),
            self._unclaimed(known),
            tuple(self.damaged),
            self._table_partitions(),
        )

    def _table_partitions(self) -> int:
        directory = f"{self.data}/{RAFT}/{GROUPS}"
        files = self.fs.list(directory) if self.fs.exists(directory) else []
        return len({name for name in map(group_of, files) if parse_group(name) is not None})

    def _unclaimed(self, definitions: Definitions) -> tuple[str, ...]:
        topics, blobs = f"{self.data}/topics", f"{self.data}/blobs"
        found = [str(name) for name in scan_topics(self.fs, topics, definitions).unclaimed]
        stores = self.fs.list(blobs) if self.fs.exists(blobs) else []
        return (*found, *(name for name in stores if name not in definitions.stores))

    def _save(self, name: str, work: Callable[[], None], paths: list[str]) -> bool:
        """Save a topic or store; False if it was deleted in the meantime or is damaged."""
        try:
            if self._retry(work, paths):
                return True
            self.left_out.append(name)
        except _UNREADABLE as error:
            if isinstance(error, OSError) and not self._is_of_source(error):
                raise
            # The copy is deleted: name the source file in the error.
            reason = str(error).replace(f"{self.target}/", f"{self.data}/")
            self.damaged.append(f"{name}: {reason}")
        return False

    def _retry(self, work: Callable[[], None], paths: list[str]) -> bool:
        """Repeat until nothing was replaced during the copy; False if the source was deleted."""
        problem: Exception
        for _ in range(TRIES):
            ids = [self._log_id(path) for path in paths]
            try:
                work()
                if ids == [self._log_id(path) for path in paths]:
                    return True
                problem = _Changed(f"{self.data}/{paths[0]} is replaced repeatedly")
            except _UNREADABLE as error:
                problem = error
            for path in paths:
                # The copy is useless in any case.
                self._discard(path)
            if not self._is_defined(paths[0]):
                return False
            is_damage = not isinstance(problem, _PERHAPS_REPLACED)
            if is_damage and ids == [self._log_id(path) for path in paths]:
                break
        raise problem

    def _log_id(self, path: str) -> str:
        """The id of the log in a topic's or store's directory; empty if there is none."""
        for place in (f"{self.data}/{path}/log", f"{self.data}/{path}"):
            if self.fs.exists(f"{place}/{MANIFEST}"):
                try:
                    return read_manifest(self.fs, place).log_id.hex()
                except (OSError, Corrupt):
                    return ""
        return ""

    def _is_of_source(self, error: OSError) -> bool:
        """Whether an error is about the source. Otherwise no backup can be made."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return True
        if error.errno in _NO_RESOURCES:
            return False
        # The error of an open file has no name. Errors of writes have their own type, or are
        # followed by other writes to the target.
        path = error.filename
        return error.errno == errno.EIO if path is None else str(path).startswith(f"{self.data}/")

    def _is_defined(self, path: str) -> bool:
        definitions = read_definitions_in(self.fs, self.data) or Definitions.initial()
        kind, _, name = path.partition("/")
        if kind == "blobs":
            return name in definitions.stores
        return str(TopicName.from_path(name)) in definitions.topics

    def _discard(self, path: str) -> None:
        remove_tree(self.fs, f"{self.target}/{path}")
        for each in [each for each in self.files if each.startswith(f"{path}/")]:
            del self.files[each]

    # --- topics and stores ------------------------------------------------------------------

    def _topic(self, name: TopicName, topic: TopicDefinition) -> None:
        paths = _paths(name, topic)
        # A log in the directory of the partitioned topic itself does not belong to it.
        for path in paths[1:] if topic.partitions else paths:
            log = f"{self.data}/{path}/log"
            if self.fs.exists(f"{log}/{MANIFEST}"):
                cursors = f"{self.data}/{path}/cursors"
                has_cursors = self.fs.exists(f"{cursors}/{MANIFEST}")
                if has_cursors:
                    self._log(f"{path}/cursors")
                self._small(f"{path}/producers")
                self._log(f"{path}/log")
                if not has_cursors and not self._is_unused(f"{path}/log"):
                    # A new topic has got them, and entries, since.
                    raise MissingCursors(cursors, str(TopicName.from_path(path[len("topics/") :])))
                self._sync(path)
            else:
                if self.fs.exists(log):
                    check_new_directory(self.fs, log)
                self._check_not_missing(TopicName.from_path(path.removeprefix("topics/")), log)
        own = f"topics/{name.path}"
        self._small(f"{own}/schemas")
        self._sync(own)

    def _is_unused(self, path: str) -> bool:
        """Whether a saved log never had an entry."""
        log = f"{self.target}/{path}"
        last_position = read_manifest(self.fs, log).last_position
        return last_position == NO_POSITION and not verify_log(self.fs, log).entries

    def _check_not_missing(self, name: TopicName, log: str) -> None:
        """Raise `MissingLog` if a topic without a log had one."""
        # The list is read again, because the topic may have been deleted in the meantime.
        if str(name) not in self.listed or str(name) not in self._listed():
            return
        if not self.fs.exists(f"{log}/{MANIFEST}"):
            raise MissingLog(f"{log}/{MANIFEST}", str(name), f"{INVENTORY} has it")

    def _listed(self) -> set[str]:
        return read_inventory(self.fs, f"{self.data}/{INVENTORY}")

    # --- logs -------------------------------------------------------------------------------

    def _log(self, path: str, *, links: bool = True) -> None:
        """Step 4, and step 5 for a log whose segments are overwritten."""
        source = f"{self.data}/{path}"
        owner, token = f"lithify backup, pid {os.getpid()}", secrets.token_hex(8)
        pinned = pinned_manifest(self.fs, source, owner=owner, clock=self.clock, token=token)
        with pinned as manifest:
            self.fs.sync_dir(source)
            self.fs.mkdir(f"{self.target}/{path}")
            # Before the log's end is read: these files must not refer to records that the copy
            # lacks.
            for name in (HISTORY, REPLICATION):
                self._small(f"{path}/{name}")
            for name in sorted(manifest.sizes()):
                if name == manifest.active.name:
                    continue
                if links:
                    self._immutable(f"{path}/{name}")
                    self._key_index(path, name)
                else:
                    self._copy(f"{path}/{name}")
            end = self._active(path, manifest)
            kept = replace(manifest, retired=(), synced_bytes=end)
            write_manifest(self.fs, f"{self.target}/{path}", kept)
            self.files[f"{path}/{MANIFEST}"] = self._checksum(f"{path}/{MANIFEST}")
            if not links:
                self._finish_erase(path, manifest)
                check_store(self.fs, f"{self.target}/{path}", self.clock)
            elif (damage := verify_log(self.fs, f"{self.target}/{path}").damage) is not None:
                raise damage
            self.fs.sync_dir(f"{self.target}/{path}")

    def _active(self, path: str, manifest: Manifest) -> int:
        """Copy the active segment up to its last good frame; returns where that ends."""
        name = f"{path}/{manifest.active.name}"
        for _ in range(TRIES):
            with self.fs.open_read(f"{self.data}/{name}") as file:
                end = read_tail(file, manifest).writer.end
            self._copy(name, end)
            try:
                with self.fs.open_read(f"{self.target}/{name}") as file:
                    copied = read_tail(file, manifest)
            except DamagedFrame:
                copied = None
            if copied is not None and copied.writer.end == end:
                self._reuse(name)
                return end
            # A failed write was undone and another one has replaced it.
            self.fs.remove(f"{self.target}/{name}")
        raise _Changed(f"{self.data}/{name} is replaced repeatedly")

    def _key_index(self, path: str, name: str) -> None:
        """A side file; it is missing if it was never needed."""
        keys = f"{path}/{key_index_name(name)}"
        if name.endswith(".seg") and self.fs.exists(f"{self.data}/{keys}"):
            self._immutable(keys)

    def _finish_erase(self, path: str, manifest: Manifest) -> None:
        """Step 5: no frame of the copy is half-written."""
        source, directory = f"{self.data}/{path}", f"{self.target}/{path}"
        sealed = manifest.sizes().keys() - {manifest.active.name}
        for left in reversed(range(TRIES)):
            frames = load_erase(self.fs, source).frames
            erase(self.fs, directory, (frame for frame in frames if frame.segment in sealed))
            damage = verify_log(self.fs, directory).damage
            if damage is None:
                break
            name = getattr(damage, "path", "").removeprefix(f"{directory}/")
            if not left or not isinstance(damage, DamagedFrame) or name not in sealed:
                raise damage
            self.fs.remove(damage.path)
            self._copy(f"{path}/{name}")
        for name in sorted(sealed):
            self.files[f"{path}/{name}"] = self._checksum(f"{path}/{name}")
            self._reuse(f"{path}/{name}")

    # --- files ------------------------------------------------------------------------------

    def _immutable(self, path: str) -> None:
        """Link a file that never changes; copy it to another file system."""
        source, target = f"{self.data}/{path}", f"{self.target}/{path}"
        try:
            self.fs.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._copy(path)
            self._reuse(path)
            return
        known = self.known.files.get(path)
        if known is not None and self._is_same(target, f"{self.previous}/{path}"):
            self.files[path] = known
        else:
            self.files[path] = self._checksum(path)

    def _is_same(self, one: str, other: str) -> bool:
        if not self.fs.exists(other):
            return False
        mine, theirs = self.fs.stat(one), self.fs.stat(other)
        return (mine.device, mine.inode) == (theirs.device, theirs.inode)

    def _copy(self, path: str, length: int | None = None) -> None:
        source, target = f"{self.data}/{path}", f"{self.target}/{path}"
        if length is None:
            length = self.fs.stat(source).size
        self.files[path] = copy_file(self.fs, source, target, length, self.progress)
        self.copied_bytes += length

    def _small(self, path: str) -> None:
        """Copy a file that is replaced or appended to as a whole, if it exists."""
        if self.fs.exists(f"{self.data}/{path}"):
            self.fs.mkdir(f"{self.target}/{path.rpartition('/')[0]}")
            self._copy(path)

    def _checksum(self, path: str) -> CopiedFile:
        return checksum_file(self.fs, f"{self.target}/{path}", self.progress)

    def _reuse(self, path: str) -> None:
        """Replace a copy by a link to an equal file of the previous backup."""
        old, new = f"{self.previous}/{path}", f"{self.target}/{path}"
        if self.files[path] != self.known.files.get(path) or not self.fs.exists(old):
            return
        if self._is_same(old, new) or self.fs.stat(old).size != self.files[path].bytes:
            return
        try:
            self.fs.link(old, f"{new}.tmp")
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return
        self.fs.rename(f"{new}.tmp", new)
        self.copied_bytes -= self.files[path].bytes

    def _sync(self, path: str) -> None:
        """Make the names in the directories of a topic durable."""
        if self.fs.exists(f"{self.target}/{path}"):
            self.fs.sync_dir(f"{self.target}/{path}")


def _paths(name: TopicName, topic: TopicDefinition) -> list[str]:
    """The topic's own directory, and those of its partitions."""
    parts = [name.partition_name(number) for number in range(topic.partitions)]
    return [f"topics/{each.path}" for each in (name, *parts)]
