"""All blob stores of a node: create, open on first use, list, delete.

    stores.create("photos", capacity_bytes=2**34, segment_bytes=2**28)
    stores.get("photos").put(...)

    DIRECTORY/blobs/NAME/     the log of a store

A store exists if it is defined, whatever directories there are. `unclaimed_directories.py` decides
about a directory without a definition: it is removed if its own mark says so, otherwise it stays.

1. Creating makes a directory with the mark `CREATING`, then the files, then the definition, then
   removes the mark. A defined store without its files is damage: it is reported, not recreated.
   Another node can only define a store: then its time of creation is 0, and this node creates the
   files on first use, or when it sees the definition, and records the time in the definition.
2. Deleting writes the mark `DELETED`, removes the definition, then the files, and the mark last.

Any thread may call. A store is opened once; a second caller waits for it, and for no other store.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lithify.blobs.compaction.scheduling import BlobCompactions
from lithify.blobs.definition import (
    NAMESPACE_DEFAULT,
    StoreDefinition,
    setting_names,
    with_settings,
)
from lithify.blobs.errors import BlobStoreExists, BlobStoreNotFound, ShapeDiffers
from lithify.blobs.offline.copy_store import copy_store
from lithify.blobs.offline.verify import verify_store
from lithify.blobs.replication.peers import BlobPeers
from lithify.blobs.store import BlobStore
from lithify.blobs.unclaimed_directories import StoreDirectories, UnclaimedStore
from lithify.blobs.withdrawals import StoreWithdrawals
from lithify.compaction.scheduling.run_queue import RunQueue
from lithify.damage import Damage
from lithify.errors import (
    InvalidSetting,
    LithifyError,
    MissingFile,
    OpenFailed,
    UnclaimedDirectory,
    is_outcome_unknown,
)
from lithify.fs.full_disk_reserve import NO_RESERVE
from lithify.json_settings import changed_settings
from lithify.log.directory_marks import begin_creation, remove_created
from lithify.log.file_names import MANIFEST
from lithify.log.object_file import WrongObject
from lithify.logger import get_logger
from lithify.name_locks import Claims
from lithify.names import check_store_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lithify.blobs.definition import StoreDefinitions
    from lithify.blobs.offline.copy_store import CopyReport
    from lithify.blobs.offline.verify import VerifyReport
    from lithify.blobs.settings import BlobSettings
    from lithify.clock import Clock
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.fs.full_disk_reserve import NoReserve
    from lithify.log.object_file import ObjectIdentity

__all__ = ["ONE_SEGMENT", "BlobStores"]

ONE_SEGMENT = "the store has one segment, so it can never be compacted"

log = get_logger("lithify.blobs")


class BlobStores:
    """See the module."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        definitions: StoreDefinitions,
        *,
        settings: BlobSettings,
        clock: Clock,
        events: EventSink,
        queue: RunQueue | None = None,
    ) -> None:
        """The stores below `directory`, which no other process may have open.

        `queue` is that of the node; there is one without logs of others unless given.
        """
        self._fs = fs
        self._definitions = definitions
        self.clock = clock
        self._events = events
        self._open: dict[str, BlobStore] = {}
        self._claims = Claims[str]()
        self.damage = Damage()
        """Damage of files of stores found since the start."""
        self.reserve: NoReserve = NO_RESERVE
        self.compactions = BlobCompactions(self.opened, queue or RunQueue(clock), self.damage)
        self.settings = settings
        """The defaults of all stores."""
        self.peers = BlobPeers()
        """The other nodes that stores may replicate with."""
        self._directories = StoreDirectories(fs, f"{directory}/blobs", definitions)
        self.withdrawals = StoreWithdrawals(
            self._open, self._claims, self._directories, definitions, self.damage
        )
        """Takes stores out of use that are not of this node."""

    # --- definitions ------------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        capacity_bytes: int,
        segment_bytes: int,
        settings: Mapping[str, Any] | None = None,
        namespace: str = NAMESPACE_DEFAULT,
    ) -> BlobStore:
        """Create a store, which must not exist; `settings` override those of the node."""
        check_store_name(name)
        definition = StoreDefinition(
            namespace, capacity_bytes, segment_bytes, self.clock.now_ms(), dict(settings or {})
        )
        applied = with_settings(self.settings, definition.settings)
        shape = definition.shape
        with self._claims.of([name]), _typed_errors(name):
            if name in self._definitions.stores():
                raise BlobStoreExists(f"blob store {name} already exists")
            self._directories.check_free(name)
            self._create(name, definition, applied, self._definitions.add_store)
            store = self._open[name]
        if shape.capacity_bytes == shape.segment_bytes:
            log.warning(ONE_SEGMENT, store=name)
        return store

    def _create(
        self,
        name: str,
        definition: StoreDefinition,
        applied: BlobSettings,
        define: Callable[[str, dict[str, Any]], None],
    ) -> None:
        """Create the files, then `define` the store, and open it; the caller has the claim."""
        try:
            begin_creation(self._fs, self._path(name))
            store = BlobStore.create(
                self._fs,
                self._path(name),
                capacity_bytes=definition.capacity_bytes,
                segment_bytes=definition.segment_bytes,
                settings=applied,
                clock=self.clock,
                events=self._events,
            )
            try:
                # A crash before this leaves a directory that is marked as unfinished.
                define(name, definition.row())
            except BaseException:
                store.abandon()
                raise
        except BaseException as error:
            # If the store may be defined, the next open decides by the mark.
            if not is_outcome_unknown(error):
                with suppress(LithifyError):
                    remove_created(self._fs, self._path(name))
            raise
        try:
            identity = self._directories.check_object(name)
            # It may have been deleted meanwhile.
            self.definition(name)
            self._directories.created(name)
        except BaseException:
            # If it is defined, the next use removes the mark, otherwise the directory.
            store.abandon()
            raise
        self._add_open(name, store, identity)

    def uncreated(self) -> list[str]:
        """The stores of this node that were defined, and whose files are not created yet."""
        rows = self._definitions.stores()
        return [name for name in self.own_names() if not rows[name]["created_ms"]]

    def _create_defined(self, name: str, definition: StoreDefinition) -> None:
        """Create the files of a store that a change of the catalog has defined."""
        identity = self._definitions.store_identity(name)
        if identity is None:
            raise MissingFile(f"{self._path(name)}/{MANIFEST}", f"the definition of {name}")
        self._directories.check_free(name)
        self._create(
            name,
            definition,
            with_settings(self.settings, definition.settings),
            lambda *_: self._definitions.finish_store(identity, self.clock.now_ms()),
        )
        log.info("blob store created, as the catalog defines it", store=name)

    def _add_open(self, name: str, store: BlobStore, identity: ObjectIdentity | None) -> None:
        """From here on other threads use it."""
        store.object_id = identity.id if identity is not None else 0
        store.compaction.reserve = self.reserve
        self._open[name] = store
        if not self.withdrawals.is_own(name, store):
            # It was deleted meanwhile, and `withdraw` has not found it.
            del self._open[name]
            store.abandon()
            raise BlobStoreNotFound(f"blob store {name} was deleted while it was opened")

    def update(
        self, name: str, given: Mapping[str, Any], unset: Sequence[str] = ()
    ) -> StoreDefinition:
        """Change settings of a store, durably and immediately; `unset` ones revert to the node's.

        The shape cannot be changed: `copy` creates a store with another one.
        """
        known = setting_names(self.settings)
        names = {*known, *(each.partition(".")[0] for each in known)}
        for each in unset:
            if each not in names:
                raise InvalidSetting(each, None, f"one of {', '.join(known)}")
        with self._claims.of([name]):
            definition = self.definition(name)
            self._definitions.check_store_owner(name)
            own = changed_settings(definition.settings, given, unset)
            applied = with_settings(self.settings, own)
            self._definitions.change_store(name, lambda row: {**row, "settings": own})
            store = self._open.get(name)
            if store is not None:
                store.change_settings(applied)
        return self.definition(name)

    def applied(self, name: str) -> BlobSettings:
        """The effective settings of a store: its own, and the node's."""
        return with_settings(self.settings, self.definition(name).settings)

    def copy(
        self, source: str, target: str, *, capacity_bytes: int, segment_bytes: int
    ) -> CopyReport:
        """Create a store of another shape, which must not exist, from the valid records of one."""
        check_store_name(target)
        known = self.definition(source)
        self._definitions.check_store_owner(source)
        definition = replace(
            known,
            capacity_bytes=capacity_bytes,
            segment_bytes=segment_bytes,
            created_ms=self.clock.now_ms(),
        )
        with self._claims.of([target]):
            if target in self._definitions.stores():
                raise BlobStoreExists(f"blob store {target} already exists")
            self._directories.check_free(target)
            return copy_store(
                self._fs,
                self._path(source),
                self._path(target),
                capacity_bytes=capacity_bytes,
                segment_bytes=segment_bytes,
                settings=with_settings(self.settings, known.settings),
                clock=self.clock,
                define=partial(self._define_copy, target, definition),
            )

    def _define_copy(self, name: str, definition: StoreDefinition) -> None:
        self._definitions.add_store(name, definition.row())
        # It is defined: a failure must not remove it. Without `OBJECT` it can be adopted.
        with suppress(LithifyError):
            self._directories.claim(name)

    def verify(self, name: str) -> VerifyReport:
        """Check every byte of a store, and its index against a replay of its log."""
        self.definition(name)
        self._definitions.check_store_owner(name)
        return verify_store(self._fs, self._path(name), self.clock)

    def names(self, namespace: str | None = None) -> list[str]:
        """All stores, or those of a namespace, sorted."""
        rows = self._definitions.stores().items()
        return sorted(name for name, row in rows if namespace in (None, row["namespace"]))

    def own_names(self) -> list[str]:
        """The stores that have their data on this node, sorted."""
        return list(filter(self._definitions.owns_store, self.names()))

    def check_place(self, name: str, owner: str = "") -> None:
        """Raise `NotOwner` if a new store belongs on another node: `owner`, or where it is placed.

        `create` makes one on this node.
        """
        check_store_name(name)
        if name not in self._definitions.stores():
            self._definitions.check_store_place(name, owner or self._definitions.place_store())

    def definition(self, name: str) -> StoreDefinition:
        """The definition of a store; raises `BlobStoreNotFound`."""
        row = self._definitions.stores().get(name)
        if row is None:
            raise BlobStoreNotFound(f"blob store {name} does not exist")
        return StoreDefinition(**row)

    def delete(self, name: str) -> None:
        """Delete a store and its files; a blob that is being read is read to its end."""
        with self._claims.of([name]), self.reserve.if_full():
            definition = self.definition(name)
            self._definitions.check_store_owner(name)
            identity = self._definitions.store_identity(name)
            removed = [identity.id] if identity is not None else []
            try:
                self._directories.check_shape(name, definition)
                self._directories.check_object(name)
            except (ShapeDiffers, UnclaimedDirectory, WrongObject) as error:
                # A crash after this leaves a directory that no removal deletes.
                self._directories.disown_removed(name)
                self._definitions.remove_store(name, identity)
                log.warning("the directory of a deleted blob store is kept", reason=str(error))
                self._remove_from_use(name)
                self.damage.forget(f"blob store {name}")
                self._definitions.confirm_removals(removed)
                return
            try:
                self._directories.mark_deleted(name, self.clock.now_ms())
                self._definitions.remove_store(name, identity)
            except BaseException as error:
                # Nothing may be acknowledged in a store that the next open, or the next attempt,
                # deletes: one that is or may be deleted, or whose mark stays.
                with ExitStack() as stack:
                    stack.callback(self._remove_from_use, name)
                    if not is_outcome_unknown(error) and self._is_defined(name, identity):
                        self._directories.unmark(name)
                        stack.pop_all()
                raise
            self._remove_from_use(name)
            self.damage.forget(f"blob store {name}")
            self._directories.remove_deleted(name)
            self._definitions.confirm_removals(removed)

    def _is_defined(self, name: str, identity: ObjectIdentity | None) -> bool:
        """Is exactly this store defined?"""
        definitions = self._definitions
        return name in definitions.stores() and definitions.store_identity(name) == identity

    def _remove_from_use(self, name: str) -> None:
        """Remove a store from use."""
        self.compactions.cancel(name)
        store = self._open.pop(name, None)
        if store is not None:
            store.abandon()

    # --- directories ------------------------------------------------------------------------

    def missing(self) -> list[dict[str, Any]]:
        """Stores that are defined, so they were created, and have no log."""
        return [
            {"store": name, "directory": self._path(name), "defined": True}
            for name in self.own_names()
            if self.definition(name).created_ms
            and not self._fs.exists(f"{self._path(name)}/{MANIFEST}")
        ]

    def unclaimed(self) -> list[UnclaimedStore]:
        """Directories of stores without a definition, as they are on disk now."""
        return list(self._directories.scan().values())

    @property
    def unclaimed_count(self) -> int:
        """Number of unclaimed directories in the last scan of the disk."""
        return len(self._directories.unclaimed)

    def adopt(
        self,
        name: str,
        *,
        namespace: str = NAMESPACE_DEFAULT,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Define a store that has a directory and no definition; see `unclaimed_directories.py`."""
        with self._claims.of([name]):
            is_unclaimed = name in self._directories.scan()
            if name in self._definitions.stores():
                if not is_unclaimed:
                    raise BlobStoreExists(f"blob store {name} already exists")
                self._directories.check_claimable(name, self.definition(name))
                identity = self._definitions.store_identity(name)
                if identity is not None and not identity.created_ms:
                    # Otherwise its first use would create it.
                    self._definitions.finish_store(identity, self.clock.now_ms())
            else:
                self._adopt_undefined(name, namespace, settings or {})
            self._directories.claim(name)
            self._directories.scan()
            self.damage.forget(f"blob store {name}")
        log.info("blob store adopted", store=name)

    def _adopt_undefined(self, name: str, namespace: str, settings: Mapping[str, Any]) -> None:
        if name not in self._directories.unclaimed:
            raise BlobStoreNotFound(f"blob store {name} has no unclaimed directory")
        now_ms = self.clock.now_ms()
        definition = self._directories.definition(name, namespace, settings, now_ms)
        with_settings(self.settings, definition.settings)
        # It becomes another object. A crash after this, or after it is defined, leaves it
        # unclaimed, and it can be adopted again.
        self._directories.disown(name)
        self._definitions.add_store(name, definition.row())

    # --- stores -----------------------------------------------------------------------------

    def get(self, name: str) -> BlobStore:
        """The store, opened on first use."""
        store = self._open.get(name)
        if store is not None:
            return store
        with self._claims.of([name]), _typed_errors(name):
            definition = self.definition(name)
            self._definitions.check_store_owner(name)
            if name not in self._open:
                self._directories.clear_removed(name)
                if definition.created_ms:
                    self._open_existing(name, definition)
                else:
                    self._create_defined(name, definition)
            return self._open[name]

    def _open_existing(self, name: str, definition: StoreDefinition) -> None:
        if self._directories.is_deleted(name):
            raise BlobStoreNotFound(f"blob store {name} is marked as deleted")
        self._directories.check_shape(name, definition)
        with self.damage.opening(f"blob store {name}"):
            self._check_exists(name)
            identity = self._directories.check_object(name)
            self._directories.created(name)
            store = self._open_store(name, definition)
        self._add_open(name, store, identity)

    def _check_exists(self, name: str) -> None:
        manifest = f"{self._path(name)}/{MANIFEST}"
        if not self._fs.exists(manifest):
            # It is defined, so it was created.
            raise MissingFile(manifest, f"the definition of blob store {name}")

    def _open_store(self, name: str, definition: StoreDefinition) -> BlobStore:
        return BlobStore.open(
            self._fs,
            self._path(name),
            settings=with_settings(self.settings, definition.settings),
            clock=self.clock,
            events=self._events,
        )

    def opened_store(self, name: str) -> BlobStore | None:
        """The store if it is open; does not wait for claims."""
        return self._open.get(name)

    def opened(self) -> dict[str, BlobStore]:
        """The stores that are open now."""
        return dict(self._open)

    def damage_found(self) -> tuple[str, ...]:
        """Damage of files that were read since the start. Reads the disk."""
        return tuple(self.damage.reasons(self._fs.exists))

    def now_ms(self) -> int:
        """The time of the node's clock."""
        return self.clock.now_ms()

    def close(self) -> None:
        """Close all stores; raises the first error after all were tried."""
        self.compactions.close()
        errors = []
        for store in self._open.values():
            try:
                store.close()
            except Exception as error:  # noqa: BLE001  (the others must be closed too)
                errors.append(error)
        self._open.clear()
        if errors:
            raise errors[0]

    def _path(self, name: str) -> str:
        return self._directories.path(name)


@contextmanager
def _typed_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OpenFailed(f"blob store {name}", error) from error
