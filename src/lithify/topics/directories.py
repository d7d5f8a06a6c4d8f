"""The directories of a node's topics: which belong to a topic, which may go, which are set aside.

    ROOT/TENANT/NAMESPACE/TOPIC         and ROOT/TENANT/NAMESPACE/TOPIC-partition-3

`unclaimed.py` tells what a directory is; here it is acted on. Data is removed in one place,
`remove`, and only by a mark about exactly that data (`compaction/marks.py`).

Whoever calls holds the claims of the topics (`store.py`); all wait for the disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lithify.compaction.marks import (
    Deletion,
    clear_mark,
    is_creating,
    is_empty,
    log_id_in,
    remove_created,
    remove_deleted,
    write_deletion,
)
from lithify.errors import MissingLog, UnclaimedDirectory, WriteFailed
from lithify.fs.trees import remove_tree
from lithify.log.names import CREATING, DELETED, MANIFEST
from lithify.logger import get_logger
from lithify.topics.definitions import Definitions
from lithify.topics.unclaimed import (
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
    from lithify.topics.definitions import DefinitionsFile
    from lithify.topics.names import TopicName

__all__ = ["TopicDirectories"]

NAMED_MAX = 10
"""Unclaimed topics that one line of the log names."""

log = get_logger("lithify.topics")


class TopicDirectories:
    """See the module."""

    def __init__(self, fs: FileSystem, root: str, definitions: DefinitionsFile) -> None:
        """Finish what was interrupted, and set aside what no definition explains."""
        self._fs = fs
        self._root = root
        self._definitions = definitions
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

    def check_log(self, name: TopicName) -> None:
        """Raise `MissingLog` if a topic has no log although it had one."""
        path = self.path(name)
        manifest = f"{path}/log/{MANIFEST}"
        if self._fs.exists(manifest):
            return
        # Both are made after the log.
        for each in (f"cursors/{MANIFEST}", "producers"):
            if self._fs.exists(f"{path}/{each}"):
                raise MissingLog(manifest, str(name), f"{name} has {each}")
        self.check_root(name)

    def check_root(self, name: TopicName) -> None:
        """Raise `MissingLog` if the directories of all topics are gone, as of an unmounted disk."""
        definitions = self._definitions.current
        if definitions.logs and definitions.topics and not self._has_directories():
            raise MissingLog(self._root, str(name), "the definitions say that topics have logs")

    def _has_directories(self) -> bool:
        return self._fs.exists(self._root) and any(
            self._fs.stat(f"{self._root}/{each}").is_dir for each in self._fs.list(self._root)
        )

    def note_log(self) -> None:
        """A topic has a log: from now on its directory must be there."""
        if not self._definitions.current.logs:
            # If the disk refuses it, the next topic that is opened notes it.
            with suppress(WriteFailed):
                self._definitions.change(lambda d: replace(d, logs=True))

    # --- creating ---------------------------------------------------------------------------

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

        A log that the definition does not explain is not named, and stays.
        """
        places = {part: "" if part == name else _last(part) for part in {name, *parts}}
        definitions = self._definitions.current
        logs = {
            place: log_id_in(self._fs, f"{self.path(part)}/log")
            for part, place in places.items()
            if self._fs.exists(self.path(part))
            and explains(self._fs, self._root, definitions, part)
        }
        deletion = Deletion(str(name), now_ms, logs)
        if logs:
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

    def look(self) -> dict[TopicName, UnclaimedTopic]:
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
            if defines(definitions, name):
                clear_mark(self._fs, self.path(name), CREATING)
            else:
                remove_created(self._fs, self.path(name))
        for name in found.empty:
            with suppress(WriteFailed):
                remove_tree(self._fs, self.path(name))
        if found.deleted:
            # A deletion may leave a log that it does not name.
            self.look()
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


def _conflict(name: TopicName, adopt: TopicName, directory: str) -> UnclaimedDirectory:
    return UnclaimedDirectory(f"topic {name}", directory, f"lithify topics adopt {adopt}")


def _last(name: TopicName) -> str:
    return name.path.rpartition("/")[2]
