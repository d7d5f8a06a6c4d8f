"""The directories of the topics of a node: serve, delete or set aside.

    ROOT/TENANT/NAMESPACE/TOPIC         and ROOT/TENANT/NAMESPACE/TOPIC-partition-3

`unclaimed.py` classifies a directory; this module acts on the result. Data is deleted in one place,
`remove`, and only if a mark names exactly that data (`log/directory_marks.py`).

`inventory.py` records which topics have logs. A topic in it without a log is **missing**: it is not
served, and no topic is created in its place until its files are copied back or it is deleted.

The caller holds the claims of the topics (`topics/topics.py`); all methods wait for the disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lithify.errors import (
    LithifyError,
    MissingLog,
    UnclaimedDirectory,
    WriteFailed,
    is_outcome_unknown,
)
from lithify.fs.remove_tree import remove_tree
from lithify.log.directory_marks import (
    Deletion,
    clear_mark,
    is_creating,
    is_empty,
    is_restoring,
    log_id_in,
    remove_created,
    remove_deleted,
    write_deletion,
)
from lithify.log.file_names import CREATING, DELETED, MANIFEST, OBJECT
from lithify.log.object_file import check_object, read_object, write_object
from lithify.log.unfinished_deletions import may_stay_unfinished
from lithify.logger import get_logger
from lithify.topics.definitions.definitions import (
    NotDefined,
    RemovedObject,
    TopicChanged,
    TopicDefinition,
)
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.directories.inventory import INVENTORY
from lithify.topics.directories.unclaimed import (
    UnclaimedTopic,
    deletion_of,
    explains,
    group_unclaimed,
    is_unused,
    scan_topics,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from lithify.fs import FileSystem
    from lithify.log.object_file import ObjectIdentity
    from lithify.topics.definitions.definition_store import DefinitionStore
    from lithify.topics.directories.inventory import Inventory
    from lithify.topics.directories.unclaimed import FoundDirectories

__all__ = ["MissingTopic", "TopicDirectories"]

NAMED_MAX = 10
"""Maximum number of unclaimed topics listed in one log line."""

log = get_logger("lithify.topics")


@dataclass(frozen=True, slots=True)
class MissingTopic:
    """A topic or partition whose log is missing."""

    name: TopicName
    directory: str
    defined: bool

    def row(self) -> dict[str, Any]:
        """Encode as a JSON row."""
        return {"topic": str(self.name), "directory": self.directory, "defined": self.defined}


class TopicDirectories:
    """The topic directories of one node."""

    def __init__(
        self, fs: FileSystem, root: str, definitions: DefinitionStore, inventory: Inventory
    ) -> None:
        """Finish interrupted deletions and restores, and set unclaimed directories aside."""
        self._fs = fs
        self._root = root
        self._definitions = definitions
        self._inventory = inventory
        self.unclaimed: dict[TopicName, UnclaimedTopic] = {}
        """The unclaimed topics in the last scan."""
        self._settle()

    def path(self, name: TopicName) -> str:
        """The directory of a topic or partition."""
        return f"{self._root}/{name.path}"

    def is_deleted(self, name: TopicName) -> bool:
        """Does a valid mark say that a topic is deleted?"""
        deletion = deletion_of(self._fs, self._root, name)
        identity = self._definitions.current.identity(name)
        if deletion is None or identity is None:
            return deletion is not None
        if deletion.of == identity:
            return True
        # The topic was created again.
        self.remove(name, deletion)
        return False

    # --- logs -------------------------------------------------------------------------------

    def check_log(self, name: TopicName) -> bool:
        """Does a topic have a log? Raises `MissingLog` if it had one and has none."""
        if self._has_log(name):
            return True
        path = self.path(name)
        manifest = f"{path}/log/{MANIFEST}"
        # These are created after the log.
        for each in (f"cursors/{MANIFEST}", "producers"):
            if self._fs.exists(f"{path}/{each}"):
                raise MissingLog(manifest, str(name), f"{name} has {each}")
        self.check_root(name)
        if name in self._inventory:
            raise MissingLog(manifest, str(name), f"{INVENTORY} has it")
        return False

    def _has_log(self, name: TopicName) -> bool:
        return self._fs.exists(f"{self.path(name)}/log/{MANIFEST}")

    def check_root(self, name: TopicName) -> None:
        """Raise `MissingLog` if the directories of all topics are missing: an unmounted disk."""
        definitions = self._definitions.current
        if not definitions.logs or self._has_directories():
            return
        if any(map(definitions.owns, map(TopicName.parse, definitions.topics))):
            raise MissingLog(self._root, str(name), "the definitions say that topics have logs")

    def _has_directories(self) -> bool:
        return self._fs.exists(self._root) and any(
            self._fs.stat(f"{self._root}/{each}").is_dir for each in self._fs.list(self._root)
        )

    def check_object(self, name: TopicName) -> ObjectIdentity | None:
        """The defined object; `WrongObject`, `UnclaimedDirectory` unless the directory is of it."""
        path = self.path(name)
        wanted = self._definitions.current.identity(name)
        adopt = f"lithify topics adopt {self._whole(name)}"
        is_first = is_unused(self._fs, path)
        check_object(self._fs, path, wanted, f"topic {name}", adopt, is_new=is_first)
        return wanted

    def disown(self, topic: UnclaimedTopic) -> None:
        """Remove what directories say of themselves, durably, before another topic adopts them."""
        for directory in topic.directories:
            for each in (OBJECT, DELETED):
                clear_mark(self._fs, directory, each)

    def claim(self, names: Collection[TopicName]) -> None:
        """Say in the directories that exist of which object they are, durably."""
        current = self._definitions.current
        for name in names:
            wanted, path = current.identity(name), self.path(name)
            if wanted is not None and current.owns(name) and self._fs.exists(path):
                write_object(self._fs, path, wanted)

    def _whole(self, name: TopicName) -> TopicName:
        return name if str(name) in self._definitions.current.topics else name.whole

    def note_log(self, name: TopicName, *, is_new: bool) -> None:
        """Record that a topic has a log. Raises `WriteFailed` only for a new one."""
        try:
            self._inventory.add([name])
        except WriteFailed as error:
            if is_new:
                raise
            # Serve an existing log even if the disk is full. The next open records it.
            log.warning(
                "the inventory of topics cannot be written", topic=str(name), reason=str(error)
            )
        if not self._definitions.current.logs:
            # If that fails, the next topic that is opened records it.
            with suppress(LithifyError):
                self._definitions.change(lambda d: replace(d, logs=True))

    def note_logs(self, names: Collection[TopicName]) -> None:
        """Record the logs of adopted topics, of those that have one."""
        for name in names:
            if self._has_log(name):
                self.note_log(name, is_new=False)

    def forget_log(self, name: TopicName) -> None:
        """Remove a topic that is not in use from the inventory, before its log is deleted."""
        self._inventory.remove([name])

    def is_listed(self, name: TopicName) -> bool:
        """Is a topic or partition in the inventory?"""
        return name in self._inventory

    def listed(self) -> list[TopicName]:
        """The topics and partitions in the inventory."""
        return self._inventory.names()

    def missing(self) -> list[MissingTopic]:
        """The topics and partitions in the inventory without a log."""
        definitions = self._definitions.current
        return [
            MissingTopic(name, self.path(name), definitions.defines(name))
            for name in self._inventory.names()
            if not self._has_log(name)
        ]

    def lost(self, name: TopicName) -> TopicDefinition | None:
        """The definition, by the inventory, of a topic that has no directory; None if unknown."""
        names = self._inventory.names_of(name)
        if not names or any(self._fs.exists(self.path(each)) for each in names):
            return None
        parts = [each.partition + 1 for each in names if each != name]
        return TopicDefinition(max(parts, default=0))

    # --- creating ---------------------------------------------------------------------------

    def check_new(self, name: TopicName) -> None:
        """Raise unless a new topic can be created; a missing topic is not replaced."""
        self.check_free(name)
        if name in self._inventory:
            manifest = f"{self.path(name)}/log/{MANIFEST}"
            raise MissingLog(manifest, str(name), f"{INVENTORY} has it")

    def check_free(self, name: TopicName) -> None:
        """Raise `UnclaimedDirectory` if the directory of a new topic already has data."""
        path = self.path(name)
        self.clear_removed(name)
        if name in self.unclaimed:
            raise _conflict(name, name, self.unclaimed[name].directories[0])
        if not self._fs.exists(path):
            return
        deletion = deletion_of(self._fs, self._root, name)
        if deletion is not None:
            # Finish an interrupted deletion.
            self.remove(name, deletion)
        elif is_creating(self._fs, path):
            remove_created(self._fs, path)
        elif is_empty(self._fs, path):
            remove_tree(self._fs, path)
        else:
            whole = self.unclaimed.get(name.whole)
            is_part = whole is not None and path in whole.directories
            raise _conflict(name, name.whole if is_part else name, path)

    # --- deleting ---------------------------------------------------------------------------

    def delete_definition(
        self, name: TopicName, definition: TopicDefinition, now_ms: int
    ) -> Deletion:
        """Mark a topic as deleted, then remove exactly this definition."""
        deletion = self.mark_deleted(name, definition, now_ms)
        self._definitions.change(lambda d: d.without_topic(name, definition))
        return deletion

    def keep_after(
        self, error: BaseException, name: TopicName, definition: TopicDefinition
    ) -> bool:
        """After an error of `delete_definition`: does the topic stay? Then its mark is removed.

        If its definition is gone, or may be, the mark stays, and the topic must stay out of use:
        the next open, or the next attempt, deletes it, so it must not acknowledge anything.
        """
        found = self._definitions.current.topics.get(str(name))
        if is_outcome_unknown(error) or found is None or found.id != definition.id:
            return False
        clear_mark(self._fs, self.path(name), DELETED)
        return True

    def mark_deleted(self, name: TopicName, definition: TopicDefinition, now_ms: int) -> Deletion:
        """Mark a topic and its partitions as deleted, durably.

        The mark does not name logs that the definition does not explain; they are kept. Without any
        directory a mark is written only for a topic with an id: the mark keeps it out of use if the
        outcome of its deletion is not known.
        """
        parts = definition.logs_of(name)
        places = {part: "" if part == name else _last(part) for part in {name, *parts}}
        definitions = self._definitions.current
        logs = {
            place: log_id_in(self._fs, f"{self.path(part)}/log")
            for part, place in places.items()
            if self._fs.exists(self.path(part))
            and explains(self._fs, self._root, definitions, part)
        }
        has_directory = bool(logs)
        logs |= {
            places[part]: ""
            for part in parts
            if part in self._inventory and not self._fs.exists(self.path(part))
        }
        deletion = Deletion(str(name), now_ms, logs, definition.identity(str(name)))
        if has_directory or definition.id:
            try:
                self._fs.mkdir(self.path(name))
            except OSError as error:
                raise WriteFailed(self.path(name), error) from error
            write_deletion(self._fs, self.path(name), deletion)
        return deletion

    def undo_definition(self, name: TopicName, now_ms: int) -> None:
        """Remove the definition of a new topic, of which there are no files."""
        definition = self._definitions.current.topics[str(name)]
        try:
            self._definitions.change(lambda d: d.without_topic(name, definition))
        except BaseException as error:
            if is_outcome_unknown(error):
                self.mark_deleted(name, definition, now_ms)
            raise
        self._definitions.confirm_removals([definition.id] if definition.id else ())

    def remove(self, name: TopicName, deletion: Deletion) -> None:
        """Delete the logs that a mark names: the partitions first, the mark last."""
        own = self.path(name)
        above = own.rpartition("/")[0]
        # Before the mark is removed: without the mark the topic would count as missing.
        space = name.path.rpartition("/")[0]
        self._inventory.remove(
            [TopicName.from_path(f"{space}/{each}") if each else name for each in deletion.logs]
        )
        for place in filter(None, deletion.logs):
            # Until it is gone it says of which object it is.
            remove_tree(self._fs, f"{above}/{place}", OBJECT)
        if self._fs.exists(own):
            try:
                # The removal of the partitions must be durable before that of the mark.
                self._fs.sync_dir(above)
            except OSError as error:
                raise WriteFailed(above, error) from error
            if "" in deletion.logs:
                remove_deleted(self._fs, own)
                return
            # The directory was created for the mark, or has a log that is kept.
            clear_mark(self._fs, own, DELETED)
            if is_empty(self._fs, own):
                remove_tree(self._fs, own)

    # --- scans ------------------------------------------------------------------------------

    def scan(self) -> dict[TopicName, UnclaimedTopic]:
        """Scan the disk for unclaimed topics."""
        definitions = self._definitions.current
        scanned = scan_topics(self._fs, self._root, definitions)
        self.unclaimed = group_unclaimed(self._fs, self._root, scanned.unclaimed, definitions)
        return self.unclaimed

    def _settle(self) -> None:
        scanned = scan_topics(self._fs, self._root, self._definitions.current)
        for name, deletion in scanned.deleted.items():
            with may_stay_unfinished(log, f"topic {name}"), suppress(NotDefined, TopicChanged):
                self._undefine(name, deletion)
                self.remove(name, deletion)
        changed = self._finish_removals() or bool(scanned.deleted)
        definitions = self._definitions.current
        for name in scanned.unfinished:
            if definitions.defines(name) and not is_restoring(self._fs, self.path(name)):
                clear_mark(self._fs, self.path(name), CREATING)
            else:
                remove_created(self._fs, self.path(name))
        for name in scanned.empty:
            with suppress(WriteFailed):
                remove_tree(self._fs, self.path(name))
        self._update_inventory(scanned)
        if changed:
            # A deletion may leave a log that its mark does not name.
            self.scan()
        else:
            self.unclaimed = group_unclaimed(self._fs, self._root, scanned.unclaimed, definitions)
        if self.unclaimed:
            log.warning(
                "unclaimed directories of topics without a definition are set aside and not "
                "served: "
                "see 'lithify topics list --unclaimed' and 'lithify topics adopt'",
                definitions="found" if self._definitions.found else "MISSING",
                topics=len(self.unclaimed),
                first=", ".join(str(name) for name in list(self.unclaimed)[:NAMED_MAX]),
            )

    def _undefine(self, name: TopicName, deletion: Deletion) -> None:
        """Remove the definition of what a mark says is deleted, not of another one of its name."""
        definitions = self._definitions.current
        identity = definitions.identity(name)
        known = definitions.topics.get(str(name))
        if known is None or not definitions.owns(name):
            return
        if identity is None or deletion.of == identity:
            self._definitions.change(lambda d: d.without_topic(name, known))

    def _finish_removals(self) -> bool:
        """Delete the directories of what was deleted, and confirm it; was there anything?"""
        removals = self.removals()
        done = []
        for removal in removals:
            with may_stay_unfinished(log, f"topic {removal.name}"):
                self.finish_removal(removal)
                done.append(removal.identity.id)
        self._definitions.confirm_removals(done)
        return bool(removals)

    def removals(self) -> list[RemovedObject]:
        """The deletions of topics that this node has not confirmed."""
        return [each for each in self._definitions.removals() if not each.is_store]

    def finish_removal(self, removal: RemovedObject) -> None:
        """Delete the directories of exactly the object that was deleted."""
        name = removal.name
        deletion = deletion_of(self._fs, self._root, name)
        if deletion is not None and deletion.of == removal.identity:
            self.remove(name, deletion)
        for part in removal.directories:
            path = self.path(part)
            if removal.partitions and part == name and not is_unused(self._fs, path):
                # A log in the directory of a partitioned topic itself is of another topic.
                continue
            if read_object(self._fs, path) == removal.identity:
                self._inventory.remove([part])
                remove_tree(self._fs, path, OBJECT)
            self.unclaimed.pop(part, None)

    def clear_removed(self, name: TopicName) -> None:
        """Delete the directory of a deleted topic of the name, before another one uses it."""
        found = read_object(self._fs, self.path(name))
        if found is not None and found != self._definitions.current.identity(name):
            for removal in self.removals():
                if removal.identity == found:
                    self._inventory.remove([name])
                    remove_tree(self._fs, self.path(name), OBJECT)
                    self.unclaimed.pop(name, None)

    def _update_inventory(self, scanned: FoundDirectories) -> None:
        """Add the logs found to the inventory, or rebuild it if there is none."""
        definitions = self._definitions.current
        new = [
            each for each in scanned.served if each not in self._inventory and self._has_log(each)
        ]
        try:
            if self._inventory.found:
                self._inventory.add(new)
            elif not (definitions.logs and definitions.topics) or self._has_directories():
                # Otherwise all directories are missing, and the scan is not complete.
                names = [*new, *filter(definitions.defines, self._inventory.names())]
                if names or self._inventory.damaged:
                    self._inventory.write(names)
        except WriteFailed as error:
            log.warning("the inventory of topics cannot be written", reason=str(error))


def _conflict(name: TopicName, adopt: TopicName, directory: str) -> UnclaimedDirectory:
    return UnclaimedDirectory(f"topic {name}", directory, f"lithify topics adopt {adopt}")


def _last(name: TopicName) -> str:
    return name.path.rpartition("/")[2]
