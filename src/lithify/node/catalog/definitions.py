"""The definitions of a node in the catalog of its cluster.

    definitions = CatalogDefinitions(cluster, fs, directory, events)
    definitions.current.topics["persistent://public/default/orders"]
    definitions.change(lambda d: d.with_tenant("acme", {}))

`current` is a view of the newest version that is applied here; any thread reads it without waiting.
`change` executes one command (`definition_edits.py`) in the cluster thread, so it must not be
called there. It returns when the version is in force on every node.

    DIRECTORY/definitions.copy

**The copy** is for other processes: a backup, or a Spark job that reads a data directory. It has
all tenants and namespaces, and the topics and stores that have data on this node. What a change
creates or deletes is in the copy before the change is acknowledged, so that another process finds
new data. So are changed settings, unless settings were copied in the last `SYNC_S`: then they
follow at the end of that time, all together, or when the node is closed. Writing all definitions
takes longer than a change. A crash may leave an older copy, because the catalog is what must not be
lost; the next start writes the copy again. The node never reads definitions from it. If it finds a
copy that names what the catalog lacks, because the directory of the catalog was lost or is older,
it sets that copy aside before it writes its own.

**`logs`**, that topics of this node have had logs, is a key of the node in the metastore, beside
the catalog. So it is lost only together with all definitions. It protects topics if their
directories and the inventory are missing: they may be on another disk that is not mounted. Its
value is the identity of the Raft node's directory, which is another one after that was lost or
replaced by an older copy. Then the topics that this directory does not know are listed as missing
(`lost_topics.py`), before the key and the copy are written.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lithify.catalog.changes import PutObject
from lithify.catalog.commands.removals import ConfirmRemoval
from lithify.catalog.errors import ObjectExists, ObjectInUse, ObjectNotFound
from lithify.catalog.objects import (
    BlobStoreDescriptor,
    NamespaceDescriptor,
    ObjectKind,
    Removal,
    TenantDescriptor,
    TopicDescriptor,
)
from lithify.catalog.placement import place
from lithify.errors import InvalidInput, LithifyError
from lithify.exit_codes import OUTCOME_UNKNOWN
from lithify.fs import replace_file, sync_replaced
from lithify.fs.checked_lines import encode_line
from lithify.log.object_file import ObjectIdentity
from lithify.log.side_files import set_aside
from lithify.logger import get_logger
from lithify.metastore.transaction import Delete, Put, Transaction
from lithify.node.catalog.definition_edits import EditDefinitions
from lithify.node.catalog.definition_views import definitions_of, own_definitions
from lithify.node.catalog.lost_topics import list_lost_topics
from lithify.ownership import NodeUrls
from lithify.raft.errors import MemberReadsOnly
from lithify.topics.definitions.definition_store import DefinitionStore
from lithify.topics.definitions.definitions import (
    AlreadyDefined,
    Definitions,
    NotDefined,
    NotEmpty,
    RemovedObject,
)
from lithify.topics.definitions.definitions_file import COPY, read_definitions_text
from lithify.topics.definitions.edited_mapping import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence

    from lithify.catalog.catalog import Catalog
    from lithify.catalog.changes import CatalogChange, CatalogUpdate
    from lithify.catalog.commands.batch import CatalogCommand
    from lithify.catalog.manager.executions import Executed
    from lithify.catalog.manager.manager import CatalogManager
    from lithify.events import EventSink
    from lithify.fs import FileSystem
    from lithify.metastore.metastore import Metastore
    from lithify.node.node_registry import NodeAddresses
    from lithify.topics.definitions.definitions import NamespaceDefinition

__all__ = ["CatalogDefinitions", "DefinitionsCluster", "DefinitionsUnknown"]

T = TypeVar("T")

CONFIRMED_TOGETHER = 1000
SYNC_S = 1.0
"""Between two copies of changed settings; after it the copy is made durable, too."""
_WITH_SETTINGS = TenantDescriptor, NamespaceDescriptor, TopicDescriptor, BlobStoreDescriptor
INITIAL_VERSION = 1
"""The version that a new cluster begins with."""

log = get_logger("lithify.node")


class DefinitionsUnknown(LithifyError):
    """The node stopped during a change: it was made, or was not, or still may be."""

    exit_code = OUTCOME_UNKNOWN


class DefinitionsCluster(Protocol):
    """What is needed of the cluster; see `cluster.py`."""

    name: str
    catalog: CatalogManager

    @property
    def metastore(self) -> Metastore:
        """Used in the cluster thread."""

    @property
    def identity(self) -> str:
        """That of the directory of this node; used in the cluster thread."""

    def nodes(self) -> Mapping[str, NodeAddresses]:
        """The nodes of the cluster, as known here now."""

    async def execute(self, commands: Sequence[CatalogCommand]) -> Executed:
        """Execute commands in bounded time; in the cluster thread."""

    def ask(self, function: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        """Run a coroutine function in the cluster thread, and wait for its result."""


class CatalogDefinitions(DefinitionStore):
    """See the module."""

    def __init__(
        self, cluster: DefinitionsCluster, fs: FileSystem, directory: str, events: EventSink
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._fs = fs
        self._copy = f"{directory}/{COPY}"
        self._key = f"node/{cluster.name}/topic-logs".encode()
        self._lock = threading.Lock()
        self._of: Catalog | None = None
        """The catalog that `_current` is a view of."""
        self._current: Definitions
        self._tenants: tuple[TenantDescriptor, ...] = ()
        self._of_tenants: Mapping[str, dict[str, Any]] = {}
        self._namespaces: tuple[NamespaceDescriptor, ...] = ()
        self._of_namespaces: Mapping[str, NamespaceDefinition] = {}
        self._writing_copy = threading.Lock()
        self._copied = ""
        """The content of the copy."""
        self._copied_version = 0
        self._will_sync = False
        self._is_closed = False
        self._delays_settings = False
        """Were settings copied since the last sync? Then the next sync copies others."""
        self._thread: threading.Thread
        self._logs = False
        self.on_removed: Callable[[RemovedObject], None] = ignore_removal
        """Called in the cluster thread, for each object of this node that a version has deleted,
        before the version is ready; it must not wait."""
        is_replaced = cluster.ask(self._begin)
        self.found = cluster.catalog.versions.latest.version > INITIAL_VERSION
        text = self._set_aside_copy(events)
        if is_replaced:
            copied = None if text is None else Definitions.from_json(text, self._copy)
            list_lost_topics(fs, directory, self.current, copied, events)
            with suppress(MemberReadsOnly):
                self._wait(partial(self._write_logs, logs=True))
        self._complete_copy()

    # --- reading ----------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._cluster.name

    @property
    def catalog(self) -> Catalog:
        """The newest catalog that is applied here."""
        return self._cluster.catalog.versions.latest

    @property
    def current(self) -> Definitions:
        """See `DefinitionStore`."""
        if self.catalog is not self._of:
            with self._lock:
                self._renew()
        return self._current

    def _renew(self) -> None:
        """Make `current` a view of the newest catalog; the caller has the lock."""
        catalog = self.catalog
        tenants, namespaces = tuple(catalog.tenants()), tuple(catalog.namespaces())
        view = definitions_of(catalog, self.node, logs=self._logs)
        # Permissions are in these two: that they are the same objects says that none has changed.
        if not _are_same(tenants, self._tenants):
            self._tenants, self._of_tenants = tenants, dict(view.tenants)
        if not _are_same(namespaces, self._namespaces):
            self._namespaces, self._of_namespaces = namespaces, dict(view.namespaces)
        self._current = replace(view, tenants=self._of_tenants, namespaces=self._of_namespaces)
        self._of = catalog

    def urls(self, node: str) -> NodeUrls:
        """See `DefinitionStore`."""
        found = self._cluster.nodes().get(node)
        return NodeUrls(found.pulsar, found.pulsar_tls, found.http) if found else NodeUrls()

    def place_store(self) -> str:
        """See `DefinitionStore`: by the zone, among the nodes that serve HTTP."""
        nodes, zone = self._cluster.nodes().items(), self.catalog.default_zone
        serving = {self.node, *(name for name, each in nodes if each.is_alive and each.http)}
        (owner,) = place(self.catalog, zone.id if zone is not None else 0, serving)
        return owner

    def check_store_place(self, name: str, owner: str) -> None:
        """See `DefinitionStore`."""
        if owner not in self._cluster.nodes():
            raise InvalidInput(f"node {owner} is not a member of the cluster")
        super().check_store_place(name, owner)

    # --- changing ---------------------------------------------------------------------------

    def change(self, edit: Callable[[Definitions], Definitions]) -> Definitions:
        """See `DefinitionStore`."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("definitions are changed outside of the cluster thread")
        current = self.current
        new = edit(current)
        if not _only_logs(current, new):
            nodes = self._cluster.nodes().items()
            alive = {self.node, *(name for name, each in nodes if each.is_alive)}
            command = EditDefinitions(edit, self.node, tuple(sorted(alive)), logs=current.logs)
            with _errors_of_definitions():
                self._wait(partial(self._execute, command))
            if command.logs != current.logs:
                self._try_to_write_logs(logs=command.logs)
        # Compared with what the edit has seen: another change may have set the flag meanwhile.
        elif new.logs != current.logs:
            self._wait(partial(self._write_logs, logs=new.logs))
        return self.current

    def _try_to_write_logs(self, *, logs: bool) -> None:
        """After a change that is made: it has not failed if only the flag cannot be written."""
        try:
            self._wait(partial(self._write_logs, logs=logs))
        except LithifyError as error:
            # As it is it protects more than it must, or the next topic that is opened sets it.
            log.warning("the record that topics have logs cannot be written", reason=str(error))

    def execute(self, commands: Sequence[CatalogCommand]) -> None:
        """Execute a batch of other commands, as `change` does."""
        self._wait(partial(self._execute, *commands))

    def removals(self) -> list[RemovedObject]:
        """See `DefinitionStore`."""
        removals = self.catalog.removals()
        return [_removed_object(each) for each in removals if self.node in each.nodes]

    def confirm_removals(self, ids: Collection[int]) -> None:
        """See `DefinitionStore`."""
        confirmed = [ConfirmRemoval(each, self.node) for each in ids]
        for start in range(0, len(confirmed), CONFIRMED_TOGETHER):
            try:
                self.execute(confirmed[start : start + CONFIRMED_TOGETHER])
            except LithifyError as error:
                log.warning("a removal cannot be confirmed yet", reason=str(error))

    def _wait(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._cluster.ask(function)
        except CancelledError as error:
            raise DefinitionsUnknown(
                "the node has stopped while definitions were changed: the outcome is unknown"
            ) from error

    async def _execute(self, *commands: CatalogCommand) -> None:
        catalog = self._cluster.catalog
        executed = await self._cluster.execute(commands)
        # The change is made, also if this node stops before it has written the copy.
        with suppress(LithifyError):
            await catalog.wait_ready(executed.version)
        if catalog.versions.latest.version < executed.version:
            # The caller would continue with the definitions from before the change.
            raise DefinitionsUnknown(
                f"version {executed.version} of the catalog was written, but this node cannot "
                "follow the catalog, and does not have that version"
            )

    async def _write_logs(self, *, logs: bool) -> None:
        if not logs and self.current.topics:
            # Another change has made a topic meanwhile.
            return
        identity = self._cluster.identity.encode()
        operation = Put(self._key, identity) if logs else Delete(self._key)
        await self._cluster.metastore.transact(Transaction(then=(operation,)))
        with self._lock:
            self._logs = logs
            self._renew()

    # --- in the cluster thread --------------------------------------------------------------

    async def _begin(self) -> bool:
        """Had topics of this node logs in another directory?"""
        self._thread = threading.current_thread()
        found = await self._cluster.metastore.get(self._key)
        self._logs = found is not None
        # Last: without a quorum all of this is repeated.
        self._cluster.catalog.listen(self._applied)
        return found is not None and found.value != self._cluster.identity.encode()

    async def _applied(
        self, before: Catalog, after: Catalog, update: CatalogUpdate | None, /
    ) -> None:
        if update is not None:
            put = (each.object for each in update.changes if isinstance(each, PutObject))
            removals = [each for each in put if isinstance(each, Removal)]
        else:
            removals = after.removals()
        for each in removals:
            if self.node in each.nodes and before.objects.get(each.id) != each:
                self.on_removed(_removed_object(each))
                # Others may run between two of them.
                await asyncio.sleep(0)
        if after.version > self._copied_version:
            if update is None or _creates_or_deletes(before, update):
                await asyncio.to_thread(self._write_copy)
            elif not self._delays_settings:
                self._delays_settings = True
                await asyncio.to_thread(self._write_copy)
            if not self._will_sync:
                self._will_sync = True
                asyncio.get_running_loop().call_later(SYNC_S, self._begin_sync)
        for watcher in self.watchers:
            watcher()

    def _begin_sync(self) -> None:
        self._will_sync = self._delays_settings = False
        if self._is_closed:
            # The loop may be ending, and takes no more work for other threads.
            return
        asyncio.get_running_loop().run_in_executor(None, self._sync_copy)

    # --- the copy ---------------------------------------------------------------------------

    def close(self) -> None:
        """Write what the copy does not have yet."""
        self._is_closed = True
        self._complete_copy()

    def _complete_copy(self) -> None:
        if self._copied_version < self.catalog.version:
            self._write_copy()

    def _write_copy(self) -> None:
        with self._writing_copy:
            version, text = self._content()
            if text != self._copied:
                try:
                    if text:
                        replace_file(self._fs, self._copy, encode_line(text))
                    else:
                        self._remove_copy()
                except OSError as error:
                    # The definitions are safe. The next change, or start, writes the copy.
                    self._copied = ""
                    log.warning("the copy of the definitions cannot be written", reason=str(error))
                    return
            self._copied, self._copied_version = text, version

    def _content(self) -> tuple[int, str]:
        """The version, and what a copy of it contains."""
        version = self.catalog.version
        own = own_definitions(self.current)
        return version, own.to_json() if version > INITIAL_VERSION else ""

    def _sync_copy(self) -> None:
        self._complete_copy()
        try:
            sync_replaced(self._fs, self._copy)
        except OSError as error:
            log.warning("the copy of the definitions is not durable", reason=str(error))

    def _remove_copy(self) -> None:
        """As a data directory in which nothing was defined."""
        with suppress(FileNotFoundError):
            self._fs.remove(self._copy)

    def _set_aside_copy(self, events: EventSink) -> bytes | None:
        """Keep a copy that names what the catalog does not know; returns what it has, as JSON."""
        version, wanted = self._content()
        try:
            text = read_definitions_text(self._fs, self._copy)
            if text is None:
                return None
            self._copied = text.decode()
            if self._copied == wanted:
                # Nearly always. With very many topics, parsing it takes long.
                self._copied_version = version
                return text
            copied = Definitions.from_json(text, self._copy)
        except LithifyError as error:
            self._copied = "unreadable"
            set_aside(self._fs, self._copy, str(error), events)
            return None
        removed = {each.name for each in self.catalog.removals()}
        known = {*self.current.topics, *self.current.stores, *removed}
        lost = [name for name in (*copied.topics, *copied.stores) if name not in known]
        if lost:
            reason = f"the catalog does not define {lost[0]} and {len(lost) - 1} more"
            set_aside(self._fs, self._copy, reason, events)
        return text


def ignore_removal(_removed: RemovedObject) -> None:
    """Nothing is open."""


def _removed_object(removal: Removal) -> RemovedObject:
    identity = ObjectIdentity(removal.id, removal.name, removal.created_ms)
    return RemovedObject(identity, removal.partitions, removal.of is ObjectKind.STORE)


def _creates_or_deletes(before: Catalog, update: CatalogUpdate) -> bool:
    """Does an update change more than settings?"""
    return not all(_changes_settings(before, each) for each in update.changes)


def _changes_settings(before: Catalog, change: CatalogChange) -> bool:
    if not isinstance(change, PutObject):
        return False
    old, new = before.objects.get(change.object.id), change.object
    if not isinstance(new, _WITH_SETTINGS) or type(old) is not type(new):
        return False
    return replace(new, settings=old.settings, updated=old.updated) == old


def _are_same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _only_logs(before: Definitions, after: Definitions) -> bool:
    """Is the flag `logs` all that an edit has changed?"""
    return not any(
        (
            differences(before.tenants, after.tenants),
            differences(before.namespaces, after.namespaces),
            differences(before.topics, after.topics),
            differences(before.stores, after.stores),
        )
    )


@contextmanager
def _errors_of_definitions() -> Iterator[None]:
    """Raise the errors that definitions in a file raise."""
    try:
        yield
    except ObjectNotFound as error:
        raise NotDefined(str(error)) from error
    except ObjectExists as error:
        raise AlreadyDefined(str(error)) from error
    except ObjectInUse as error:
        raise NotEmpty(str(error)) from error
