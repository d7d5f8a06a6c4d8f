"""Restores a backup into a data directory that no node serves.

    run_restore(fs, "/backup/monday", "/var/lib/lithify", clock=clock)
    run_restore(fs, "/backup/monday", "/var/lib/lithify", clock=clock, topic="orders")

1. Read the list `BACKUP` and the definitions in the backup.
2. Lock the data directory. The topics and stores to restore must not exist there, defined or not: a
   restore never replaces data. Of a topic or store that is defined, the missing parts
   (`topics/directories/inventory.py`) are restored, and its definition stays.
3. Create each directory with the mark `CREATING` (`log/directory_marks.py`), copy its files into it
   and check the size and CRC of each against the list. All are copies: the backup never changes.
4. Verify every byte of each log and store as it is now in the data directory.
5. Write the definitions: those of what was restored, and of its tenants and namespaces if they are
   missing. From here on it exists. The next start of the node imports them into its catalog.
6. Remove the marks.

A kill before step 5 leaves directories that are marked and not defined: the next open, or the next
restore, removes them. A kill after it leaves marks, which the next open removes. A directory that
was defined before has a mark that says so: it is removed as long as it has the mark.

Called by the command `lithify restore`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lithify.blobs.unclaimed_directories import StoreDirectories
from lithify.clock import SystemClock
from lithify.errors import InvalidInput, LithifyError, ReadFailed, WriteFailed
from lithify.events import ignore_events
from lithify.exit_codes import CONFLICT, NOT_FOUND
from lithify.fs import hold_directory, read_file
from lithify.fs.checked_lines import parse_lines
from lithify.log.directory_marks import begin_creation, clear_mark, is_empty, remove_created
from lithify.log.file_names import CREATING, LOCK, MANIFEST
from lithify.log.verify import verify_log
from lithify.node.backup.backup_list import (
    check_file,
    check_store,
    checksum_file,
    copy_file,
    read_list,
)
from lithify.topics.definitions.definitions import Definitions
from lithify.topics.definitions.definitions_file import PendingDefinitions
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.directories.data_directory import check_no_backup
from lithify.topics.directories.inventory import INVENTORY, Inventory
from lithify.topics.directories.topic_directories import TopicDirectories

if TYPE_CHECKING:
    from collections.abc import Callable

    from lithify.clock import Clock
    from lithify.fs import FileSystem
    from lithify.node.backup.backup_list import BackupList

__all__ = ["AlreadyExists", "NotInBackup", "RestoreReport", "check_backup", "run_restore"]

_SHAPE = ("capacity", "segment")


class NotInBackup(InvalidInput):
    """The backup does not contain what was requested."""

    exit_code = NOT_FOUND


class AlreadyExists(InvalidInput):
    """A topic or store to restore already exists."""

    exit_code = CONFLICT


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was checked, or restored and verified."""

    backup: str
    topics: int
    stores: int
    files: int
    bytes: int


def check_backup(
    fs: FileSystem,
    backup: str,
    progress: Callable[[int], None] = lambda _: None,
    *,
    clock: Clock | None = None,
) -> RestoreReport:
    """Check every byte of a backup against its list, and every log and store by itself.

    Raises an error that names the file: `Corrupt`, `UnsupportedVersion`, `ReadFailed`.
    """
    try:
        return _check_backup(fs, backup, progress, clock or SystemClock())
    except OSError as error:
        raise ReadFailed(error.filename or backup, 0, error) from error


def _check_backup(
    fs: FileSystem, backup: str, progress: Callable[[int], None], clock: Clock
) -> RestoreReport:
    files = read_list(fs, backup)
    definitions = _definitions_in(fs, backup, files)
    for path, expected in sorted(files.files.items()):
        check_file(checksum_file(fs, f"{backup}/{path}", progress), expected, f"{backup}/{path}")
    for path in sorted(files.files):
        directory, _, name = path.rpartition("/")
        if name == MANIFEST and directory.startswith("blobs/"):
            check_store(fs, f"{backup}/{directory}", clock, progress)
        elif name == MANIFEST:
            damage = verify_log(fs, f"{backup}/{directory}", progress).damage
            if damage is not None:
                raise damage
    topics, stores = len(definitions.topics), len(definitions.stores)
    return RestoreReport(backup, topics, stores, len(files.files), files.bytes)


def run_restore(
    fs: FileSystem,
    backup: str,
    data: str,
    *,
    clock: Clock,
    topic: str | None = None,
    store: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> RestoreReport:
    """Restore everything, or one topic, or one store; `progress` is called with bytes."""
    try:
        check_no_backup(fs, data)
        files = read_list(fs, backup)
        wanted = _wanted(_definitions_in(fs, backup, files), backup, topic, store)
    except OSError as error:
        raise ReadFailed(error.filename or backup, 0, error) from error
    try:
        fs.mkdir(data)
        lock = hold_directory(fs, f"{data}/{LOCK}", f"lithify restore, pid {os.getpid()}")
        try:
            restore = _Restore(fs, backup, data, clock, files, wanted, progress)
            return restore.run(whole=topic is None and store is None)
        finally:
            lock.release()
    except OSError as error:
        raise WriteFailed(error.filename or data, error) from error


def _definitions_in(fs: FileSystem, backup: str, files: BackupList) -> Definitions:
    path = f"{backup}/definitions"
    check_file(checksum_file(fs, path), files.files["definitions"], path)
    lines, _ = parse_lines(read_file(fs, path), path)
    return Definitions.from_json(lines[0][1], path)


def _wanted(found: Definitions, backup: str, topic: str | None, store: str | None) -> Definitions:
    """The part of a backup's definitions to restore."""
    if topic is None and store is None:
        return found
    topics, stores = {}, {}
    if topic is not None:
        name = str(TopicName.parse(topic))
        if name not in found.topics:
            raise NotInBackup(f"{backup} has no topic {name}")
        topics = {name: found.topics[name]}
    if store is not None:
        if store not in found.stores:
            raise NotInBackup(f"{backup} has no blob store {store}")
        stores = {store: found.stores[store]}
    return Definitions(found.tenants, found.namespaces, topics, stores)


@dataclass(slots=True)
class _Restore:
    fs: FileSystem
    backup: str
    data: str
    clock: Clock
    files: BackupList
    wanted: Definitions
    progress: Callable[[int], None]
    made: list[str] = field(default_factory=list)
    """Directories with the mark, below the data directory."""
    defined: set[str] = field(default_factory=set)
    """Directories that were missing, of topics and stores that are defined."""
    count: int = 0
    bytes: int = 0

    def run(self, *, whole: bool) -> RestoreReport:
        definitions = PendingDefinitions(self.fs, self.data)
        paths = self._check_free(definitions)
        try:
            for path in paths:
                self._copy(path)
            self._verify()
            found = definitions.found
            definitions.change(lambda d: self._merged(d if found else None, whole=whole))
        except BaseException:
            for path in self.made:
                with suppress(LithifyError, OSError):
                    remove_created(self.fs, f"{self.data}/{path}")
            raise
        for path in self.made:
            clear_mark(self.fs, f"{self.data}/{path}", CREATING)
        topics, stores = len(self.wanted.topics), len(self.wanted.stores)
        return RestoreReport(self.backup, topics, stores, self.count, self.bytes)

    def _check_free(self, definitions: PendingDefinitions) -> list[str]:
        """Step 2; returns the directories to create."""
        inventory = Inventory(self.fs, f"{self.data}/{INVENTORY}", ignore_events)
        topics = TopicDirectories(self.fs, f"{self.data}/topics", definitions, inventory)
        stores = StoreDirectories(self.fs, f"{self.data}/blobs", definitions)
        missing = {each.name for each in topics.missing()}
        paths = []
        for text, topic in self.wanted.topics.items():
            name = TopicName.parse(text)
            parts = [name, *map(name.partition_name, range(topic.partitions))]
            if any(map(definitions.current.defines, parts)):
                parts = self._lost(name, parts, definitions.current, missing)
                definitions.restored.add(text)
            for part in parts:
                topics.check_free(part)
                paths.append(f"topics/{part.path}")
        for store, row in self.wanted.stores.items():
            known = definitions.stores().get(store)
            if known is not None:
                shapes = [[each[f"{what}_bytes"] for what in _SHAPE] for each in (known, row)]
                if shapes[0] != shapes[1] or not self._is_absent(f"blobs/{store}"):
                    raise AlreadyExists(
                        f"blob store {store} already exists in {self.data}: delete it first"
                    )
                self.defined.add(f"blobs/{store}")
                definitions.restored.add(store)
            stores.check_free(store)
            paths.append(f"blobs/{store}")
        return [path for path in paths if path in self.files.by_directory]

    def _is_absent(self, path: str) -> bool:
        """Whether the directory is missing or has no data, as after a kill in step 3."""
        directory = f"{self.data}/{path}"
        return not self.fs.exists(directory) or is_empty(self.fs, directory)

    def _lost(
        self,
        name: TopicName,
        parts: list[TopicName],
        definitions: Definitions,
        missing: set[TopicName],
    ) -> list[TopicName]:
        """The parts of a topic that is defined whose directories are missing."""
        known, wanted = definitions.topics.get(str(name)), self.wanted.topics[str(name)]
        absent = [part for part in parts if self._is_absent(f"topics/{part.path}")]
        is_same = known is not None and bool(known.partitions) == bool(wanted.partitions)
        if not is_same or missing.isdisjoint(absent):
            raise AlreadyExists(f"topic {name} already exists in {self.data}: delete it first")
        # The schemas of a partitioned topic are in a directory without a log.
        found = [part for part in absent if part in missing or part == name]
        self.defined.update(f"topics/{part.path}" for part in found)
        return found

    def _copy(self, path: str) -> None:
        """Step 3."""
        self.made.append(path)
        begin_creation(self.fs, f"{self.data}/{path}", restores=path in self.defined)
        directories = {path}
        for each, expected in sorted(self.files.by_directory[path].items()):
            directory = each.rpartition("/")[0]
            if directory not in directories:
                self.fs.mkdir(f"{self.data}/{directory}")
                directories.add(directory)
            source = f"{self.backup}/{each}"
            copied = copy_file(self.fs, source, f"{self.data}/{each}", progress=self.progress)
            check_file(copied, expected, source)
            self.count += 1
            self.bytes += copied.bytes
        for directory in directories:
            self.fs.sync_dir(f"{self.data}/{directory}")

    def _verify(self) -> None:
        """Step 4."""
        for path in self.made:
            directory = f"{self.data}/{path}"
            if path.startswith("blobs/"):
                check_store(self.fs, directory, self.clock, self.progress)
                continue
            for log in ("log", "cursors"):
                if self.fs.exists(f"{directory}/{log}/{MANIFEST}"):
                    damage = verify_log(self.fs, f"{directory}/{log}", self.progress).damage
                    if damage is not None:
                        raise damage

    def _merged(self, known: Definitions | None, *, whole: bool) -> Definitions:
        """Step 5; a data directory without definitions gets all namespaces of the backup."""
        wanted = self.wanted
        known = known or Definitions(wanted.tenants, wanted.namespaces)
        spaces = list(wanted.namespaces) if whole else []
        spaces += [str(TopicName.parse(name).namespace) for name in wanted.topics]
        spaces += [row["namespace"] for row in wanted.stores.values()]
        tenants = list(wanted.tenants) if whole else []
        for tenant in (*tenants, *(Namespace.parse(each).tenant for each in spaces)):
            if tenant not in known.tenants:
                known = known.with_tenant(tenant, wanted.tenants.get(tenant, {}))
        for space in spaces:
            if space not in known.namespaces:
                known = known.with_namespace(Namespace.parse(space), wanted.namespaces[space])
        for name, topic in wanted.topics.items():
            if name not in known.topics:
                known = known.with_topic(TopicName.parse(name), topic)
        for store, row in wanted.stores.items():
            if store not in known.stores:
                known = known.with_store(store, row)
        return known
