"""The directories of a node's blob stores: which belong to a store, which are removed or kept.

    ROOT/NAME/          see `stores.py`

When the node starts, a directory with the name of a store is one of these:

1. marked `DELETED` for the log that it holds (`log/directory_marks.py`): a deletion was interrupted
   and is finished, even if older definitions still have the store.
2. marked `CREATING` and not defined, or defined and not created yet: creating a store, a copy or a
   restore was interrupted; nothing of it was acknowledged. It is removed. If it is defined and
   created, only the mark is left over, unless the mark says that the definition existed before the
   restore: then it is removed too.
3. defined, and its file `OBJECT` names what is defined (`log/object_file.py`): it is served, if it
   has the shape of the definition. Otherwise it is another store: it is not opened, and a deletion
   removes only the definition.
4. empty: the last step of a removal was interrupted. It is removed.
5. **unclaimed**: kept and reported. It is not served, and no store is created in its place until it
   is adopted or moved away.

Adopting defines the store: its shape is in its manifest. The namespace and settings are not in the
directory, so they are arguments of adopting; missing settings are the node's. If the store is
defined with its data on this node, and only the file `OBJECT` is missing or damaged, adopting
writes it, and the definition stays.

Called by `stores.py`, which holds the claim of the name; all methods read the disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lithify.blobs.definition import StoreDefinition
from lithify.blobs.errors import NotABlobStore, ShapeDiffers
from lithify.blobs.settings import StoreShape
from lithify.blobs.store import KIND
from lithify.errors import InvalidInput, LithifyError, UnclaimedDirectory, WriteFailed
from lithify.fs.remove_tree import remove_tree
from lithify.log.directory_marks import (
    Deletion,
    clear_mark,
    is_creating,
    is_empty,
    is_restoring,
    log_id_in,
    read_deletion,
    remove_created,
    remove_deleted,
    write_deletion,
)
from lithify.log.file_names import CREATING, DELETED, MANIFEST, OBJECT
from lithify.log.manifest import read_manifest
from lithify.log.object_file import WrongObject, check_object, is_of, read_object, write_object
from lithify.log.unfinished_deletions import may_stay_unfinished
from lithify.logger import get_logger
from lithify.names import check_store_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lithify.blobs.definition import StoreDefinitions
    from lithify.fs import FileSystem
    from lithify.log.object_file import ObjectIdentity

__all__ = ["StoreDirectories", "UnclaimedStore", "deletion_in", "differs_in_shape"]

NAMED_MAX = 10
"""Number of unclaimed stores that one log line names."""

log = get_logger("lithify.blobs")

_UNREADABLE = (LithifyError, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class UnclaimedStore:
    """A directory that may hold a store."""

    name: str
    directory: str
    problem: str
    """Why it cannot be adopted; empty if it can."""

    def row(self) -> dict[str, Any]:
        """The value for JSON."""
        return {"store": self.name, "directory": self.directory, "problem": self.problem}


class StoreDirectories:
    """See the module."""

    def __init__(self, fs: FileSystem, root: str, definitions: StoreDefinitions) -> None:
        """Finish interrupted operations, and find directories without a definition."""
        self._fs = fs
        self._root = root
        self._definitions = definitions
        self.unclaimed: dict[str, UnclaimedStore] = {}
        """The result of the last scan of the disk."""
        self._finish_interrupted()

    def path(self, name: str) -> str:
        """The directory of a store."""
        return f"{self._root}/{name}"

    def check_free(self, name: str) -> None:
        """Raise `UnclaimedDirectory` if the directory of a new store has data."""
        path = self.path(name)
        if not self._fs.exists(path):
            return
        if self.is_deleted(name):
            remove_deleted(self._fs, path)
        elif is_creating(self._fs, path):
            remove_created(self._fs, path)
        elif is_empty(self._fs, path):
            remove_tree(self._fs, path)
        else:
            raise UnclaimedDirectory(f"blob store {name}", path, f"lithify blobs adopt {name}")

    def is_deleted(self, name: str) -> bool:
        """Whether a store is marked as deleted."""
        return deletion_in(self._fs, self.path(name), name) is not None

    def mark_deleted(self, name: str, now_ms: int) -> None:
        """Mark a store as deleted; durable when it returns."""
        path = self.path(name)
        if self._fs.exists(path):
            logs = {"": log_id_in(self._fs, path)}
            identity = self._definitions.store_identity(name)
            write_deletion(self._fs, path, Deletion(name, now_ms, logs, identity))

    def unmark(self, name: str) -> None:
        """Remove the mark; the definition is still there."""
        clear_mark(self._fs, self.path(name), DELETED)

    def remove_deleted(self, name: str) -> None:
        """Remove a store that is marked as deleted, its mark last."""
        remove_deleted(self._fs, self.path(name))

    def created(self, name: str) -> None:
        """Remove the mark `CREATING` of a store that is defined."""
        if is_creating(self._fs, self.path(name)):
            self.check_object(name)
            clear_mark(self._fs, self.path(name), CREATING)

    def check_shape(self, name: str, definition: StoreDefinition) -> None:
        """Raise `ShapeDiffers` if a directory holds another store than the defined one."""
        shape = _readable_shape(self._fs, self.path(name))
        if shape is None:
            # Missing or damaged: opening the store reports it.
            return
        found = shape.capacity_bytes, shape.segment_bytes
        defined = definition.capacity_bytes, definition.segment_bytes
        if found != defined:
            raise ShapeDiffers(name, self.path(name), defined, found)

    def check_object(self, name: str) -> ObjectIdentity | None:
        """The defined store; `WrongObject`, `UnclaimedDirectory` unless the directory is of it."""
        wanted, path = self._definitions.store_identity(name), self.path(name)
        adopt, is_new = f"lithify blobs adopt {name}", self._is_new(path)
        check_object(self._fs, path, wanted, f"blob store {name}", adopt, is_new=is_new)
        return wanted

    def _is_served(self, name: str) -> bool:
        wanted, path = self._definitions.store_identity(name), self.path(name)
        is_own = is_of(self._fs, path, wanted, is_new=self._is_new(path))
        return self._definitions.owns_store(name) and is_own

    def _is_new(self, path: str) -> bool:
        """Is nothing acknowledged in it? It gets the file `OBJECT` when it is defined."""
        fs = self._fs
        return not fs.exists(path) or is_creating(fs, path) or is_empty(fs, path)

    def disown(self, name: str) -> None:
        """Remove what a directory says of itself, durably: it is of no object from then on."""
        for each in (OBJECT, DELETED):
            clear_mark(self._fs, self.path(name), each)

    def disown_removed(self, name: str) -> None:
        """Before a store is removed of which this directory has not the data."""
        found = read_object(self._fs, self.path(name))
        if found is None or found == self._definitions.store_identity(name):
            # Otherwise the removal would delete it.
            self.disown(name)

    def claim(self, name: str) -> None:
        """Say in a directory that it is of the defined store, durably."""
        wanted = self._definitions.store_identity(name)
        if wanted is not None and self._definitions.owns_store(name):
            write_object(self._fs, self.path(name), wanted)

    def check_claimable(self, name: str, definition: StoreDefinition) -> None:
        """Raise unless a directory can be that of the defined store, and only lacks `OBJECT`."""
        self._definitions.check_store_owner(name)
        found, wanted = (
            read_object(self._fs, self.path(name)),
            self._definitions.store_identity(name),
        )
        if found is not None and wanted is not None:
            raise WrongObject(f"blob store {name}", self.path(name), wanted.id, found.id)
        self.check_shape(name, definition)

    def definition(
        self, name: str, namespace: str, settings: Mapping[str, Any], now_ms: int
    ) -> StoreDefinition:
        """The definition for an unclaimed directory; raises if it holds no store."""
        shape = _shape(self._fs, self.path(name))
        return StoreDefinition(
            namespace, shape.capacity_bytes, shape.segment_bytes, now_ms, dict(settings)
        )

    def scan(self) -> dict[str, UnclaimedStore]:
        """Scan the disk for unclaimed stores."""
        self.unclaimed = {
            name: UnclaimedStore(name, self.path(name), self._problem(name))
            for name in self._names()
            if not self._is_served(name)
            and not self.is_deleted(name)
            and not is_creating(self._fs, self.path(name))
            and not is_empty(self._fs, self.path(name))
        }
        return self.unclaimed

    def _problem(self, name: str) -> str:
        try:
            _shape(self._fs, self.path(name))
            row = self._definitions.stores().get(name)
            if row is not None:
                self.check_claimable(name, StoreDefinition(**row))
        except _UNREADABLE as error:
            return str(error)
        return ""

    def _names(self) -> Iterator[str]:
        for name in self._fs.list(self._root) if self._fs.exists(self._root) else ():
            with suppress(InvalidInput):
                # A directory with another kind of name is ignored.
                check_store_name(name)
                if self._fs.stat(self.path(name)).is_dir:
                    yield name

    def _finish_removals(self) -> None:
        """Delete the directories of exactly those stores that were deleted, and confirm it."""
        done = []
        for removal in self._definitions.removals():
            if removal.is_store:
                with may_stay_unfinished(log, f"blob store {removal.identity.name}"):
                    self.finish_removal(removal.identity)
                    done.append(removal.identity.id)
        self._definitions.confirm_removals(done)

    def finish_removal(self, identity: ObjectIdentity) -> None:
        """Delete the directory of exactly the store that was deleted."""
        name = identity.name
        path = self.path(name)
        deletion = read_deletion(self._fs, path)
        if deletion is not None and deletion.of == identity and self.is_deleted(name):
            remove_deleted(self._fs, path)
        elif read_object(self._fs, path) == identity:
            remove_tree(self._fs, path, OBJECT)
        else:
            return
        self.unclaimed.pop(name, None)

    def clear_removed(self, name: str) -> None:
        """Delete the directory of a deleted store of the name, before another one uses it."""
        found = read_object(self._fs, self.path(name))
        if found is not None and found != self._definitions.store_identity(name):
            for removal in self._definitions.removals():
                if removal.is_store and removal.identity == found:
                    self.finish_removal(found)

    def _is_created(self, name: str) -> bool:
        """Had the owner created the files when it was defined, or has it recorded that since?"""
        return bool(self._definitions.stores()[name]["created_ms"])

    def _finish_interrupted(self) -> None:
        for name in list(self._names()):
            known = self._is_served(name)
            path = self.path(name)
            deletion = deletion_in(self._fs, path, name)
            if deletion is not None:
                with may_stay_unfinished(log, f"blob store {name}"):
                    # The store may have been created again: then its definition stays.
                    if known and deletion.of == self._definitions.store_identity(name):
                        self._definitions.remove_store(name)
                    remove_deleted(self._fs, path)
            elif is_creating(self._fs, path):
                if known and self._is_created(name) and not is_restoring(self._fs, path):
                    self.created(name)
                else:
                    remove_created(self._fs, path)
            elif not known and is_empty(self._fs, path):
                with suppress(WriteFailed):
                    remove_tree(self._fs, path)
        self._finish_removals()
        if self.scan():
            log.warning(
                "directories of blob stores without a definition are not served: "
                "see 'lithify blobs list --unclaimed' and 'lithify blobs adopt'",
                stores=len(self.unclaimed),
                first=", ".join(list(self.unclaimed)[:NAMED_MAX]),
            )


def deletion_in(fs: FileSystem, directory: str, name: str) -> Deletion | None:
    """The mark in the directory of a store, if it names what is there."""
    found = read_deletion(fs, directory)
    if found is None or found.name != name:
        return None
    covers = found.covers("", log_id_in(fs, directory), read_object(fs, directory))
    return found if covers else None


def differs_in_shape(fs: FileSystem, directory: str, row: Mapping[str, Any]) -> bool:
    """Does a directory hold another store than the defined one? False if it cannot be read."""
    shape = _readable_shape(fs, directory)
    defined = row["capacity_bytes"], row["segment_bytes"]
    return shape is not None and (shape.capacity_bytes, shape.segment_bytes) != defined


def _readable_shape(fs: FileSystem, path: str) -> StoreShape | None:
    try:
        return _shape(fs, path)
    except _UNREADABLE:
        return None


def _shape(fs: FileSystem, path: str) -> StoreShape:
    if fs.exists(f"{path}/{MANIFEST}"):
        manifest = read_manifest(fs, path)
        shape = StoreShape.from_state(manifest.state) if manifest.kind == KIND else None
        if shape is not None:
            return shape
    raise NotABlobStore(f"{path} holds no blob store, or one whose creation was not finished")
