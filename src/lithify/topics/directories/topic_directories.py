"""The directories of a node's topics: which belong to a topic, which may go, which are set aside.

    ROOT/TENANT/NAMESPACE/TOPIC         and ROOT/TENANT/NAMESPACE/TOPIC-partition-3

`unclaimed.py` tells what a directory is; here it is acted on. Data is removed in one place,
`remove`, and only by a mark about exactly that data (`log/directory_marks.py`).

`inventory.py` tells which topics have logs. One without it is **missing**: it is not served and no
topic is created in its place until its files are put back or somebody deletes it.

Whoever calls holds the claims of the topics (`topics/topics.py`); all wait for the disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.errors import MissingLog, UnclaimedDirectory, WriteFailed
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
from lithify.log.file_names import CREATING, DELETED, MANIFEST
from lithify.logger import get_logger
from lithify.topics.definitions.definitions import Definitions, TopicDefinition
from lithify.topics.definitions.topic_names import TopicName
from lithify.topics.directories.inventory import INVENTORY
from lithify.topics.directories.unclaimed import (
    UnclaimedTopic,
    defines,
    deletion_of,
    explains,
    group_unclaimed,
    scan_topics,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from lithify.fs import FileSystem
    from lithify.topics.definitions.definitions import DefinitionsFile
    from lithify.topics.directories.inventory import Inventory
    from lithify.topics.directories.unclaimed import FoundDirectories

__all__ = ["MissingTopic", "TopicDirectories"]

NAMED_MAX = 10
"""Unclaimed topics that one line of the log names."""

log = get_logger("lithify.topics")


@dataclass(frozen=True, slots=True)
class MissingTopic:
    """A topic or partition that had a log, which is gone."""

    name: TopicName
    directory: str
    defined: bool

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return {"topic": str(self.name), "directory": self.directory, "defined": self.defined}


class TopicDirectories:
    """See the module."""

    def __init__(
        self, fs: FileSystem, root: str, definitions: DefinitionsFile, inventory: Inventory
    ) -> None:
        """Finish what was interrupted, and set aside what no definition explains."""
        self._fs = fs
        self._root = root
        self._definitions = definitions
        self._inventory = inventory
        self.unclaimed: dict[TopicName, UnclaimedTopic] = {}
        """What the last look at the disk has found."""
        self._settle()

    def path(self, name: TopicName) -> str:
        """The directory of a topic or partition."""
        return f"{self._root}/{name.path}"

    def is_deleted(self, name: TopicName) -> bool:
        """Is a topic marked as deleted?"""
        return deletion_of(self._fs, self._root, name) is not None

    # --- logs -------------------------------------------------------------------------------

    def check_log(self, name: TopicName) -> bool:
        """Has a topic a log? Raises `MissingLog` if it has none although it had one."""
        if self._has_log(name):
            return True
        path = self.path(name)
        manifest = f"{path}/log/{MANIFEST}"
        # All are made after the log.
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
        """Raise `MissingLog` if the directories of all topics are gone, as of an unmounted disk."""
        definitions = self._definitions.current
        if definitions.logs and definitions.topics and not self._has_directories():
            raise MissingLog(self._root, str(name), "the definitions say that topics have logs")

    def _has_directories(self) -> bool:
        return self._fs.exists(self._root) and any(
            self._fs.stat(f"{self._root}/{each}").is_dir for each in self._fs.list(self._root)
        )

    def note_log(self, name: TopicName, *, is_new: bool) -> None:
        """A topic has a log: from now on it must be there. Raises `WriteFailed` for a new one."""
        try:
            self._inventory.add([name])
        except WriteFailed as error:
            if is_new:
                raise
            # It may hold what is needed, also on a disk that is full. The next open notes it.
            log.warning("the list of topics cannot be written", topic=str(name), reason=str(error))
        if not self._definitions.current.logs:
            # If the disk refuses it, the next topic that is opened notes it.
            with suppress(WriteFailed):
                self._definitions.change(lambda d: replace(d, logs=True))

    def note_logs(self, names: Collection[TopicName]) -> None:
        """The same of topics that were adopted, as far as they have logs."""
        for name in names:
            if self._has_log(name):
                self.note_log(name, is_new=False)

    def forget_log(self, name: TopicName) -> None:
        """The log of a topic that is not in use is to be removed, and nothing in it counts."""
        self._inventory.remove([name])

    def is_listed(self, name: TopicName) -> bool:
        """Had a topic or partition a log when this was last known?"""
        return name in self._inventory

    def listed(self) -> list[TopicName]:
        """Topics and partitions that had logs when this was last known."""
        return self._inventory.names()

    def missing(self) -> list[MissingTopic]:
        """Topics and partitions that had logs and have none."""
        definitions = self._definitions.current
        return [
            MissingTopic(name, self.path(name), defines(definitions, name))
            for name in self._inventory.names()
            if not self._has_log(name)
        ]

    def lost(self, name: TopicName) -> TopicDefinition | None:
        """What a topic was that has neither a definition nor any directory, if it is known."""
        found = self._inventory.names_of(name)
        if not found or any(self._fs.exists(self.path(each)) for each in found):
            return None
        parts = [each.partition + 1 for each in found if each != name]
        return TopicDefinition(max(parts, default=0))

    # --- creating ---------------------------------------------------------------------------

    def check_new(self, name: TopicName) -> None:
        """Raise unless a new topic can be created; one that is missing is not replaced."""
        self.check_free(name)
        if name in self._inventory:
            manifest = f"{self.path(name)}/log/{MANIFEST}"
            raise MissingLog(manifest, str(name), f"{INVENTORY} has it")

    def check_free(self, name: TopicName) -> None:
        """Raise `UnclaimedDirectory` if there is data where a new topic would have its own."""
        path = self.path(name)
        if name in self.unclaimed:
            raise _conflict(name, name, self.unclaimed[name].directories[0])
        if not self._fs.exists(path):
            return
        deletion = deletion_of(self._fs, self._root, name)
        if deletion is not None:
            # A deletion that did not come to its end.
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

    def mark_deleted(self, name: TopicName, parts: Collection[TopicName], now_ms: int) -> Deletion:
        """Decide, durably, that a topic and its partitions are deleted.

        A log that the definition does not explain is not named, and stays. Without any directory
        there is nothing to mark.
        """
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
        deletion = Deletion(str(name), now_ms, logs)
        if has_directory:
            try:
                self._fs.mkdir(self.path(name))
            except OSError as error:
                raise WriteFailed(self.path(name), error) from error
            write_deletion(self._fs, self.path(name), deletion)
        return deletion

    def unmark(self, name: TopicName) -> None:
        """Take the decision back; its definition is still there."""
        clear_mark(self._fs, self.path(name), DELETED)

    def remove(self, name: TopicName, deletion: Deletion) -> None:
        """Remove what a mark names: the partitions first, the mark last."""
        own = self.path(name)
        above = own.rpartition("/")[0]
        # Before the mark goes: without it the topic would count as missing.
        space = name.path.rpartition("/")[0]
        self._inventory.remove(
            [TopicName.from_path(f"{space}/{each}") if each else name for each in deletion.logs]
        )
        for place in filter(None, deletion.logs):
            remove_tree(self._fs, f"{above}/{place}")
        if self._fs.exists(own):
            try:
                # No partition may outlive the mark that explains why it is to go.
                self._fs.sync_dir(above)
            except OSError as error:
                raise WriteFailed(above, error) from error
            if "" in deletion.logs:
                remove_deleted(self._fs, own)
                return
            # The directory was made for the mark, or holds a log that is not deleted.
            clear_mark(self._fs, own, DELETED)
            if is_empty(self._fs, own):
                remove_tree(self._fs, own)

    # --- what no definition explains --------------------------------------------------------

    def scan(self) -> dict[TopicName, UnclaimedTopic]:
        """Find unclaimed topics again."""
        definitions = self._definitions.current
        found = scan_topics(self._fs, self._root, definitions)
        self.unclaimed = group_unclaimed(self._fs, self._root, found.unclaimed, definitions)
        return self.unclaimed

    def _settle(self) -> None:
        found = scan_topics(self._fs, self._root, self._definitions.current)
        for name, deletion in found.deleted.items():
            self._definitions.change(partial(Definitions.without_topic, name=name))
            self.remove(name, deletion)
        definitions = self._definitions.current
        for name in found.unfinished:
            if defines(definitions, name) and not is_restoring(self._fs, self.path(name)):
                clear_mark(self._fs, self.path(name), CREATING)
            else:
                remove_created(self._fs, self.path(name))
        for name in found.empty:
            with suppress(WriteFailed):
                remove_tree(self._fs, self.path(name))
        self._take_stock(found)
        if found.deleted:
            # A deletion may leave a log that it does not name.
            self.scan()
        else:
            self.unclaimed = group_unclaimed(self._fs, self._root, found.unclaimed, definitions)
        if self.unclaimed:
            log.warning(
                "directories of topics that no definition explains are set aside and not served: "
                "see 'lithify topics list --unclaimed' and 'lithify topics adopt'",
                definitions="found" if self._definitions.found else "MISSING",
                topics=len(self.unclaimed),
                first=", ".join(str(name) for name in list(self.unclaimed)[:NAMED_MAX]),
            )

    def _take_stock(self, found: FoundDirectories) -> None:
        """Put the logs that are there into the inventory, and report those that are not."""
        definitions = self._definitions.current
        known = self._inventory.names()
        new = [each for each in found.served if each not in self._inventory and self._has_log(each)]
        try:
            if self._inventory.found:
                self._inventory.add(new)
            elif not (definitions.logs and definitions.topics) or self._has_directories():
                # Otherwise the directories are gone: what is found now is not all there is.
                names = [*new, *(name for name in known if defines(definitions, name))]
                if names or self._inventory.damaged:
                    self._inventory.write(names)
        except WriteFailed as error:
            log.warning("the list of topics cannot be written", reason=str(error))


def _conflict(name: TopicName, adopt: TopicName, directory: str) -> UnclaimedDirectory:
    return UnclaimedDirectory(f"topic {name}", directory, f"lithify topics adopt {adopt}")


def _last(name: TopicName) -> str:
    return name.path.rpartition("/")[2]
